//! Redis Streams: every test runs on each server program that is there.

mod entries;
mod group;
mod left;
mod outages;

use std::path::PathBuf;
use std::time::Duration;

use idemp_receiver::consume::{ConsumeConfig, ConsumerError, RedisStreamsConsumer, RedisStreamsConsumerConfig};
use idemp_receiver::{ClaimStore, Event, HandlerError, RedisConfig, RedisStore};
use idemp_tests::{Redis, RedisClient, RedisReply, Suite, redis_programs, selected};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{Effects, LIMIT, body, key, receiver, sign, until};

const STREAM: &str = "webhooks";
const GROUP: &str = "idemp";

/// Runs the test on each server program.
fn on_each(test: impl AsyncFn(PathBuf)) {
    if !selected(Suite::Consumers) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for program in redis_programs() {
        println!("on {}", program.display());
        runtime.block_on(test(program));
    }
}

/// An entry as the sink writes it.
fn add(redis: &Redis, step: usize) -> String {
    let payload = step.to_string();
    let (key, signature) = (key(step), sign(&body(step)));
    add_raw(
        redis,
        &[
            "idempotency_key",
            &key,
            "event_type",
            "tool_end",
            "payload",
            &payload,
            "signature",
            &signature,
        ],
    )
}

/// Reads entries for a consumer that never acknowledges them.
fn read_as(client: &mut RedisClient, consumer: &str, count: usize) {
    let count = count.to_string();
    client.call(&[
        "XREADGROUP",
        "GROUP",
        GROUP,
        consumer,
        "COUNT",
        &count,
        "STREAMS",
        STREAM,
        ">",
    ]);
}

fn add_raw(redis: &Redis, fields: &[&str]) -> String {
    let words = [&["XADD", STREAM, "*"], fields].concat();
    match redis.client().call(&words) {
        RedisReply::Text(id) => id,
        other => panic!("{other:?}"),
    }
}

/// How many entries are pending in the group; `None` without a group.
fn pending(redis: &Redis) -> Option<i64> {
    match redis.client().try_call(&["XPENDING", STREAM, GROUP]).ok()? {
        RedisReply::Array(parts) => match parts[0] {
            RedisReply::Integer(count) => Some(count),
            _ => None,
        },
        _ => None,
    }
}

/// How many entries the group has not read yet.
fn lag(redis: &Redis) -> i64 {
    let RedisReply::Array(groups) = redis.client().call(&["XINFO", "GROUPS", STREAM]) else {
        panic!("no groups");
    };
    let Some(RedisReply::Array(group)) = groups.into_iter().next() else {
        return i64::MAX;
    };
    let at = group
        .iter()
        .position(|word| *word == RedisReply::Text("lag".to_owned()));
    match group[at.unwrap() + 1] {
        RedisReply::Integer(lag) => lag,
        _ => i64::MAX,
    }
}

async fn all_done(redis: &Redis) {
    until("all is read and acknowledged", || {
        pending(redis) == Some(0) && lag(redis) == 0
    })
    .await;
}

fn config(url: &str) -> RedisStreamsConsumerConfig {
    RedisStreamsConsumerConfig {
        block: Duration::from_millis(100),
        reclaim_every: Duration::from_millis(100),
        // Above the longest handling of `consume`.
        min_idle: Duration::from_millis(2_500),
        ..RedisStreamsConsumerConfig::new(url, STREAM, GROUP)
    }
}

fn consume() -> ConsumeConfig {
    ConsumeConfig {
        retries: Vec::new(),
        handler_cap: Duration::from_secs(2),
        recheck: Duration::from_millis(50),
        ..ConsumeConfig::default()
    }
}

struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), ConsumerError>>,
}

impl Running {
    fn start<F>(
        config: RedisStreamsConsumerConfig,
        consume: ConsumeConfig,
        store: impl ClaimStore,
        effects: &Effects,
        handler: impl Fn(Event) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let consumer = RedisStreamsConsumer::new(&receiver(store), consume, config).unwrap();
        let (stop, quarantine) = (CancellationToken::new(), effects.quarantine());
        let task = {
            let stop = stop.clone();
            tokio::spawn(async move { consumer.run(handler, quarantine, &stop).await })
        };
        Self { stop, task }
    }

    fn plain(redis: &Redis, store: impl ClaimStore, effects: &Effects) -> Self {
        Self::start(config(&redis.url()), consume(), store, effects, effects.handler())
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(LIMIT, self.task)
            .await
            .expect("it stops")
            .unwrap()
            .unwrap();
    }
}

fn claims(redis: &Redis) -> RedisStore {
    RedisStore::new(RedisConfig::new(redis.url())).unwrap()
}
