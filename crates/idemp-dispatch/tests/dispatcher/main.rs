//! Conversations of the dispatcher with scripted sinks and stores, on a clock that jumps.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

mod breaker;
mod capacity;
mod config;
mod debug;
mod fan_out;
mod letters;
mod meters;
mod queue;
mod runtimes;
mod shutdown;
mod transcripts;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_core::{EventType, Message, Run, RunId, Sink, SinkName};
use idemp_dispatch::{Clock, Dispatcher, LaneConfig, LaneStats};
use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Loaded, MemoryStore, Put, ReplayFailure,
    Selection, Settled, Stats, StoreError, StoreErrorKind,
};
use idemp_testkit::sink::ScriptedSink;

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Messages `r1:tool_end:1` and so on.
pub(crate) fn messages(count: usize) -> Vec<Message> {
    let run = Run::with_id(RunId::parse("r1").unwrap());
    (0..count)
        .map(|number| run.event(EventType::TOOL_END, &number).unwrap())
        .collect()
}

pub(crate) fn message() -> Message {
    messages(1).remove(0)
}

pub(crate) fn name(text: &str) -> SinkName {
    SinkName::parse(text).unwrap()
}

struct TestClock(idemp_testkit::clock::Clock);

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        self.0.wall()
    }
}

/// A dispatcher with the test's clock, and the store of its dead letters.
pub(crate) struct Rig {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) start: SystemTime,
}

impl Rig {
    pub(crate) fn new(sink: &ScriptedSink) -> Self {
        Self::with(sink, |_| {})
    }

    pub(crate) fn with(sink: &ScriptedSink, change: impl FnOnce(&mut LaneConfig)) -> Self {
        Self::lanes([("sink", sink.clone())], |lanes| change(&mut lanes[0]))
    }

    pub(crate) fn lanes<const N: usize>(
        sinks: [(&str, ScriptedSink); N],
        change: impl FnOnce(&mut [LaneConfig]),
    ) -> Self {
        let store = Arc::new(MemoryStore::new());
        let lane = |(text, sink)| {
            let sink: Arc<dyn Sink> = Arc::new(sink);
            LaneConfig::new(name(text), sink, Arc::clone(&store) as Arc<dyn DeadLetterStore>)
        };
        let mut lanes: Vec<LaneConfig> = sinks.into_iter().map(lane).collect();
        change(&mut lanes);
        let clock = idemp_testkit::clock::Clock::start();
        let dispatcher = Dispatcher::with_clock(lanes, Arc::new(TestClock(clock))).unwrap();
        Self {
            dispatcher,
            store,
            start: clock.wall(),
        }
    }

    /// The one dead letter there is.
    pub(crate) async fn letter(&self) -> DeadLetter {
        let mut letters = self.letters().await;
        assert_eq!(letters.len(), 1);
        letters.remove(0)
    }

    pub(crate) async fn letters(&self) -> Vec<DeadLetter> {
        all_letters(&*self.store).await
    }

    pub(crate) fn stats(&self) -> LaneStats {
        self.dispatcher.stats().lanes.remove(0)
    }

    /// Nothing accepted is without an end.
    pub(crate) fn assert_at_rest(&self) {
        for lane in self.dispatcher.stats().lanes {
            assert_eq!(lane.unsettled(), 0, "{lane:?}");
            assert_eq!(
                lane.accepted,
                lane.delivered + lane.dead_lettered + lane.dropped + lane.unsaved + lane.lost
            );
        }
    }
}

/// A store that fails its first writes.
pub(crate) struct FailingStore {
    pub(crate) failures: usize,
    pub(crate) puts: AtomicUsize,
    pub(crate) inner: MemoryStore,
}

impl FailingStore {
    pub(crate) fn new(failures: usize) -> Arc<Self> {
        Arc::new(Self {
            failures,
            puts: AtomicUsize::new(0),
            inner: MemoryStore::new(),
        })
    }
}

/// Everything in a store, in replay order.
pub(crate) async fn all_letters(store: &dyn DeadLetterStore) -> Vec<DeadLetter> {
    let mut letters = Vec::new();
    let mut selection = store.select(&Filter::default()).await.unwrap();
    while let Some(page) = selection.next_page().await.unwrap() {
        for listed in page {
            letters.push(store.load(&listed.id).await.unwrap().unwrap().letter);
        }
    }
    letters
}

/// A store of which only `put` is asked, as a dispatcher does.
macro_rules! put_only {
    ($store:ty, |$self:ident, $letter:ident| $put:expr) => {
        #[async_trait]
        impl DeadLetterStore for $store {
            async fn put(&$self, $letter: DeadLetter) -> Result<Put, StoreError> {
                $put
            }

            async fn select(&self, _: &Filter) -> Result<Box<dyn Selection>, StoreError> {
                unreachable!("only put is asked")
            }

            async fn load(&self, _: &EntryId) -> Result<Option<Loaded>, StoreError> {
                unreachable!("only put is asked")
            }

            async fn claim(
                &self,
                _: &EntryId,
                _: &LeaseToken,
                _: Duration,
                _: SystemTime,
            ) -> Result<Claim, StoreError> {
                unreachable!("only put is asked")
            }

            async fn mark_replayed(&self, _: &EntryId, _: &LeaseToken, _: SystemTime) -> Result<Settled, StoreError> {
                unreachable!("only put is asked")
            }

            async fn record_failure(
                &self,
                _: &EntryId,
                _: &LeaseToken,
                _: ReplayFailure,
            ) -> Result<Settled, StoreError> {
                unreachable!("only put is asked")
            }

            async fn release(&self, _: &EntryId, _: &LeaseToken) -> Result<Settled, StoreError> {
                unreachable!("only put is asked")
            }

            async fn purge(&self, _: &Filter) -> Result<u64, StoreError> {
                unreachable!("only put is asked")
            }

            async fn stats(&self, _: &Filter) -> Result<Stats, StoreError> {
                unreachable!("only put is asked")
            }

            async fn close(&self) {}
        }
    };
}

pub(crate) use put_only;

put_only!(FailingStore, |self, letter| {
    if self.puts.fetch_add(1, Ordering::SeqCst) < self.failures {
        return Err(StoreError::new(StoreErrorKind::Unavailable, "the test says so"));
    }
    self.inner.put(letter).await
});

/// A store that never answers.
pub(crate) struct HangingStore;

put_only!(HangingStore, |self, _letter| std::future::pending().await);

/// A store with a fault in it.
pub(crate) struct PanickingStore;

put_only!(PanickingStore, |self, _letter| panic!("the test says so"));
