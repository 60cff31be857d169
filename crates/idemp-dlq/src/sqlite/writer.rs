//! Group commit: what is waiting shares one transaction, and one sync of the disk.

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::StoreError;

/// Jobs of one transaction.
const MOST_JOBS: usize = 1024;

/// Bytes of one transaction.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// One thing to write.
pub(super) trait Job: Send {
    /// Bytes that it writes, roughly.
    fn size(&self) -> usize;

    /// Does it, within a transaction; again if that transaction was rolled back.
    fn run(&mut self, connection: &Connection);

    /// Whether the last run succeeded.
    fn is_done(&self) -> bool;

    /// Answers: with the last run's result if its transaction was committed.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// A job that answers through a channel.
pub(super) struct Task<T, F> {
    size: usize,
    run: F,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Task<T, F> {
    pub(super) fn new(size: usize, run: F, reply: oneshot::Sender<Result<T, StoreError>>) -> Self {
        Self {
            size,
            run,
            result: None,
            reply,
        }
    }
}

impl<T: Send, F: FnMut(&Connection) -> Result<T, StoreError> + Send> Job for Task<T, F> {
    fn size(&self) -> usize {
        self.size
    }

    fn run(&mut self, connection: &Connection) {
        self.result = Some((self.run)(connection));
    }

    fn is_done(&self) -> bool {
        matches!(self.result, Some(Ok(_)))
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let result = match (self.result, committed) {
            (Some(Err(error)), _) | (_, Err(error)) => Err(error),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(super::fault::closed()),
        };
        // Nobody to tell if the caller has gone meanwhile.
        let _ = self.reply.send(result);
    }
}

/// Writes until there is nobody left who could ask for it.
pub(super) fn run(connection: &Connection, mut jobs: mpsc::Receiver<Box<dyn Job>>) {
    let mut batch = Vec::new();
    while let Some(first) = jobs.blocking_recv() {
        batch.push(first);
        match write(connection, &mut batch, &mut jobs) {
            Ok(()) => batch.drain(..).for_each(|job| job.answer(Ok(()))),
            Err(Failure::NotBegun(error)) => {
                // Whoever waits already has waited as long as this.
                while let Ok(job) = jobs.try_recv() {
                    batch.push(job);
                }
                batch.drain(..).for_each(|job| job.answer(Err(error.clone())));
            }
            Err(Failure::RolledBack(_)) => {
                for mut job in batch.drain(..) {
                    let committed = alone(connection, &mut *job);
                    job.answer(committed);
                }
            }
        }
    }
}

enum Failure {
    /// No transaction.
    NotBegun(StoreError),
    /// Nothing of the batch is written.
    RolledBack(StoreError),
}

/// Writes the batch in one transaction, together with what comes in until that is done.
fn write(
    connection: &Connection,
    batch: &mut Vec<Box<dyn Job>>,
    jobs: &mut mpsc::Receiver<Box<dyn Job>>,
) -> Result<(), Failure> {
    begin(connection)?;
    let (mut done, mut bytes) = (0, 0);
    while let Some(job) = batch.get_mut(done) {
        job.run(connection);
        if connection.is_autocommit() {
            // SQLite gave the whole transaction up. Whose fault it was shows when each is done alone.
            return Err(Failure::RolledBack(super::fault::closed()));
        }
        done += 1;
        bytes += job.size();
        if done < MOST_JOBS
            && bytes < MOST_BYTES
            && let Ok(next) = jobs.try_recv()
        {
            batch.push(next);
        }
    }
    commit(connection)
}

/// Writes one job in a transaction of its own, and nothing of it if it fails.
fn alone(connection: &Connection, job: &mut dyn Job) -> Result<(), StoreError> {
    let written = begin(connection).and_then(|()| {
        job.run(connection);
        if job.is_done() {
            commit(connection)
        } else {
            roll_back(connection)
        }
    });
    written.map_err(|(Failure::NotBegun(error) | Failure::RolledBack(error))| error)
}

fn begin(connection: &Connection) -> Result<(), Failure> {
    // Nothing is open, unless the disk failed while a transaction was rolled back.
    roll_back(connection)?;
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .map_err(|error| Failure::NotBegun(error.into()))
}

fn commit(connection: &Connection) -> Result<(), Failure> {
    connection.execute_batch("COMMIT").or_else(|error| {
        roll_back(connection)?;
        Err(Failure::RolledBack(error.into()))
    })
}

fn roll_back(connection: &Connection) -> Result<(), Failure> {
    if connection.is_autocommit() {
        return Ok(());
    }
    connection
        .execute_batch("ROLLBACK")
        .map_err(|error| Failure::RolledBack(error.into()))
}
