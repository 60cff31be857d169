//! How much a lane takes, and what happens beyond that.

use idemp_core::{Reason, Refusal};
use idemp_dispatch::{OnFull, Report, Settlement, SubmitErrorKind};
use idemp_testkit::gate::Gate;
use idemp_testkit::sink::{Reply, ScriptedSink};

use super::*;

fn held() -> (Gate, ScriptedSink) {
    let gate = Gate::shut();
    let sink = ScriptedSink::always(Reply::delivered().behind(&gate));
    (gate, sink)
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_makes_submit_wait_and_try_submit_return_at_once() {
    let (gate, sink) = held();
    let rig = Rig::with(&sink, |lane| lane.max_events = 2);
    let messages = messages(3);
    let first = rig.dispatcher.submit(messages[0].clone()).await.unwrap();
    let _second = rig.dispatcher.submit(messages[1].clone()).await.unwrap();

    let error = rig.dispatcher.try_submit(messages[2].clone()).unwrap_err();
    assert_eq!(error.kind(), &SubmitErrorKind::Full(name("sink")));
    assert_eq!(error.to_string(), "lane sink has no room for event r1:tool_end:3");
    assert_eq!(error.into_message(), messages[2], "the event comes back");

    let third = tokio::spawn({
        let (dispatcher, message) = (rig.dispatcher.clone(), messages[2].clone());
        async move { dispatcher.submit(message).await.map(|handle| handle.key().clone()) }
    });
    gate.arrived(2).await;
    assert!(!third.is_finished());
    gate.let_through(1);
    first.settled().await;
    assert_eq!(third.await.unwrap().unwrap().as_str(), "r1:tool_end:3");
    gate.open();
    assert_eq!(rig.dispatcher.flush(secs(1)).await, 0);
    rig.assert_at_rest();
}

#[track_caller]
fn assert_lane_full(report: &Report) {
    assert!(matches!(
        report.settlements()[0].1,
        Settlement::DeadLettered {
            reason: Reason::LaneFull,
            attempts: 0,
            cause: None
        }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_may_dead_letter_instead() {
    let (gate, sink) = held();
    let rig = Rig::with(&sink, |lane| {
        lane.max_events = 1;
        lane.on_full = OnFull::DeadLetter;
    });
    let messages = messages(2);
    let _first = rig.dispatcher.try_submit(messages[0].clone()).unwrap();
    let report = rig.dispatcher.try_submit(messages[1].clone()).unwrap().settled().await;
    assert_lane_full(&report);
    let letter = rig.letter().await;
    assert_eq!((letter.message, letter.reason), (messages[1].clone(), Reason::LaneFull));
    gate.open();
    assert_eq!(rig.dispatcher.flush(secs(1)).await, 0);
    rig.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn what_overflows_is_bounded_as_well() {
    let (gate, sink) = held();
    let rig = Rig::with(&sink, |lane| {
        lane.max_events = 2;
        lane.on_full = OnFull::DeadLetter;
        lane.dead_letters = Some(Arc::new(HangingStore));
        lane.store_timeout = secs(3_000);
        lane.attempt_timeout = secs(3_000);
    });
    let messages = messages(5);
    for message in &messages[..4] {
        let _ = rig.dispatcher.try_submit(message.clone()).unwrap();
    }
    let error = rig.dispatcher.try_submit(messages[4].clone()).unwrap_err();
    assert_eq!(error.kind(), &SubmitErrorKind::Full(name("sink")));
    let waiting = tokio::time::timeout(secs(1), rig.dispatcher.submit(messages[4].clone())).await;
    assert!(waiting.is_err(), "it waits");
    assert_eq!(rig.stats().unsettled(), 4);
    gate.open();
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_room_among_what_overflows_becomes_a_letter_too() {
    let (gate, sink) = held();
    let letters = FailingStore::new(0);
    let rig = Rig::with(&sink, |lane| {
        lane.max_events = 1;
        lane.on_full = OnFull::DeadLetter;
        // Each letter is held up by the first store for a while.
        lane.dead_letters = Some(Arc::new(HangingStore));
        lane.fallback = Some(Arc::clone(&letters) as Arc<dyn DeadLetterStore>);
        lane.attempt_timeout = secs(3_000);
    });
    let messages = messages(3);
    for message in &messages[..2] {
        let _ = rig.dispatcher.try_submit(message.clone()).unwrap();
    }
    let report = rig.dispatcher.dispatch(messages[2].clone()).await.unwrap();
    assert_lane_full(&report);
    assert_eq!((sink.calls().len(), sink.in_flight()), (1, 1));
    let letters = all_letters(&letters.inner).await.into_iter();
    assert_eq!(
        Vec::from_iter(letters.map(|letter| (letter.message, letter.reason))),
        [1, 2].map(|index| (messages[index].clone(), Reason::LaneFull))
    );
    gate.open();
    assert_eq!(rig.dispatcher.flush(secs(1)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_on_its_way_is_joined_without_room() {
    let (gate, sink) = held();
    let rig = Rig::with(&sink, |lane| lane.max_events = 1);
    let first = rig.dispatcher.try_submit(message()).unwrap();
    let second = rig.dispatcher.try_submit(message()).unwrap();
    let third = rig.dispatcher.submit(message()).await.unwrap();
    gate.open();
    for handle in [first, second, third] {
        assert!(handle.settled().await.all_delivered());
    }
    assert_eq!(sink.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn bytes_fill_a_lane_too_and_a_body_larger_than_the_lane_still_goes() {
    let (gate, sink) = held();
    let rig = Rig::with(&sink, |lane| lane.max_bytes = 40);
    let messages = messages(2);
    assert!(messages[0].body().len() > 20);
    let _first = rig.dispatcher.try_submit(messages[0].clone()).unwrap();
    assert_eq!(
        rig.dispatcher.try_submit(messages[1].clone()).unwrap_err().kind(),
        &SubmitErrorKind::Full(name("sink"))
    );
    gate.open();
    assert_eq!(rig.dispatcher.flush(secs(1)).await, 0);

    let run = Run::with_id(RunId::parse("large").unwrap());
    let large = run.event(EventType::TOOL_END, &"x".repeat(1_000)).unwrap();
    assert!(rig.dispatcher.dispatch(large).await.unwrap().all_delivered());
}

#[tokio::test(start_paused = true)]
async fn concurrency_counts_attempts_and_not_events_that_wait() {
    let gate = Gate::shut();
    let sink = ScriptedSink::by_attempt([Reply::status(503), Reply::delivered().behind(&gate)]);
    let rig = Rig::with(&sink, |lane| lane.concurrency = 3);
    let handles: Vec<_> = messages(20)
        .into_iter()
        .map(|message| rig.dispatcher.try_submit(message).unwrap())
        .collect();
    // All twenty first attempts pass through three places, although none is settled.
    sink.called(20).await;
    gate.arrived(3).await;
    assert_eq!(sink.max_in_flight(), 3);
    gate.open();
    for handle in handles {
        assert!(handle.settled().await.all_delivered());
    }
    assert_eq!((sink.max_in_flight(), sink.calls().len()), (3, 40));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_the_sink_can_never_send_is_refused_when_submitted() {
    let sink = ScriptedSink::always(Reply::delivered()).checking(|_| Err(Refusal::new("no dots")));
    let rig = Rig::new(&sink);
    let error = rig.dispatcher.submit(message()).await.unwrap_err();
    assert_eq!(error.to_string(), "sink sink can never send event r1:tool_end:1");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "no dots");
    assert_eq!((rig.stats().accepted, sink.calls().len()), (0, 0));
}
