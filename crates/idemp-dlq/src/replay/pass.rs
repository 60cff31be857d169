//! One run over one frozen selection.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use idemp_core::{
    Attempt, AttemptRecord, Cause, Detail, Failure, IdempotencyKey, Outcome, Reason, SinkName, Transport, Verdict,
};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Target;
use super::options::{Checked, GRACE};
use super::report::{Fate, Progress, Refused, ReplayError, ReplaySummary, Stopped};
use crate::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Listed, RecordError, ReplayFailure, Selection,
    Settled, StoreError, StoreErrorKind, time,
};

/// How many times what is left of a lease is waited for at most: the time of day may be set back meanwhile.
const PATIENCE: u32 = 3;

/// How often it is looked whether an entry that somebody else holds is gone or free before its lease ends.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An entry of the frozen selection.
struct Chosen {
    /// Which of the stores.
    store: usize,
    id: EntryId,
    /// Sink and key, where they can be read.
    name: Result<(SinkName, IdempotencyKey), RecordError>,
}

/// An entry that somebody else holds.
struct Waiting {
    entry: Chosen,
    /// Until when, by the time of day.
    until: SystemTime,
    /// When that was found, and how long the lease was to last from then on.
    since: Instant,
    rest: Duration,
}

impl Waiting {
    /// Whether the lease that was found has run out. Who holds the entry then is alive: he has prolonged his lease, or
    /// taken the entry over.
    fn is_over(&self, now: SystemTime) -> bool {
        now >= self.until || self.since.elapsed() >= self.rest.saturating_mul(PATIENCE)
    }
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
    stores: &'a [&'a dyn DeadLetterStore],
    targets: &'a (dyn Fn(&SinkName) -> Option<Target> + Send + Sync),
    observe: &'a mut (dyn FnMut(Progress<'_>) + Send),
    cancel: &'a CancellationToken,
    token: LeaseToken,
    summary: ReplaySummary,
    /// Frozen selections that are not read to their ends, with the places of their stores.
    selections: VecDeque<(usize, Box<dyn Selection>)>,
    /// Entries whose turn comes.
    ahead: VecDeque<Chosen>,
    /// Whether there is one whose turn is.
    at_hand: bool,
    /// Entries that somebody else holds.
    held: VecDeque<Waiting>,
    /// Entries that are left alone because too many of their sinks' failed in a row.
    given_up: u64,
    /// Attempts that may still be made.
    attempts_left: u64,
    /// By sink: one receiver that is not well does not keep letters from the others.
    failures_in_a_row: BTreeMap<SinkName, u32>,
    /// When the next attempt may begin.
    next_slot: Instant,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        options: &'a Checked,
        clock: &'a (dyn Fn() -> SystemTime + Send + Sync),
        stores: &'a [&'a dyn DeadLetterStore],
        targets: &'a (dyn Fn(&SinkName) -> Option<Target> + Send + Sync),
        observe: &'a mut (dyn FnMut(Progress<'_>) + Send),
        cancel: &'a CancellationToken,
    ) -> Self {
        Self {
            options,
            clock,
            stores,
            targets,
            observe,
            cancel,
            token: LeaseToken::random(),
            summary: ReplaySummary::default(),
            selections: VecDeque::new(),
            ahead: VecDeque::new(),
            at_hand: false,
            held: VecDeque::new(),
            given_up: 0,
            attempts_left: options.limit.unwrap_or(u64::MAX),
            failures_in_a_row: BTreeMap::new(),
            next_slot: Instant::now(),
        }
    }

    pub(super) async fn run(mut self, filter: &Filter) -> Result<ReplaySummary, ReplayError> {
        let mut ended = self.visit_all(filter).await;
        if self.given_up > 0 && ended.as_ref().is_ok_and(Option::is_none) {
            ended = Ok(Some(Stopped::Failures));
            self.ahead.clear();
            self.held.clear();
        }
        self.summary.left = match &ended {
            Ok(None) => 0,
            Ok(Some(_)) | Err(_) => self.attempts_left.min(self.given_up + self.unsettled()),
        };
        self.summary.selected = self.summary.settled() + self.summary.left;
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

    /// Entries that are known and not done with.
    fn unsettled(&self) -> u64 {
        (self.ahead.len() + usize::from(self.at_hand) + self.held.len()) as u64
    }

    async fn visit_all(&mut self, filter: &Filter) -> Result<Option<Stopped>, StoreError> {
        // What becomes a dead letter later is not of this run.
        for (place, store) in self.stores.iter().enumerate() {
            self.selections.push_back((place, store.select(filter).await?));
        }
        self.look_ahead().await?;
        let entries = self.attempts_left.min(self.unsettled());
        (self.observe)(Progress::Selected { entries });
        while self.attempts_left > 0 {
            self.look_ahead().await?;
            if self.cancel.is_cancelled() {
                return Ok(Some(Stopped::Cancelled));
            }
            let Some(entry) = self.ahead.pop_front() else { break };
            self.at_hand = true;
            if self.is_given_up(&entry) {
                if filter.sink.is_some() {
                    return Ok(Some(Stopped::Failures));
                }
                continue;
            }
            match self.visit(&entry).await? {
                Visit::Done => {}
                Visit::Held { until } => self.put_off(entry, until),
                Visit::Cancelled => return Ok(Some(Stopped::Cancelled)),
            }
        }
        self.wait_for_others().await
    }

    fn put_off(&mut self, entry: Chosen, until: SystemTime) {
        self.at_hand = false;
        self.held.push_back(Waiting {
            entry,
            until,
            since: Instant::now(),
            rest: until.duration_since((self.clock)()).unwrap_or_default(),
        });
    }

    /// Comes back to entries that somebody else holds, until they are gone or their leases have run out. If one is held
    /// even then, somebody has prolonged the lease or taken the entry over, so somebody is alive and works on it.
    async fn wait_for_others(&mut self) -> Result<Option<Stopped>, StoreError> {
        self.held.make_contiguous().sort_by_key(|waiting| waiting.until);
        let mut is_told = false;
        loop {
            for _ in 0..self.held.len() {
                if self.attempts_left == 0 {
                    return Ok(None);
                }
                let Some(waiting) = self.held.pop_front() else { break };
                self.at_hand = true;
                if self.is_given_up(&waiting.entry) {
                    continue;
                }
                // Before the look: a lease may end while the store answers that it holds.
                let is_over = waiting.is_over((self.clock)());
                match self.visit(&waiting.entry).await? {
                    Visit::Done => {}
                    Visit::Cancelled => return Ok(Some(Stopped::Cancelled)),
                    Visit::Held { .. } if is_over => {
                        self.done(&waiting.entry, Fate::Held);
                    }
                    Visit::Held { .. } => {
                        self.at_hand = false;
                        self.held.push_back(waiting);
                    }
                }
            }
            let Some(first) = self.held.front() else {
                return Ok(None);
            };
            if !is_told {
                is_told = true;
                (self.observe)(Progress::Waiting {
                    entries: self.held.len() as u64,
                    until: first.until,
                });
            }
            let rest = first.until.duration_since((self.clock)()).unwrap_or_default();
            if self
                .cancel
                .run_until_cancelled(sleep(rest.min(LOOK_AGAIN)))
                .await
                .is_none()
            {
                return Ok(Some(Stopped::Cancelled));
            }
        }
    }

    /// Reads names of entries until there are enough for the attempts that are left: all of them, where there is no
    /// limit. Bodies are read when their turn comes.
    async fn look_ahead(&mut self) -> Result<(), StoreError> {
        while (self.ahead.len() as u64) < self.attempts_left && !self.cancel.is_cancelled() {
            let Some((store, selection)) = self.selections.front_mut() else {
                return Ok(());
            };
            let store = *store;
            let Some(page) = selection.next_page().await? else {
                self.selections.pop_front();
                continue;
            };
            self.ahead
                .extend(page.into_iter().map(|Listed { id, letterhead }| Chosen {
                    store,
                    id,
                    name: letterhead.map(|head| (head.sink, head.key)),
                }));
        }
        Ok(())
    }

    async fn visit(&mut self, entry: &Chosen) -> Result<Visit, StoreError> {
        let sink = match &entry.name {
            Ok((sink, _)) => sink,
            Err(error) => return Ok(self.done(entry, Fate::Unreadable(Some(*error)))),
        };
        let Some(target) = (self.targets)(sink) else {
            return Ok(self.done(entry, Fate::NoTarget));
        };
        let store = self.stores[entry.store];
        if self
            .cancel
            .run_until_cancelled(sleep_until(self.next_slot))
            .await
            .is_none()
        {
            return Ok(Visit::Cancelled);
        }
        let now = (self.clock)();
        let letter = match store.claim(&entry.id, &self.token, self.options.lease, now).await {
            Ok(Claim::Claimed(letter)) => letter,
            Ok(Claim::Held { until }) => return Ok(Visit::Held { until }),
            Ok(Claim::Gone) => return Ok(self.done(entry, Fate::Gone)),
            Err(error) if error.kind() == StoreErrorKind::Record => {
                return Ok(self.done(entry, Fate::Unreadable(error.record())));
            }
            Err(error) => return Err(error),
        };
        if self.cancel.is_cancelled() {
            store.release(&entry.id, &self.token).await?;
            return Ok(Visit::Cancelled);
        }
        if let Some(refused) = self.refuse(&letter, &target, now) {
            store.release(&entry.id, &self.token).await?;
            return Ok(self.done(entry, Fate::Refused(refused)));
        }
        let (fate, written) = self.attempt(store, &entry.id, &letter, &target).await;
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
    async fn attempt(
        &mut self,
        store: &dyn DeadLetterStore,
        id: &EntryId,
        letter: &DeadLetter,
        target: &Target,
    ) -> (Fate, Result<(), StoreError>) {
        self.attempts_left -= 1;
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
            self.failures_in_a_row.remove(&letter.sink);
            return match store.mark_replayed(id, &self.token, now).await {
                Ok(Settled::Done) => (Fate::Replayed, Ok(())),
                Ok(Settled::Lost) => (Fate::Unmarked, Ok(())),
                Err(error) => (Fate::Unmarked, Err(error)),
            };
        }
        if is_about_the_receiver(verdict) {
            *self.failures_in_a_row.entry(letter.sink.clone()).or_default() += 1;
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
        let written = store.record_failure(id, &self.token, failure).await;
        (fate, written.map(|_| ()))
    }

    /// Whether too many letters of the entry's sink failed in a row. It is left alone then.
    fn is_given_up(&mut self, entry: &Chosen) -> bool {
        let failures = match &entry.name {
            Ok((sink, _)) => self.failures_in_a_row.get(sink).copied().unwrap_or_default(),
            Err(_) => 0,
        };
        let is_given_up = failures >= self.options.stop_after_failures;
        if is_given_up {
            self.at_hand = false;
            self.given_up += 1;
        }
        is_given_up
    }

    fn done(&mut self, entry: &Chosen, fate: Fate) -> Visit {
        self.at_hand = false;
        self.summary.count(&fate);
        (self.observe)(Progress::Settled {
            id: &entry.id,
            name: entry.name.as_ref().ok().map(|(sink, key)| (sink, key)),
            fate: &fate,
        });
        Visit::Done
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
