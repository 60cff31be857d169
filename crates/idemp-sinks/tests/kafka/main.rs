//! The Kafka sink against librdkafka's own mock brokers, which fail on request.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails loudly"
)]

mod brokers;
mod codes;
mod config;
mod deliveries;
mod queue;

use std::time::{Duration, Instant, SystemTime};

use idemp_core::{Attempt, Cause, ErrorClass, EventType, Failure, Message, Outcome, Run, Secret, Sink};
use idemp_sinks::kafka::{KafkaConfig, KafkaSink};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message as _, OwnedMessage};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

type Cluster = MockCluster<'static, DefaultProducerContext>;

const TOPIC: &str = "events";
/// More than any attempt here takes: where it runs out, the test was to end otherwise.
const AMPLE: Duration = Duration::from_secs(60);
/// For attempts that are meant to run out of time; librdkafka has half of it. A producer's first message needs 0.5 s.
const SHORT: Duration = Duration::from_secs(3);
const DELIVERED: Outcome = Outcome::Delivered { status: None };

/// One broker with the topic, of one partition so that the order is that of sending.
fn cluster() -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    cluster
}

fn config(brokers: &str) -> KafkaConfig {
    KafkaConfig::new(brokers, TOPIC, Secret::new("whsec_test_secret").unwrap())
}

fn sink(cluster: &Cluster) -> KafkaSink {
    KafkaSink::new(config(&cluster.bootstrap_servers())).unwrap()
}

/// A sink whose messages live for 1.5 s.
fn short_sink(cluster: &Cluster) -> KafkaSink {
    let config = KafkaConfig {
        attempt_timeout: SHORT,
        ..config(&cluster.bootstrap_servers())
    };
    KafkaSink::new(config).unwrap()
}

/// Key `req-42:tool_end:1`, and the body of the vector `order/callback envelope`.
fn message() -> Message {
    let run = Run::with_id("req-42".parse().unwrap());
    let data = br#"{"output": "ok", "name": "t"}"#;
    run.event_from_json(EventType::TOOL_END, data).unwrap()
}

fn attempt(timeout: Duration) -> Attempt {
    Attempt {
        number: 1,
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_040_000),
        deadline: Instant::now() + timeout,
    }
}

async fn deliver(sink: &KafkaSink) -> Outcome {
    sink.deliver(&message(), attempt(AMPLE)).await
}

/// Makes attempts until one succeeds; `meanwhile` looks at the others.
async fn until_delivered(sink: &KafkaSink, meanwhile: impl Fn(Outcome)) {
    let end = Instant::now() + AMPLE;
    loop {
        let outcome = deliver(sink).await;
        if outcome == DELIVERED {
            return;
        }
        meanwhile(outcome);
        assert!(Instant::now() < end, "not delivered within {AMPLE:?}");
    }
}

/// The failure of an attempt that is expected to fail, by its class and code.
#[track_caller]
fn assert_failed(outcome: Outcome, class: ErrorClass, code: &str) -> Failure {
    let Outcome::Failed(failure) = outcome else {
        panic!("{outcome:?}")
    };
    let Cause::Code { class: is, code: found } = failure.cause else {
        panic!("{:?}", failure.cause)
    };
    assert_eq!((is, found.as_str()), (class, code), "{}", failure.detail.as_str());
    assert_eq!(failure.maybe_delivered, class == ErrorClass::Ambiguous);
    assert!(!failure.detail.is_empty());
    failure
}

/// The first `count` messages of the topic.
fn read(cluster: &Cluster, count: usize) -> Vec<OwnedMessage> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("group.id", "tests")
        .create()
        .unwrap();
    let mut from_the_start = rdkafka::TopicPartitionList::new();
    from_the_start
        .add_partition_offset(TOPIC, 0, rdkafka::Offset::Beginning)
        .unwrap();
    consumer.assign(&from_the_start).unwrap();
    let end = Instant::now() + AMPLE;
    let mut messages = Vec::new();
    while messages.len() < count {
        assert!(Instant::now() < end, "{} of {count} messages", messages.len());
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            messages.push(message.unwrap().detach());
        }
    }
    messages
}

/// How many messages the topic holds.
fn count(cluster: &Cluster) -> i64 {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .create()
        .unwrap();
    let (low, high) = consumer.fetch_watermarks(TOPIC, 0, AMPLE).unwrap();
    high - low
}

fn header<'m>(message: &'m OwnedMessage, name: &str) -> &'m str {
    let headers = message.headers().unwrap();
    let mut values = headers.iter().filter(|header| header.key == name);
    let value = values.next().unwrap_or_else(|| panic!("no {name}")).value.unwrap();
    assert!(values.next().is_none(), "{name} stands there twice");
    std::str::from_utf8(value).unwrap()
}
