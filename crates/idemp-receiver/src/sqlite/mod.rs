//! Claims in an SQLite file: for receivers of one machine that remember across restarts.

mod inbox;
mod table;
mod unopened;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use idemp_core::Ttl;
use tokio::sync::{mpsc, watch};

use crate::claim::{ClaimKey, Claimant};
use crate::machine::{self, Record, Write};
use crate::store::{Claim, ClaimStore, Completed, StoreError, StoreErrorKind};
pub use inbox::{SQLITE_MIGRATIONS, SqliteInbox};
use table::Table;
use unopened::Unopened;
use writer::{Job, Question};

/// Jobs that may wait for the writer. Further ones wait to be put into the queue.
const QUEUE: usize = 1_024;

/// Keeps claims in an SQLite file.
///
/// Several receivers on one machine may share a file, also from several processes. It is created with mode 0600, in WAL
/// mode, with two files beside it that SQLite names `-wal` and `-shm`. Do not put it on a network file system.
///
/// One thread writes. Whatever has come in while it was busy shares one transaction and one fsync; what was answered
/// survives a power cut. Records whose time is up are deleted on the way, a bounded number per transaction.
///
/// Leases and TTLs are measured on the machine's wall clock, since the file outlives the process: a clock that is set
/// forward ends leases early, one that is set back prolongs them.
pub struct SqliteStore {
    /// `None` once it is closed.
    jobs: RwLock<Option<mpsc::Sender<Box<dyn Job>>>>,
    /// Its other end lives as long as the writer.
    writer: watch::Receiver<()>,
}

impl SqliteStore {
    /// Opens the file, or creates it; its folder must be there. Blocks for as long as that takes.
    ///
    /// # Errors
    /// If it cannot be opened or created, or holds something else than claims of this version. The error's source names
    /// the file and says what is wrong with it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with_clock(path, SystemTime::now)
    }

    /// As [`open`](Self::open), with a clock of your own in place of the machine's, for tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_clock(
        path: impl AsRef<Path>,
        clock: impl Fn() -> SystemTime + Send + 'static,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let table = Table::open(path)?;
        let now = move || clock().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (alive, writer) = watch::channel(());
        std::thread::Builder::new()
            .name("idemp-claims".to_owned())
            .spawn(move || {
                // Dropped once the file is closed.
                let _alive = alive;
                writer::run(table, queue, now);
            })
            .map_err(|error| Unopened::io(path, error))?;
        Ok(Self {
            jobs: RwLock::new(Some(jobs)),
            writer,
        })
    }

    async fn step<T: Send + 'static>(
        &self,
        key: &ClaimKey,
        decide: impl FnOnce(Option<Record>, Duration) -> (T, Write) + Send + 'static,
    ) -> Result<T, StoreError> {
        // The store is closed, or its writer has panicked.
        let gone = || StoreError::new(StoreErrorKind::Unavailable);
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (question, answer) = Question::new(key.clone(), decide);
        jobs.ok_or_else(gone)?.send(question).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

#[async_trait]
impl ClaimStore for SqliteStore {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        let who = claimant.clone();
        self.step(&claimant.key, move |found, now| machine::claim(found, &who, lease, now))
            .await
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        let who = claimant.clone();
        self.step(&claimant.key, move |found, now| machine::renew(found, &who, lease, now))
            .await
    }

    async fn complete(&self, claimant: &Claimant, ttl: Ttl) -> Result<Completed, StoreError> {
        let who = claimant.clone();
        self.step(&claimant.key, move |found, now| {
            machine::complete(found, &who, ttl, now)
        })
        .await
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        let who = claimant.clone();
        self.step(&claimant.key, move |found, _| machine::release(found, &who))
            .await
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError> {
        self.step(key, move |found, now| machine::mark_seen(found, ttl, now))
            .await
    }

    /// Waits until what was asked before is on disk and the file is closed.
    async fn close(&self) {
        drop(self.jobs.write().unwrap_or_else(PoisonError::into_inner).take());
        let mut writer = self.writer.clone();
        // Nothing is ever sent: it returns when the writer has ended.
        let _ = writer.changed().await;
    }
}
