//! The file: its schema, one record, one transaction.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::unopened::Unopened;
use crate::claim::{ClaimKey, Fingerprint, Token};
use crate::machine::{Record, State, Write};
use crate::store::{StoreError, StoreErrorKind};

/// How long another writer on the same file is waited for.
const BUSY: Duration = Duration::from_secs(5);

/// Marks the file as ours: "idcl".
const APPLICATION_ID: i32 = 0x6964_636c;

/// Layout of the table below.
const VERSION: i32 = 1;

/// Text is compared byte for byte, which is SQLite's default. `token` is there while a claim is pending.
const SCHEMA: &str = "
    CREATE TABLE claims (
        scope TEXT NOT NULL,
        event_key TEXT NOT NULL,
        token BLOB CHECK (length(token) = 16),
        fingerprint BLOB CHECK (length(fingerprint) = 16),
        until_ms INTEGER NOT NULL,
        PRIMARY KEY (scope, event_key)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX claims_by_end ON claims (until_ms);
";

const FIND: &str = "SELECT token, fingerprint, until_ms FROM claims WHERE scope = ?1 AND event_key = ?2";
const PUT: &str = "INSERT OR REPLACE INTO claims (scope, event_key, token, fingerprint, until_ms) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
const REMOVE: &str = "DELETE FROM claims WHERE scope = ?1 AND event_key = ?2";
const PURGE: &str = "DELETE FROM claims WHERE (scope, event_key) IN \
                     (SELECT scope, event_key FROM claims WHERE until_ms <= ?1 ORDER BY until_ms LIMIT ?2)";

pub(super) struct Table {
    connection: Connection,
}

impl Table {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let unavailable = |error| Unopened::io(path, error);
        create(path).map_err(unavailable)?;
        let absolute = located(path).map_err(unavailable)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let started = Instant::now();
        loop {
            match Connection::open_with_flags(&absolute, flags).and_then(set_up) {
                Ok(Opened::Ours(connection)) => return Ok(Self { connection }),
                Ok(Opened::Other(why)) => return Err(Unopened::other(path, why)),
                // Where waiting could be a deadlock, as when the mode is switched to WAL, SQLite does not wait by itself.
                Err(error) if is_busy(&error) && started.elapsed() < BUSY => sleep(Duration::from_millis(5)),
                Err(error) => return Err(Unopened::sqlite(path, error)),
            }
        }
    }

    /// Runs `work` in a transaction that is committed if it succeeds. It takes the lock for writing at its start: a
    /// transaction that first reads and then wants to write fails at once when another one has written in between.
    pub(super) fn transaction(
        &mut self,
        work: impl FnOnce(&Records<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let records = Records(
            self.connection
                .transaction_with_behavior(TransactionBehavior::Immediate)?,
        );
        work(&records)?;
        records.0.commit()
    }
}

/// The records within a transaction.
pub(super) struct Records<'t>(Transaction<'t>);

impl Records<'_> {
    pub(super) fn find(&self, key: &ClaimKey) -> rusqlite::Result<Option<Record>> {
        let mut find = self.0.prepare_cached(FIND)?;
        find.query_row(params![key.scope().unwrap_or_default(), key.key()], record)
            .optional()
    }

    pub(super) fn write(&self, key: &ClaimKey, write: Write) -> rusqlite::Result<()> {
        let scope = key.scope().unwrap_or_default();
        match write {
            Write::Nothing => {}
            Write::Remove => {
                self.0.prepare_cached(REMOVE)?.execute(params![scope, key.key()])?;
            }
            Write::Put(record) => {
                let token = match &record.state {
                    State::Pending(token) => Some(token.as_bytes()),
                    State::Done => None,
                };
                let fingerprint = record.fingerprint.as_ref().map(Fingerprint::as_bytes);
                self.0.prepare_cached(PUT)?.execute(params![
                    scope,
                    key.key(),
                    token,
                    fingerprint,
                    millis(record.until)
                ])?;
            }
        }
        Ok(())
    }

    /// Deletes up to `most` records whose time is up.
    pub(super) fn purge(&self, now: Duration, most: usize) -> rusqlite::Result<()> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.0.prepare_cached(PURGE)?.execute(params![millis(now), most])?;
        Ok(())
    }
}

pub(super) fn kind_of(error: &rusqlite::Error) -> StoreErrorKind {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreErrorKind::Full,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreErrorKind::TimedOut,
        Some(ErrorCode::NotADatabase) => StoreErrorKind::NotSetUp,
        _ => StoreErrorKind::Unavailable,
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    kind_of(error) == StoreErrorKind::TimedOut
}

/// Makes the file if it is not there, readable and writable for its owner only. The files beside it get the same mode.
fn create(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

/// The path from the root, because SQLite has names of its own, such as `:memory:`.
fn located(path: &Path) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

enum Opened {
    Ours(Connection),
    /// What the file is instead.
    Other(&'static str),
}

fn set_up(mut connection: Connection) -> rusqlite::Result<Opened> {
    connection.busy_timeout(BUSY)?;
    let number = |connection: &Connection, pragma| connection.query_row(pragma, [], |row| row.get::<_, i32>(0));
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    match (
        number(&transaction, "PRAGMA application_id")?,
        number(&transaction, "PRAGMA user_version")?,
    ) {
        (APPLICATION_ID, VERSION) => {}
        (0, 0) if number(&transaction, "SELECT count(*) FROM sqlite_schema")? == 0 => {
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        (APPLICATION_ID, later) if later > VERSION => return Ok(Opened::Other("the file is of a later version")),
        _ => {
            return Ok(Opened::Other(
                "the file holds something else: name one for claims alone",
            ));
        }
    }
    transaction.commit()?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    // What one large transaction has left behind is cut off again.
    connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
    Ok(Opened::Ours(connection))
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let token: Option<[u8; 16]> = row.get(0)?;
    let fingerprint: Option<[u8; 16]> = row.get(1)?;
    let until: i64 = row.get(2)?;
    Ok(Record {
        state: token.map_or(State::Done, |token| State::Pending(Token::from_bytes(token))),
        fingerprint: fingerprint.map(Fingerprint::from_bytes),
        until: Duration::from_millis(until.try_into().unwrap_or(0)),
    })
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_special() {
        for name in [":memory:", "file:claims?mode=memory"] {
            let path = located(Path::new(name)).unwrap();
            assert!(path.is_absolute() && path.ends_with(name), "{path:?}");
        }
    }

    /// A purge that walks the whole table would take seconds per batch once there are millions of records.
    #[test]
    fn purging_goes_by_index() {
        let folder = tempfile::tempdir().unwrap();
        let table = Table::open(&folder.path().join("claims.db")).unwrap();
        let mut explain = table
            .connection
            .prepare(&format!("EXPLAIN QUERY PLAN {PURGE}"))
            .unwrap();
        let steps = explain.query_map(params![0, 1], |row| row.get::<_, String>(3)).unwrap();
        let steps: Vec<_> = steps.map(Result::unwrap).collect();
        assert!(
            steps
                .iter()
                .any(|step| step.starts_with("SEARCH claims USING PRIMARY KEY (scope=? AND event_key=?)")),
            "{steps:?}"
        );
        assert!(
            steps
                .iter()
                .any(|step| step.contains("USING COVERING INDEX claims_by_end (until_ms<?)")),
            "{steps:?}"
        );
        assert!(!steps.iter().any(|step| step.starts_with("SCAN")), "{steps:?}");
    }
}
