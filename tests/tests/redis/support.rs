//! A lane to a stream, events, and what came of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use idemp_core::{
    Attempt, BreakerConfig, EventType, Failure, Message, Outcome, Reason, RetrySchedule, Run, Secret, Sink, SinkName,
};
use idemp_dispatch::{Dispatcher, LaneConfig, LaneStats, Report, Settlement};
use idemp_dlq::{DeadLetter, DeadLetterStore, Filter, ReplayOptions, Replayer, SqliteStore, Target};
use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};
use idemp_testkit::proxy::Proxy;
use idemp_tests::{Redis, Suite, redis_programs, selected, temp_dir};
use serde_json::json;

pub(crate) const LIMIT: Duration = Duration::from_secs(120);
pub(crate) const SECRET: &str = "a secret of the test";
pub(crate) const STREAM: &str = "webhooks";
pub(crate) const DELIVERED: Outcome = Outcome::Delivered { status: None };

/// Runs the test on each server program.
pub(crate) fn on_each(test: impl AsyncFn(PathBuf)) {
    if !selected(Suite::Redis) {
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

/// That all four attempts were made, and the event is a dead letter.
#[track_caller]
pub(crate) fn assert_ran_out(settlement: &Settlement) {
    assert!(
        matches!(
            settlement,
            Settlement::DeadLettered {
                reason: Reason::RetriesExhausted,
                attempts: 4,
                ..
            }
        ),
        "{settlement:?}"
    );
}

/// A dispatcher with one lane, whose dead letters lie in a file. It waits a fiftieth of the usual times.
pub(crate) struct Lane {
    pub(crate) dispatcher: Dispatcher,
    sink: Arc<RedisStreamsSink>,
    store: Arc<dyn DeadLetterStore>,
    /// The folder of the dead letters.
    _dir: Box<dyn std::any::Any + Send + Sync>,
}

impl Lane {
    pub(crate) fn to(config: RedisStreamsConfig) -> Self {
        Self::with(config, |_| ())
    }

    pub(crate) fn with(config: RedisStreamsConfig, change: impl FnOnce(&mut LaneConfig)) -> Self {
        let dir = temp_dir();
        let store: Arc<dyn DeadLetterStore> = Arc::new(SqliteStore::open(dir.path().join("dlq.db")).unwrap());
        let sink = Arc::new(RedisStreamsSink::new(config).unwrap());
        let mut lane = LaneConfig::new(name(), Arc::clone(&sink) as _, Arc::clone(&store));
        lane.schedule = RetrySchedule::default().scaled(0.02).unwrap();
        // It is another test that shows when a breaker opens.
        lane.breaker = BreakerConfig {
            exhausted_in_a_row: 1_000_000,
            ..BreakerConfig::default()
        };
        change(&mut lane);
        Self {
            dispatcher: Dispatcher::new(vec![lane]).unwrap(),
            sink,
            store,
            _dir: Box::new(dir),
        }
    }

    pub(crate) async fn submit(&self, messages: Vec<Message>) {
        for message in messages {
            drop(self.dispatcher.submit(message).await.unwrap());
        }
    }

    pub(crate) async fn one(&self, message: Message) -> Settlement {
        let report: Report = self.dispatcher.dispatch(message).await.unwrap();
        report.settlements()[0].1.clone()
    }

    pub(crate) fn stats(&self) -> LaneStats {
        self.dispatcher.stats().lanes.remove(0)
    }

    /// What happened, once every event has its end.
    pub(crate) async fn at_rest(&self) -> LaneStats {
        assert_eq!(self.dispatcher.flush(LIMIT).await, 0);
        self.stats()
    }

    pub(crate) async fn letters(&self) -> Vec<DeadLetter> {
        let mut letters = Vec::new();
        let mut selection = self.store.select(&Filter::default()).await.unwrap();
        while let Some(page) = selection.next_page().await.unwrap() {
            for listed in page {
                letters.extend(self.store.load(&listed.id).await.unwrap().map(|loaded| loaded.letter));
            }
        }
        letters
    }

    /// Replays everything to the same sink, and says how many that were. A connection that broke meanwhile costs the
    /// first attempt, and so a second replay.
    pub(crate) async fn replay(&self) -> u64 {
        let replayer = Replayer::new(ReplayOptions {
            rate_per_second: 100_000.0,
            ..ReplayOptions::default()
        })
        .unwrap();
        let target = Target {
            sink: Arc::clone(&self.sink) as _,
            policy: Default::default(),
        };
        let (filter, targets) = (Filter::default(), move |_: &SinkName| Some(target.clone()));
        let cancel = Default::default();
        let mut replayed = 0;
        for _ in 0..2 {
            let summary = replayer
                .run(&*self.store, &filter, &targets, &mut |_| (), &cancel)
                .await;
            replayed += summary.unwrap().replayed;
        }
        assert_eq!(self.store.stats(&filter).await.unwrap().depth, 0);
        replayed
    }
}

pub(crate) fn name() -> SinkName {
    SinkName::parse("stream").unwrap()
}

pub(crate) fn secret() -> Secret {
    Secret::new(SECRET).unwrap()
}

pub(crate) fn config(redis: &Redis) -> RedisStreamsConfig {
    RedisStreamsConfig::new(redis.url(), STREAM, secret())
}

pub(crate) fn behind(proxy: &Proxy) -> RedisStreamsConfig {
    RedisStreamsConfig::new(format!("redis://{}", proxy.addr()), STREAM, secret())
}

pub(crate) fn event() -> Message {
    Run::new().event(EventType::TOOL_END, &json!({"output": "42"})).unwrap()
}

pub(crate) async fn deliver(sink: &RedisStreamsSink, message: &Message) -> Outcome {
    let attempt = Attempt {
        number: 1,
        now: SystemTime::now(),
        deadline: Instant::now() + Duration::from_secs(30),
    };
    sink.deliver(message, attempt).await
}

pub(crate) fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        Outcome::Delivered { .. } => panic!("delivered"),
    }
}

/// How often each key is in the stream.
pub(crate) fn keys_in(redis: &Redis) -> BTreeMap<String, u64> {
    let mut keys = BTreeMap::new();
    for (_, fields) in redis.client().entries(STREAM) {
        let key = fields
            .into_iter()
            .find(|(name, _)| name == "idempotency_key")
            .unwrap()
            .1;
        *keys.entry(key).or_default() += 1;
    }
    keys
}
