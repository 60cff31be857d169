//! What a replay tells.

use std::fmt;
use std::time::SystemTime;

use idemp_core::{Cause, IdempotencyKey, Refusal, SinkName, Verdict};

use crate::{EntryId, RecordError, StoreError};

/// What became of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// Delivered, and out of the dead letters.
    Replayed,
    /// Delivered, but the entry is not marked: its lease was lost, or the store failed. The next replay sends it
    /// again, and the receiver drops the copy.
    Unmarked,
    /// Not delivered; written into the entry.
    Failed {
        /// What the attempt means: never delivered.
        verdict: Verdict,
        /// Why it failed.
        cause: Option<Cause>,
    },
    /// Not attempted.
    Refused(Refused),
    /// Somebody else holds it, and took it again while this run waited.
    Held,
    /// It was gone when its turn came: replayed by somebody else, or purged.
    Gone,
    /// Its sink has no target.
    NoTarget,
    /// It cannot be read.
    Unreadable(Option<RecordError>),
}

/// Why an entry was not attempted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The peer asked to be left alone until then. Overridden by force.
    NotBefore(SystemTime),
    /// It may have been delivered then, and the receiver has forgotten its key since. Overridden by force.
    ReceiverForgot {
        /// Start of the attempt that may have arrived.
        since: SystemTime,
    },
    /// The sink can never send it.
    Unsendable(Refusal),
}

/// What happens, while it happens.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// The selection is frozen.
    Selected {
        /// Number of entries, or of attempts where there is a limit that is lower.
        entries: u64,
    },
    /// One entry is done with.
    Settled {
        /// Which.
        id: &'a EntryId,
        /// Its sink and key, where they can be read.
        name: Option<(&'a SinkName, &'a IdempotencyKey)>,
        /// What became of it.
        fate: &'a Fate,
    },
    /// Only entries that somebody else holds are left.
    Waiting {
        /// Number of them.
        entries: u64,
        /// Until when the first of them is held.
        until: SystemTime,
    },
}

/// Why a replay ended before its selection did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stopped {
    /// Too many failures in a row at a sink. Its other letters are left; those of other sinks are not.
    Failures,
    /// It was cancelled.
    Cancelled,
}

/// What a replay did. `selected` is the sum of all the other numbers.
///
/// Where a limit on attempts ended it, what lies behind that in the selection, and what somebody else still held then, is
/// in none of the numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplaySummary {
    /// Entries of the selection, up to the limit if there is one.
    pub selected: u64,
    /// Delivered and out of the dead letters.
    pub replayed: u64,
    /// Delivered but not marked ([`Fate::Unmarked`]).
    pub unmarked: u64,
    /// Failed in a way that may pass.
    pub failed_retry: u64,
    /// Failed because the peer refuses the event.
    pub failed_event: u64,
    /// Failed because the peer refuses everything.
    pub failed_configuration: u64,
    /// Refused because `not_before` is in the future.
    pub refused_not_before: u64,
    /// Refused because the receiver has forgotten a key that it may have seen.
    pub refused_receiver_ttl: u64,
    /// Refused because the sink can never send them.
    pub refused_unsendable: u64,
    /// Held by somebody else.
    pub held: u64,
    /// Gone when their turn came.
    pub gone: u64,
    /// Of a sink without a target.
    pub no_target: u64,
    /// Cannot be read.
    pub unreadable: u64,
    /// Not looked at, since the replay stopped.
    pub left: u64,
    /// Why it stopped, if it did.
    pub stopped: Option<Stopped>,
}

impl ReplaySummary {
    /// Attempts that failed, of all three kinds.
    #[must_use]
    pub const fn failed(&self) -> u64 {
        self.failed_retry + self.failed_event + self.failed_configuration
    }

    /// Entries that were not attempted, of all three kinds.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused_not_before + self.refused_receiver_ttl + self.refused_unsendable
    }

    /// Entries that are done with.
    pub(super) fn settled(&self) -> u64 {
        let Self {
            selected: _,
            replayed,
            unmarked,
            failed_retry: _,
            failed_event: _,
            failed_configuration: _,
            refused_not_before: _,
            refused_receiver_ttl: _,
            refused_unsendable: _,
            held,
            gone,
            no_target,
            unreadable,
            left: _,
            stopped: _,
        } = *self;
        replayed + unmarked + self.failed() + self.refused() + held + gone + no_target + unreadable
    }

    pub(super) fn count(&mut self, fate: &Fate) {
        let number = match fate {
            Fate::Replayed => &mut self.replayed,
            Fate::Unmarked => &mut self.unmarked,
            Fate::Failed {
                verdict: Verdict::RejectsEvent,
                ..
            } => &mut self.failed_event,
            Fate::Failed {
                verdict: Verdict::RejectsConfiguration,
                ..
            } => &mut self.failed_configuration,
            Fate::Failed { .. } => &mut self.failed_retry,
            Fate::Refused(Refused::NotBefore(_)) => &mut self.refused_not_before,
            Fate::Refused(Refused::ReceiverForgot { .. }) => &mut self.refused_receiver_ttl,
            Fate::Refused(Refused::Unsendable(_)) => &mut self.refused_unsendable,
            Fate::Held => &mut self.held,
            Fate::Gone => &mut self.gone,
            Fate::NoTarget => &mut self.no_target,
            Fate::Unreadable(_) => &mut self.unreadable,
        };
        *number += 1;
    }
}

/// A replay that the store ended.
#[derive(Clone, Debug)]
pub struct ReplayError {
    pub(super) summary: Box<ReplaySummary>,
    pub(super) store: StoreError,
}

impl ReplayError {
    /// What the replay had done until then.
    #[must_use]
    pub fn summary(&self) -> &ReplaySummary {
        &self.summary
    }

    /// The store's error.
    #[must_use]
    pub const fn store(&self) -> &StoreError {
        &self.store
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the dead-letter store failed during the replay")
    }
}

impl std::error::Error for ReplayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.store)
    }
}
