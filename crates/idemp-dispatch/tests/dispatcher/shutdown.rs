//! The orderly end: nothing accepted is without a terminal state.

use idemp_core::{Attempt, Cause, Outcome, Reason, RetrySchedule, Transport};
use idemp_dispatch::{OnFull, Settlement, SubmitErrorKind};
use idemp_testkit::gate::Gate;
use idemp_testkit::sink::{Reply, ScriptedSink};
use proptest::prelude::*;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn events_in_back_off_are_dead_lettered_at_once() {
    let sink = ScriptedSink::always(Reply::status(503));
    let rig = Rig::new(&sink);
    for message in messages(50) {
        let _ = rig.dispatcher.submit(message).await.unwrap();
    }
    sink.called(50).await;
    let start = Instant::now();
    let stats = rig.dispatcher.shutdown(secs(5)).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!((stats.lanes[0].dead_lettered, stats.lanes[0].unsettled()), (50, 0));
    let letters = rig.letters().await;
    assert!(
        letters
            .iter()
            .all(|letter| letter.reason == Reason::Shutdown && letter.attempts.len() == 1)
    );
    assert!(sink.is_closed());
}

#[tokio::test(start_paused = true)]
async fn attempts_in_flight_may_end_within_the_deadline() {
    let sink = ScriptedSink::always(Reply::delivered().delayed(secs(3)));
    let rig = Rig::new(&sink);
    let handle = rig.dispatcher.submit(message()).await.unwrap();
    sink.called(1).await;
    let stats = rig.dispatcher.shutdown(secs(5)).await;
    assert_eq!((stats.lanes[0].delivered, stats.lanes[0].dead_lettered), (1, 0));
    assert!(handle.settled().await.all_delivered());
}

#[tokio::test(start_paused = true)]
async fn what_is_left_in_flight_is_dead_lettered_as_maybe_delivered() {
    let sink = ScriptedSink::always(Reply::hang());
    let rig = Rig::with(&sink, |lane| lane.attempt_timeout = secs(60));
    let handle = rig.dispatcher.submit(message()).await.unwrap();
    sink.called(1).await;
    let start = Instant::now();
    rig.dispatcher.shutdown(secs(5)).await;
    assert_eq!(start.elapsed(), secs(5));
    let letter = rig.letter().await;
    assert_eq!(
        (letter.reason, letter.maybe_delivered, letter.attempts.len()),
        (Reason::Shutdown, true, 1)
    );
    assert!(matches!(
        handle.settled().await.settlements()[0].1,
        Settlement::DeadLettered {
            reason: Reason::Shutdown,
            attempts: 1,
            cause: Some(Cause::Transport(Transport::Timeout)),
        }
    ));
    rig.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_accepted_any_more_and_who_waits_for_room_is_told() {
    let gate = Gate::shut();
    let sink = ScriptedSink::always(Reply::delivered().behind(&gate));
    let rig = Rig::with(&sink, |lane| lane.max_events = 1);
    let messages = messages(3);
    let _first = rig.dispatcher.submit(messages[0].clone()).await.unwrap();
    let waiting = tokio::spawn({
        let (dispatcher, message) = (rig.dispatcher.clone(), messages[1].clone());
        async move { dispatcher.submit(message).await.map(|_| ()) }
    });
    gate.arrived(1).await;
    tokio::task::yield_now().await;
    rig.dispatcher.shutdown(secs(5)).await;
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), &SubmitErrorKind::Closed);
    assert_eq!(
        rig.dispatcher.try_submit(messages[2].clone()).unwrap_err().kind(),
        &SubmitErrorKind::Closed
    );
    rig.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn it_is_for_good_whatever_becomes_of_the_letters() {
    let sink = ScriptedSink::always(Reply::status(503));
    let rig = Rig::with(&sink, |lane| lane.dead_letters = Some(FailingStore::new(usize::MAX)));
    let handle = rig.dispatcher.submit(message()).await.unwrap();
    sink.called(1).await;
    let stats = rig.dispatcher.shutdown(secs(5)).await;
    assert_eq!((stats.lanes[0].unsaved, stats.lanes[0].unsettled()), (1, 0));
    match &handle.settled().await.settlements()[0].1 {
        Settlement::Unsaved { letter, .. } => assert_eq!(letter.reason, Reason::Shutdown),
        other => panic!("{other:?}"),
    }
    for again in [false, true] {
        if again {
            rig.dispatcher.accept_again();
        }
        let error = rig.dispatcher.try_submit(message()).unwrap_err();
        assert_eq!(error.kind(), &SubmitErrorKind::Closed);
        assert_eq!(
            error.to_string(),
            "event r1:tool_end:1 is not accepted: the dispatcher is shut down"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_shutdown_waits_for_the_same_end() {
    let sink = ScriptedSink::always(Reply::delivered().delayed(secs(2)));
    let rig = Rig::new(&sink);
    let _handle = rig.dispatcher.submit(message()).await.unwrap();
    sink.called(1).await;
    let (one, two) = tokio::join!(rig.dispatcher.shutdown(secs(5)), rig.dispatcher.shutdown(secs(5)));
    assert_eq!(one, two);
    assert_eq!(one.lanes[0].delivered, 1);
}

#[tokio::test(start_paused = true)]
async fn what_stands_in_line_is_dead_lettered_at_once_while_an_attempt_may_end() {
    let sink = ScriptedSink::always(Reply::hang());
    let rig = Rig::with(&sink, |lane| {
        (lane.concurrency, lane.attempt_timeout) = (1, secs(60));
    });
    let submitted = messages(5)
        .into_iter()
        .map(|message| rig.dispatcher.try_submit(message));
    let mut handles: Vec<_> = submitted.map(Result::unwrap).collect();
    sink.called(1).await;
    let start = Instant::now();
    let end = tokio::spawn({
        let dispatcher = rig.dispatcher.clone();
        async move { dispatcher.shutdown(secs(5)).await }
    });
    let at_it = handles.remove(0);
    for handle in handles {
        let report = handle.settled().await;
        assert!(matches!(
            report.settlements()[0].1,
            Settlement::DeadLettered {
                reason: Reason::Shutdown,
                attempts: 0,
                cause: None,
            }
        ));
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    let letters = rig.letters().await;
    assert!(letters.len() == 4 && letters.iter().all(|letter| !letter.maybe_delivered));
    assert_eq!((sink.calls().len(), sink.in_flight()), (1, 1));
    end.await.unwrap();
    assert_eq!(start.elapsed(), secs(5));
    assert!(!at_it.settled().await.all_delivered());
    assert_eq!(sink.calls().len(), 1);
    rig.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_dropped_goes_on_and_another_one_ends_it() {
    let sink = ScriptedSink::always(Reply::hang());
    let rig = Rig::with(&sink, |lane| {
        (lane.concurrency, lane.attempt_timeout) = (1, secs(60));
    });
    for message in messages(3) {
        let _ = rig.dispatcher.try_submit(message).unwrap();
    }
    sink.called(1).await;
    let shutdown = rig.dispatcher.shutdown(secs(5));
    assert!(tokio::time::timeout(secs(1), shutdown).await.is_err());
    assert_eq!((rig.stats().dead_lettered, sink.in_flight()), (2, 1));
    assert!(!sink.is_closed());

    let start = Instant::now();
    let stats = rig.dispatcher.shutdown(secs(5)).await;
    assert_eq!((start.elapsed(), stats.lanes[0].dead_lettered), (secs(5), 3));
    assert!(sink.is_closed());
    rig.assert_at_rest();
}

/// Counts how often its closing begins, and takes a while for it.
struct SlowToClose {
    takes: Duration,
    begun: AtomicUsize,
}

#[async_trait]
impl Sink for SlowToClose {
    async fn deliver(&self, _: &Message, _: Attempt) -> Outcome {
        unreachable!("nothing is submitted")
    }

    async fn close(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(self.takes).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_closed_is_not_closed_again() {
    let sinks = [1, 3].map(|takes| {
        Arc::new(SlowToClose {
            takes: secs(takes),
            begun: AtomicUsize::new(0),
        })
    });
    let lane = |text, sink: &Arc<SlowToClose>| LaneConfig::at_most_once(name(text), Arc::clone(sink) as Arc<dyn Sink>);
    let dispatcher = Dispatcher::new(vec![lane("one", &sinks[0]), lane("two", &sinks[1])]).unwrap();
    assert!(
        tokio::time::timeout(secs(2), dispatcher.shutdown(secs(5)))
            .await
            .is_err()
    );
    let start = Instant::now();
    tokio::join!(dispatcher.shutdown(secs(5)), dispatcher.shutdown(secs(5)));
    assert_eq!(start.elapsed(), secs(3));
    // The second one was interrupted the first time.
    assert_eq!(sinks.map(|sink| sink.begun.load(Ordering::SeqCst)), [1, 2]);
}

/// On two threads: the end comes in between submissions, back-offs that are over, and runners between two events.
#[test]
fn an_end_at_any_moment_leaves_nothing_behind() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    for round in 0..40 {
        let ended = runtime.block_on(async { tokio::time::timeout(secs(60), end_after(1 + round * 8)).await });
        ended.expect("nobody waits for ever");
    }
}

/// Ends a dispatcher after so many attempts, with 300 events submitted meanwhile.
async fn end_after(attempts: usize) {
    let sink = ScriptedSink::with(|call| match (call.key.step_index().as_u64() % 3, call.number) {
        (0, 1) => Reply::status(503),
        _ => Reply::delivered(),
    });
    let rig = Rig::with(&sink, |lane| {
        lane.concurrency = 3;
        lane.schedule = RetrySchedule::new(vec![Duration::from_millis(1)]).unwrap();
    });
    let submitting = tokio::spawn({
        let dispatcher = rig.dispatcher.clone();
        async move {
            let accepted = messages(300)
                .into_iter()
                .map_while(|message| dispatcher.try_submit(message).ok());
            accepted.collect::<Vec<_>>()
        }
    });
    sink.called(attempts).await;
    let (one, two) = tokio::join!(rig.dispatcher.shutdown(secs(60)), rig.dispatcher.shutdown(secs(60)));
    assert_eq!(one, two);
    rig.assert_at_rest();
    let handles = submitting.await.unwrap();
    assert_eq!(handles.len() as u64, one.lanes[0].accepted);
    for handle in handles {
        handle.settled().await;
    }
    assert_eq!(rig.letters().await.len() as u64, one.lanes[0].dead_lettered);
    assert!(sink.max_in_flight() <= 3 && sink.in_flight() == 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the sinks answer and whenever the end comes: accepted = delivered + dead-lettered + dropped + unsaved,
    /// and the store holds exactly the dead-lettered ones.
    #[test]
    fn every_accepted_event_has_one_end(
        replies in prop::collection::vec((0u8..6, 0u64..8_000), 1..40),
        events in 1usize..40,
        end_after in 0u64..80_000,
        full in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let sink = ScriptedSink::with(move |call| {
                let (what, delay) = replies[(call.index * 7 + call.number as usize) % replies.len()];
                match what {
                    0 => Reply::status(400),
                    1 => Reply::status(503),
                    2 => Reply::timeout(),
                    3 => Reply::hang(),
                    4 => Reply::panic(),
                    _ => Reply::delivered(),
                }
                .delayed(Duration::from_millis(delay.min(4_000)))
            });
            let rig = Rig::with(&sink, |lane| {
                lane.concurrency = 4;
                lane.max_events = 10;
                lane.on_full = if full { OnFull::DeadLetter } else { OnFull::Wait };
            });
            let submitting = tokio::spawn({
                let dispatcher = rig.dispatcher.clone();
                async move {
                    let mut handles = Vec::new();
                    for message in messages(events) {
                        match dispatcher.submit(message).await {
                            Ok(handle) => handles.push(handle),
                            Err(error) => {
                                assert_eq!(error.kind(), &SubmitErrorKind::Closed);
                                break;
                            }
                        }
                    }
                    handles
                }
            });
            tokio::time::sleep(Duration::from_millis(end_after)).await;
            let stats = rig.dispatcher.shutdown(secs(5)).await.lanes.remove(0);
            rig.assert_at_rest();
            let handles = submitting.await.unwrap();
            assert_eq!(stats.accepted as usize, handles.len());
            assert_eq!(stats.dead_lettered as usize, rig.letters().await.len());
            let mut delivered = 0;
            for handle in handles {
                delivered += u64::from(handle.settled().await.all_delivered());
            }
            assert_eq!(stats.delivered, delivered);
        });
    }
}
