//! Counts since the start. At rest: accepted = delivered + dead-lettered + dropped + unsaved + lost.

use std::sync::atomic::{AtomicU64, Ordering};

use idemp_core::{BreakerState, SinkName};

/// Counts of every lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// One per lane, in order.
    pub lanes: Vec<LaneStats>,
}

/// Counts of one lane, in events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneStats {
    /// The sink's name.
    pub name: SinkName,
    /// Taken on.
    pub accepted: u64,
    /// The other side has them.
    pub delivered: u64,
    /// In a dead-letter store.
    pub dead_lettered: u64,
    /// Lost by an at-most-once sink.
    pub dropped: u64,
    /// Handed back because no store took them.
    pub unsaved: u64,
    /// Lost without an end: the runtime in which they were submitted has ended, or their clock or the recorder of
    /// metrics panicked.
    pub lost: u64,
    /// Attempts made.
    pub attempts: u64,
    /// Where the circuit breaker stands.
    pub breaker: BreakerState,
}

impl LaneStats {
    /// Taken on, and without an end yet.
    #[must_use]
    pub const fn unsettled(&self) -> u64 {
        self.accepted - self.delivered - self.dead_lettered - self.dropped - self.unsaved - self.lost
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: Count,
    pub(crate) delivered: Count,
    pub(crate) dead_lettered: Count,
    pub(crate) dropped: Count,
    pub(crate) unsaved: Count,
    pub(crate) lost: Count,
    pub(crate) attempts: Count,
}

impl Counts {
    pub(crate) fn snapshot(&self, name: SinkName, breaker: BreakerState) -> LaneStats {
        // Ends are read before beginnings, so that a snapshot in mid-flight never has more ends than beginnings.
        let (delivered, dead_lettered) = (self.delivered.read(), self.dead_lettered.read());
        let (dropped, unsaved, lost) = (self.dropped.read(), self.unsaved.read(), self.lost.read());
        let (attempts, accepted) = (self.attempts.read(), self.accepted.read());
        LaneStats {
            name,
            accepted,
            delivered,
            dead_lettered,
            dropped,
            unsaved,
            lost,
            attempts,
            breaker,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
