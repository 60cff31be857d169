//! Stores on something real, and replays that leave a trace.

use std::any::Any;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idemp_core::{Attempt, IdempotencyKey, Message, Outcome, Sink, SinkName};
use idemp_dlq::{
    DeadLetterStore, EntryId, Filter, RedisStreamsConfig, RedisStreamsStore, ReplayOptions, ReplaySummary, Replayer,
    SqliteStore, Target,
};
use idemp_tests::{Redis, Suite, redis_programs, selected, temp_dir};

/// A kind of store on something real, empty.
pub(crate) struct Place {
    /// What [`open`] opens, also in another process.
    pub(crate) address: String,
    /// What stays for as long as the store does.
    _keep: Box<dyn Any + Send + Sync>,
}

impl Place {
    pub(crate) async fn open(&self) -> Arc<dyn DeadLetterStore> {
        open(&self.address).await
    }
}

/// One place of each kind.
pub(crate) fn places() -> Vec<Place> {
    let dir = temp_dir();
    let sqlite = Place {
        address: format!("sqlite:{}", dir.path().join("dlq.db").display()),
        _keep: Box::new(dir),
    };
    let redis = redis_programs().into_iter().map(|program| {
        let redis = Redis::start(&program, &[]);
        Place {
            address: redis.url(),
            _keep: Box::new(redis),
        }
    });
    std::iter::once(sqlite).chain(redis).collect()
}

/// Opens `sqlite:PATH` or `redis://HOST:PORT`.
pub(crate) async fn open(address: &str) -> Arc<dyn DeadLetterStore> {
    match address.split_once(':') {
        Some(("sqlite", path)) => Arc::new(SqliteStore::open(path).unwrap()),
        Some(("redis", _)) => Arc::new(
            RedisStreamsStore::open(&RedisStreamsConfig::new(address))
                .await
                .unwrap(),
        ),
        _ => panic!("no store: {address}"),
    }
}

/// Runs the test on each kind of store, all at once: most of the time is spent on waiting for one of them.
pub(crate) fn on_each_place(test: impl AsyncFn(Place) + Sync) {
    if selected(Suite::DeadLetters) {
        on_each(places(), |place: &Place| place.address.clone(), test);
    }
}

/// Runs the test on each server program, all at once.
pub(crate) fn on_each_redis(test: impl AsyncFn(PathBuf) + Sync) {
    if selected(Suite::DeadLetters) {
        on_each(
            redis_programs(),
            |program: &PathBuf| program.display().to_string(),
            test,
        );
    }
}

pub(crate) fn on_each<T: Send>(all: Vec<T>, name: impl Fn(&T) -> String, test: impl AsyncFn(T) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        let started: Vec<_> = all
            .into_iter()
            .map(|one| (name(&one), scope.spawn(move || runtime().block_on(test(one)))))
            .collect();
        for (name, thread) in started {
            assert!(thread.join().is_ok(), "failed on {name}");
        }
    });
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Leases are short, so that what a killed replay held is free again soon.
pub(crate) fn options() -> ReplayOptions {
    ReplayOptions {
        rate_per_second: 1_000.0,
        lease: Duration::from_secs(3),
        attempt_timeout: Duration::from_millis(500),
        ..ReplayOptions::default()
    }
}

pub(crate) fn at_full_speed() -> ReplayOptions {
    ReplayOptions {
        rate_per_second: 100_000.0,
        ..options()
    }
}

pub(crate) async fn replay(store: &dyn DeadLetterStore, ledger: &Ledger, options: ReplayOptions) -> ReplaySummary {
    let target = Target {
        sink: Arc::new(ledger.clone()),
        policy: Default::default(),
    };
    let replayer = Replayer::new(options).unwrap();
    let targets = move |_: &SinkName| Some(target.clone());
    let cancel = Default::default();
    replayer
        .run(store, &Filter::default(), &targets, &mut |_| (), &cancel)
        .await
        .unwrap()
}

/// A sink that delivers by a line in a file, which holds the key: other processes see it at once.
#[derive(Clone)]
pub(crate) struct Ledger(Arc<File>);

impl Ledger {
    pub(crate) fn open(path: &Path) -> Self {
        Self(Arc::new(
            OpenOptions::new().create(true).append(true).open(path).unwrap(),
        ))
    }
}

#[async_trait]
impl Sink for Ledger {
    async fn deliver(&self, message: &Message, _attempt: Attempt) -> Outcome {
        (&*self.0)
            .write_all(format!("{}\n", message.key().as_str()).as_bytes())
            .unwrap();
        Outcome::Delivered { status: None }
    }
}

pub(crate) fn lines(ledger: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The entries that are meant, with their keys.
pub(crate) async fn list(store: &dyn DeadLetterStore, filter: &Filter) -> Vec<(EntryId, IdempotencyKey)> {
    let mut listed = Vec::new();
    let mut selection = store.select(filter).await.unwrap();
    while let Some(page) = selection.next_page().await.unwrap() {
        listed.extend(page.into_iter().map(|entry| (entry.id, entry.letterhead.unwrap().key)));
    }
    listed
}
