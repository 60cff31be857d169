//! Several sinks, several copies, several waiters.

use idemp_dispatch::{Settlement, SubmitErrorKind};
use idemp_testkit::gate::Gate;
use idemp_testkit::sink::{Reply, ScriptedSink};
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_slow_sink_delays_no_other() {
    let gate = Gate::shut();
    let slow = ScriptedSink::always(Reply::delivered().behind(&gate));
    let (quick, failing) = (
        ScriptedSink::always(Reply::delivered()),
        ScriptedSink::always(Reply::status(400)),
    );
    let rig = Rig::lanes(
        [("slow", slow), ("quick", quick.clone()), ("failing", failing.clone())],
        |lanes| {
            // It must not run into its attempt's deadline while we look.
            lanes[0].attempt_timeout = secs(3_000);
        },
    );
    let handles: Vec<_> = messages(100)
        .into_iter()
        .map(|message| rig.dispatcher.try_submit(message).unwrap())
        .collect();
    let rest = |stats: &[LaneStats]| stats[1].unsettled() + stats[2].unsettled();
    while rest(&rig.dispatcher.stats().lanes) > 0 {
        tokio::task::yield_now().await;
    }
    let stats = rig.dispatcher.stats().lanes;
    assert_eq!(
        (stats[0].delivered, stats[1].delivered, stats[2].dead_lettered),
        (0, 100, 100)
    );
    gate.open();
    for handle in handles {
        let report = handle.settled().await;
        let names: Vec<_> = report.settlements().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["slow", "quick", "failing"]);
        assert!(report.settlements()[0].1.is_delivered());
        assert!(!report.all_delivered());
    }
    rig.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn two_sinks_that_fail_one_event_leave_two_letters() {
    let failing = || ScriptedSink::always(Reply::status(400));
    let rig = Rig::lanes([("one", failing()), ("two", failing())], |_| {});
    rig.dispatcher.dispatch(message()).await.unwrap();
    let mut sinks: Vec<_> = rig.letters().await.into_iter().map(|letter| letter.sink).collect();
    sinks.sort();
    assert_eq!(sinks, [name("one"), name("two")]);
}

#[tokio::test(start_paused = true)]
async fn a_lane_takes_only_what_its_filter_lets_through() {
    let (all, tools) = (
        ScriptedSink::always(Reply::delivered()),
        ScriptedSink::always(Reply::delivered()),
    );
    let rig = Rig::lanes([("all", all.clone()), ("tools", tools.clone())], |lanes| {
        lanes[1] = lanes[1].clone().only([EventType::TOOL_END]);
    });
    let run = Run::with_id(RunId::parse("r2").unwrap());
    let llm = rig
        .dispatcher
        .dispatch(run.event(EventType::LLM_END, &1).unwrap())
        .await
        .unwrap();
    assert_eq!(llm.settlements().len(), 1);
    let tool = rig
        .dispatcher
        .dispatch(run.event(EventType::TOOL_END, &1).unwrap())
        .await
        .unwrap();
    assert_eq!(tool.settlements().len(), 2);
    assert_eq!((all.calls().len(), tools.calls().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_no_lane_takes_is_settled_at_once_and_is_no_event_of_any() {
    let sink = ScriptedSink::always(Reply::delivered());
    let rig = Rig::with(&sink, |lane| *lane = lane.clone().only([EventType::LLM_END]));
    for handle in [
        rig.dispatcher.try_submit(message()).unwrap(),
        rig.dispatcher.submit(message()).await.unwrap(),
    ] {
        assert_eq!(handle.key().as_str(), "r1:tool_end:1");
        assert!(handle.settled().await.settlements().is_empty());
    }
    assert_eq!((rig.stats().accepted, sink.calls().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_on_its_way_is_joined() {
    let gate = Gate::shut();
    let sink = ScriptedSink::always(Reply::delivered().behind(&gate));
    let rig = Rig::new(&sink);
    let first = rig.dispatcher.submit(message()).await.unwrap();
    let second = rig.dispatcher.submit(message()).await.unwrap();
    gate.arrived(1).await;
    gate.open();
    assert!(first.settled().await.all_delivered() && second.settled().await.all_delivered());
    assert_eq!((sink.calls().len(), rig.stats().accepted), (1, 1));

    // Settled means forgotten: the receiver's de-duplication takes over.
    rig.dispatcher.dispatch(message()).await.unwrap();
    assert_eq!(sink.calls().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_joined_where_it_is_on_its_way_and_sent_anew_where_it_is_settled() {
    let names = ["one", "two", "three"];
    for quick in 0..3 {
        let gate = Gate::shut();
        let sinks = [0, 1, 2].map(|lane| {
            ScriptedSink::always(match lane == quick {
                true => Reply::delivered(),
                false => Reply::delivered().behind(&gate),
            })
        });
        let rig = Rig::lanes([0, 1, 2].map(|lane| (names[lane], sinks[lane].clone())), |lanes| {
            for lane in lanes {
                lane.attempt_timeout = secs(3_000);
            }
        });
        let first = rig.dispatcher.try_submit(message()).unwrap();
        gate.arrived(2).await;
        while rig.dispatcher.stats().lanes[quick].delivered == 0 {
            tokio::task::yield_now().await;
        }
        let second = rig.dispatcher.try_submit(message()).unwrap();
        gate.open();
        assert!(first.settled().await.all_delivered() && second.settled().await.all_delivered());
        let mut calls = [1, 1, 1];
        calls[quick] = 2;
        assert_eq!(sinks.map(|sink| sink.calls().len()), calls, "quick is lane {quick}");
        rig.assert_at_rest();
    }
}

#[tokio::test(start_paused = true)]
async fn other_bytes_under_a_key_that_is_on_its_way_are_a_conflict() {
    let gate = Gate::shut();
    let sink = ScriptedSink::always(Reply::delivered().behind(&gate));
    let rig = Rig::new(&sink);
    let first = rig.dispatcher.submit(message()).await.unwrap();
    let other = Message::new(message().key().clone(), &"other").unwrap();
    let error = rig.dispatcher.submit(other.clone()).await.unwrap_err();
    assert_eq!(error.kind(), &SubmitErrorKind::Conflict);
    assert_eq!(error.to_string(), "another event is on its way under key r1:tool_end:1");
    assert_eq!(error.into_message(), other);
    gate.open();
    first.settled().await;
    assert_eq!(sink.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_waiter_does_not_drop_the_event() {
    let sink = ScriptedSink::by_attempt([Reply::status(503), Reply::delivered()]);
    let rig = Rig::new(&sink);
    let waited = tokio::time::timeout(Duration::from_millis(100), rig.dispatcher.dispatch(message())).await;
    assert!(waited.is_err());
    assert_eq!(rig.dispatcher.flush(secs(60)).await, 0);
    assert_eq!((rig.stats().delivered, sink.calls().len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn flush_says_what_is_left_and_work_goes_on() {
    let gate = Gate::shut();
    let sink = ScriptedSink::always(Reply::delivered().behind(&gate));
    let rig = Rig::with(&sink, |lane| lane.attempt_timeout = secs(600));
    let mut messages = messages(4);
    let late = messages.pop().unwrap();
    for message in messages {
        let _ = rig.dispatcher.submit(message).await.unwrap();
    }
    assert_eq!(rig.dispatcher.flush(secs(5)).await, 3);
    gate.open();
    assert_eq!(rig.dispatcher.flush(secs(5)).await, 0);
    assert!(rig.dispatcher.dispatch(late).await.unwrap().all_delivered());
}

#[tokio::test(start_paused = true)]
async fn flush_waits_for_what_came_before_it_and_for_nothing_else() {
    let gate = Gate::shut();
    let sink = ScriptedSink::with({
        let gate = gate.clone();
        move |call| match call.key.step_index().as_u64() {
            1..=2 => Reply::delivered().delayed(secs(2)),
            _ => Reply::delivered().behind(&gate),
        }
    });
    let rig = Rig::with(&sink, |lane| lane.attempt_timeout = secs(3_000));
    let mut messages = messages(4).into_iter();
    let mut submit = || rig.dispatcher.try_submit(messages.next().unwrap()).unwrap();
    let start = Instant::now();
    let _before = (submit(), submit());
    let flush = |timeout| {
        let dispatcher = rig.dispatcher.clone();
        tokio::spawn(async move { (dispatcher.flush(timeout).await, start.elapsed()) })
    };
    let (one, two) = (flush(Duration::MAX), flush(secs(60)));
    tokio::time::sleep(secs(1)).await;
    assert!(!one.is_finished() && !two.is_finished());
    // Later than the flushes, and on its way for longer than both.
    let _after = submit();
    assert_eq!((one.await.unwrap(), two.await.unwrap()), ((0, secs(2)), (0, secs(2))));
    // A later one has it to wait for, and leaves it to the next.
    let _latest = submit();
    assert_eq!(rig.dispatcher.flush(secs(3)).await, 2);
    assert_eq!(rig.dispatcher.flush(Duration::ZERO).await, 2);
    gate.let_through(1);
    assert_eq!(rig.dispatcher.flush(secs(3)).await, 1);
    gate.open();
    assert_eq!(rig.dispatcher.flush(Duration::MAX).await, 0);
    rig.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn each_sink_gets_its_own_attempts() {
    let flaky = ScriptedSink::by_attempt([Reply::status(503), Reply::delivered()]);
    let steady = ScriptedSink::always(Reply::delivered());
    let rig = Rig::lanes([("flaky", flaky.clone()), ("steady", steady.clone())], |_| {});
    let report = rig.dispatcher.dispatch(message()).await.unwrap();
    let attempts: Vec<_> = report
        .settlements()
        .iter()
        .map(|(_, settlement)| match settlement {
            Settlement::Delivered { attempts } => *attempts,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        (attempts, flaky.calls().len(), steady.calls().len()),
        (vec![2, 1], 2, 1)
    );
}
