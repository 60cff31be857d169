//! Making and opening the file.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::{StoreError, StoreErrorKind};

/// How long a write waits for another process. Replays hold the file for milliseconds at a time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Marks the file as ours in its header: `IDLQ`.
const APPLICATION_ID: i32 = 0x4944_4c51;

/// What leads from one version of the schema to the next. The file's version is how many were taken.
const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE letters (
        id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again, so that a frozen selection stays true
        key TEXT NOT NULL,
        sink TEXT NOT NULL,
        event_type TEXT NOT NULL,
        step INTEGER NOT NULL,
        day INTEGER NOT NULL,                 -- of accepted_at, from 1970-01-01
        reason TEXT NOT NULL,
        dead_at INTEGER NOT NULL,             -- nanoseconds from 1970-01-01
        body_sha256 BLOB NOT NULL,
        head TEXT NOT NULL,                   -- the record without its body, as JSON
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX letters_by_key ON letters (key, sink);
    CREATE TABLE leases (
        letter INTEGER PRIMARY KEY,
        token TEXT NOT NULL,
        until INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE replayed (
        key TEXT NOT NULL,
        sink TEXT NOT NULL,
        event_type TEXT NOT NULL,
        reason TEXT NOT NULL,
        dead_at INTEGER NOT NULL,
        body_sha256 BLOB NOT NULL,
        replayed_at INTEGER NOT NULL
    ) STRICT;
"];

/// The two connections to one file.
pub(super) struct Connections {
    pub(super) writing: Connection,
    pub(super) reading: Connection,
}

pub(super) fn open(path: &Path, create: bool) -> Result<Connections, StoreError> {
    connect(path, create).map_err(|error| error.at(path))
}

fn connect(path: &Path, create: bool) -> Result<Connections, StoreError> {
    // An absolute path has no meaning of its own to SQLite, as `:memory:` has.
    let path = std::path::absolute(path).map_err(cannot_open)?;
    if create {
        make(&path).map_err(|error| cannot_make(&path, error))?;
    } else if !path.try_exists().map_err(cannot_open)? {
        return Err(StoreError::new(
            StoreErrorKind::CannotOpen,
            "the dead-letter file does not exist",
        ));
    }
    let writing = connection(&path)?;
    prepare(&writing)?;
    let reading = connection(&path)?;
    reading.pragma_update(None, "query_only", true)?;
    Ok(Connections { writing, reading })
}

/// Makes an empty file that only its owner can read; SQLite gives those beside it the same mode.
fn make(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn connection(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

fn prepare(connection: &Connection) -> Result<(), StoreError> {
    // Before anything is written: the file may be somebody else's.
    let version = version(connection)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        return Err(StoreError::new(
            StoreErrorKind::CannotOpen,
            "the dead-letter file may not be written",
        ));
    }
    write_ahead(connection)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cache_size", -16 * 1024)?;
    connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
    if version < MIGRATIONS.len() {
        migrate(connection)?;
    }
    Ok(())
}

/// The schema's version; 0 for an empty file.
fn version(connection: &Connection) -> Result<usize, StoreError> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    if application != APPLICATION_ID && (application, version, tables) != (0, 0, 0) {
        return Err(StoreError::new(
            StoreErrorKind::Corrupt,
            "the file is no dead-letter file but something else's",
        ));
    }
    match usize::try_from(version) {
        Ok(version) if version <= MIGRATIONS.len() => Ok(version),
        _ => Err(StoreError::new(
            StoreErrorKind::Version,
            format!(
                "a later idemp made the dead-letter file, with schema {version}; this one knows {}",
                MIGRATIONS.len()
            ),
        )),
    }
}

/// Turns write-ahead logging on, which stays so. SQLite does not wait for others by itself here.
fn write_ahead(connection: &Connection) -> Result<(), StoreError> {
    let begun = Instant::now();
    loop {
        match connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0)) {
            Ok(mode) if mode.eq_ignore_ascii_case("wal") => return Ok(()),
            Ok(_) => {
                let why = "the file system of the dead-letter file does not let processes share memory";
                return Err(StoreError::new(StoreErrorKind::CannotOpen, why));
            }
            Err(error) if is_busy(&error) && begun.elapsed() < BUSY_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn migrate(connection: &Connection) -> Result<(), StoreError> {
    let transaction = rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    // Again, now that no other process can come between.
    for step in &MIGRATIONS[version(&transaction)?..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
    transaction.commit()?;
    Ok(())
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

fn cannot_make(path: &Path, error: io::Error) -> StoreError {
    // Some folders, such as those of /proc, are there and take no file.
    if error.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(Path::is_dir) {
        let why = "the folder takes no dead-letter file";
        return StoreError::new(StoreErrorKind::CannotOpen, why).with_source(error);
    }
    cannot_open(error)
}

fn cannot_open(error: io::Error) -> StoreError {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "the folder of the dead-letter file does not exist",
        io::ErrorKind::PermissionDenied => "permission to the dead-letter file is denied",
        io::ErrorKind::StorageFull => {
            return StoreError::new(StoreErrorKind::Full, "no room is left for the dead-letter file")
                .with_source(error);
        }
        _ => "the file system refuses the dead-letter file",
    };
    StoreError::new(StoreErrorKind::CannotOpen, why).with_source(error)
}
