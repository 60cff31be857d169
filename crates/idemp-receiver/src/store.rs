//! Where claims are kept: the trait, what it answers, and its errors.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idemp_core::Ttl;

use crate::claim::{ClaimKey, Claimant};
use crate::event::HandlerError;

/// Keeps, per scope and key, who is at work on an event and which events are done.
///
/// # Contract
///
/// A key is absent, pending (token, fingerprint, end of the lease) or done (fingerprint, end of the TTL). A record
/// whose time is up counts as absent, whether or not it still lies in the store.
///
/// * Each operation is atomic: of any number of claims at once, from any number of processes, one wins.
/// * Every write but a claim compares the token. Whoever lost a claim changes nothing by what it still calls.
/// * A claim that finds its own token succeeds and starts the lease anew, so that it may be sent again when its answer
///   was lost.
/// * Dropping the future of an operation leaves it done or not done, never half done.
/// * Nothing that is live is ever evicted to make room. A store that is full says so with
///   [`StoreErrorKind::Full`].
///
/// # Stores that commit effects
///
/// Where [`commits_effects`](Self::commits_effects) is `true`, a claim stands for the handler's own transaction, and this
/// much of the above is different:
///
/// * A claim lasts as long as its transaction, with its process and its connection, and need not end with the lease. A
///   store that lets another copy in after a lease sees to it that of all that are at work then only one commits.
/// * A release undoes what was done under the claim. Without a live claim there is nothing to commit: a completion is
///   then never [`Completed::Done`], and may be an error.
/// * A mark stays until it is purged, whatever its TTL.
/// * Another body under a key at work may be in progress first, since what is not committed cannot be seen. It is a
///   conflict once that work is done.
///
/// The feature `conformance` has a suite that every store passes.
#[async_trait]
pub trait ClaimStore: Send + Sync + 'static {
    /// Takes the key for `lease`, if it is absent or already the claimant's own.
    ///
    /// Another body is looked at before anything else: a live record with another fingerprint is a
    /// [`Claim::Conflict`], pending or done. A mark without a fingerprint fits every body.
    ///
    /// # Errors
    /// If the store cannot tell. The claim may then have been taken all the same.
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError>;

    /// Lets the lease run for `lease` from now, if the claim is live and the claimant's own. Otherwise `false`, and
    /// nothing has changed.
    ///
    /// # Errors
    /// If the store cannot tell.
    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError>;

    /// Records the event as done for `ttl` from now, if the claim is the claimant's own or the key is absent.
    ///
    /// # Errors
    /// If the store cannot tell. The mark may then have been written all the same.
    async fn complete(&self, claimant: &Claimant, ttl: Ttl) -> Result<Completed, StoreError>;

    /// Makes the key absent, if the claim is the claimant's own. Otherwise `false`, and nothing has changed.
    ///
    /// # Errors
    /// If the store cannot tell.
    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError>;

    /// Records the key as done for `ttl`, without a body, if it is absent: `true` if it was new, `false` if it was
    /// seen before, pending included (docs/spec.md, "De-dup").
    ///
    /// An event that is marked before the work is lost if the work fails. Prefer claim and complete.
    ///
    /// # Errors
    /// If the store cannot tell. The mark may then have been written all the same.
    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError>;

    /// Lets go of what the store has open: files, connections, threads. What is asked afterwards fails with
    /// [`StoreErrorKind::Unavailable`], or is done all the same by a store that has nothing to close.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, not the closing.
    async fn close(&self) {}

    /// Whether [`complete`](Self::complete) also commits what the handler has done, and [`release`](Self::release)
    /// undoes it, as those of an inbox do. A completion that fails then means that the event is not done, and the sender
    /// is put off; for any other store the effect has been taken, and the sender is told so. One that fails through the
    /// handler's own work says so with [`StoreErrorKind::Refused`].
    fn commits_effects(&self) -> bool {
        false
    }
}

#[async_trait]
impl<T: ClaimStore + ?Sized> ClaimStore for Arc<T> {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        (**self).claim(claimant, lease).await
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        (**self).renew(claimant, lease).await
    }

    async fn complete(&self, claimant: &Claimant, ttl: Ttl) -> Result<Completed, StoreError> {
        (**self).complete(claimant, ttl).await
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        (**self).release(claimant).await
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError> {
        (**self).mark_seen(key, ttl).await
    }

    async fn close(&self) {
        (**self).close().await;
    }

    fn commits_effects(&self) -> bool {
        (**self).commits_effects()
    }
}

/// Answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The key is the claimant's until the lease ends.
    Claimed,
    /// The event was done before.
    Duplicate,
    /// The key stands for another body.
    Conflict,
    /// Another copy is at work.
    InProgress {
        /// Rest of its lease, or a guess where there is none; more than zero.
        retry_after: Duration,
    },
}

/// Answer to a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The claim was live; the event is recorded as done.
    Done,
    /// The lease had run out and nobody else had taken the key; the event is recorded as done.
    Late,
    /// Another copy holds the key, or the event was recorded as done already; nothing has changed.
    Lost,
}

/// A store could not tell.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What kept a store from telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// It cannot be opened or reached, or it failed.
    Unavailable,
    /// It did not answer in time.
    TimedOut,
    /// It takes no further keys until old ones expire.
    Full,
    /// Its tables or its file are missing, or not those of this version: no key can be claimed until that is mended.
    NotSetUp,
    /// What lies under this one key was not written by this version. Other keys are well, and this one stays so until
    /// somebody removes what is there.
    Foreign,
    /// It works, and will not commit what the handler has done in its transaction. Another run may fare better.
    Refused,
}

impl StoreError {
    /// An error without a deeper reason.
    #[must_use]
    pub const fn new(kind: StoreErrorKind) -> Self {
        Self { kind, source: None }
    }

    /// An error with its reason, which must not hold a secret.
    #[must_use]
    pub fn with_source(kind: StoreErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind,
            source: Some(source.into()),
        }
    }

    /// What happened.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            StoreErrorKind::Unavailable => "the claim store is not available",
            StoreErrorKind::TimedOut => "the claim store did not answer in time",
            StoreErrorKind::Full => "the claim store is full",
            StoreErrorKind::NotSetUp => "the claim store has no tables of this version",
            StoreErrorKind::Foreign => "the claim store holds under the key what this version did not write",
            StoreErrorKind::Refused => "the claim store did not commit what the handler had done",
        })
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// A store that fails within a handler, as an inbox may: the next copy tries again.
impl From<StoreError> for HandlerError {
    fn from(_: StoreError) -> Self {
        Self::Failed
    }
}
