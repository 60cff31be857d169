//! How an event ended at a sink, and the handle that waits for it.

use std::fmt;
use std::sync::Arc;

use idemp_core::{Cause, IdempotencyKey, Reason, SinkName};
use idemp_dlq::{DeadLetter, StoreError};

use crate::slot::Settled;

/// How one event ended at one sink. Every accepted event gets one per sink.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Settlement {
    /// The sink's other side has it.
    Delivered {
        /// How many attempts it took.
        attempts: u32,
    },
    /// It lies in a dead-letter store.
    DeadLettered {
        /// Why.
        reason: Reason,
        /// How many attempts were made.
        attempts: u32,
        /// Why the last of them failed: a status or a code, never the peer's text, which the letter alone has. One that
        /// a shutdown cut at its deadline has timed out. `None` if there was no attempt.
        cause: Option<Cause>,
    },
    /// An at-most-once sink lost it, and counted that.
    Dropped {
        /// Why.
        reason: Reason,
        /// Why the last attempt failed, as in [`DeadLettered`](Self::DeadLettered). Nothing else keeps it.
        cause: Option<Cause>,
    },
    /// No store took it: here it is. The dispatcher takes no new work.
    Unsaved {
        /// The event, with all that is known of it.
        letter: Arc<DeadLetter>,
        /// What the last store said; `None` if it did not answer.
        error: Option<Arc<StoreError>>,
    },
}

impl Settlement {
    /// Whether the event was delivered.
    #[must_use]
    pub const fn is_delivered(&self) -> bool {
        matches!(self, Self::Delivered { .. })
    }
}

/// The settlements of one event, one per sink that took it.
#[derive(Clone, Debug)]
pub struct Report {
    key: IdempotencyKey,
    settlements: Vec<(SinkName, Settlement)>,
}

impl Report {
    /// The event's key.
    #[must_use]
    pub const fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// Each sink with its settlement, in the order of the lanes.
    #[must_use]
    pub fn settlements(&self) -> &[(SinkName, Settlement)] {
        &self.settlements
    }

    /// Whether every sink that took the event delivered it.
    #[must_use]
    pub fn all_delivered(&self) -> bool {
        self.settlements.iter().all(|(_, settlement)| settlement.is_delivered())
    }
}

/// An accepted event. Dropping the handle stops the waiting, not the event.
#[must_use = "the event is on its way; waiting for it, or dropping the handle, is up to you"]
pub struct Handle {
    pub(crate) key: IdempotencyKey,
    pub(crate) places: Vec<(SinkName, Settled)>,
}

impl Handle {
    /// The event's key.
    #[must_use]
    pub const fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// Waits until every sink has settled the event.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, not the event.
    ///
    /// # Panics
    /// If the event was lost: the runtime in which it was submitted was shut down before the dispatcher, or the clock
    /// panicked.
    pub async fn settled(self) -> Report {
        let mut settlements = Vec::with_capacity(self.places.len());
        for (name, settled) in &self.places {
            settlements.push((name.clone(), until_settled(settled).await));
        }
        Report {
            key: self.key,
            settlements,
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("key", &self.key).finish_non_exhaustive()
    }
}

async fn until_settled(settled: &Settled) -> Settlement {
    #[expect(clippy::panic, reason = "documented: nothing will ever come")]
    match settled.wait().await {
        Some(settlement) => settlement,
        None => panic!("the event was lost, most likely because its runtime was shut down before the dispatcher"),
    }
}
