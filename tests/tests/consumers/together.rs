//! One event over everything at once; a partition whose claims lie in Redis.

use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use idemp_core::{Attempt, EventType, IdempotencyKey, Message, Outcome, Sink};
use idemp_receiver::consume::{ConsumeConfig, RedisStreamsConsumer, RedisStreamsConsumerConfig};
use idemp_receiver::{Event, ReceiverLayer, RedisConfig, RedisStore};
use idemp_sinks::kafka::{KafkaConfig, KafkaSink};
use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_tests::{Redis, redis_programs};
use tokio_util::sync::CancellationToken;

use crate::kafka::{Broker, Running, TOPIC};
use crate::{Effects, key, once_each, receiver, secret, until};

/// One attempt after the other until one succeeds, as a sender makes them.
async fn deliver(sink: &dyn Sink, message: &Message) {
    for number in 1.. {
        let attempt = Attempt {
            number,
            now: SystemTime::now(),
            deadline: Instant::now() + Duration::from_secs(5),
        };
        match sink.deliver(message, attempt).await {
            Outcome::Delivered { .. } => return,
            Outcome::Failed(failure) => assert!(number < 100, "{failure:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_copies_over_http_and_kafka_and_redis_streams_have_one_effect() {
    let Some(broker) = Broker::start(3).await else { return };
    let redis = Redis::start(&redis_programs()[0], &[]);
    let effects = Effects::default();
    let store = || RedisStore::new(RedisConfig::new(redis.url())).unwrap();
    let stop = CancellationToken::new();

    let handled = effects.clone();
    let app = Router::new()
        .route(
            "/hook",
            post(move |event: Event| {
                handled.run(&event);
                async {
                    // So that copies come while it runs.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    StatusCode::OK
                }
            }),
        )
        .layer(ReceiverLayer::new(receiver(store())));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let kafka = Running::plain(&broker, store(), &effects);
    let config = RedisStreamsConsumerConfig::new(redis.url(), "webhooks", "idemp");
    let streams = RedisStreamsConsumer::new(&receiver(store()), ConsumeConfig::default(), config).unwrap();
    let streams = {
        let (handler, quarantine, stop) = (effects.handler(), effects.quarantine(), stop.clone());
        tokio::spawn(async move { streams.run(handler, quarantine, &stop).await })
    };

    let webhook = WebhookSink::new(WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(format!("http://{address}/hook"), secret())
    })
    .unwrap();
    let topic = KafkaSink::new(KafkaConfig::new(broker.kafka.address().to_string(), TOPIC, secret())).unwrap();
    let stream = RedisStreamsSink::new(RedisStreamsConfig::new(redis.url(), "webhooks", secret())).unwrap();
    let sinks: [&dyn Sink; 3] = [&webhook, &topic, &stream];
    for step in 1..=3 {
        let id = IdempotencyKey::parse(&key(step)).unwrap();
        let message = Message::new(id, &step).unwrap();
        assert_eq!(message.key().event_type(), EventType::TOOL_END.as_str());
        let copies = (0..50).map(|copy| deliver(sinks[copy % 3], &message));
        futures_util::future::join_all(copies).await;
    }
    // Both consumers are through with all of them.
    until("the stream is acknowledged", || {
        let info = redis.client().call(&["XINFO", "GROUPS", "webhooks"]);
        let text = format!("{info:?}");
        text.contains(r#"Text("pending"), Integer(0)"#) && text.contains(r#"Text("lag"), Integer(0)"#)
    })
    .await;
    until("all events have run", || effects.distinct() == 3).await;
    broker.send(4, 3).await;
    broker.send(5, 3).await;
    broker.send(6, 3).await;
    until("the topic is read to its end", || effects.distinct() == 6).await;
    stop.cancel();
    streams.await.unwrap().unwrap();
    kafka.stop().await;
    assert_eq!((effects.runs(), effects.quarantined()), (once_each(1..=6), vec![]));
}

/// Another program's value under the name of a claim, between good ones, and the partition goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_store_cannot_read_does_not_hold_up_its_partition() {
    let Some(broker) = Broker::start(1).await else { return };
    let redis = Redis::start(&redis_programs()[0], &[]);
    let name = format!("idemp:{}", key(2));
    redis.client().call(&["HSET", &name, "field", "value"]);
    let effects = Effects::default();
    let store = || RedisStore::new(RedisConfig::new(redis.url())).unwrap();
    let running = Running::plain(&broker, store(), &effects);
    for step in 1..=5 {
        broker.send(step, 1).await;
    }
    until("the rest has run", || effects.distinct() == 4).await;
    running.stop().await;
    assert_eq!(effects.runs(), once_each([1, 3, 4, 5]));
    assert_eq!(effects.quarantined(), [(format!("{TOPIC}/0/1"), "foreign_record")]);

    // Once the name is free the event can be brought in again, and all that came before was committed.
    redis.client().call(&["DEL", &name]);
    let running = Running::plain(&broker, store(), &effects);
    broker.send(2, 1).await;
    until("it has run", || effects.distinct() == 5).await;
    running.stop().await;
    assert_eq!((effects.runs(), effects.quarantined().len()), (once_each(1..=5), 1));
}
