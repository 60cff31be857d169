//! The thread that writes: many jobs, one transaction.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::table::{Records, Table, kind_of};
use crate::claim::ClaimKey;
use crate::machine::{Record, Write};
use crate::store::StoreError;

/// Most jobs in one transaction.
const BATCH: usize = 256;

/// Takes jobs until the store is dropped.
pub(super) fn run(mut table: Table, mut queue: mpsc::Receiver<Box<dyn Job>>, now: impl Fn() -> Duration) {
    let mut batch = Vec::with_capacity(BATCH);
    while queue.blocking_recv_many(&mut batch, BATCH) > 0 {
        let committed = table.transaction(|records| {
            // Read under the lock: another process may have kept us waiting for it.
            let now = now();
            for job in &mut batch {
                job.run(records, now)?;
            }
            // More than came in, so that the table shrinks when fewer events come.
            records.purge(now, 2 * batch.len())
        });
        let committed = committed.map_err(Arc::new);
        for job in batch.drain(..) {
            job.settle(committed.as_ref().map(|_| ()).map_err(Arc::clone));
        }
    }
}

/// One operation on one key.
pub(super) trait Job: Send {
    /// Does it within the transaction.
    fn run(&mut self, records: &Records<'_>, now: Duration) -> rusqlite::Result<()>;

    /// Answers once the transaction is committed, or has failed.
    fn settle(self: Box<Self>, committed: Result<(), Arc<rusqlite::Error>>);
}

/// A step of the machine with somebody who waits for its answer.
pub(super) struct Question<T, D> {
    key: ClaimKey,
    decide: Option<D>,
    decided: Option<T>,
    asker: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, D> Question<T, D>
where
    T: Send + 'static,
    D: FnOnce(Option<Record>, Duration) -> (T, Write) + Send + 'static,
{
    #[expect(clippy::new_ret_no_self, reason = "a question is only ever used as a job")]
    pub(super) fn new(key: ClaimKey, decide: D) -> (Box<dyn Job>, oneshot::Receiver<Result<T, StoreError>>) {
        let (asker, answer) = oneshot::channel();
        let question = Self {
            key,
            decide: Some(decide),
            decided: None,
            asker,
        };
        (Box::new(question), answer)
    }
}

impl<T, D> Job for Question<T, D>
where
    T: Send,
    D: FnOnce(Option<Record>, Duration) -> (T, Write) + Send,
{
    fn run(&mut self, records: &Records<'_>, now: Duration) -> rusqlite::Result<()> {
        let found = records.find(&self.key)?;
        if let Some(decide) = self.decide.take() {
            let (answer, write) = decide(found, now);
            records.write(&self.key, write)?;
            self.decided = Some(answer);
        }
        Ok(())
    }

    fn settle(self: Box<Self>, committed: Result<(), Arc<rusqlite::Error>>) {
        let answer = match (committed, self.decided) {
            (Ok(()), Some(answer)) => Ok(answer),
            (Err(error), _) => Err(StoreError::with_source(kind_of(&error), error)),
            // Every job of a committed transaction has run.
            (Ok(()), None) => return,
        };
        // Nobody waits any more: the operation is done all the same.
        let _ = self.asker.send(answer);
    }
}
