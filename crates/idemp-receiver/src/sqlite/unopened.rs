//! Why a file cannot be opened, and which.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::table::kind_of;
use crate::store::{StoreError, StoreErrorKind};

/// The reason of an error of opening.
#[derive(Debug)]
pub(super) struct Unopened {
    path: PathBuf,
    what: &'static str,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Unopened {
    /// The file is there, and is something else.
    pub(super) fn other(path: &Path, what: &'static str) -> StoreError {
        Self::error(path, StoreErrorKind::NotSetUp, what, None)
    }

    /// The file cannot be made, or its writer cannot be started.
    pub(super) fn io(path: &Path, error: std::io::Error) -> StoreError {
        let what = "the file cannot be opened";
        Self::error(path, StoreErrorKind::Unavailable, what, Some(error.into()))
    }

    pub(super) fn sqlite(path: &Path, error: rusqlite::Error) -> StoreError {
        let what = match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => "the file is no SQLite file",
            Some(ErrorCode::DatabaseCorrupt) => "the file is damaged",
            Some(ErrorCode::DiskFull) => "no room is left for the file",
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "another process keeps the file locked",
            Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => "the file may not be written",
            _ => "the file cannot be opened",
        };
        Self::error(path, kind_of(&error), what, Some(error.into()))
    }

    fn error(
        path: &Path,
        kind: StoreErrorKind,
        what: &'static str,
        source: Option<Box<dyn Error + Send + Sync>>,
    ) -> StoreError {
        let path = path.to_owned();
        StoreError::with_source(kind, Self { path, what, source })
    }
}

impl fmt::Display for Unopened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

impl Error for Unopened {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
