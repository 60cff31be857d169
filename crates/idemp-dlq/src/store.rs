//! Where dead letters lie.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_core::{Reason, SinkName};

use crate::{DeadLetter, Filter, Letterhead, RecordError, ReplayFailure, StoreError};

/// Keeps dead letters until they are replayed or purged.
///
/// # Contract
///
/// * Identity is the sink and the key. A letter whose body has the same SHA-256 as an entry's updates that entry in
///   place ([`Letterhead::absorb`]); a letter with other bytes becomes an entry of its own with reason
///   [`Reason::KeyConflict`].
/// * What [`put`](Self::put) acknowledged is durable, as far as the store is at all.
/// * Nothing is evicted, and bodies come out byte for byte as they went in.
/// * An entry is held by at most one [`LeaseToken`] at a time. A lease ends by time; until somebody else takes the
///   entry over, its last holder may still settle it. `now` is the caller's time of day, and decides.
/// * An entry that cannot be read is listed with its error, keeps its place and disturbs no other.
/// * An [`EntryId`] means one entry for ever: after that entry is gone, the id is never used for another.
///
/// The feature `conformance` has checks for all of it.
///
/// # Cancel safety
///
/// Dropping a method's future before it is done leaves the store in a sound state; what was asked for may still
/// happen, as a whole or not at all. [`purge`](Self::purge) alone may stop part of the way.
#[async_trait]
pub trait DeadLetterStore: Send + Sync + 'static {
    /// Keeps a letter. When it returns, the letter is durable. An entry that is held stays held.
    ///
    /// # Errors
    /// If the letter was not kept, or that is not known. Putting it again is always safe.
    async fn put(&self, letter: DeadLetter) -> Result<Put, StoreError>;

    /// Freezes which entries the filter means now, and lists them in replay order by pages: oldest day (UTC) of
    /// `accepted_at` first, within a day one run after the other, within a run by step.
    ///
    /// # Errors
    /// If the store cannot be read.
    async fn select(&self, filter: &Filter) -> Result<Box<dyn Selection>, StoreError>;

    /// Reads one entry; `None` if it is gone.
    ///
    /// # Errors
    /// If the store or this entry cannot be read.
    async fn load(&self, id: &EntryId) -> Result<Option<Loaded>, StoreError>;

    /// Takes an entry for the time of `lease` from `now` on, so that nobody else works on it. Whoever holds it
    /// already prolongs the lease.
    ///
    /// # Errors
    /// If the store or this entry cannot be read or written. An entry that cannot be read is not taken.
    async fn claim(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        lease: Duration,
        now: SystemTime,
    ) -> Result<Claim, StoreError>;

    /// Takes an entry out of the dead letters because a replay delivered it.
    ///
    /// # Errors
    /// If that was not done, or is not known. Doing it again is safe.
    async fn mark_replayed(&self, id: &EntryId, token: &LeaseToken, now: SystemTime) -> Result<Settled, StoreError>;

    /// Writes a failed replay into the entry ([`Letterhead::record`]) and lets go of it. The entry does not grow
    /// without bound.
    ///
    /// # Errors
    /// If that was not done, or is not known.
    async fn record_failure(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        failure: ReplayFailure,
    ) -> Result<Settled, StoreError>;

    /// Lets go of an entry without a word.
    ///
    /// # Errors
    /// If that was not done, or is not known. The lease ends by itself.
    async fn release(&self, id: &EntryId, token: &LeaseToken) -> Result<Settled, StoreError>;

    /// Deletes what the filter means, held or not, readable or not, and says how many entries that were.
    ///
    /// # Errors
    /// If the store fails, maybe part of the way.
    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError>;

    /// Counts what the filter means.
    ///
    /// # Errors
    /// If the store cannot be read.
    async fn stats(&self, filter: &Filter) -> Result<Stats, StoreError>;

    /// Finishes what was asked for and lets go of files and connections. Calls after it may fail.
    async fn close(&self);
}

/// A frozen selection.
#[async_trait]
pub trait Selection: Send {
    /// The next entries; `None` after the last. An entry that has gone since is left out.
    ///
    /// # Errors
    /// If the store cannot be read. Asking again is safe.
    ///
    /// # Cancel safety
    /// A page whose future was dropped may be missing.
    async fn next_page(&mut self) -> Result<Option<Vec<Listed>>, StoreError>;
}

/// One entry of a store. The text is the store's own and means nothing elsewhere.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EntryId(Arc<str>);

impl EntryId {
    /// Takes the store's text.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The store's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryId({})", self.0)
    }
}

/// Tells one holder from another: every write of a holder is compared with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken(Arc<str>);

impl LeaseToken {
    /// A fresh one: a UUIDv4 (RFC 9562).
    ///
    /// # Panics
    /// If the operating system gives no random bytes.
    #[must_use]
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().hyphenated().to_string().into())
    }

    /// The token as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What became of a letter that was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Put {
    /// It is a new entry.
    Added,
    /// It updated the entry of its sink, key and bytes.
    Updated,
    /// Other bytes lie under its sink and key: it is a new entry with reason [`Reason::KeyConflict`].
    Conflict,
}

/// One line of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which entry.
    pub id: EntryId,
    /// The letter without its body, or why it cannot be read.
    pub letterhead: Result<Letterhead, RecordError>,
}

/// An entry that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The letter.
    pub letter: DeadLetter,
    /// Until when somebody holds it; that may be past.
    pub held_until: Option<SystemTime>,
}

/// What came of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The entry is the caller's for the time of the lease.
    Claimed(Box<DeadLetter>),
    /// Somebody else holds it.
    Held {
        /// Until when, if it is not prolonged.
        until: SystemTime,
    },
    /// There is no such entry any more.
    Gone,
}

/// Whether a holder could settle its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settled {
    /// It could.
    Done,
    /// It does not hold the entry any more, or the entry is gone. Nothing was changed.
    Lost,
}

/// What lies in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of entries.
    pub depth: u64,
    /// The same by sink.
    pub by_sink: BTreeMap<SinkName, u64>,
    /// The same by reason.
    pub by_reason: BTreeMap<Reason, u64>,
    /// When the oldest of them was given up.
    pub oldest: Option<SystemTime>,
}

impl Stats {
    /// Counts `count` entries of one sink and reason, the oldest of which was given up at `dead_at`. What is `None`
    /// cannot be read.
    pub fn count(&mut self, sink: Option<SinkName>, reason: Option<Reason>, count: u64, dead_at: SystemTime) {
        self.depth += count;
        if let Some(sink) = sink {
            *self.by_sink.entry(sink).or_default() += count;
        }
        if let Some(reason) = reason {
            *self.by_reason.entry(reason).or_default() += count;
        }
        self.oldest = Some(self.oldest.map_or(dead_at, |oldest| oldest.min(dead_at)));
    }
}
