//! One run over one frozen selection.

use std::time::SystemTime;

use idemp_core::{
    Attempt, AttemptRecord, Cause, Detail, Failure, IdempotencyKey, Outcome, Reason, SinkName, Transport, Verdict,
};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Target;
use super::options::{Checked, GRACE};
use super::report::{Fate, Progress, Refused, ReplayError, ReplaySummary, Stopped};
use crate::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Listed, ReplayFailure, Settled, StoreError,
    StoreErrorKind, time,
};

/// How often the end of a lease is waited for: the time of day may be set back meanwhile.
const TRIES: usize = 3;

/// An entry of the frozen selection.
struct Chosen {
    id: EntryId,
    sink: SinkName,
    key: IdempotencyKey,
}

/// What a visit to an entry came to.
enum Visit {
    /// The entry is done with.
    Done,
    /// Somebody else holds it.
    Held { until: SystemTime },
    /// The run was cancelled before the entry's turn.
    Cancelled,
}

pub(super) struct Pass<'a> {
    options: &'a Checked,
    clock: &'a (dyn Fn() -> SystemTime + Send + Sync),
    store: &'a dyn DeadLetterStore,
    targets: &'a (dyn Fn(&SinkName) -> Option<Target> + Send + Sync),
    observe: &'a mut (dyn FnMut(Progress<'_>) + Send),
    cancel: &'a CancellationToken,
    token: LeaseToken,
    summary: ReplaySummary,
    failures_in_a_row: u32,
    /// When the next attempt may begin.
    next_slot: Instant,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        options: &'a Checked,
        clock: &'a (dyn Fn() -> SystemTime + Send + Sync),
        store: &'a dyn DeadLetterStore,
        targets: &'a (dyn Fn(&SinkName) -> Option<Target> + Send + Sync),
        observe: &'a mut (dyn FnMut(Progress<'_>) + Send),
        cancel: &'a CancellationToken,
    ) -> Self {
        Self {
            options,
            clock,
            store,
            targets,
            observe,
            cancel,
            token: LeaseToken::random(),
            summary: ReplaySummary::default(),
            failures_in_a_row: 0,
            next_slot: Instant::now(),
        }
    }

    pub(super) async fn run(mut self, filter: &Filter) -> Result<ReplaySummary, ReplayError> {
        let ended = self.visit_all(filter).await;
        let settled: u64 = self.settled();
        self.summary.left = self.summary.selected - settled;
        match ended {
            Ok(stopped) => {
                self.summary.stopped = stopped;
                Ok(self.summary)
            }
            Err(store) => Err(ReplayError {
                summary: Box::new(self.summary),
                store,
            }),
        }
    }

    fn settled(&self) -> u64 {
        let ReplaySummary {
            replayed,
            unmarked,
            held,
            gone,
            no_target,
            unreadable,
            ..
        } = self.summary;
        replayed + unmarked + held + gone + no_target + unreadable + self.summary.failed() + self.summary.refused()
    }

    async fn visit_all(&mut self, filter: &Filter) -> Result<Option<Stopped>, StoreError> {
        let chosen = self.freeze(filter).await?;
        let mut held = Vec::new();
        for entry in chosen {
            if self.is_failing() {
                return Ok(Some(Stopped::Failures));
            }
            match self.visit(&entry).await? {
                Visit::Done => {}
                Visit::Held { until } => held.push((until, entry)),
                Visit::Cancelled => return Ok(Some(Stopped::Cancelled)),
            }
        }
        held.sort_by_key(|(until, _)| *until);
        if let Some((until, _)) = held.first() {
            (self.observe)(Progress::Waiting {
                entries: held.len() as u64,
                until: *until,
            });
        }
        for (until, entry) in held {
            if self.is_failing() {
                return Ok(Some(Stopped::Failures));
            }
            if let Visit::Cancelled = self.wait_out(&entry, until).await? {
                return Ok(Some(Stopped::Cancelled));
            }
        }
        Ok(None)
    }

    /// Names the entries once: what becomes a dead letter later is not of this run. Bodies are read when their turn
    /// comes.
    async fn freeze(&mut self, filter: &Filter) -> Result<Vec<Chosen>, StoreError> {
        let mut chosen = Vec::new();
        let mut unreadable = Vec::new();
        let mut selection = self.store.select(filter).await?;
        while let Some(page) = selection.next_page().await? {
            for Listed { id, letterhead } in page {
                match letterhead {
                    Ok(head) => chosen.push(Chosen {
                        id,
                        sink: head.sink,
                        key: head.key,
                    }),
                    Err(error) => unreadable.push((id, error)),
                }
            }
        }
        let entries = (chosen.len() + unreadable.len()) as u64;
        self.summary.selected = entries;
        (self.observe)(Progress::Selected { entries });
        for (id, error) in unreadable {
            self.settle(&id, None, &Fate::Unreadable(Some(error)));
        }
        Ok(chosen)
    }

    /// Waits until an entry's lease has run out, and visits it. If it is held even then, somebody has prolonged the
    /// lease or taken the entry over, so somebody is alive and works on it.
    async fn wait_out(&mut self, entry: &Chosen, until: SystemTime) -> Result<Visit, StoreError> {
        for _ in 0..TRIES {
            let rest = until.duration_since((self.clock)()).unwrap_or_default();
            if self.cancel.run_until_cancelled(sleep(rest)).await.is_none() {
                return Ok(Visit::Cancelled);
            }
            match self.visit(entry).await? {
                Visit::Held { .. } => {}
                end => return Ok(end),
            }
        }
        Ok(self.done(entry, Fate::Held))
    }

    async fn visit(&mut self, entry: &Chosen) -> Result<Visit, StoreError> {
        let Some(target) = (self.targets)(&entry.sink) else {
            return Ok(self.done(entry, Fate::NoTarget));
        };
        if self
            .cancel
            .run_until_cancelled(sleep_until(self.next_slot))
            .await
            .is_none()
        {
            return Ok(Visit::Cancelled);
        }
        let now = (self.clock)();
        let letter = match self.store.claim(&entry.id, &self.token, self.options.lease, now).await {
            Ok(Claim::Claimed(letter)) => letter,
            Ok(Claim::Held { until }) => return Ok(Visit::Held { until }),
            Ok(Claim::Gone) => return Ok(self.done(entry, Fate::Gone)),
            Err(error) if error.kind() == StoreErrorKind::Record => {
                return Ok(self.done(entry, Fate::Unreadable(error.record())));
            }
            Err(error) => return Err(error),
        };
        if self.cancel.is_cancelled() {
            self.store.release(&entry.id, &self.token).await?;
            return Ok(Visit::Cancelled);
        }
        if let Some(refused) = self.refuse(&letter, &target, now) {
            self.store.release(&entry.id, &self.token).await?;
            return Ok(self.done(entry, Fate::Refused(refused)));
        }
        let (fate, written) = self.attempt(&entry.id, &letter, &target).await;
        self.done(entry, fate);
        written.map(|()| Visit::Done)
    }

    /// Why a letter must not go out now.
    fn refuse(&self, letter: &DeadLetter, target: &Target, now: SystemTime) -> Option<Refused> {
        if let Err(refusal) = target.sink.check(&letter.message) {
            return Some(Refused::Unsendable(refusal));
        }
        self.options
            .refusal(letter.not_before, letter.maybe_delivered_since(), now)
    }

    /// Sends a letter once, writes down what came of it, and says whether that could be written.
    async fn attempt(&mut self, id: &EntryId, letter: &DeadLetter, target: &Target) -> (Fate, Result<(), StoreError>) {
        let (started, begun) = ((self.clock)(), Instant::now());
        self.next_slot = begun + self.options.interval;
        let deadline = begun + self.options.attempt_timeout;
        let number = letter.attempts.last().map_or(1, |last| last.number.saturating_add(1));
        let attempt = Attempt {
            number,
            now: started,
            deadline: deadline.into_std(),
        };
        let outcome = timeout_at(deadline + GRACE, target.sink.deliver(&letter.message, attempt))
            .await
            .unwrap_or_else(|_| Failure::transport(Transport::Timeout).into());
        let (elapsed, now) = (begun.elapsed(), (self.clock)());

        let verdict = target.policy.classify(&outcome);
        if verdict == Verdict::Delivered {
            self.failures_in_a_row = 0;
            return match self.store.mark_replayed(id, &self.token, now).await {
                Ok(Settled::Done) => (Fate::Replayed, Ok(())),
                Ok(Settled::Lost) => (Fate::Unmarked, Ok(())),
                Err(error) => (Fate::Unmarked, Err(error)),
            };
        }
        if is_about_the_receiver(verdict) {
            self.failures_in_a_row += 1;
        }
        let mut record = AttemptRecord {
            number,
            started,
            elapsed,
            cause: None,
            detail: Detail::default(),
        };
        let failure = match outcome {
            Outcome::Delivered { status } => {
                record.cause = status.map(Cause::Status);
                ReplayFailure {
                    attempt: record,
                    reason: reason(verdict),
                    // The peer has it, though the policy wants another answer.
                    maybe_delivered: true,
                    not_before: None,
                }
            }
            Outcome::Failed(failure) => {
                record.cause = Some(failure.cause);
                record.detail = failure.detail;
                let delay = failure.retry_after.map(|retry_after| retry_after.delay(now));
                ReplayFailure {
                    attempt: record,
                    reason: reason(verdict),
                    maybe_delivered: failure.maybe_delivered,
                    not_before: delay
                        .filter(|delay| !delay.is_zero())
                        .map(|delay| time::after(now, delay)),
                }
            }
        };
        let fate = Fate::Failed {
            verdict,
            cause: failure.attempt.cause,
        };
        let written = self.store.record_failure(id, &self.token, failure).await;
        (fate, written.map(|_| ()))
    }

    fn is_failing(&self) -> bool {
        self.failures_in_a_row >= self.options.stop_after_failures
    }

    fn done(&mut self, entry: &Chosen, fate: Fate) -> Visit {
        self.settle(&entry.id, Some((&entry.sink, &entry.key)), &fate);
        Visit::Done
    }

    fn settle(&mut self, id: &EntryId, name: Option<(&SinkName, &IdempotencyKey)>, fate: &Fate) {
        self.summary.count(fate);
        (self.observe)(Progress::Settled { id, name, fate });
    }
}

/// Whether a failure counts to those in a row. A rejection of one event says nothing about the receiver: it neither
/// counts nor resets, as for the circuit breaker (docs/retry.md).
const fn is_about_the_receiver(verdict: Verdict) -> bool {
    match verdict {
        Verdict::RejectsEvent | Verdict::Delivered => false,
        Verdict::Retry | Verdict::PushBack | Verdict::RejectsConfiguration => true,
    }
}

/// The reason that a failed replay leaves on its entry, where it says more than the one before.
fn reason(verdict: Verdict) -> Option<Reason> {
    match verdict {
        Verdict::RejectsEvent => Some(Reason::EventRejected),
        Verdict::RejectsConfiguration => Some(Reason::ConfigurationRejected),
        Verdict::Retry | Verdict::PushBack | Verdict::Delivered => None,
    }
}
