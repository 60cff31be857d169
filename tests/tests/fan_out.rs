//! One event to a webhook, Kafka, Redis and SNS at once: each lane goes its own way.
//!
//! `cargo xtask e2e fan-out` brings up what this needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::sync::Arc;
use std::time::Duration;

use idemp_core::{EventType, Reason, RetrySchedule, RunId, Secret, Sink, SinkName};
use idemp_core::{Message, Run};
use idemp_dispatch::{Dispatcher, LaneConfig, LaneStats, Settlement};
use idemp_dlq::{DeadLetterStore, Filter, MemoryStore};
use idemp_sinks::kafka::{KafkaConfig, KafkaSink};
use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};
use idemp_sinks::sns::{SnsConfig, SnsSink};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_testkit::gate::Gate;
use idemp_testkit::peer::{Answer, Peer};
use idemp_testkit::until;
use idemp_tests::{Kafka, Redis, Suite, free_address, make_topic, redis_programs, selected};
use serde_json::json;

const STREAM: &str = "events";
/// Only a guard against hanging for ever.
const LIMIT: Duration = Duration::from_secs(60);

fn secret() -> Secret {
    Secret::new("of the test").unwrap()
}

fn name(text: &str) -> SinkName {
    SinkName::parse(text).unwrap()
}

fn event() -> Message {
    let run = Run::with_id(RunId::parse("r1").unwrap());
    run.event(EventType::TOOL_END, &json!({"output": "4 °C"})).unwrap()
}

/// A real broker, a real server, and an SNS endpoint where nobody listens.
struct Rig {
    _kafka: Option<Kafka>,
    redis: Redis,
    letters: Arc<MemoryStore>,
    brokers: String,
    topic: String,
}

impl Rig {
    fn start(test: &str) -> Self {
        let kafka = Kafka::start();
        let brokers = match &kafka {
            Some(kafka) => kafka.address().to_string(),
            None => std::env::var("IDEMP_E2E_KAFKA").unwrap(),
        };
        // A broker from outside may have topics of this name.
        let topic = format!("idemp-fan-out-{}-{test}", std::process::id());
        make_topic(&brokers, &topic, &[]);
        Self {
            _kafka: kafka,
            redis: Redis::start(&redis_programs()[0], &[]),
            letters: Arc::new(MemoryStore::new()),
            brokers,
            topic,
        }
    }

    async fn dispatcher(&self, webhook: &Peer) -> Dispatcher {
        let webhook = WebhookSink::new(WebhookConfig {
            proxy: WebhookProxy::None,
            ..WebhookConfig::new(webhook.url("/"), secret())
        });
        let kafka = KafkaSink::new(KafkaConfig {
            attempt_timeout: LIMIT,
            ..KafkaConfig::new(self.brokers.as_str(), self.topic.as_str(), secret())
        });
        let redis = RedisStreamsSink::new(RedisStreamsConfig::new(self.redis.url(), STREAM, secret()));
        let sns = SnsSink::new(SnsConfig {
            endpoint_url: Some(format!("http://{}", free_address())),
            ..SnsConfig::new("arn:aws:sns:us-east-1:000000000000:events", secret())
        });
        let sinks: [(&str, Arc<dyn Sink>); 4] = [
            ("webhook", Arc::new(webhook.unwrap())),
            ("kafka", Arc::new(kafka.unwrap())),
            ("redis-streams", Arc::new(redis.unwrap())),
            ("sns", Arc::new(sns.await.unwrap())),
        ];
        let lanes = sinks.map(|(sink_name, sink)| LaneConfig {
            schedule: RetrySchedule::default().scaled(0.01).unwrap(),
            attempt_timeout: LIMIT,
            ..LaneConfig::new(name(sink_name), sink, Arc::clone(&self.letters) as _)
        });
        Dispatcher::new(lanes.into()).unwrap()
    }

    /// Sink and reason of every dead letter.
    async fn letters(&self) -> Vec<(String, Reason)> {
        let mut selection = self.letters.select(&Filter::default()).await.unwrap();
        let mut letters = Vec::new();
        while let Some(page) = selection.next_page().await.unwrap() {
            for listed in page {
                let head = listed.letterhead.unwrap();
                assert_eq!(head.key.as_str(), "r1:tool_end:1");
                letters.push((head.sink.to_string(), head.reason));
            }
        }
        letters.sort();
        letters
    }
}

fn lane(dispatcher: &Dispatcher, sink: &str) -> LaneStats {
    let lanes = dispatcher.stats().lanes;
    lanes.into_iter().find(|lane| lane.name.as_str() == sink).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sink_held_back_and_one_dead_touch_no_other() {
    if !selected(Suite::FanOut) {
        return;
    }
    let rig = Rig::start("one");
    let gate = Gate::shut();
    let behind = gate.clone();
    let webhook = Peer::start(move |_| Answer::status(200).behind(&behind)).await;
    let dispatcher = rig.dispatcher(&webhook).await;

    let handle = dispatcher.submit(event()).await.unwrap();
    webhook.received(1).await;
    until("the others have finished", || {
        lane(&dispatcher, "kafka").delivered == 1
            && lane(&dispatcher, "redis-streams").delivered == 1
            && lane(&dispatcher, "sns").dead_lettered == 1
    })
    .await;
    assert_eq!(lane(&dispatcher, "webhook").unsettled(), 1);
    gate.open();

    let report = handle.settled().await;
    assert_eq!(report.settlements().len(), 4);
    for (sink, settlement) in report.settlements() {
        match (sink.as_str(), settlement) {
            ("webhook" | "kafka" | "redis-streams", Settlement::Delivered { attempts: 1 }) => {}
            (
                "sns",
                Settlement::DeadLettered {
                    reason, attempts: 4, ..
                },
            ) => assert_eq!(*reason, Reason::RetriesExhausted),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rig.letters().await, [("sns".to_owned(), Reason::RetriesExhausted)]);
    let entries = rig.redis.client().entries(STREAM);
    assert_eq!(entries.len(), 1);
    assert!(
        entries[0]
            .1
            .contains(&("idempotency_key".to_owned(), "r1:tool_end:1".to_owned()))
    );
    dispatcher.shutdown(LIMIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failing_sink_has_a_dead_letter_of_its_own() {
    if !selected(Suite::FanOut) {
        return;
    }
    let rig = Rig::start("two");
    let webhook = Peer::start(|_| Answer::status(400)).await;
    let dispatcher = rig.dispatcher(&webhook).await;
    let report = dispatcher.dispatch(event()).await.unwrap();
    let delivered = report.settlements().iter().filter(|(_, end)| end.is_delivered());
    assert_eq!(delivered.count(), 2, "{report:?}");
    assert_eq!(
        rig.letters().await,
        [
            ("sns".to_owned(), Reason::RetriesExhausted),
            ("webhook".to_owned(), Reason::EventRejected)
        ]
    );
    dispatcher.shutdown(LIMIT).await;
}
