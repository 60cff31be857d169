//! SQLite's errors in the words of a store.

use rusqlite::ErrorCode;

use crate::{RecordError, StoreError, StoreErrorKind};

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let (kind, message) = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => (StoreErrorKind::Full, "no room is left for the dead-letter file"),
            Some(ErrorCode::NotADatabase) => (StoreErrorKind::Corrupt, "the dead-letter file is no SQLite file"),
            Some(ErrorCode::DatabaseCorrupt) => (StoreErrorKind::Corrupt, "the dead-letter file is damaged"),
            Some(ErrorCode::CannotOpen) => (StoreErrorKind::CannotOpen, "the dead-letter file cannot be opened"),
            Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
                (StoreErrorKind::CannotOpen, "the dead-letter file may not be written")
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
                StoreErrorKind::Unavailable,
                "another process keeps the dead-letter file locked",
            ),
            Some(ErrorCode::SystemIoFailure) => {
                (StoreErrorKind::Unavailable, "the disk of the dead-letter file failed")
            }
            _ => (StoreErrorKind::Unavailable, "the dead-letter file failed"),
        };
        Self::new(kind, message).with_source(error)
    }
}

/// One entry that cannot be read.
pub(super) fn unreadable(id: i64, error: RecordError) -> StoreError {
    StoreError::new(StoreErrorKind::Record, format!("entry {id} cannot be read")).with_source(error)
}

/// The store was closed, or its thread is gone.
pub(super) fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Closed, "the dead-letter file is closed")
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn kinds_follow_the_code() {
        for (code, kind) in [
            (ffi::SQLITE_FULL, StoreErrorKind::Full),
            (ffi::SQLITE_NOTADB, StoreErrorKind::Corrupt),
            (ffi::SQLITE_CORRUPT, StoreErrorKind::Corrupt),
            (ffi::SQLITE_CORRUPT_INDEX, StoreErrorKind::Corrupt),
            (ffi::SQLITE_CANTOPEN, StoreErrorKind::CannotOpen),
            (ffi::SQLITE_CANTOPEN_ISDIR, StoreErrorKind::CannotOpen),
            (ffi::SQLITE_PERM, StoreErrorKind::CannotOpen),
            (ffi::SQLITE_READONLY, StoreErrorKind::CannotOpen),
            (ffi::SQLITE_BUSY, StoreErrorKind::Unavailable),
            (ffi::SQLITE_BUSY_RECOVERY, StoreErrorKind::Unavailable),
            (ffi::SQLITE_LOCKED, StoreErrorKind::Unavailable),
            (ffi::SQLITE_IOERR_FSYNC, StoreErrorKind::Unavailable),
            (ffi::SQLITE_NOMEM, StoreErrorKind::Unavailable),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("told by SQLite".to_owned()));
            let error = StoreError::from(error);
            assert_eq!(error.kind(), kind, "{code}");
            assert!(
                !error.to_string().contains("told by"),
                "the source's text is the source's: {error}"
            );
        }
    }
}
