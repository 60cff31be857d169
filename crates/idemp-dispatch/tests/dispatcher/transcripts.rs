//! When attempts are made, and what the dead letter says of them.

use idemp_core::{Cause, Class, ErrorClass, Failure, Reason, RetryAfter, StatusPolicy, Transport, Verdict};
use idemp_dispatch::Settlement;
use idemp_testkit::sink::{Reply, ScriptedSink};

use super::*;

/// Dispatches one event to a sink that follows the script; the seconds at which attempts began, and the settlement.
async fn run(sink: ScriptedSink) -> (Vec<u64>, Settlement, Rig) {
    let rig = Rig::new(&sink);
    let report = rig.dispatcher.dispatch(message()).await.unwrap();
    rig.assert_at_rest();
    let begun = sink.times_of("r1:tool_end:1").iter().map(Duration::as_secs).collect();
    (begun, report.settlements()[0].1.clone(), rig)
}

fn assert_dead(settlement: &Settlement, wanted: Reason) {
    match settlement {
        Settlement::DeadLettered { reason, .. } => assert_eq!(*reason, wanted),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn always_failing_is_tried_at_0_1_6_and_36_seconds_then_dead_lettered() {
    let (begun, settlement, rig) = run(ScriptedSink::always(Reply::status(503))).await;
    assert_eq!(begun, [0, 1, 6, 36]);
    assert_dead(&settlement, Reason::RetriesExhausted);

    let letter = rig.letter().await;
    assert_eq!(letter.sink, name("sink"));
    assert_eq!(letter.message, message());
    assert_eq!(
        (letter.reason, letter.class),
        (Reason::RetriesExhausted, Class::Exhausted)
    );
    assert!(letter.maybe_delivered);
    let attempts: Vec<_> = letter
        .attempts
        .iter()
        .map(|attempt| (attempt.number, attempt.cause))
        .collect();
    assert_eq!(attempts, [1, 2, 3, 4].map(|number| (number, Some(Cause::Status(503)))));
    assert_eq!(letter.attempts[3].started, rig.start + secs(36));
    assert_eq!((letter.accepted_at, letter.dead_at), (rig.start, rig.start + secs(36)));
    assert_eq!((letter.not_before, letter.replay_count), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn waits_count_from_the_settlement_of_the_attempt_before() {
    let (begun, settlement, rig) = run(ScriptedSink::always(Reply::timeout())).await;
    assert_eq!(begun, [0, 6, 16, 51], "5 s in each attempt");
    assert_dead(&settlement, Reason::RetriesExhausted);
    let letter = rig.letter().await;
    assert_eq!(letter.dead_at, rig.start + secs(56), "the last word at worst");
    assert_eq!(letter.attempts[0].elapsed, secs(5));
}

#[tokio::test(start_paused = true)]
async fn what_will_not_pass_is_tried_once() {
    for (status, reason) in [
        (400, Reason::EventRejected),
        (404, Reason::ConfigurationRejected),
        (410, Reason::ConfigurationRejected),
        (302, Reason::ConfigurationRejected),
    ] {
        let (begun, settlement, rig) = run(ScriptedSink::always(Reply::status(status))).await;
        assert_eq!(begun, [0], "{status}");
        assert_dead(&settlement, reason);
        assert!(!rig.letter().await.maybe_delivered);
    }
}

#[tokio::test(start_paused = true)]
async fn every_status_settles_as_the_table_says() {
    for status in 100..=999 {
        let (begun, settlement, rig) = run(ScriptedSink::always(Reply::status(status))).await;
        match StatusPolicy::default().status(status) {
            Verdict::Delivered => assert!(settlement.is_delivered(), "{status}"),
            Verdict::Retry => assert_eq!(begun, [0, 1, 6, 36], "{status}"),
            Verdict::RejectsEvent | Verdict::RejectsConfiguration => assert_eq!(begun, [0], "{status}"),
            Verdict::PushBack => panic!("no status pushes back: {status}"),
        }
        assert_eq!(
            rig.letters().await.len(),
            usize::from(!settlement.is_delivered()),
            "{status}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_back_costs_budget_and_none_of_the_four_attempts() {
    let pushed = || Reply::outcome(Failure::code(ErrorClass::PushBack, "QueueFull"));
    let failed = || Reply::outcome(Failure::code(ErrorClass::Transient, "NotEnoughReplicas"));
    let replies = [pushed(), failed(), pushed(), failed(), failed(), Reply::delivered()];
    let (begun, settlement, _) = run(ScriptedSink::by_attempt(replies)).await;
    // Waits of 1, 1, 1 and 5 s leave 28 s of the 36 for the fourth attempt.
    assert_eq!(begun, [0, 1, 2, 3, 8, 36]);
    assert!(
        matches!(settlement, Settlement::Delivered { attempts: 6 }),
        "{settlement:?}"
    );

    let (begun, settlement, rig) = run(ScriptedSink::always(pushed())).await;
    assert_eq!(begun, [0, 1, 3, 7, 15, 31, 36]);
    assert_dead(&settlement, Reason::RetriesExhausted);
    let letter = rig.letter().await;
    assert_eq!((letter.attempts.len(), letter.maybe_delivered), (7, false));
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_within_the_budget() {
    let busy = |seconds| ScriptedSink::always(Reply::retry_after(429, RetryAfter::Delay(secs(seconds))));

    let (begun, settlement, _) = run(busy(7)).await;
    assert_eq!(begun, [0, 7, 14, 36]);
    assert_dead(&settlement, Reason::RetriesExhausted);

    let (begun, settlement, rig) = run(busy(20)).await;
    assert_eq!(begun, [0, 20]);
    assert_dead(&settlement, Reason::RetryAfterExceedsBudget);
    assert_eq!(rig.letter().await.not_before, Some(rig.start + secs(40)));

    let (begun, settlement, rig) = run(busy(40)).await;
    assert_eq!(begun, [0]);
    assert_dead(&settlement, Reason::RetryAfterExceedsBudget);
    assert_eq!(rig.letter().await.not_before, Some(rig.start + secs(40)));
}

#[tokio::test(start_paused = true)]
async fn retry_after_as_a_date_waits_until_then() {
    // The test's clock starts on Monday, 30 November 2026, at noon.
    let now = idemp_testkit::clock::Clock::start().wall();
    let date = RetryAfter::parse(b"Mon, 30 Nov 2026 12:00:09 GMT", now).unwrap();
    let sink = ScriptedSink::by_attempt([Reply::retry_after(503, date), Reply::delivered()]);
    let (begun, settlement, _) = run(sink).await;
    assert_eq!(begun, [0, 9]);
    assert!(matches!(settlement, Settlement::Delivered { attempts: 2 }));
}

#[tokio::test(start_paused = true)]
async fn every_attempt_sends_the_same_bytes_under_the_same_key() {
    let sink = ScriptedSink::by_attempt([Reply::status(500), Reply::transport(Transport::Cut), Reply::delivered()]);
    let (_, settlement, _) = run(sink.clone()).await;
    assert!(matches!(settlement, Settlement::Delivered { attempts: 3 }));
    for (index, call) in sink.calls().iter().enumerate() {
        assert_eq!((call.key.as_str(), call.number as usize), ("r1:tool_end:1", index + 1));
        assert_eq!(call.body.as_ref(), br#"{"data": 0, "event": "tool_end"}"#);
        assert_eq!(call.timeout, secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_or_never_returns_does_not_take_the_lane_along() {
    let sink = ScriptedSink::by_attempt([Reply::panic(), Reply::hang(), Reply::delivered()]);
    let (begun, settlement, _) = run(sink).await;
    // 5 s and half a second for the one that hangs, then 5 s of wait.
    assert_eq!(begun, [0, 1, 11]);
    assert!(matches!(settlement, Settlement::Delivered { attempts: 3 }));
}

#[tokio::test(start_paused = true)]
async fn a_sink_may_differ_from_the_table() {
    let sink = ScriptedSink::by_attempt([Reply::status(404), Reply::status(409)]);
    let policy = StatusPolicy::default()
        .with(404, Verdict::Retry)
        .with(409, Verdict::Delivered);
    let rig = Rig::with(&sink, |lane| lane.policy = policy);
    let report = rig.dispatcher.dispatch(message()).await.unwrap();
    assert!(matches!(
        report.settlements()[0].1,
        Settlement::Delivered { attempts: 2 }
    ));
}

#[tokio::test(start_paused = true)]
async fn at_most_once_means_one_attempt_no_letter_and_a_count() {
    for reply in [Reply::status(500), Reply::status(400), Reply::timeout()] {
        let sink = ScriptedSink::always(reply);
        let lane = LaneConfig::at_most_once(name("sns"), Arc::new(sink.clone()));
        let dispatcher = Dispatcher::new(vec![lane]).unwrap();
        let report = dispatcher.dispatch(message()).await.unwrap();
        assert!(
            matches!(report.settlements()[0].1, Settlement::Dropped { .. }),
            "{report:?}"
        );
        assert_eq!(sink.calls().len(), 1);
        let stats = dispatcher.stats().lanes.remove(0);
        assert_eq!(
            (stats.accepted, stats.dropped, stats.dead_lettered, stats.unsettled()),
            (1, 1, 0, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_settlement_tells_why_the_last_attempt_failed() {
    let full = Failure::code(ErrorClass::Transient, "OOM");
    let oom = full.cause;
    for (replies, wanted) in [
        (vec![Reply::status(404)], Some(Cause::Status(404))),
        // The last one, not the first.
        (vec![Reply::status(503), Reply::status(422)], Some(Cause::Status(422))),
        (vec![Reply::timeout()], Some(Cause::Transport(Transport::Timeout))),
        (vec![Reply::outcome(full)], Some(oom)),
    ] {
        let (_, settlement, rig) = run(ScriptedSink::by_attempt(replies.clone())).await;
        match settlement {
            Settlement::DeadLettered { cause, .. } => assert_eq!(cause, wanted),
            other => panic!("{other:?}"),
        }
        assert_eq!(rig.letter().await.attempts.last().unwrap().cause, wanted);
    }

    // Nothing else tells it of an event that is lost.
    let sink = ScriptedSink::always(Reply::status(401));
    let lane = LaneConfig::at_most_once(name("sns"), Arc::new(sink.clone()));
    let report = Dispatcher::new(vec![lane]).unwrap().dispatch(message()).await.unwrap();
    match &report.settlements()[0].1 {
        Settlement::Dropped { reason, cause } => assert_eq!(
            (*reason, *cause),
            (Reason::ConfigurationRejected, Some(Cause::Status(401)))
        ),
        other => panic!("{other:?}"),
    }
}
