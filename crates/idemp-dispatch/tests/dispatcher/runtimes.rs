//! Events of several runtimes at one sink, and what the end of a runtime takes along. No clock is paused here.

use std::sync::Mutex;

use idemp_core::{BreakerState, RetrySchedule};
use idemp_dispatch::Handle;
use idemp_testkit::gate::Gate;
use idemp_testkit::sink::{Reply, ScriptedSink};
use tokio::runtime::{Builder, Id, Runtime};

use super::*;

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap()
}

/// A lane with one place.
fn rig(sink: &ScriptedSink) -> Rig {
    Rig::with(sink, |lane| {
        (lane.concurrency, lane.attempt_timeout) = (1, secs(3_000));
    })
}

fn submit(runtime: &Runtime, rig: &Rig, message: Message) -> Handle {
    runtime.block_on(rig.dispatcher.submit(message)).unwrap()
}

/// Runs the future in this runtime; it fails the test if it takes for ever.
fn within<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime
        .block_on(async { tokio::time::timeout(secs(60), future).await })
        .expect("it ends")
}

/// Whether the handle says that nothing will come.
fn is_lost(runtime: &Runtime, handle: Handle) -> bool {
    let settled = runtime.spawn(handle.settled());
    within(runtime, settled).is_err_and(|error| error.is_panic())
}

#[test]
fn what_waits_behind_a_runtime_that_dies_goes_on_in_its_own() {
    let (a, b) = (runtime(), runtime());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = ScriptedSink::with({
        let seen = Arc::clone(&seen);
        move |call| {
            let step = call.key.step_index().as_u64();
            seen.lock()
                .unwrap()
                .push((step, tokio::runtime::Handle::current().id()));
            if step == 1 { Reply::hang() } else { Reply::delivered() }
        }
    });
    let rig = rig(&sink);
    let mut messages = messages(6).into_iter();
    let mut lost = vec![submit(&a, &rig, messages.next().unwrap())];
    within(&a, sink.called(1));
    let mut goes_on = Vec::new();
    while let (Some(one), two) = (messages.next(), messages.next()) {
        goes_on.push(submit(&b, &rig, one));
        lost.extend(two.map(|two| submit(&a, &rig, two)));
    }
    assert_eq!((goes_on.len(), lost.len(), sink.calls().len()), (3, 3, 1));
    let ids = (a.handle().id(), b.handle().id());
    drop(a);
    for handle in goes_on {
        assert!(within(&b, handle.settled()).all_delivered());
    }
    for handle in lost {
        assert!(is_lost(&b, handle));
    }
    assert_eq!(*seen.lock().unwrap(), [(1, ids.0), (2, ids.1), (4, ids.1), (6, ids.1)]);
    assert_eq!(within(&b, rig.dispatcher.flush(secs(1))), 0);
    assert_eq!((rig.stats().delivered, rig.stats().lost), (3, 3));
    rig.assert_at_rest();
}

#[test]
fn an_event_is_attempted_in_its_own_runtime_and_outlives_any_other() {
    let (a, b) = (runtime(), runtime());
    let (gate, seen) = (Gate::shut(), Arc::new(Mutex::new(Vec::<Id>::new())));
    let sink = ScriptedSink::with({
        let (gate, seen) = (gate.clone(), Arc::clone(&seen));
        move |_| {
            seen.lock().unwrap().push(tokio::runtime::Handle::current().id());
            Reply::delivered().behind(&gate)
        }
    });
    let rig = rig(&sink);
    let messages = messages(3);
    let first = submit(&a, &rig, messages[0].clone());
    within(&a, gate.arrived(1));
    let second = submit(&b, &rig, messages[1].clone());
    gate.let_through(1);
    assert!(within(&a, first.settled()).all_delivered());
    within(&b, gate.arrived(2));
    drop(a);
    let third = submit(&b, &rig, messages[2].clone());
    gate.open();
    assert!(within(&b, second.settled()).all_delivered());
    assert!(within(&b, third.settled()).all_delivered());
    assert_eq!(seen.lock().unwrap()[1..], [b.handle().id(), b.handle().id()]);
    assert_eq!((sink.calls().len(), sink.max_in_flight()), (3, 1));
    rig.assert_at_rest();
}

#[test]
fn when_every_runtime_is_dead_all_is_lost_at_once_and_a_new_one_begins_anew() {
    let (a, b, c) = (runtime(), runtime(), runtime());
    let sink = ScriptedSink::with(|call| match call.key.step_index().as_u64() {
        1 => Reply::hang(),
        _ => Reply::delivered(),
    });
    let rig = rig(&sink);
    let mut messages = messages(8_000).into_iter();
    let last = messages.next_back().unwrap();
    let mut handles = vec![submit(&a, &rig, messages.next().unwrap())];
    within(&a, sink.called(1));
    for (index, message) in messages.enumerate() {
        handles.push(submit(if index % 2 == 0 { &a } else { &b }, &rig, message));
    }
    // It has nothing but what waits for the other.
    drop(b);
    drop(a);
    assert_eq!(within(&c, rig.dispatcher.flush(secs(1))), 0);
    assert_eq!(rig.stats().lost, 7_999);
    for handle in handles.into_iter().step_by(1_999) {
        assert!(is_lost(&c, handle));
    }
    assert!(within(&c, rig.dispatcher.dispatch(last)).unwrap().all_delivered());
    assert_eq!(sink.calls().len(), 2);
}

#[test]
fn a_probe_that_is_lost_with_its_runtime_leaves_its_place_to_the_next_event() {
    let (a, b) = (runtime(), runtime());
    let sink = ScriptedSink::in_order([Reply::status(503), Reply::hang(), Reply::delivered()]);
    let rig = Rig::with(&sink, |lane| {
        // The lease of a probe runs out long after the test.
        lane.attempt_timeout = secs(3_000);
        lane.schedule = RetrySchedule::once();
        // Open after one event, and half-open when the next one comes.
        (lane.breaker.exhausted_in_a_row, lane.breaker.open_for) = (1, Duration::ZERO);
    });
    let messages = messages(3);
    let first = submit(&b, &rig, messages[0].clone());
    assert!(!within(&b, first.settled()).all_delivered());
    assert_eq!(rig.stats().breaker, BreakerState::Open);
    let probe = submit(&a, &rig, messages[1].clone());
    within(&a, sink.called(2));
    assert_eq!(rig.stats().breaker, BreakerState::HalfOpen);
    drop(a);
    assert!(is_lost(&b, probe));
    assert_eq!(rig.stats().breaker, BreakerState::HalfOpen);
    let next = submit(&b, &rig, messages[2].clone());
    assert!(within(&b, next.settled()).all_delivered());
    assert_eq!((sink.calls().len(), rig.stats().breaker), (3, BreakerState::Closed));
    rig.assert_at_rest();
}
