//! Who makes the attempts of a lane.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use idemp_core::Reason;
use tokio::runtime::Id;
use tokio::task::coop::{consume_budget, has_budget_remaining};
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFuture;
use tracing::Instrument;

use super::{Job, Lane};

/// Makes one attempt after another, for the first event in the queue.
pub(super) struct Worker {
    lane: Arc<Lane>,
    /// The event with which it begins, until it is at it.
    first: Option<Job>,
    /// Where that was submitted.
    runtime: Id,
    ended: bool,
}

/// What cuts an attempt short. Set up once for all attempts of a worker.
pub(super) struct Limits<'r, 'l> {
    pub(super) aborted: Pin<&'r mut WaitForCancellationFuture<'l>>,
    pub(super) overdue: Pin<&'r mut Sleep>,
}

impl Worker {
    /// Spawns a worker, which is counted in, where its first event was submitted.
    pub(super) fn spawn(lane: Arc<Lane>, first: Job) {
        lane.starting.fetch_add(1, Ordering::Relaxed);
        let runtime = first.runtime.clone();
        let worker = Self {
            lane,
            first: Some(first),
            runtime: runtime.id(),
            ended: false,
        };
        runtime.spawn(worker.run());
    }

    async fn run(mut self) {
        let lane = Arc::clone(&self.lane);
        let aborted = pin!(lane.aborting.cancelled());
        let overdue = pin!(sleep_until(Instant::now()));
        let mut limits = Limits { aborted, overdue };
        let mut next = self.begin();
        if let Some(job) = next.take_if(|_| lane.stopping.is_cancelled()) {
            lane.give_up(job, Reason::Shutdown);
            next = lane.queue.next();
        }
        while let Some(job) = next {
            if job.runtime.id() != self.runtime {
                // An event lives where it was submitted: the end of another runtime must not take it along. The place
                // goes with it.
                self.ended = true;
                return Self::spawn(Arc::clone(&lane), job);
            }
            let span = job.span.clone();
            let attended = pin!(lane.attend(job, &mut limits));
            // A clock or a recorder that panics loses this event alone, and whoever waits for it is told.
            let _panic = AssertUnwindSafe(attended.instrument(span)).catch_unwind().await;
            // A sink that is always ready must not have the thread to itself.
            consume_budget().await;
            // Events begin in their order: the next one is taken when its attempt can begin at once, and not before
            // workers that were spawned have begun with theirs.
            if !has_budget_remaining() || lane.starting.load(Ordering::Relaxed) > 0 {
                yield_now().await;
            }
            next = lane.queue.next();
        }
        self.ended = true;
    }

    fn begin(&mut self) -> Option<Job> {
        let first = self.first.take()?;
        self.lane.starting.fetch_sub(1, Ordering::Relaxed);
        Some(first)
    }
}

/// A worker vanishes with its runtime, and so do the events that were submitted there. Those of others go on.
impl Drop for Worker {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        drop(self.begin());
        for job in self.lane.queue.abandon() {
            if job.runtime.id() != self.runtime {
                self.lane.enqueue(job);
            }
        }
    }
}
