//! What a handler gets, and what it may answer.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use idemp_core::IdempotencyKey;
use serde::Deserialize;
use serde_json::error::Category;

use crate::claim::Claimant;
use crate::envelope::Envelope;

/// A verified event whose key is claimed for this run of the handler. Cloning shares it.
///
/// With the feature `axum` it is an extractor, on routes under the receiver's layer.
#[derive(Clone)]
pub struct Event(Arc<Inner>);

struct Inner {
    claimant: Claimant,
    envelope: Envelope,
    secret: Arc<str>,
    claim_lost: AtomicBool,
}

impl Event {
    pub(crate) fn new(claimant: Claimant, envelope: Envelope, secret: Arc<str>) -> Self {
        Self(Arc::new(Inner {
            claimant,
            envelope,
            secret,
            claim_lost: AtomicBool::new(false),
        }))
    }

    /// The idempotency key, without quotes.
    #[must_use]
    pub fn key(&self) -> &str {
        self.0.claimant.key.key()
    }

    /// The key as a sender has it, if it has the form `run_id:event_type:step_index`.
    #[must_use]
    pub fn canonical_key(&self) -> Option<IdempotencyKey> {
        self.0.claimant.key.canonical()
    }

    /// The receiver's scope, `None` for the unnamed one.
    #[must_use]
    pub fn scope(&self) -> Option<&str> {
        self.0.claimant.key.scope()
    }

    /// The body's `event`.
    #[must_use]
    pub fn event_type(&self) -> &str {
        self.0.envelope.event()
    }

    /// The exact bytes that were signed.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        self.0.envelope.body()
    }

    /// The slice of the body that is the JSON text of `data`.
    #[must_use]
    pub fn data_bytes(&self) -> &[u8] {
        self.0.envelope.data()
    }

    /// Reads `data` as a `T`.
    ///
    /// # Errors
    /// If it has another shape, or is nested deeper than 128 levels. As a handler's error it means that the event can
    /// never work.
    pub fn data<'e, T: Deserialize<'e>>(&'e self) -> Result<T, DataError> {
        serde_json::from_slice(self.data_bytes()).map_err(|error| DataError {
            category: error.classify(),
            line: error.line(),
            column: error.column(),
        })
    }

    /// Label of the secret that matched; empty if the event came unsigned over a transport where that is allowed.
    #[must_use]
    pub fn secret_label(&self) -> &str {
        &self.0.secret
    }

    /// Whether another copy may have taken the key because the lease could not be renewed in time.
    ///
    /// A long handler may ask before a step that must not be taken twice. What it does after that is its own choice:
    /// it is not cut for it.
    #[must_use]
    pub fn claim_lost(&self) -> bool {
        self.0.claim_lost.load(Relaxed)
    }

    pub(crate) fn lose_claim(&self) {
        self.0.claim_lost.store(true, Relaxed);
    }

    /// The same event for another claim, since a lost one stays lost.
    #[cfg(any(feature = "kafka", feature = "redis-streams"))]
    pub(crate) fn afresh(&self) -> Self {
        let Inner {
            claimant,
            envelope,
            secret,
            claim_lost: _,
        } = &*self.0;
        let claimant = Claimant::new(claimant.key.clone(), envelope.body());
        Self::new(claimant, envelope.clone(), Arc::clone(secret))
    }

    pub(crate) fn claimant(&self) -> &Claimant {
        &self.0.claimant
    }
}

/// Leaves body and data out.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("key", &self.0.claimant.key)
            .field("event_type", &self.event_type())
            .field("body_len", &self.body().len())
            .finish_non_exhaustive()
    }
}

/// How a handler did not take an event.
///
/// What went wrong within the handler may quote the payload, so it does not come along: a handler logs it where it
/// arises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandlerError {
    /// Not this time: the claim is released and the sender tries again (500).
    Failed,
    /// This event can never work: the claim is released and the sender does not try again (422).
    Rejected,
    /// The same, because its data has another shape than the handler asked for. The place is logged.
    Data(DataError),
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "the handler failed",
            Self::Rejected | Self::Data(_) => "the handler rejected the event",
        })
    }
}

impl Error for HandlerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Data(error) => Some(error),
            Self::Failed | Self::Rejected => None,
        }
    }
}

impl From<DataError> for HandlerError {
    fn from(error: DataError) -> Self {
        Self::Data(error)
    }
}

/// `data` has another shape than was asked for. It tells the place and nothing of what stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataError {
    category: Category,
    line: usize,
    column: usize,
}

impl DataError {
    /// Line within `data`, from 1; 0 if the place is not known.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }

    /// Column within the line, in bytes from 1; 0 if the place is not known.
    #[must_use]
    pub const fn column(&self) -> usize {
        self.column
    }
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.category {
            Category::Data => "the data has an unexpected shape",
            Category::Io | Category::Syntax | Category::Eof => "the data cannot be read as JSON",
        };
        write!(f, "{what} at line {} column {}", self.line, self.column)
    }
}

impl Error for DataError {}
