//! Why a store did not do what it was asked.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::RecordError;

/// What is wrong, and with it whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Busy, or the disk or the connection failed: it may pass.
    Unavailable,
    /// No room. It passes when somebody makes some.
    Full,
    /// The store cannot be opened: it is missing, no store, or not allowed to be used.
    CannotOpen,
    /// The store's own structure is damaged, or it is something else than a dead-letter store.
    Corrupt,
    /// A later version of idemp made the store.
    Version,
    /// This one entry cannot be read. The others can.
    Record,
    /// The store was closed.
    Closed,
}

/// A store that did not do what it was asked.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error with a sentence for the operator: lower case, no secret, nothing of any payload.
    #[must_use]
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Adds what it follows from.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Says where.
    #[cfg(feature = "sqlite")]
    pub(crate) fn at(mut self, path: &std::path::Path) -> Self {
        self.message = format!("{}: {}", path.display(), self.message).into();
        self
    }

    /// What is wrong.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// The record's fault, where one entry cannot be read.
    #[must_use]
    pub fn record(&self) -> Option<RecordError> {
        self.source.as_deref().and_then(|source| source.downcast_ref()).copied()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
