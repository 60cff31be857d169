//! Who makes the attempts of a lane.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::FutureExt;
use idemp_core::Reason;
use tokio::runtime::Id;
use tokio::task::coop::consume_budget;
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
        let mut next = self.first.take();
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
            next = lane.queue.next();
        }
        self.ended = true;
    }
}

/// A worker vanishes with its runtime, and so do the events that were submitted there. Those of others go on.
impl Drop for Worker {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        drop(self.first.take());
        for job in self.lane.queue.abandon() {
            if job.runtime.id() != self.runtime {
                self.lane.enqueue(job);
            }
        }
    }
}
