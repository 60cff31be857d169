//! A queue without room.

use std::sync::Arc;
use std::time::Duration;

use idemp_core::{ErrorClass, Sink};
use idemp_sinks::kafka::{KafkaConfig, KafkaSink};

use crate::{Cluster, DELIVERED, assert_failed, attempt, cluster, config, count, deliver, message, until_delivered};

/// Room for one message.
fn narrow_sink(cluster: &Cluster) -> KafkaSink {
    let config = KafkaConfig {
        max_queued_messages: 1,
        ..config(&cluster.bootstrap_servers())
    };
    KafkaSink::new(config).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_wait_for_room() {
    let cluster = cluster();
    let sink = Arc::new(narrow_sink(&cluster));
    let attempts: Vec<_> = (0..20)
        .map(|_| {
            let sink = Arc::clone(&sink);
            tokio::spawn(async move { deliver(&sink).await })
        })
        .collect();
    for attempt in attempts {
        assert_eq!(attempt.await.unwrap(), DELIVERED);
    }
    assert_eq!(count(&cluster), 20);
}

#[tokio::test]
async fn an_attempt_that_finds_no_room_in_time_is_pushed_back() {
    let cluster = cluster();
    let sink = narrow_sink(&cluster);
    assert_eq!(deliver(&sink).await, DELIVERED);
    cluster.broker_down(-1).unwrap();

    let message = message();
    // librdkafka has 3.5 s for a message, so that 0.1 s is left for finding room.
    let time = Duration::from_millis(3_600);
    let in_queue = sink.deliver(&message, attempt(crate::AMPLE));
    let (in_queue, pushed_back) = tokio::join!(biased; in_queue, sink.deliver(&message, attempt(time)));
    assert_failed(pushed_back, ErrorClass::PushBack, "QueueFull");
    assert_failed(in_queue, ErrorClass::Transient, "MessageTimedOut");
    cluster.broker_up(-1).unwrap();
    until_delivered(&sink, |outcome| {
        _ = assert_failed(outcome, ErrorClass::Transient, "MessageTimedOut")
    })
    .await;
    assert_eq!(count(&cluster), 2);
}
