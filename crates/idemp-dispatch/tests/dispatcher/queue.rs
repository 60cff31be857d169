//! Who is next at a sink, how many are at it, and what a worker leaves behind.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, Weak};

use idemp_core::{Attempt, Outcome, Reason, RetrySchedule};
use idemp_dispatch::Settlement;
use idemp_testkit::gate::Gate;
use idemp_testkit::sink::{Call, Reply, ScriptedSink};
use tokio::time::Instant;
use tracing_subscriber::Registry;
use tracing_subscriber::registry::LookupSpan;

use super::*;

/// The number of a call's event, from 1.
fn number(call: &Call) -> u64 {
    call.key.step_index().as_u64()
}

/// The numbers of the events, in the order of their attempts.
fn order(sink: &ScriptedSink) -> Vec<u64> {
    sink.calls().iter().map(number).collect()
}

fn submit(rig: &Rig, count: usize) -> Vec<idemp_dispatch::Handle> {
    let messages = messages(count).into_iter();
    messages
        .map(|message| rig.dispatcher.try_submit(message).unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_place_is_used_and_none_twice_whatever_comes_of_the_attempts() {
    // A second each. The even ones fail at first and come back a second later.
    let sink = ScriptedSink::with(|call| {
        match (number(call) % 2, call.number) {
            (0, 1) => Reply::status(503),
            _ => Reply::delivered(),
        }
        .delayed(secs(1))
    });
    let rig = Rig::with(&sink, |lane| lane.concurrency = 4);
    let start = Instant::now();
    for handle in submit(&rig, 40) {
        assert!(handle.settled().await.all_delivered());
    }
    assert_eq!((sink.calls().len(), sink.max_in_flight()), (60, 4));
    assert_eq!(start.elapsed(), secs(15), "60 attempts, four at a time");
    rig.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_and_who_comes_back_stands_behind_those_that_wait() {
    let sink = ScriptedSink::with(|call| match (number(call), call.number) {
        (1, 1) => Reply::status(503),
        _ => Reply::delivered().delayed(secs(1)),
    });
    let rig = Rig::with(&sink, |lane| lane.concurrency = 1);
    // Back after a second, when the second event is at it and four wait.
    for handle in submit(&rig, 6) {
        assert!(handle.settled().await.all_delivered());
    }
    assert_eq!(order(&sink), [1, 2, 3, 4, 5, 6, 1]);
}

#[tokio::test]
async fn a_sink_that_never_waits_gets_events_in_order_too() {
    let sink = ScriptedSink::always(Reply::delivered());
    let rig = Rig::with(&sink, |lane| lane.concurrency = 8);
    for handle in submit(&rig, 1_000) {
        assert!(handle.settled().await.all_delivered());
    }
    assert_eq!(order(&sink), Vec::from_iter(1..=1_000));
}

#[tokio::test]
async fn a_sink_that_never_waits_leaves_the_thread_to_others() {
    let sink = ScriptedSink::always(Reply::delivered());
    let rig = Rig::with(&sink, |lane| lane.concurrency = 1);
    let handles = submit(&rig, 1_000);
    // Behind the runner in the queue of the only thread.
    let other = tokio::spawn({
        let sink = sink.clone();
        async move { sink.calls().len() }
    });
    let calls = other.await.unwrap();
    assert!((1..1_000).contains(&calls), "{calls} attempts before anybody else");
    for handle in handles {
        assert!(handle.settled().await.all_delivered());
    }
}

/// A clock that panics once when it is told to.
struct FaultyClock {
    clock: idemp_testkit::clock::Clock,
    panics: Arc<AtomicBool>,
}

impl Clock for FaultyClock {
    fn now(&self) -> SystemTime {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "the test says so");
        self.clock.wall()
    }
}

/// A dispatcher with such a clock, and one lane of so many places.
pub(crate) fn dispatcher(sink: &ScriptedSink, concurrency: usize, panics: &Arc<AtomicBool>) -> Dispatcher {
    let mut lane = LaneConfig::new(name("sink"), Arc::new(sink.clone()), Arc::new(MemoryStore::new()));
    (lane.concurrency, lane.attempt_timeout) = (concurrency, secs(3_000));
    let clock = FaultyClock {
        clock: idemp_testkit::clock::Clock::start(),
        panics: Arc::clone(panics),
    };
    Dispatcher::with_clock(vec![lane], Arc::new(clock)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_panics_loses_one_event_and_no_place() {
    let (panics, gate) = (Arc::new(AtomicBool::new(false)), Gate::shut());
    let sink = ScriptedSink::with({
        let (panics, gate) = (Arc::clone(&panics), gate.clone());
        move |call| match number(call) {
            1 => Reply::delivered().delayed(secs(1)),
            2 => {
                // For the first event, which settles before this one.
                panics.store(true, Ordering::SeqCst);
                Reply::delivered().delayed(secs(2))
            }
            _ => Reply::delivered().behind(&gate),
        }
    });
    let dispatcher = dispatcher(&sink, 2, &panics);
    let submitted = messages(6).into_iter().map(|message| dispatcher.try_submit(message));
    let mut handles: Vec<_> = submitted.map(Result::unwrap).collect();
    let lost = tokio::spawn(handles.remove(0).settled()).await;
    assert!(lost.unwrap_err().is_panic(), "nobody waits for what never comes");
    tokio::time::sleep(secs(10)).await;
    assert_eq!(sink.in_flight(), 2);
    gate.open();
    for handle in handles {
        assert!(handle.settled().await.all_delivered());
    }
    assert_eq!((order(&sink), sink.max_in_flight()), (vec![1, 2, 3, 4, 5, 6], 2));
    assert_eq!(dispatcher.flush(secs(1)).await, 0);
    let stats = dispatcher.stats().lanes.remove(0);
    assert_eq!((stats.delivered, stats.lost, stats.unsettled()), (5, 1, 0));
    // What is lost is on its way no longer: it may be submitted anew.
    assert!(dispatcher.dispatch(message()).await.unwrap().all_delivered());
}

#[tokio::test(start_paused = true)]
async fn an_event_is_not_accepted_if_the_clock_panics_before() {
    let panics = Arc::new(AtomicBool::new(true));
    let sink = ScriptedSink::always(Reply::delivered());
    let dispatcher = dispatcher(&sink, 1, &panics);
    let submitted = tokio::spawn({
        let dispatcher = dispatcher.clone();
        async move { dispatcher.submit(message()).await.map(|_| ()) }
    });
    assert!(submitted.await.unwrap_err().is_panic());
    assert_eq!(dispatcher.stats().lanes[0].accepted, 0);
    assert!(dispatcher.dispatch(message()).await.unwrap().all_delivered());
}

/// Names of the span that is current and of all above it.
fn spans() -> Vec<&'static str> {
    let names = |(id, subscriber): (&tracing::Id, &tracing::Dispatch)| {
        let registry = subscriber.downcast_ref::<Registry>().unwrap();
        let scope = registry.span(id).unwrap().scope();
        scope.map(|span| span.name()).collect()
    };
    tracing::Span::current().with_subscriber(names).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn an_attempt_belongs_to_the_span_in_which_its_event_was_submitted() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = ScriptedSink::with({
        let seen = Arc::clone(&seen);
        move |call| {
            seen.lock().unwrap().push((number(call), spans()));
            match call.number {
                1 => Reply::status(503),
                _ => Reply::delivered(),
            }
        }
    });
    let rig = Rig::with(&sink, |lane| lane.concurrency = 1);
    let messages = messages(3);
    // While no or one subscriber exists, a span that another test's thread is the first to enter stays off. So it has
    // been entered before, and there are two.
    rig.dispatcher.dispatch(messages[2].clone()).await.unwrap();
    seen.lock().unwrap().clear();
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _traced = tracing::subscriber::set_default(tracing_subscriber::registry());

    let one = tracing::info_span!("one").in_scope(|| rig.dispatcher.try_submit(messages[0].clone()).unwrap());
    let two = tracing::info_span!("two").in_scope(|| rig.dispatcher.try_submit(messages[1].clone()).unwrap());
    assert!(one.settled().await.all_delivered() && two.settled().await.all_delivered());
    let (one, two) = ((1, vec!["deliver", "one"]), (2, vec!["deliver", "two"]));
    assert_eq!(*seen.lock().unwrap(), [one.clone(), two.clone(), one, two]);
}

#[tokio::test(start_paused = true)]
async fn a_dispatcher_that_is_dropped_at_rest_frees_its_sink() {
    let script = ScriptedSink::with(|call| match (number(call), call.number) {
        (1, 1) => Reply::status(503),
        (2, _) => Reply::status(400),
        (3, 1) => Reply::panic(),
        _ => Reply::delivered(),
    });
    let sink: Arc<dyn Sink> = Arc::new(script.clone());
    let held: Weak<dyn Sink> = Arc::downgrade(&sink);
    let mut lane = LaneConfig::new(name("sink"), sink, Arc::new(MemoryStore::new()));
    lane.concurrency = 2;
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    for message in messages(10) {
        let _ = dispatcher.try_submit(message).unwrap();
    }
    assert_eq!(dispatcher.flush(secs(60)).await, 0);
    assert_eq!(script.calls().len(), 12);
    drop(dispatcher);
    // The last runner has nothing left to wait for.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(held.strong_count(), 0);
}

/// A sink that is always at work and comes to no end.
struct BusySink;

#[async_trait]
impl Sink for BusySink {
    async fn deliver(&self, _: &Message, _: Attempt) -> Outcome {
        loop {
            tokio::task::coop::consume_budget().await;
        }
    }
}

#[tokio::test]
async fn a_sink_that_is_busy_beyond_its_deadline_is_cut_too() {
    let store = Arc::new(MemoryStore::new());
    let lane = LaneConfig {
        attempt_timeout: Duration::from_millis(50),
        schedule: RetrySchedule::once(),
        ..LaneConfig::new(name("sink"), Arc::new(BusySink), store)
    };
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    let report = dispatcher.dispatch(message()).await.unwrap();
    assert!(matches!(
        report.settlements()[0].1,
        Settlement::DeadLettered {
            reason: Reason::RetriesExhausted,
            attempts: 1,
            ..
        }
    ));
}
