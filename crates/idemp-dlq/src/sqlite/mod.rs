//! Dead letters in one SQLite file.
//!
//! One thread owns the connection that writes. It takes what is waiting into one transaction, so that many letters
//! share one sync of the disk; a single letter is written at once. Another thread reads, so that a list does not hold
//! up a letter. Other processes may use the same file meanwhile.

mod fault;
mod file;
mod letters;
mod query;
mod worker;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Listed, Loaded, Put, ReplayFailure, Selection,
    Settled, Stats, StoreError,
};
use letters::Row;
use query::Condition;
use worker::Worker;
use writer::{Job, Task};

/// Entries of a page.
const PAGE: usize = 500;

/// Entries that a purge deletes in one step, between which letters are written.
const PURGE_STEP: usize = 500;

/// Keeps dead letters in one SQLite file, durable once [`put`](DeadLetterStore::put) returns: also when the process is
/// killed or the power fails.
///
/// The file is made with mode 0600, as are the two beside it that end in `-wal` and `-shm`. It must lie on a local
/// file system. A letter that was replayed leaves a line without its body in the table `replayed`, which a purge
/// deletes by the same filter.
///
/// Dropping the store writes what was asked for first, and blocks until that is done; prefer
/// [`close`](DeadLetterStore::close). It works under any async runtime.
#[derive(Debug)]
pub struct SqliteStore {
    writer: Worker<Box<dyn Job>>,
    reader: Arc<Worker<Read>>,
}

type Read = Box<dyn FnOnce(&Connection) + Send>;

impl SqliteStore {
    /// Opens the file at `path`, or makes it. Blocks on the disk.
    ///
    /// # Errors
    /// If the file cannot be made or opened, is no dead-letter store, or one that a later version made.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::start(path.as_ref(), true)
    }

    /// Opens the file at `path`, which has to exist. Blocks on the disk.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if there is no such file.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::start(path.as_ref(), false)
    }

    fn start(path: &Path, create: bool) -> Result<Self, StoreError> {
        let file::Connections { writing, reading } = file::open(path, create)?;
        let writer = Worker::start("idemp-dlq-write", move |jobs| writer::run(&writing, jobs))?;
        let reader = Worker::start("idemp-dlq-read", move |mut jobs| {
            while let Some(read) = jobs.blocking_recv() {
                let read: Read = read;
                read(&reading);
            }
        })?;
        Ok(Self {
            writer,
            reader: Arc::new(reader),
        })
    }

    async fn write<T: Send + 'static>(
        &self,
        size: usize,
        run: impl FnMut(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.writer.send(Box::new(Task::new(size, run, reply))).await?;
        answer.await.map_err(|_| fault::closed())?
    }
}

async fn read<T: Send + 'static>(
    reader: &Worker<Read>,
    run: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (reply, answer) = oneshot::channel();
    let read: Read = Box::new(move |connection| {
        if !reply.is_closed() {
            // Nobody to tell if the caller has gone meanwhile.
            let _ = reply.send(run(connection));
        }
    });
    reader.send(read).await?;
    answer.await.map_err(|_| fault::closed())?
}

#[async_trait]
impl DeadLetterStore for SqliteStore {
    async fn put(&self, letter: DeadLetter) -> Result<Put, StoreError> {
        // Hashing and formatting are done here, in the caller's task: the writer only writes.
        let row = Row::new(letter);
        self.write(row.size(), move |connection| letters::put(connection, &row))
            .await
    }

    async fn select(&self, filter: &Filter) -> Result<Box<dyn Selection>, StoreError> {
        let filter = filter.clone();
        let ids = read(&self.reader, move |connection| query::select(connection, &filter)).await?;
        Ok(Box::new(Frozen {
            reader: Arc::clone(&self.reader),
            ids: ids.into_iter(),
        }))
    }

    async fn load(&self, id: &EntryId) -> Result<Option<Loaded>, StoreError> {
        let Some(number) = number(id) else { return Ok(None) };
        read(&self.reader, move |connection| letters::load(connection, number)).await
    }

    async fn claim(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        lease: Duration,
        now: SystemTime,
    ) -> Result<Claim, StoreError> {
        let Some(number) = number(id) else {
            return Ok(Claim::Gone);
        };
        let token = token.clone();
        self.write(0, move |connection| {
            letters::claim(connection, number, &token, lease, now)
        })
        .await
    }

    async fn mark_replayed(&self, id: &EntryId, token: &LeaseToken, now: SystemTime) -> Result<Settled, StoreError> {
        let Some(number) = number(id) else {
            return Ok(Settled::Lost);
        };
        let token = token.clone();
        self.write(0, move |connection| {
            letters::mark_replayed(connection, number, &token, now)
        })
        .await
    }

    async fn record_failure(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        failure: ReplayFailure,
    ) -> Result<Settled, StoreError> {
        let Some(number) = number(id) else {
            return Ok(Settled::Lost);
        };
        let token = token.clone();
        self.write(0, move |connection| {
            letters::record_failure(connection, number, &token, &failure)
        })
        .await
    }

    async fn release(&self, id: &EntryId, token: &LeaseToken) -> Result<Settled, StoreError> {
        let Some(number) = number(id) else {
            return Ok(Settled::Lost);
        };
        let token = token.clone();
        self.write(0, move |connection| letters::release(connection, number, &token))
            .await
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let meant = filter.clone();
        let ids = read(&self.reader, move |connection| query::select(connection, &meant)).await?;
        let mut purged = 0;
        for step in ids.chunks(PURGE_STEP) {
            let (step, condition) = (step.to_vec(), Condition::of(filter));
            purged += self
                .write(0, move |connection| letters::purge(connection, &step, &condition))
                .await?;
        }
        if filter.limit.is_none() {
            let condition = Condition::of(filter);
            self.write(0, move |connection| letters::purge_replayed(connection, &condition))
                .await?;
        }
        Ok(purged)
    }

    async fn stats(&self, filter: &Filter) -> Result<Stats, StoreError> {
        let filter = filter.clone();
        read(&self.reader, move |connection| query::stats(connection, &filter)).await
    }

    async fn close(&self) {
        self.reader.stop();
        self.writer.stop();
        self.reader.ended().await;
        self.writer.ended().await;
    }
}

fn number(id: &EntryId) -> Option<i64> {
    id.as_str().parse().ok()
}

/// Eight bytes for every entry; each page is read when it is asked for.
struct Frozen {
    reader: Arc<Worker<Read>>,
    ids: std::vec::IntoIter<i64>,
}

#[async_trait]
impl Selection for Frozen {
    async fn next_page(&mut self) -> Result<Option<Vec<Listed>>, StoreError> {
        let ids: Vec<i64> = self.ids.as_slice().iter().copied().take(PAGE).collect();
        if ids.is_empty() {
            return Ok(None);
        }
        let count = ids.len();
        let page = read(&self.reader, move |connection| query::page(connection, &ids)).await?;
        self.ids.by_ref().take(count).for_each(drop);
        Ok(Some(page))
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.reader.stop();
        self.writer.stop();
        self.reader.join();
        self.writer.join();
    }
}
