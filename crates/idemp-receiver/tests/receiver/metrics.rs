//! What is counted, under which names (docs/metrics.md).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idemp_core::{Secret, Secrets};
use idemp_receiver::{HandlerError, Receiver, ReceiverConfig, Reply, Scope};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::support::{BODY, Fault, Faulty, KEY, Signed};

/// A receiver in the scope `orders` whose metrics can be read.
fn measured(store: Faulty) -> (Receiver, Snapshotter) {
    let recorder = DebuggingRecorder::new();
    let secrets = [("old", "old secret"), ("current", "whsec_test_secret")]
        .map(|(label, secret)| Secret::labelled(label, secret).unwrap());
    let config = ReceiverConfig {
        scope: Scope::named("orders").unwrap(),
        lease: Duration::from_secs(1),
        ..ReceiverConfig::default()
    };
    let secrets = Secrets::new(secrets.into()).unwrap();
    let receiver = metrics::with_local_recorder(&recorder, || Receiver::new(store, &secrets, config)).unwrap();
    (receiver, recorder.snapshotter())
}

/// Every counter and gauge that is not zero, and how often each histogram was used: `name{label=value,...}`.
fn read(snapshotter: &Snapshotter) -> BTreeMap<String, i64> {
    let mut read = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let value = match value {
            DebugValue::Counter(count) => i64::try_from(count).unwrap(),
            DebugValue::Gauge(value) => value.0 as i64,
            DebugValue::Histogram(values) => i64::try_from(values.len()).unwrap(),
        };
        if value != 0 {
            read.insert(format!("{}{{{}}}", key.name(), labels.join(",")), value);
        }
    }
    read
}

#[track_caller]
fn check(snapshotter: &Snapshotter, expected: &[(&str, i64)]) {
    let expected = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    assert_eq!(read(snapshotter), expected);
}

async fn receive(receiver: &Receiver, key: &str, result: Result<(), HandlerError>) {
    let signed = Signed::new(key, BODY);
    receiver.receive(signed.incoming(), async move |_| result).await;
}

#[tokio::test]
async fn counts_replies_signatures_and_marks() {
    let (receiver, snapshotter) = measured(Faulty::default());
    receive(&receiver, KEY, Ok(())).await;
    receive(&receiver, KEY, Ok(())).await;
    receive(&receiver, "k2", Err(HandlerError::Rejected)).await;
    let mut forged = Signed::new("k3", BODY);
    forged.signature = format!("sha256={}", "0".repeat(64));
    receiver.receive(forged.incoming(), async |_| Ok(())).await;
    check(
        &snapshotter,
        &[
            ("idemp_receiver_replies_total{scope=orders,reply=ok}", 1),
            ("idemp_receiver_replies_total{scope=orders,reply=duplicate}", 1),
            ("idemp_receiver_replies_total{scope=orders,reply=rejected}", 1),
            ("idemp_receiver_replies_total{scope=orders,reply=bad_signature}", 1),
            ("idemp_receiver_bad_signatures_total{scope=orders,reason=mismatch}", 1),
            ("idemp_receiver_secret_matches_total{scope=orders,secret=current}", 3),
            ("idemp_receiver_marks_total{scope=orders,result=done}", 1),
            ("idemp_receiver_handler_duration_seconds{scope=orders}", 2),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn counts_lost_leases_late_marks_and_store_errors() {
    let (receiver, snapshotter) = measured(Faulty {
        renew: Fault::Down,
        ..Faulty::default()
    });
    let signed = Signed::new(KEY, BODY);
    let handler = async |_| {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        Ok(())
    };
    receiver.receive(signed.incoming(), handler).await;
    check(
        &snapshotter,
        &[
            ("idemp_receiver_replies_total{scope=orders,reply=ok}", 1),
            ("idemp_receiver_secret_matches_total{scope=orders,secret=current}", 1),
            ("idemp_receiver_marks_total{scope=orders,result=late}", 1),
            ("idemp_receiver_lost_leases_total{scope=orders}", 1),
            ("idemp_receiver_store_errors_total{scope=orders,operation=renew}", 3),
            ("idemp_receiver_handler_duration_seconds{scope=orders}", 1),
        ],
    );
}

#[tokio::test]
async fn counts_marks_that_could_not_be_written() {
    let (receiver, snapshotter) = measured(Faulty {
        complete: Fault::Down,
        ..Faulty::default()
    });
    receive(&receiver, KEY, Ok(())).await;
    let read = read(&snapshotter);
    assert_eq!(read["idemp_receiver_marks_total{scope=orders,result=unwritten}"], 1);
    assert_eq!(
        read["idemp_receiver_store_errors_total{scope=orders,operation=complete}"],
        1
    );
    assert_eq!(read["idemp_receiver_replies_total{scope=orders,reply=ok}"], 1);
}

#[tokio::test]
async fn the_gauge_goes_up_and_down() {
    let (receiver, snapshotter) = measured(Faulty::default());
    let running = move || {
        read(&snapshotter)
            .get("idemp_receiver_running_events{scope=orders}")
            .copied()
    };
    receive(&receiver, KEY, Ok(())).await;
    assert_eq!(running(), None);

    let running = Arc::new(running);
    let inside = Arc::clone(&running);
    let handler = async move |_| {
        assert_eq!(inside(), Some(1));
        Ok(())
    };
    let signed = Signed::new("k2", BODY);
    assert_eq!(receiver.receive(signed.incoming(), handler).await, Reply::Ok);
    // Reading it in between has set it back to zero.
    assert_eq!(running(), Some(-1));
}
