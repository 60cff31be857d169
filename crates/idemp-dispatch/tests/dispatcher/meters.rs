//! What is counted, under which names and labels.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use idemp_testkit::sink::{Reply, ScriptedSink};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use super::*;

/// Runs the future with a recorder of its own; every counter and gauge by name and labels.
fn recorded(run: impl Future<Output = ()>) -> BTreeMap<String, u64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(run));
    let mut values = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<_> = key
            .key()
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let name = format!("{} {}", key.key().name(), labels.join(" "));
        let value = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Gauge(gauge) => gauge.into_inner() as u64,
            DebugValue::Histogram(samples) => samples.len() as u64,
        };
        values.insert(name, value);
    }
    values
}

#[test]
fn ends_attempts_and_what_is_on_its_way() {
    let values = recorded(async {
        let sink = ScriptedSink::with(|call| match (call.key.step_index().as_u64(), call.number) {
            (1, 1) => Reply::status(503),
            (2, _) => Reply::status(400),
            (3, _) => Reply::status(401),
            (4, _) => Reply::hang(),
            _ => Reply::delivered(),
        });
        let rig = Rig::with(&sink, |lane| lane.attempt_timeout = secs(600));
        let handles: Vec<_> = messages(4)
            .into_iter()
            .map(|message| rig.dispatcher.try_submit(message).unwrap())
            .collect();
        assert_eq!(rig.dispatcher.flush(secs(10)).await, 1);
        drop(handles);
    });
    for (name, value) in [
        ("idemp_events_accepted_total sink=sink", 4),
        ("idemp_events_delivered_total sink=sink", 1),
        ("idemp_dead_letters_total sink=sink reason=event_rejected", 1),
        ("idemp_dead_letters_total sink=sink reason=configuration_rejected", 1),
        ("idemp_lane_unsettled_events sink=sink", 1),
        ("idemp_attempts_total sink=sink verdict=delivered", 1),
        ("idemp_attempts_total sink=sink verdict=retry", 1),
        ("idemp_attempts_total sink=sink verdict=rejects_event", 1),
        ("idemp_attempts_total sink=sink verdict=rejects_configuration", 1),
        ("idemp_attempt_duration_seconds sink=sink", 4),
        ("idemp_breaker_state sink=sink", 0),
    ] {
        assert_eq!(values.get(name), Some(&value), "{name} in {values:#?}");
    }
}

#[test]
fn the_breaker_tells_where_it_stands_and_why() {
    let values = recorded(async {
        let sink = ScriptedSink::always(Reply::status(503));
        let rig = Rig::new(&sink);
        for message in messages(10) {
            rig.dispatcher.dispatch(message).await.unwrap();
        }
    });
    assert_eq!(values["idemp_breaker_state sink=sink"], 2);
    assert_eq!(
        values["idemp_breaker_transitions_total sink=sink state=open reason=exhausted_in_a_row"],
        1
    );
}

#[test]
fn losses_and_stores_that_fail_are_counted() {
    let values = recorded(async {
        let sink = ScriptedSink::always(Reply::status(400));
        let lane = LaneConfig::at_most_once(name("sns"), Arc::new(sink.clone()));
        Dispatcher::new(vec![lane]).unwrap().dispatch(message()).await.unwrap();

        let fallback: Arc<dyn DeadLetterStore> = FailingStore::new(usize::MAX);
        let rig = Rig::with(&sink, |lane| {
            lane.dead_letters = Some(FailingStore::new(usize::MAX));
            lane.fallback = Some(fallback);
        });
        rig.dispatcher.dispatch(message()).await.unwrap();
    });
    for (name, value) in [
        ("idemp_events_dropped_total sink=sns reason=event_rejected", 1),
        ("idemp_events_unsaved_total sink=sink", 1),
        ("idemp_dead_letter_write_failures_total sink=sink store=primary", 4),
        ("idemp_dead_letter_write_failures_total sink=sink store=fallback", 1),
    ] {
        assert_eq!(values.get(name), Some(&value), "{name} in {values:#?}");
    }
}

#[test]
fn what_is_lost_is_counted_and_no_longer_on_its_way() {
    let values = recorded(async {
        let panics = Arc::new(AtomicBool::new(false));
        let sink = ScriptedSink::with({
            let panics = Arc::clone(&panics);
            move |call| {
                panics.store(call.index == 0, Ordering::SeqCst);
                Reply::delivered()
            }
        });
        let dispatcher = queue::dispatcher(&sink, 1, &panics);
        for message in messages(2) {
            let _ = dispatcher.try_submit(message).unwrap();
        }
        assert_eq!(dispatcher.flush(secs(1)).await, 0);
    });
    for (name, value) in [
        ("idemp_events_accepted_total sink=sink", 2),
        ("idemp_events_delivered_total sink=sink", 1),
        ("idemp_events_lost_total sink=sink", 1),
        ("idemp_lane_unsettled_events sink=sink", 0),
    ] {
        assert_eq!(values.get(name), Some(&value), "{name} in {values:#?}");
    }
}
