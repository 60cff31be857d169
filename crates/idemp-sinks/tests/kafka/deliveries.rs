//! What arrives, and when an attempt knows of it.

use std::time::Duration;

use idemp_core::{ErrorClass, Sink};
use idemp_testkit::vectors;
use rdkafka::message::{Headers, Message as _};
use serde::Deserialize;

use crate::{AMPLE, DELIVERED, assert_failed, attempt, cluster, count, deliver, header, message, read, sink};

#[derive(Deserialize)]
struct Vector {
    name: String,
    canonical_hex: String,
    hmac_sha256_hex: String,
}

#[tokio::test]
async fn the_message_is_as_the_docs_have_it() {
    let vectors: Vec<Vector> = vectors::load("canonical-json.jsonl");
    let vector = vectors
        .iter()
        .find(|vector| vector.name == "order/callback envelope")
        .unwrap();
    let cluster = cluster();
    assert_eq!(deliver(&sink(&cluster)).await, DELIVERED);

    let messages = read(&cluster, 1);
    let message = &messages[0];
    assert_eq!(message.key(), Some(b"req-42".as_slice()));
    assert_eq!(message.payload().unwrap(), vectors::unhex(&vector.canonical_hex));
    assert_eq!(header(message, "idempotency-key"), "req-42:tool_end:1");
    assert_eq!(header(message, "event-type"), "tool_end");
    assert_eq!(
        header(message, "x-signature-256"),
        format!("sha256={}", vector.hmac_sha256_hex)
    );
    assert_eq!(message.headers().unwrap().count(), 3);
    assert_eq!(count(&cluster), 1);
}

#[tokio::test]
async fn an_attempt_that_is_dropped_does_not_unsend() {
    let cluster = cluster();
    let sink = sink(&cluster);
    assert_eq!(deliver(&sink).await, DELIVERED);
    cluster.broker_round_trip_time(-1, Duration::from_millis(300)).unwrap();

    let message = message();
    let mut dropped = Box::pin(sink.deliver(&message, attempt(AMPLE)));
    assert!(poll_once(&mut dropped).await, "it is still waiting for its report");
    drop(dropped);
    assert_eq!(read(&cluster, 2).len(), 2);
}

/// Polls once, and says whether the future is still pending.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| {
        let pending = std::pin::Pin::new(&mut *future).poll(context).is_pending();
        std::task::Poll::Ready(pending)
    })
    .await
}

#[tokio::test]
async fn an_attempt_whose_time_is_up_does_not_know_whether_the_event_arrived() {
    let cluster = cluster();
    let sink = sink(&cluster);
    assert_eq!(deliver(&sink).await, DELIVERED);
    cluster.broker_round_trip_time(-1, Duration::from_secs(1)).unwrap();

    let outcome = sink.deliver(&message(), attempt(Duration::from_millis(100))).await;
    assert_failed(outcome, ErrorClass::Ambiguous, "NoReport");
    assert_eq!(read(&cluster, 2).len(), 2, "it arrives all the same");

    let outcome = sink.deliver(&message(), attempt(Duration::ZERO)).await;
    assert_failed(outcome, ErrorClass::Transient, "NotSent");
    assert_eq!(count(&cluster), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_hands_over_what_is_in_the_queue() {
    let cluster = cluster();
    let sink = std::sync::Arc::new(sink(&cluster));
    assert_eq!(deliver(&sink).await, DELIVERED);
    cluster.broker_round_trip_time(-1, Duration::from_millis(300)).unwrap();

    let message = message();
    let mut in_flight = Box::pin(sink.deliver(&message, attempt(AMPLE)));
    assert!(poll_once(&mut in_flight).await);
    sink.close().await;
    assert_eq!(in_flight.await, DELIVERED);
    assert_eq!(count(&cluster), 2);

    assert_failed(deliver(&sink).await, ErrorClass::Transient, "NotSent");
    sink.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_leaves_no_message_without_an_end() {
    let cluster = cluster();
    let sink = crate::short_sink(&cluster);
    assert_eq!(deliver(&sink).await, DELIVERED);
    cluster.broker_down(-1).unwrap();

    let message = message();
    let mut in_queue = Box::pin(sink.deliver(&message, attempt(AMPLE)));
    assert!(poll_once(&mut in_queue).await);
    sink.close().await;
    // Its time in the queue is up, and no broker came.
    assert_failed(in_queue.await, ErrorClass::Transient, "MessageTimedOut");
}

#[tokio::test]
async fn a_sink_that_is_dropped_hands_over_what_is_in_the_queue() {
    let cluster = cluster();
    let sink = sink(&cluster);
    // A producer cannot send before it has an id, so that this one is in the queue still.
    let message = message();
    let mut in_queue = Box::pin(sink.deliver(&message, attempt(AMPLE)));
    assert!(poll_once(&mut in_queue).await);
    drop(in_queue);
    drop(sink);
    assert_eq!(read(&cluster, 1).len(), 1);
}
