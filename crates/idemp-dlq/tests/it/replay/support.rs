//! The clock that jumps, the peer that letters are sent to, and replays to it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_core::{Attempt, Failure, Message, Outcome, Refusal, Sink, SinkName, StatusPolicy};
use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Fate, Filter, LeaseToken, MemoryStore, Progress, ReplayOptions,
    ReplaySummary, Replayer, Target,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::letters::{at, put_all};

pub(crate) const DELIVERED: Outcome = Outcome::Delivered { status: Some(200) };

pub(crate) fn busy() -> Outcome {
    Failure::status(503).into()
}

/// The time of day that belongs to tokio's clock: `at(0)` when it is made.
#[derive(Clone, Copy)]
pub(crate) struct Clock(pub(crate) Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> SystemTime {
        at(0) + self.0.elapsed()
    }
}

/// A sink that answers by a script, then always the same, and remembers what it was sent.
pub(crate) struct Peer {
    pub(crate) clock: Clock,
    pub(crate) script: Mutex<VecDeque<Outcome>>,
    /// What it answers after the script.
    pub(crate) rest: Outcome,
    /// How long an answer takes.
    pub(crate) takes: Duration,
    /// One permit for each answer.
    pub(crate) permits: Semaphore,
    /// Why it can never send a message, if so.
    pub(crate) refuses: Option<&'static str>,
    /// When it was sent what, since the clock was made.
    pub(crate) seen: Mutex<Vec<(Duration, Message, Attempt)>>,
}

impl Peer {
    pub(crate) fn new(clock: Clock, script: impl IntoIterator<Item = Outcome>, rest: Outcome) -> Self {
        Self {
            clock,
            script: Mutex::new(script.into_iter().collect()),
            rest,
            takes: Duration::ZERO,
            permits: Semaphore::new(Semaphore::MAX_PERMITS),
            refuses: None,
            seen: Mutex::default(),
        }
    }

    /// One that takes whatever comes, at once.
    pub(crate) fn delivering(clock: Clock) -> Arc<Self> {
        Arc::new(Self::new(clock, [], DELIVERED))
    }

    /// The keys that it was sent, in order.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .map(|(_, message, _)| message.key().to_string())
            .collect()
    }

    /// When it was sent each, in milliseconds.
    pub(crate) fn times(&self) -> Vec<u64> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .map(|(at, ..)| u64::try_from(at.as_millis()).unwrap())
            .collect()
    }
}

#[async_trait]
impl Sink for Peer {
    async fn deliver(&self, message: &Message, attempt: Attempt) -> Outcome {
        self.seen
            .lock()
            .unwrap()
            .push((self.clock.0.elapsed(), message.clone(), attempt));
        self.permits.acquire().await.unwrap().forget();
        sleep(self.takes).await;
        self.script
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or_else(|| self.rest.clone())
    }

    fn check(&self, _message: &Message) -> Result<(), Refusal> {
        self.refuses.map_or(Ok(()), |why| Err(Refusal::new(why)))
    }
}

pub(crate) async fn filled(letters: impl IntoIterator<Item = DeadLetter>) -> MemoryStore {
    let store = MemoryStore::new();
    put_all(&store, letters).await;
    store
}

/// The peer for `webhook`, and nothing for any other sink.
pub(crate) fn targets(peer: &Arc<Peer>) -> impl Fn(&SinkName) -> Option<Target> + Send + Sync + use<> {
    let peer = Arc::clone(peer);
    move |name| {
        let target = Target {
            sink: Arc::clone(&peer) as Arc<dyn Sink>,
            policy: StatusPolicy::default(),
        };
        (name.as_str() == "webhook").then_some(target)
    }
}

pub(crate) fn replayer(clock: Clock, options: ReplayOptions) -> Replayer {
    Replayer::new(options).unwrap().with_clock(move || clock.now())
}

/// Sends what lies under `webhook` to the peer, and returns what was told, too.
pub(crate) async fn replay(
    replayer: &Replayer,
    store: &dyn DeadLetterStore,
    peer: &Arc<Peer>,
) -> (ReplaySummary, Vec<Fate>) {
    replay_until(replayer, store, peer, &CancellationToken::new()).await
}

pub(crate) async fn replay_by_default(
    clock: Clock,
    store: &dyn DeadLetterStore,
    peer: &Arc<Peer>,
) -> (ReplaySummary, Vec<Fate>) {
    replay(&replayer(clock, ReplayOptions::default()), store, peer).await
}

/// As [`replay`], and somebody may cancel it.
pub(crate) async fn replay_until(
    replayer: &Replayer,
    store: &dyn DeadLetterStore,
    peer: &Arc<Peer>,
    cancel: &CancellationToken,
) -> (ReplaySummary, Vec<Fate>) {
    let mut fates = Vec::new();
    let mut observe = |progress: Progress<'_>| {
        if let Progress::Settled { fate, .. } = progress {
            fates.push(fate.clone());
        }
    };
    let summary = replayer
        .run(store, &Filter::default(), &targets(peer), &mut observe, cancel)
        .await
        .unwrap();
    (summary, fates)
}

/// Claims an entry that is free, as another operator does.
pub(crate) async fn hold(store: &MemoryStore, id: &EntryId, token: &LeaseToken, lease: Duration, now: SystemTime) {
    let claim = store.claim(id, token, lease, now).await;
    assert!(matches!(claim, Ok(Claim::Claimed(_))), "{claim:?}");
}
