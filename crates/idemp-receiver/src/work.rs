//! What happens to one event once it is verified: claim, handle, complete or release.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument;

use crate::event::{Event, HandlerError};
use crate::gate::Place;
use crate::meters::{Mark, Operation};
use crate::receiver::Shared;
use crate::reply::{Reply, Unavailable};
use crate::store::{Claim, StoreError, StoreErrorKind};

/// A handler on its way. On the heap and without its type, so that what is around it is small and is compiled once.
pub(crate) type Handling = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

/// Does the work, in a task of its own unless it ends at once. Dropping the future then only loses the reply.
pub(crate) async fn run(shared: Arc<Shared>, place: Place, event: Event, handling: Handling) -> Reply {
    let mut work = Box::pin(work(shared, place, event, handling).in_current_span());
    // What ends at once cannot be cut in half and needs no task.
    if let Poll::Ready(reply) = first_poll(work.as_mut()).await {
        return reply;
    }
    // The task does not panic; it ends without a reply when the runtime is being shut down.
    tokio::spawn(work).await.unwrap_or(Reply::Failed)
}

async fn work(shared: Arc<Shared>, place: Place, event: Event, mut handling: Handling) -> Reply {
    let claimed_at = Instant::now();
    let claim = shared.store.claim(event.claimant(), shared.config.lease);
    match shared.bounded(Operation::Claim, claim).await {
        Ok(Claim::Claimed) => {}
        Ok(Claim::Duplicate) => return Reply::Duplicate,
        Ok(Claim::InProgress { retry_after }) => return Reply::InProgress { retry_after },
        Ok(Claim::Conflict) => {
            tracing::warn!(key = event.key(), "another body under the same key");
            return Reply::Conflict;
        }
        Err(_) if shared.config.fail_open => {
            // It may have been taken all the same, so what follows is the same as well.
            shared.meters.unclaimed.increment(1);
            tracing::warn!(key = event.key(), "handling without a claim");
        }
        Err(error) => {
            let reply = Reply::Unavailable(match error.kind() {
                StoreErrorKind::Foreign => Unavailable::Foreign,
                _ => Unavailable::Store,
            });
            // It may have been taken all the same: give it back, without keeping the sender waiting.
            tokio::spawn(async move {
                shared.release(&event).await;
                drop(place);
            });
            return reply;
        }
    }
    let started = Instant::now();
    let ended = match first_poll(pin!(poll_fn(|cx| poll_guarded(&mut handling, cx)))).await {
        Poll::Ready(ended) => ended,
        Poll::Pending => Box::pin(shared.attend(&event, claimed_at, started, &mut handling)).await,
    };
    // What is left of a handler that was cut goes before its claim does, and may panic as it goes.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(handling)));
    shared.meters.handler_seconds.record(started.elapsed());
    let kept = match ended {
        Ended::Done => shared.complete(&event).await,
        _ => {
            shared.release(&event).await;
            true
        }
    };
    drop(place);
    if kept {
        reply_to(&event, ended)
    } else {
        Reply::Unavailable(Unavailable::Store)
    }
}

/// How a handler ended.
pub(crate) enum Ended {
    Done,
    Not(HandlerError),
    Panicked,
    OverCap,
}

fn poll_guarded(handling: &mut Handling, cx: &mut Context<'_>) -> Poll<Ended> {
    match catch_unwind(AssertUnwindSafe(|| handling.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(Ok(()))) => Poll::Ready(Ended::Done),
        Ok(Poll::Ready(Err(error))) => Poll::Ready(Ended::Not(error)),
        Err(_) => Poll::Ready(Ended::Panicked),
    }
}

impl Shared {
    /// Stays with a handler that takes its time, to its end or to its cap, and keeps its lease.
    async fn attend(&self, event: &Event, claimed_at: Instant, started: Instant, handling: &mut Handling) -> Ended {
        // A handler that never lets others run must not keep the timers from being looked at.
        let left = self.config.handler_cap.saturating_sub(started.elapsed());
        let mut cap = pin!(unconstrained(sleep(left)));
        let mut lease = pin!(unconstrained(self.keep_lease(event, claimed_at)));
        poll_fn(|cx| {
            if let Poll::Ready(ended) = poll_guarded(handling, cx) {
                return Poll::Ready(ended);
            }
            let Poll::Pending = lease.as_mut().poll(cx);
            cap.as_mut().poll(cx).map(|()| Ended::OverCap)
        })
        .await
    }

    /// Renews the lease every third of it. Never ends.
    pub(crate) async fn keep_lease(&self, event: &Event, claimed_at: Instant) -> Infallible {
        let lease = self.config.lease;
        let mut since = claimed_at;
        loop {
            sleep(lease / 3).await;
            let asked_at = Instant::now();
            let renewal = self.store.renew(event.claimant(), lease);
            let lost = match self.bounded(Operation::Renew, renewal).await {
                Ok(true) => {
                    since = asked_at;
                    false
                }
                Ok(false) => true,
                // Not known: so it is once the lease is over.
                Err(_) => since.elapsed() >= lease,
            };
            if lost {
                event.lose_claim();
                self.meters.lost_leases.increment(1);
                tracing::warn!(key = event.key(), "the claim was lost while its handler is running");
                return pending().await;
            }
        }
    }

    /// Whether the effect stands: it does without a mark, unless the store holds both.
    async fn complete(&self, event: &Event) -> bool {
        let completion = self.store.complete(event.claimant(), self.ttl);
        let completed = self.bounded(Operation::Complete, completion).await;
        let mark = completed.map_or(Mark::Unwritten, Mark::from);
        self.meters.mark(mark);
        match mark {
            Mark::Done => {}
            Mark::Late => tracing::info!(key = event.key(), "completed after the lease had run out"),
            Mark::Lost => tracing::warn!(key = event.key(), "completed after another copy had taken the key"),
            Mark::Unwritten => tracing::warn!(key = event.key(), "completed without a mark: a copy may run again"),
        }
        matches!(mark, Mark::Done | Mark::Late) || !self.store.commits_effects()
    }

    pub(crate) async fn release(&self, event: &Event) {
        let release = self.store.release(event.claimant());
        // If it fails, the lease ends by itself.
        let _ = self.bounded(Operation::Release, release).await;
    }

    /// Asks the store and waits no longer than it may take.
    pub(crate) async fn bounded<T>(&self, operation: Operation, asked: Asked<'_, T>) -> Result<T, StoreError> {
        let answer = within(self.config.store_timeout, asked)
            .await
            .unwrap_or_else(|_| Err(StoreError::new(StoreErrorKind::TimedOut)));
        if let Err(error) = &answer {
            self.meters.store_error(operation);
            tracing::warn!(
                operation = Operation::CODES[operation as usize],
                error = error as &(dyn Error + 'static),
                "the claim store failed"
            );
        }
        answer
    }
}

/// Waits no longer than `limit`. Only what takes its time gets a timer.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    match first_poll(future.as_mut()).await {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Box::pin(timeout(limit, future)).await,
    }
}

/// What the store's methods return.
type Asked<'s, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 's>>;

/// Polls once, whatever comes of it. What is not ready then must be polled again.
async fn first_poll<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

pub(crate) fn reply_to(event: &Event, ended: Ended) -> Reply {
    let key = event.key();
    match ended {
        Ended::Done => Reply::Ok,
        Ended::Not(HandlerError::Rejected) => {
            tracing::warn!(key, "the handler rejected the event");
            Reply::Rejected
        }
        Ended::Not(HandlerError::Data(error)) => {
            tracing::warn!(key, %error, "the handler rejected the event");
            Reply::Rejected
        }
        Ended::Not(HandlerError::Failed) => {
            tracing::warn!(key, "the handler failed");
            Reply::Failed
        }
        Ended::Panicked => {
            tracing::error!(key, "the handler panicked");
            Reply::Failed
        }
        Ended::OverCap => {
            tracing::warn!(key, "the handler ran over its cap and was cut");
            Reply::OverCap
        }
    }
}
