//! What `Debug` shows: names, keys and counts; never a payload, nor what a sink or a store is made of.

use idemp_dispatch::Settlement;
use idemp_testkit::gate::Gate;
use idemp_testkit::sink::{Reply, ScriptedSink};

use super::*;

const PAYLOAD: &str = "hunter2";

#[test]
fn a_lane_shows_its_name_and_its_promise() {
    let sink = || Arc::new(ScriptedSink::always(Reply::delivered()));
    let letters = Arc::new(MemoryStore::new());
    for (lane, says) in [
        (
            LaneConfig::new(name("hook"), sink(), letters),
            "LaneConfig { name: SinkName(hook), mode: AtLeastOnce, .. }",
        ),
        (
            LaneConfig::at_most_once(name("sns"), sink()),
            "LaneConfig { name: SinkName(sns), mode: AtMostOnce, .. }",
        ),
    ] {
        assert_eq!(format!("{lane:?}"), says);
    }
}

/// One event is on its way, one came back unsaved, and nothing more is taken.
#[tokio::test(start_paused = true)]
async fn nothing_shows_a_payload() {
    let gate = Gate::shut();
    let sink = ScriptedSink::with({
        let gate = gate.clone();
        move |call| match call.key.step_index().as_u64() {
            1 => Reply::delivered().behind(&gate),
            _ => Reply::status(400),
        }
    });
    let rig = Rig::with(&sink, |lane| {
        lane.dead_letters = Some(FailingStore::new(usize::MAX));
        lane.attempt_timeout = secs(3_000);
    });
    let run = Run::with_id(RunId::parse("r1").unwrap());
    let event = || run.event(EventType::TOOL_END, &PAYLOAD).unwrap();
    let on_its_way = rig.dispatcher.try_submit(event()).unwrap();
    let report = rig.dispatcher.dispatch(event()).await.unwrap();
    assert!(matches!(report.settlements()[0].1, Settlement::Unsaved { .. }));
    let refused = rig.dispatcher.try_submit(event()).unwrap_err();

    let dispatcher = format!("{:?}", rig.dispatcher);
    assert!(
        dispatcher.starts_with("Dispatcher { stats: Stats { lanes: [LaneStats { name: SinkName(sink), accepted: 2, "),
        "{dispatcher}"
    );
    let handle = format!("{on_its_way:?}");
    assert_eq!(handle, "Handle { key: IdempotencyKey(r1:tool_end:1), .. }");
    let (report, refused) = (format!("{report:?}"), format!("{refused:?}"));
    assert!(report.contains("IdempotencyKey(r1:tool_end:2)"), "{report}");
    assert!(refused.contains("IdempotencyKey(r1:tool_end:3)"), "{refused}");
    for shown in [dispatcher, handle, report, refused] {
        assert!(!shown.contains(PAYLOAD), "{shown}");
    }
    gate.open();
    assert!(on_its_way.settled().await.all_delivered());
}
