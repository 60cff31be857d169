//! How many letters lie in a store, as a metric.

use metrics::gauge;

use crate::{DeadLetterStore, Filter, Stats, StoreError};

/// Counts a store and sets the gauge `idemp_dead_letter_depth`, in letters, for each sink that has any; label `sink`.
///
/// Call it as often as the metric should be fresh, once a minute say: a healthy store stays near 0, and a growing one
/// is worth an alarm. `before` is what the call before returned, so that a sink whose letters are gone goes back to 0.
///
/// # Errors
/// If the store cannot be read. The gauge then keeps its value.
///
/// # Cancel safety
/// Safe: nothing is changed but the gauge.
pub async fn record_depth(store: &dyn DeadLetterStore, before: Option<&Stats>) -> Result<Stats, StoreError> {
    let stats = store.stats(&Filter::default()).await?;
    for sink in before.into_iter().flat_map(|before| before.by_sink.keys()) {
        if !stats.by_sink.contains_key(sink) {
            gauge!("idemp_dead_letter_depth", "sink" => sink.to_string()).set(0.0);
        }
    }
    for (sink, depth) in &stats.by_sink {
        gauge!("idemp_dead_letter_depth", "sink" => sink.to_string()).set(*depth as f64);
    }
    Ok(stats)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use idemp_core::{EventType, Reason, Run, SinkName};
    use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

    use super::*;
    use crate::{DeadLetter, MemoryStore};

    fn letter(run: &Run, sink: &str) -> DeadLetter {
        let now = SystemTime::now();
        DeadLetter {
            sink: SinkName::parse(sink).unwrap(),
            message: run.event(EventType::TOOL_END, &1).unwrap(),
            reason: Reason::Shutdown,
            class: Reason::Shutdown.class(),
            maybe_delivered: false,
            attempts: Vec::new(),
            accepted_at: now,
            dead_at: now,
            not_before: None,
            replay_count: 0,
        }
    }

    fn depths(snapshotter: &Snapshotter) -> Vec<(String, f64)> {
        let mut depths: Vec<_> = snapshotter
            .snapshot()
            .into_vec()
            .into_iter()
            .map(|(key, _, _, value)| match value {
                DebugValue::Gauge(depth) if key.key().name() == "idemp_dead_letter_depth" => (
                    key.key().labels().next().unwrap().value().to_owned(),
                    depth.into_inner(),
                ),
                other => panic!("{other:?}"),
            })
            .collect();
        depths.sort_by(|a, b| a.0.cmp(&b.0));
        depths
    }

    #[test]
    fn each_sink_has_its_depth_and_goes_back_to_0() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        metrics::with_local_recorder(&recorder, || {
            runtime.block_on(async {
                let (store, run) = (MemoryStore::new(), Run::new());
                for sink in ["one", "two", "two"] {
                    store.put(letter(&run, sink)).await.unwrap();
                }
                let before = record_depth(&store, None).await.unwrap();
                assert_eq!(depths(&snapshotter), [("one".to_owned(), 1.0), ("two".to_owned(), 2.0)]);
                let gone = Filter {
                    sink: Some(SinkName::parse("two").unwrap()),
                    ..Filter::default()
                };
                store.purge(&gone).await.unwrap();
                record_depth(&store, Some(&before)).await.unwrap();
                assert_eq!(depths(&snapshotter), [("one".to_owned(), 1.0), ("two".to_owned(), 0.0)]);
            });
        });
    }
}
