//! What the client's errors mean to a store.

use object_store::Error;

use crate::{StoreError, StoreErrorKind as Kind};

/// The store's error. Nothing is known of what was asked for: it may have happened.
pub(super) fn error(error: Error) -> StoreError {
    let (kind, message) = match &error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => (
            Kind::CannotOpen,
            "the object store denies it: check credentials and their permissions",
        ),
        Error::NotFound { .. } => (Kind::CannotOpen, "there is no such bucket"),
        Error::NotImplemented { .. } | Error::NotSupported { .. } => {
            (Kind::CannotOpen, "the object store knows no conditional writes")
        }
        _ => (Kind::Unavailable, "the object store does not answer as it should"),
    };
    StoreError::new(kind, message).with_source(error)
}

/// Others kept writing the same entry.
pub(super) fn contended() -> StoreError {
    StoreError::new(Kind::Unavailable, "others kept writing the same entry")
}

pub(super) fn without_etag() -> StoreError {
    StoreError::new(Kind::CannotOpen, "the object store gives no entity tags")
}

/// A copy that is not where it was put. The entry stays where it is.
pub(super) fn not_copied() -> StoreError {
    let message = "the copy of a replayed entry is not there: the entry was left where it is";
    StoreError::new(Kind::Unavailable, message)
}
