//! What happens to one message: examine, claim, run the handler until it succeeds or is given up, complete, quarantine.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use metrics::Gauge;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::config::{ConsumeConfig, ConsumerError, Signatures};
use super::message::{Arrived, QuarantineError, Quarantined};
use super::meters::{Meters, Wait};
use crate::event::{Event, HandlerError};
use crate::meters::{Mark, Operation};
use crate::receiver::{Incoming, Receiver};
use crate::reply::{BadRequest, Reply, Unavailable};
use crate::store::{Claim, Completed, StoreErrorKind};
use crate::work::{self, Ended};

/// Least and longest wait before a key that another copy holds is looked at again.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Takes messages of any transport, one at a time or many at once: verifies, claims, handles, completes, tries again, and
/// puts into quarantine what cannot be taken. Cloning shares it.
///
/// The consumers of this crate run on it. With a transport of your own, read a message, [settle](Self::settle) it, and
/// acknowledge it if the answer says so.
#[derive(Clone)]
pub struct Flow(Arc<Inner>);

struct Inner {
    receiver: Receiver,
    config: ConsumeConfig,
    handler: Box<dyn Fn(Event) -> Boxed<Result<(), HandlerError>> + Send + Sync>,
    quarantine: Box<dyn Fn(Quarantined) -> Boxed<Result<(), QuarantineError>> + Send + Sync>,
    meters: Meters,
}

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// Acknowledge it: its event is done, or it lies in quarantine.
    Acknowledge,
    /// Do not: it was stopped before its end, and has to come again.
    Leave,
}

/// How it ends for a message, short of the quarantine.
enum Fate {
    Done(Reply),
    Refused(Reply),
    Left,
}

/// How a claimed event came out of its runs.
enum Outcome {
    Done,
    Failed(Reply),
    Stopped,
    /// It has to be claimed again, after a wait.
    ClaimAgain(Option<Duration>),
}

/// What came of an effect and its mark.
enum Completion {
    /// The effect has been taken, marked or not.
    Stands,
    /// The store undid it.
    Undone,
    /// The store undid it because of what the handler had done.
    Refused,
}

impl Flow {
    /// A flow with the store, scope, secrets and limits of a receiver. `transport` is a name for labels.
    ///
    /// The receiver's `handler_cap`, `concurrency` and `fail_open` are not looked at: the flow has a cap of its own,
    /// whoever calls it bounds what runs at once, and nobody waits for a reply that a store which is down would hold up.
    ///
    /// # Errors
    /// If the configuration breaks a rule, or the receiver requires Standard Webhooks, which only HTTP carries.
    pub fn new<H, F, Q, G>(
        receiver: &Receiver,
        transport: &'static str,
        config: ConsumeConfig,
        handler: H,
        quarantine: Q,
    ) -> Result<Self, ConsumerError>
    where
        H: Fn(Event) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
        Q: Fn(Quarantined) -> G + Send + Sync + 'static,
        G: Future<Output = Result<(), QuarantineError>> + Send + 'static,
    {
        check(receiver, &config)?;
        let (handler, quarantine) = (Arc::new(handler), Arc::new(quarantine));
        Ok(Self(Arc::new(Inner {
            receiver: receiver.clone(),
            meters: Meters::new(receiver.config().scope.name().unwrap_or_default(), transport),
            config,
            // Called within the future, so that a panic of the call itself is caught, too.
            handler: Box::new(move |event| {
                let handler = Arc::clone(&handler);
                Box::pin(async move { handler(event).await })
            }),
            quarantine: Box::new(move |message| {
                let quarantine = Arc::clone(&quarantine);
                Box::pin(async move { quarantine(message).await })
            }),
        })))
    }

    /// Takes a message to its end, however long that takes: while the store or the quarantine is down, or another copy
    /// holds the key, it waits.
    ///
    /// `stop` ends the waiting, not a run of the handler: what runs is finished and recorded.
    ///
    /// # Cancel safety
    /// Dropping the future cuts the handler; its claim ends with its lease, and that in an inbox not before the process
    /// does. Give each message a task of its own.
    pub async fn settle(&self, message: &Arrived, stop: &CancellationToken) -> Settled {
        self.settle_holding(message, stop, || ()).await
    }

    /// The same; `hold` is called when the message has to wait.
    pub(super) async fn settle_holding(
        &self,
        message: &Arrived,
        stop: &CancellationToken,
        hold: impl Fn() + Send + Sync,
    ) -> Settled {
        let _running = Running::one(&self.0.meters.running);
        let waiting = Waiting {
            meters: &self.0.meters,
            stop,
            hold: &hold,
        };
        let settled = match self.0.take(message, &waiting).await {
            Fate::Done(reply) => {
                tracing::debug!(reply = reply.code(), "acknowledged");
                self.0.meters.acknowledged(reply);
                Settled::Acknowledge
            }
            Fate::Refused(reply) => self.0.put_away(message, reply, &waiting).await,
            Fate::Left => Settled::Leave,
        };
        if settled == Settled::Leave {
            self.0.meters.left();
        }
        settled
    }

    pub(super) fn meters(&self) -> &Meters {
        &self.0.meters
    }
}

pub(super) fn check(receiver: &Receiver, config: &ConsumeConfig) -> Result<(), ConsumerError> {
    if receiver.config().require_standard_webhooks {
        return Err(ConsumerError::configuration(
            "the receiver requires standard webhooks, whose headers come over HTTP only",
        ));
    }
    config.check()
}

impl Inner {
    async fn take(&self, message: &Arrived, waiting: &Waiting<'_>) -> Fate {
        let shared = &*self.receiver.0;
        let mut event = match self.examine(message) {
            Ok(event) => event,
            Err(reply) => return Fate::Refused(reply),
        };
        let mut runs = 0;
        loop {
            let claimed_at = match self.claim(&event, waiting).await {
                Ok(claimed_at) => claimed_at,
                Err(fate) => return fate,
            };
            let outcome = tokio::select! {
                biased;
                outcome = self.run_out(&event, &mut runs, waiting) => outcome,
                never = unconstrained(shared.keep_lease(&event, claimed_at)) => match never {},
            };
            let wait = match outcome {
                Outcome::Done => match self.complete(&event, waiting).await {
                    Some(Completion::Stands) => return Fate::Done(Reply::Ok),
                    // The run does not count.
                    Some(Completion::Undone) => {
                        runs -= 1;
                        Some((self.config.recheck, Wait::Store))
                    }
                    // It does: what never commits must not hold up its partition for ever.
                    Some(Completion::Refused) => match self.config.retries.get(runs - 1) {
                        Some(wait) => Some((*wait, Wait::Handler)),
                        None => {
                            shared.release(&event).await;
                            return Fate::Refused(Reply::Failed);
                        }
                    },
                    None => return Fate::Left,
                },
                Outcome::ClaimAgain(wait) => wait.map(|wait| (wait, Wait::Handler)),
                Outcome::Failed(reply) => {
                    shared.release(&event).await;
                    return Fate::Refused(reply);
                }
                Outcome::Stopped => {
                    shared.release(&event).await;
                    return Fate::Left;
                }
            };
            shared.release(&event).await;
            if let Some((wait, reason)) = wait
                && !waiting.over(wait, reason).await
            {
                return Fate::Left;
            }
            event = event.afresh();
        }
    }

    fn examine(&self, message: &Arrived) -> Result<Event, Reply> {
        let Some(body) = &message.body else {
            return Err(Reply::BadRequest(BadRequest::NotAnEvent));
        };
        let incoming = Incoming {
            key: message.key(),
            signature: message.signature(),
            body: body.clone(),
            ..Incoming::default()
        };
        match self.config.signatures {
            Signatures::Required => self.receiver.examine(incoming),
            Signatures::Optional => self.receiver.examine_unsigned(incoming),
        }
    }

    /// Waits until the key is ours or its event is settled, or what lies under the key has been there for too long.
    async fn claim(&self, event: &Event, waiting: &Waiting<'_>) -> Result<Instant, Fate> {
        let shared = &*self.receiver.0;
        let mut retries = self.config.retries.iter();
        loop {
            let asked_at = Instant::now();
            let claim = shared.store.claim(event.claimant(), shared.config.lease);
            let (wait, reason) = match shared.bounded(Operation::Claim, claim).await {
                Ok(Claim::Claimed) => return Ok(asked_at),
                Ok(Claim::Duplicate) => return Err(Fate::Done(Reply::Duplicate)),
                Ok(Claim::Conflict) => {
                    tracing::warn!(key = event.key(), "another body under the same key");
                    return Err(Fate::Refused(Reply::Conflict));
                }
                Ok(Claim::InProgress { retry_after }) => {
                    let (least, longest) = LOOK_AGAIN;
                    (retry_after.clamp(least, longest), Wait::InProgress)
                }
                // It is this key and not the store: what comes after it must not wait for ever.
                Err(error) if error.kind() == StoreErrorKind::Foreign => match retries.next() {
                    Some(wait) => (*wait, Wait::Store),
                    None => {
                        tracing::warn!(key = event.key(), "a record that is not ours under the key");
                        return Err(Fate::Refused(Reply::Unavailable(Unavailable::Foreign)));
                    }
                },
                // It may have been taken all the same, and is then found to be ours.
                Err(_) => (self.config.recheck, Wait::Store),
            };
            if !waiting.over(wait, reason).await {
                if reason == Wait::Store {
                    shared.release(event).await;
                }
                return Err(Fate::Left);
            }
        }
    }

    /// Runs the handler until it succeeds, rejects the event, or has used up its retries.
    async fn run_out(&self, event: &Event, runs: &mut usize, waiting: &Waiting<'_>) -> Outcome {
        loop {
            let ended = self.run_once(event).await;
            *runs += 1;
            let reply = match work::reply_to(event, ended) {
                Reply::Ok => return Outcome::Done,
                Reply::Rejected => return Outcome::Failed(Reply::Rejected),
                reply => reply,
            };
            let Some(wait) = self.config.retries.get(*runs - 1) else {
                return Outcome::Failed(reply);
            };
            if self.receiver.0.store.commits_effects() {
                // What a failed run has written is undone by releasing it, and no transaction stays open for the wait.
                return Outcome::ClaimAgain(Some(*wait));
            }
            if !waiting.over(*wait, Wait::Handler).await {
                return Outcome::Stopped;
            }
            if event.claim_lost() {
                return Outcome::ClaimAgain(None);
            }
        }
    }

    async fn run_once(&self, event: &Event) -> Ended {
        let started = Instant::now();
        let ended = match guarded((self.handler)(event.clone()), self.config.handler_cap).await {
            Ok(Ok(())) => Ended::Done,
            Ok(Err(error)) => Ended::Not(error),
            Err(Cut::Panicked) => Ended::Panicked,
            Err(Cut::OverCap) => Ended::OverCap,
        };
        self.receiver.0.meters.handler_seconds.record(started.elapsed());
        ended
    }

    /// Records the event as done, for which it waits while the store is down. `None` if it was stopped without knowing.
    async fn complete(&self, event: &Event, waiting: &Waiting<'_>) -> Option<Completion> {
        let shared = &*self.receiver.0;
        let commits = shared.store.commits_effects();
        loop {
            let completion = shared.store.complete(event.claimant(), shared.ttl);
            match shared.bounded(Operation::Complete, completion).await {
                Ok(completed) => {
                    shared.meters.mark(Mark::from(completed));
                    if completed == Completed::Lost {
                        tracing::warn!(key = event.key(), "completed after another copy had taken the key");
                    }
                    return Some(if completed == Completed::Lost && commits {
                        Completion::Undone
                    } else {
                        Completion::Stands
                    });
                }
                Err(error) if commits => {
                    shared.meters.mark(Mark::Unwritten);
                    return Some(match error.kind() {
                        StoreErrorKind::Refused | StoreErrorKind::Foreign => Completion::Refused,
                        _ => Completion::Undone,
                    });
                }
                // As when another copy has taken the key: no mark will ever be written, and the effect has been taken.
                Err(error) if error.kind() == StoreErrorKind::Foreign => {
                    shared.meters.mark(Mark::Unwritten);
                    tracing::warn!(
                        key = event.key(),
                        "completed without a mark: the record under the key is not ours"
                    );
                    return Some(Completion::Stands);
                }
                Err(_) => {}
            }
            if !waiting.over(self.config.recheck, Wait::Store).await {
                shared.meters.mark(Mark::Unwritten);
                tracing::warn!(key = event.key(), "stopped without a mark: a copy may run again");
                return None;
            }
        }
    }

    /// Puts a message into quarantine, for which it waits while that fails.
    async fn put_away(&self, message: &Arrived, reason: Reply, waiting: &Waiting<'_>) -> Settled {
        let (position, code) = (&message.position, reason.code());
        loop {
            let putting = (self.quarantine)(Quarantined::new(message, reason));
            match guarded(putting, self.config.handler_cap).await {
                Ok(Ok(())) => {
                    tracing::warn!(%position, reason = code, "put into quarantine");
                    self.meters.quarantined(reason);
                    return Settled::Acknowledge;
                }
                Ok(Err(error)) => {
                    tracing::error!(%position, reason = code, error = &*error as &dyn std::error::Error, "the quarantine failed");
                }
                Err(Cut::Panicked) => tracing::error!(%position, reason = code, "the quarantine panicked"),
                Err(Cut::OverCap) => tracing::error!(%position, reason = code, "the quarantine ran over its cap"),
            }
            if !waiting.over(self.config.recheck, Wait::Quarantine).await {
                return Settled::Leave;
            }
        }
    }
}

/// How a message waits.
struct Waiting<'w> {
    meters: &'w Meters,
    stop: &'w CancellationToken,
    hold: &'w (dyn Fn() + Send + Sync),
}

impl Waiting<'_> {
    /// Whether the wait went by; otherwise it was stopped.
    async fn over(&self, wait: Duration, reason: Wait) -> bool {
        self.meters.waits(reason);
        (self.hold)();
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            () = sleep(wait) => true,
        }
    }
}

/// Why a future did not end by itself.
enum Cut {
    Panicked,
    OverCap,
}

/// Catches the panic of a future and cuts it when its time is over.
async fn guarded<T>(mut work: Boxed<T>, cap: Duration) -> Result<T, Cut> {
    // Work that never lets others run must not keep the timer from being looked at.
    let mut cap = pin!(unconstrained(sleep(cap)));
    let ended = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Ok(Poll::Pending) => cap.as_mut().poll(cx).map(|()| Err(Cut::OverCap)),
        Err(_) => Poll::Ready(Err(Cut::Panicked)),
    })
    .await;
    // What is left of it may panic as it goes.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(work)));
    ended
}

/// Counts a message as running for as long as it lives.
struct Running(Gauge);

impl Running {
    fn one(gauge: &Gauge) -> Self {
        gauge.increment(1);
        Self(gauge.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
