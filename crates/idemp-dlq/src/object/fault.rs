//! What the client's errors mean to a store.

use object_store::Error;

use crate::{StoreError, StoreErrorKind as Kind};

/// The store's error. Nothing is known of what was asked for: it may have happened.
pub(super) fn error(error: Error) -> StoreError {
    let status = match &error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Some(403),
        Error::NotFound { .. } => Some(404),
        Error::Generic { .. } => status(&error),
        _ => None,
    };
    let (kind, message) = match (status, &error) {
        (Some(401 | 403), _) => (
            Kind::CannotOpen,
            "the object store denies it: check credentials and their permissions",
        ),
        (Some(404), _) => (Kind::CannotOpen, "there is no such bucket"),
        // RFC 4918, section 11.5.
        (Some(507), _) => (Kind::Full, "the object store has no room"),
        (_, Error::NotImplemented { .. } | Error::NotSupported { .. }) => {
            (Kind::CannotOpen, "the object store knows no conditional writes")
        }
        _ => (Kind::Unavailable, "the object store does not answer as it should"),
    };
    StoreError::new(kind, message).with_source(error)
}

/// The HTTP status of an answer to which the client has no variant of its own, as for every list that fails: it stands
/// in the text alone.
fn status(error: &Error) -> Option<u16> {
    let text = error.to_string();
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_in_the_text_is_found() {
        let kind = |text: &'static str| {
            let generic = Error::Generic {
                store: "S3",
                source: text.into(),
            };
            error(generic).kind()
        };
        assert_eq!(
            kind("Server returned non-2xx status code: 404 Not Found: x"),
            Kind::CannotOpen
        );
        assert_eq!(
            kind("Server returned non-2xx status code: 403 Forbidden: "),
            Kind::CannotOpen
        );
        assert_eq!(kind("Server returned non-2xx status code: 507 : "), Kind::Full);
        assert_eq!(kind("Server returned non-2xx status code: 503 : "), Kind::Unavailable);
        assert_eq!(kind("Server returned non-2xx status code: 5"), Kind::Unavailable);
        assert_eq!(kind("HTTP error: timed out"), Kind::Unavailable);
    }
}
