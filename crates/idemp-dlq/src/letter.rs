//! One dead letter, and what changes in it.

use std::time::SystemTime;

use idemp_core::{AttemptRecord, Cause, Class, Failure, IdempotencyKey, Message, Reason, SinkName};
use sha2::{Digest, Sha256};

/// An event that one sink did not take: its key, its exact bytes and how it came here.
///
/// No secret and no signature is in it: a replay signs afresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Logical name of the sink, which is half of the letter's identity.
    pub sink: SinkName,
    /// Key, which is the other half, and body.
    pub message: Message,
    /// Why the event was given up (docs/reasons.md).
    pub reason: Reason,
    /// What the letter says about the receiver.
    pub class: Class,
    /// Whether the event may have arrived all the same. Once true it stays true.
    pub maybe_delivered: bool,
    /// The attempts, oldest first. After a replay or a second letter at most [`Letterhead::MAX_ATTEMPTS`] are kept.
    pub attempts: Vec<AttemptRecord>,
    /// When the sender took the event.
    pub accepted_at: SystemTime,
    /// When the event was given up.
    pub dead_at: SystemTime,
    /// Before when a replay would be too early, if the peer said so.
    pub not_before: Option<SystemTime>,
    /// How many replays have failed.
    pub replay_count: u32,
}

impl DeadLetter {
    /// Everything but the body.
    #[must_use]
    pub fn letterhead(&self) -> Letterhead {
        Letterhead {
            sink: self.sink.clone(),
            key: self.message.key().clone(),
            body_len: self.message.body().len() as u64,
            reason: self.reason,
            class: self.class,
            maybe_delivered: self.maybe_delivered,
            attempts: self.attempts.clone(),
            accepted_at: self.accepted_at,
            dead_at: self.dead_at,
            not_before: self.not_before,
            replay_count: self.replay_count,
        }
    }

    /// SHA-256 (FIPS 180-4) of the body.
    #[must_use]
    pub fn body_sha256(&self) -> [u8; 32] {
        Sha256::digest(self.message.body()).into()
    }

    /// Start of the latest attempt; `None` if there was none.
    #[must_use]
    pub fn last_attempt_at(&self) -> Option<SystemTime> {
        self.attempts.last().map(|attempt| attempt.started)
    }

    /// Since when the receiver may know the key: see [`Letterhead::maybe_delivered_since`].
    #[must_use]
    pub fn maybe_delivered_since(&self) -> Option<SystemTime> {
        since(self.maybe_delivered, &self.attempts, self.accepted_at)
    }

    pub(crate) fn assemble(head: Letterhead, message: Message) -> Self {
        Self {
            sink: head.sink,
            message,
            reason: head.reason,
            class: head.class,
            maybe_delivered: head.maybe_delivered,
            attempts: head.attempts,
            accepted_at: head.accepted_at,
            dead_at: head.dead_at,
            not_before: head.not_before,
            replay_count: head.replay_count,
        }
    }
}

/// A [`DeadLetter`] without its body: what lists show, and all of a letter that ever changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letterhead {
    /// Logical name of the sink.
    pub sink: SinkName,
    /// The event's key.
    pub key: IdempotencyKey,
    /// Length of the body, in bytes.
    pub body_len: u64,
    /// As in [`DeadLetter::reason`].
    pub reason: Reason,
    /// As in [`DeadLetter::class`].
    pub class: Class,
    /// As in [`DeadLetter::maybe_delivered`].
    pub maybe_delivered: bool,
    /// As in [`DeadLetter::attempts`].
    pub attempts: Vec<AttemptRecord>,
    /// As in [`DeadLetter::accepted_at`].
    pub accepted_at: SystemTime,
    /// As in [`DeadLetter::dead_at`].
    pub dead_at: SystemTime,
    /// As in [`DeadLetter::not_before`].
    pub not_before: Option<SystemTime>,
    /// As in [`DeadLetter::replay_count`].
    pub replay_count: u32,
}

impl Letterhead {
    /// How many attempts a letter keeps when it is written again: the latest ones, and the earliest that may have
    /// arrived. A letter that is replayed for ever stays the same size.
    pub const MAX_ATTEMPTS: usize = 8;

    /// Since when the receiver may know the key: the start of the earliest attempt that may have arrived.
    ///
    /// `None` if none may have. A receiver that forgets keys sooner than that would process the event twice. Later
    /// attempts do not count, since a receiver that answers "duplicate" does not remember the key for longer.
    #[must_use]
    pub fn maybe_delivered_since(&self) -> Option<SystemTime> {
        since(self.maybe_delivered, &self.attempts, self.accepted_at)
    }

    /// Takes in a newer letter of the same sink, key and bytes.
    ///
    /// The newer one says why and when. The earlier `accepted_at` stays, so that the entry keeps its place; what may
    /// have been delivered stays so; attempts are put together; a key conflict stays one. Taking in the same letter
    /// twice changes nothing.
    pub fn absorb(&mut self, newer: Self) {
        if self.reason != Reason::KeyConflict {
            (self.reason, self.class) = (newer.reason, newer.class);
        }
        self.maybe_delivered |= newer.maybe_delivered;
        self.accepted_at = self.accepted_at.min(newer.accepted_at);
        self.dead_at = newer.dead_at;
        self.not_before = newer.not_before;
        self.replay_count = self.replay_count.max(newer.replay_count);
        for attempt in newer.attempts {
            let same = |known: &AttemptRecord| (known.number, known.started) == (attempt.number, attempt.started);
            if !self.attempts.iter().any(same) {
                self.attempts.push(attempt);
            }
        }
        self.trim();
    }

    /// Takes in that a replay failed.
    pub fn record(&mut self, failure: ReplayFailure) {
        if let Some(reason) = failure.reason
            && self.reason != Reason::KeyConflict
        {
            (self.reason, self.class) = (reason, reason.class());
        }
        self.maybe_delivered |= failure.maybe_delivered;
        self.not_before = failure.not_before;
        self.replay_count = self.replay_count.saturating_add(1);
        self.attempts.push(failure.attempt);
        self.trim();
    }

    fn trim(&mut self) {
        while self.attempts.len() > Self::MAX_ATTEMPTS {
            let oldest_to_drop = usize::from(self.attempts.first().is_some_and(may_have_arrived));
            self.attempts.remove(oldest_to_drop);
        }
    }
}

/// A replay that failed, as it is written into the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayFailure {
    /// The attempt.
    pub attempt: AttemptRecord,
    /// The reason from now on, where the attempt says more than the one before; `None` leaves it.
    pub reason: Option<Reason>,
    /// Whether this attempt may have arrived.
    pub maybe_delivered: bool,
    /// Before when the next replay would be too early; takes the place of the one before.
    pub not_before: Option<SystemTime>,
}

fn since(maybe_delivered: bool, attempts: &[AttemptRecord], accepted_at: SystemTime) -> Option<SystemTime> {
    if !maybe_delivered {
        return None;
    }
    let earliest = attempts
        .iter()
        .find(|attempt| may_have_arrived(attempt))
        .or(attempts.first());
    Some(earliest.map_or(accepted_at, |attempt| attempt.started))
}

/// Whether an attempt with this end may have arrived, by the rule of [`Failure`].
fn may_have_arrived(attempt: &AttemptRecord) -> bool {
    match attempt.cause {
        // A success that the sink's policy does not take for one may be one all the same.
        Some(Cause::Status(status)) => (200..=299).contains(&status) || Failure::status(status).maybe_delivered,
        Some(Cause::Transport(transport)) => Failure::transport(transport).maybe_delivered,
        Some(Cause::Code { class, .. }) => class.maybe_delivered(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use idemp_core::{Detail, Transport};

    use super::*;

    fn attempt(number: u32, cause: Cause) -> AttemptRecord {
        AttemptRecord {
            number,
            started: SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(number)),
            elapsed: Duration::from_millis(5),
            cause: Some(cause),
            detail: Detail::default(),
        }
    }

    fn head(attempts: Vec<AttemptRecord>) -> Letterhead {
        Letterhead {
            sink: SinkName::parse("webhook").unwrap(),
            key: IdempotencyKey::parse("r1:tool_end:1").unwrap(),
            body_len: 0,
            reason: Reason::RetriesExhausted,
            class: Class::Exhausted,
            maybe_delivered: false,
            attempts,
            accepted_at: SystemTime::UNIX_EPOCH,
            dead_at: SystemTime::UNIX_EPOCH,
            not_before: None,
            replay_count: 0,
        }
    }

    fn failed(number: u32, cause: Cause, maybe_delivered: bool) -> ReplayFailure {
        ReplayFailure {
            attempt: attempt(number, cause),
            reason: None,
            maybe_delivered,
            not_before: None,
        }
    }

    const REFUSED: Cause = Cause::Transport(Transport::Connect);
    const TIMED_OUT: Cause = Cause::Transport(Transport::Timeout);

    fn numbers(head: &Letterhead) -> Vec<u32> {
        head.attempts.iter().map(|attempt| attempt.number).collect()
    }

    #[test]
    fn the_earliest_attempt_that_may_have_arrived_outlives_the_bound() {
        let mut head = head(vec![attempt(1, REFUSED), attempt(2, REFUSED)]);
        for number in 3..=30 {
            let cause = if number == 5 || number == 7 { TIMED_OUT } else { REFUSED };
            head.record(failed(number, cause, cause == TIMED_OUT));
        }
        assert_eq!(numbers(&head), [5, 24, 25, 26, 27, 28, 29, 30]);
        assert_eq!(head.replay_count, 28);
        assert_eq!(
            head.maybe_delivered_since(),
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(5))
        );
    }

    #[test]
    fn without_a_possible_arrival_the_latest_attempts_stay() {
        let mut head = head(Vec::new());
        for number in 1..=10 {
            head.record(failed(number, REFUSED, false));
        }
        assert_eq!(numbers(&head), [3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(head.maybe_delivered_since(), None);
    }

    #[test]
    fn a_maybe_delivered_letter_without_attempts_counts_from_its_acceptance() {
        let mut head = head(Vec::new());
        head.maybe_delivered = true;
        assert_eq!(head.maybe_delivered_since(), Some(SystemTime::UNIX_EPOCH));
    }

    #[test]
    fn a_conflict_stays_one_and_a_rejection_is_told() {
        let rejected = ReplayFailure {
            reason: Some(Reason::EventRejected),
            ..failed(1, Cause::Status(400), false)
        };
        let mut letter = head(Vec::new());
        letter.record(rejected.clone());
        assert_eq!((letter.reason, letter.class), (Reason::EventRejected, Class::Event));

        let mut conflict = head(Vec::new());
        (conflict.reason, conflict.class) = (Reason::KeyConflict, Class::Event);
        conflict.record(ReplayFailure {
            reason: Some(Reason::ConfigurationRejected),
            ..rejected
        });
        conflict.absorb(head(Vec::new()));
        assert_eq!((conflict.reason, conflict.class), (Reason::KeyConflict, Class::Event));
    }
}
