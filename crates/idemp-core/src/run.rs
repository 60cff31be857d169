//! The handle that numbers the events of one run.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::canonical::CanonicalError;
use crate::{EventType, IdempotencyKey, Message, RunId, StepIndex};

/// Numbers the events of one run, from 1, over all event types.
///
/// Cloning it, and giving it to subgraphs, tasks and threads, shares **one** counter. Two counters under one
/// run id would mint the same key for two events, and the receiver would drop one of them. Another process
/// gets a range of its own: [`reserve`](Self::reserve) here, [`over`](Self::over) there.
#[derive(Clone, Debug)]
pub struct Run {
    id: RunId,
    last: StepIndex,
    /// The next step to give out; `last + 1` when there is none left.
    next: Arc<AtomicU64>,
}

impl Run {
    /// A run with a fresh random id.
    ///
    /// # Panics
    /// If the operating system gives no random bytes.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "each run is a new one, which Default does not suggest"
    )]
    pub fn new() -> Self {
        Self::with_id(RunId::random())
    }

    /// A run under the application's own id, whose events have not been numbered anywhere yet.
    #[must_use]
    pub fn with_id(id: RunId) -> Self {
        Self::over(
            id,
            StepRange {
                first: StepIndex::FIRST,
                last: StepIndex::LAST,
            },
        )
    }

    /// A run that numbers within a range that another process has set aside for it.
    #[must_use]
    pub fn over(id: RunId, range: StepRange) -> Self {
        Self {
            id,
            last: range.last,
            next: Arc::new(AtomicU64::new(range.first.as_u64())),
        }
    }

    /// The run's id.
    #[must_use]
    pub const fn id(&self) -> &RunId {
        &self.id
    }

    /// Mints the key of the next event.
    ///
    /// # Errors
    /// If the steps of this run are used up.
    pub fn next_key(&self, event_type: &EventType) -> Result<IdempotencyKey, StepsExhausted> {
        let range = self.reserve(NonZeroU64::MIN)?;
        Ok(IdempotencyKey::new(&self.id, event_type, range.first))
    }

    /// Sets aside the next `count` steps for somebody else, such as a worker in another process.
    ///
    /// # Errors
    /// If fewer than `count` steps are left; then none is taken.
    pub fn reserve(&self, count: NonZeroU64) -> Result<StepRange, StepsExhausted> {
        // Only the number must be unique; nothing else is published through it.
        let taken = self.next.try_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            next.checked_add(count.get())
                .filter(|after| *after <= self.last.as_u64() + 1)
        });
        let first = taken.map_err(|_| StepsExhausted)?;
        let step = |number| StepIndex::new(number).map_err(|_| StepsExhausted);
        Ok(StepRange {
            first: step(first)?,
            last: step(first + count.get() - 1)?,
        })
    }

    /// Makes the event's body from a payload and mints its key. A payload that is refused takes no step.
    ///
    /// # Errors
    /// If the payload has no canonical form, or the steps are used up.
    pub fn event<T: Serialize + ?Sized>(&self, event_type: EventType, data: &T) -> Result<Message, EventError> {
        let body = Message::body_of(event_type.as_str(), data)?;
        Ok(Message::assembled(self.next_key(&event_type)?, body))
    }

    /// As [`event`](Self::event), with the payload as JSON text.
    ///
    /// # Errors
    /// If the text is not JSON or has no canonical form, or the steps are used up.
    pub fn event_from_json(&self, event_type: EventType, data: &[u8]) -> Result<Message, EventError> {
        let body = Message::body_of_json(event_type.as_str(), data)?;
        Ok(Message::assembled(self.next_key(&event_type)?, body))
    }
}

/// Steps that belong to one holder: `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRange {
    first: StepIndex,
    last: StepIndex,
}

impl StepRange {
    /// A range by its ends, as it came from another process. `None` if `last` is before `first`.
    #[must_use]
    pub fn new(first: StepIndex, last: StepIndex) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// The first step.
    #[must_use]
    pub const fn first(&self) -> StepIndex {
        self.first
    }

    /// The last step.
    #[must_use]
    pub const fn last(&self) -> StepIndex {
        self.last
    }
}

/// No step is left in this run, or in its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepsExhausted;

impl fmt::Display for StepsExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the steps of this run are used up")
    }
}

impl std::error::Error for StepsExhausted {}

/// Why no event could be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventError {
    /// The payload has no canonical form.
    Payload(CanonicalError),
    /// The run has no step left.
    Steps(StepsExhausted),
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Payload(_) => "the payload has no canonical form",
            Self::Steps(_) => "the event cannot be numbered",
        })
    }
}

impl std::error::Error for EventError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Payload(error) => Some(error),
            Self::Steps(error) => Some(error),
        }
    }
}

impl From<CanonicalError> for EventError {
    fn from(error: CanonicalError) -> Self {
        Self::Payload(error)
    }
}

impl From<StepsExhausted> for EventError {
    fn from(error: StepsExhausted) -> Self {
        Self::Steps(error)
    }
}
