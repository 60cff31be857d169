//! The breaker at work in a lane.

use idemp_core::{BreakerState, Class, Reason, RetryAfter};
use idemp_dispatch::Settlement;
use idemp_testkit::gate::Gate;
use idemp_testkit::sink::{Reply, ScriptedSink};

use super::*;

async fn dispatch(rig: &Rig, message: Message) -> Settlement {
    rig.dispatcher.dispatch(message).await.unwrap().settlements()[0]
        .1
        .clone()
}

/// A lane whose breaker ten exhausted events have just opened. From then on the sink follows `then`.
async fn opened(then: impl Fn(usize) -> Reply + Send + Sync + 'static) -> (Rig, ScriptedSink, Vec<Message>) {
    let sink = ScriptedSink::with(move |call| match call.index.checked_sub(40) {
        None => Reply::status(503),
        Some(index) => then(index),
    });
    let rig = Rig::with(&sink, |lane| lane.concurrency = 200);
    let mut messages = messages(200);
    let rest = messages.split_off(10);
    let handles: Vec<_> = messages
        .into_iter()
        .map(|message| rig.dispatcher.try_submit(message).unwrap())
        .collect();
    for handle in handles {
        handle.settled().await;
    }
    assert_eq!(rig.stats().breaker, BreakerState::Open);
    assert_eq!(sink.calls().len(), 40, "ten events, four attempts each");
    (rig, sink, rest)
}

fn assert_withheld(settlement: &Settlement, made: u32) {
    match settlement {
        Settlement::DeadLettered {
            reason: Reason::CircuitOpen,
            attempts,
            ..
        } => assert_eq!(*attempts, made),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn while_open_events_go_straight_to_the_dead_letters() {
    let (rig, sink, mut rest) = opened(|_| Reply::delivered()).await;
    assert_withheld(&dispatch(&rig, rest.remove(0)).await, 0);
    assert_eq!(sink.calls().len(), 40);
    let letters = rig.letters().await;
    let withheld = letters
        .iter()
        .find(|letter| letter.reason == Reason::CircuitOpen)
        .unwrap();
    assert_eq!(
        (withheld.class, withheld.attempts.len(), withheld.maybe_delivered),
        (Class::Withheld, 0, false)
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_that_wakes_while_it_is_open_is_refused_the_same_way() {
    // The eleventh event fails once, after the tenth has opened the breaker behind its back.
    let sink = ScriptedSink::always(Reply::status(503));
    let rig = Rig::new(&sink);
    let mut messages = messages(11);
    let late = messages.pop().unwrap();
    let early: Vec<_> = messages
        .into_iter()
        .map(|message| rig.dispatcher.try_submit(message).unwrap())
        .collect();
    tokio::time::sleep(secs(10)).await;
    let late = rig.dispatcher.try_submit(late).unwrap();
    for handle in early {
        handle.settled().await;
    }
    let report = late.settled().await;
    assert_withheld(&report.settlements()[0].1, 3);
}

#[tokio::test(start_paused = true)]
async fn half_open_with_a_hundred_waiting_sends_makes_one_post() {
    let gate = Gate::shut();
    let held = Reply::delivered().behind(&gate);
    let (rig, sink, rest) = opened(move |_| held.clone()).await;
    tokio::time::sleep(secs(300)).await;
    let handles: Vec<_> = rest[..100]
        .iter()
        .map(|message| rig.dispatcher.try_submit(message.clone()).unwrap())
        .collect();
    gate.arrived(1).await;
    // Everything else settles while the probe is held.
    tokio::time::timeout(secs(3), async {
        while rig.stats().unsettled() > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(sink.calls().len(), 41);
    gate.open();
    let mut delivered = 0;
    for handle in handles {
        match &handle.settled().await.settlements()[0].1 {
            Settlement::Delivered { .. } => delivered += 1,
            other => assert_withheld(other, 0),
        }
    }
    assert_eq!((delivered, sink.calls().len()), (1, 41));
    assert_eq!(rig.stats().breaker, BreakerState::Closed);
    assert!(dispatch(&rig, rest[100].clone()).await.is_delivered());
    rig.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_one_attempt_and_a_failing_one_opens_again() {
    let (rig, sink, rest) = opened(|_| Reply::status(503)).await;
    tokio::time::sleep(secs(300)).await;
    assert_withheld(&dispatch(&rig, rest[0].clone()).await, 1);
    assert_eq!((sink.calls().len(), rig.stats().breaker), (41, BreakerState::Open));
    let letters = rig.letters().await;
    let probe = letters.iter().find(|letter| letter.message == rest[0]).unwrap();
    assert!(probe.maybe_delivered, "a 503 may have been processed");
    tokio::time::sleep(secs(299)).await;
    assert_withheld(&dispatch(&rig, rest[1].clone()).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_gets_400_frees_its_place_and_401_opens_again() {
    let (rig, sink, rest) = opened(|index| Reply::status([400, 401][index])).await;
    tokio::time::sleep(secs(300)).await;
    let settlement = dispatch(&rig, rest[0].clone()).await;
    assert!(matches!(
        settlement,
        Settlement::DeadLettered {
            reason: Reason::EventRejected,
            attempts: 1,
            ..
        }
    ));
    assert_eq!(rig.stats().breaker, BreakerState::HalfOpen);
    let settlement = dispatch(&rig, rest[1].clone()).await;
    assert!(matches!(
        settlement,
        Settlement::DeadLettered {
            reason: Reason::ConfigurationRejected,
            attempts: 1,
            ..
        }
    ));
    assert_eq!((sink.calls().len(), rig.stats().breaker), (42, BreakerState::Open));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_does_not_wedge_it() {
    let (rig, sink, rest) = opened(|index| if index == 0 { Reply::hang() } else { Reply::delivered() }).await;
    tokio::time::sleep(secs(300)).await;
    assert_withheld(&dispatch(&rig, rest[0].clone()).await, 1);
    assert_eq!(rig.stats().breaker, BreakerState::Open);
    tokio::time::sleep(secs(300)).await;
    assert!(dispatch(&rig, rest[1].clone()).await.is_delivered());
    assert_eq!(sink.calls().len(), 42);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_answered_late_but_in_time_closes_it() {
    let last = Duration::from_millis(4_999);
    let (rig, sink, rest) = opened(move |_| Reply::delivered().delayed(last)).await;
    tokio::time::sleep(secs(300)).await;
    assert!(dispatch(&rig, rest[0].clone()).await.is_delivered());
    assert_eq!((sink.calls().len(), rig.stats().breaker), (41, BreakerState::Closed));
}

#[tokio::test(start_paused = true)]
async fn configuration_letters_open_it_by_their_rate() {
    let sink = ScriptedSink::always(Reply::status(401));
    let rig = Rig::new(&sink);
    let messages = messages(1_300);
    let mut opened_at = None;
    for (index, message) in messages.into_iter().enumerate() {
        // 20 a second.
        let report = rig.dispatcher.dispatch(message).await.unwrap();
        if matches!(
            report.settlements()[0].1,
            Settlement::DeadLettered {
                reason: Reason::CircuitOpen,
                ..
            }
        ) {
            opened_at = Some(index);
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let opened_at = opened_at.expect("it opens");
    assert!(
        (1_200..=1_221).contains(&opened_at),
        "after a minute, not {opened_at} events"
    );
}

#[tokio::test(start_paused = true)]
async fn letters_written_because_it_is_open_do_not_feed_it() {
    let (rig, _, rest) = opened(|_| Reply::delivered()).await;
    // One every three seconds for most of the five minutes.
    for message in &rest[..98] {
        assert_withheld(&dispatch(&rig, message.clone()).await, 0);
        tokio::time::sleep(secs(3)).await;
    }
    tokio::time::sleep(secs(6) - Duration::from_millis(1)).await;
    assert_withheld(&dispatch(&rig, rest[98].clone()).await, 0);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(
        dispatch(&rig, rest[99].clone()).await.is_delivered(),
        "five minutes after it opened, not later"
    );
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_told_when_to_come_back_leaves_a_letter_that_says_so() {
    let (rig, _, rest) = opened(|_| Reply::retry_after(503, RetryAfter::Delay(secs(20)))).await;
    tokio::time::sleep(secs(300)).await;
    assert_withheld(&dispatch(&rig, rest[0].clone()).await, 1);
    let letters = rig.letters().await;
    let probe = letters.iter().find(|letter| letter.message == rest[0]).unwrap();
    assert_eq!(probe.not_before, Some(probe.dead_at + secs(20)));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_cancelled_by_a_shutdown_frees_its_place() {
    let (rig, sink, rest) = opened(|_| Reply::hang()).await;
    tokio::time::sleep(secs(300)).await;
    let probe = rig.dispatcher.try_submit(rest[0].clone()).unwrap();
    sink.called(41).await;
    let stats = rig.dispatcher.shutdown(secs(1)).await;
    assert_eq!(
        stats.lanes[0].breaker,
        BreakerState::HalfOpen,
        "not opened by a probe that learned nothing"
    );
    let report = probe.settled().await;
    assert!(matches!(
        report.settlements()[0].1,
        Settlement::DeadLettered {
            reason: Reason::Shutdown,
            attempts: 1,
            ..
        }
    ));
    assert_eq!(stats.lanes[0].attempts, 41);
}
