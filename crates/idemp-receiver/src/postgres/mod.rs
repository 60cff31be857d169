//! Postgres: claims with a lease, the inbox, and the tables of both.

mod claims;
mod inbox;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use sqlx::PgPool;

use crate::event::HandlerError;
use crate::store::{StoreError, StoreErrorKind};
pub use claims::PostgresStore;
pub use inbox::{InboxTransaction, PostgresInbox};

/// The tables of [`PostgresStore`] and [`PostgresInbox`] as SQL, in the order in which to run them, for migration tools
/// of your own. Each may be run twice. They go into the first schema of the connection's `search_path`.
///
/// `PostgresStore::migrate` and `PostgresInbox::migrate` run them as well.
pub const POSTGRES_MIGRATIONS: &[&str] = &[include_str!("0001_claims_and_inbox.sql")];

/// Any number that all who migrate agree on: two who create a table at once get in each other's way. "idempmig".
const MIGRATION_LOCK: i64 = 0x6964_656d_706d_6967;

async fn migrate(pool: &PgPool) -> Result<(), StoreError> {
    let mut transaction = pool.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(MIGRATION_LOCK)
        .execute(&mut *transaction)
        .await?;
    for migration in POSTGRES_MIGRATIONS {
        sqlx::raw_sql(*migration).execute(&mut *transaction).await?;
    }
    Ok(transaction.commit().await?)
}

/// Few enough for a server with its default of 100, enough for group commit.
const CONNECTIONS: u32 = 16;

/// A pool that connects when it is first used.
fn pool(url: &str) -> Result<PgPool, StoreError> {
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(CONNECTIONS);
    Ok(options.connect_lazy(url)?)
}

/// The longest time that is asked for: an `interval` and a `timestamptz` hold no more than some hundred thousand years.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// For `* interval '1 microsecond'`.
fn micros(time: Duration) -> i64 {
    i64::try_from(time.min(LONGEST).as_micros()).unwrap_or(i64::MAX)
}

/// What a failed operation means for the one after it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    No,
    /// Nothing was done, because others were at it at the same time.
    Contended,
    /// The connection is gone, and perhaps an answer.
    Lost,
}

fn again(error: &sqlx::Error) -> Again {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => Again::Lost,
        _ => match code(error).as_deref() {
            // serialization_failure, deadlock_detected
            Some("40001" | "40P01") => Again::Contended,
            // admin_shutdown, crash_shutdown, idle_session_timeout: what ends a connection.
            Some("57P01" | "57P02" | "57P05") => Again::Lost,
            _ => Again::No,
        },
    }
}

/// The five characters of `SQLSTATE`.
fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let kind = match (&error, code(&error).as_deref()) {
            (sqlx::Error::PoolTimedOut, _) => StoreErrorKind::TimedOut,
            // query_canceled by a statement_timeout, lock_not_available
            (_, Some("57014" | "55P03")) => StoreErrorKind::TimedOut,
            // disk_full
            (_, Some("53100")) => StoreErrorKind::Full,
            // undefined_table, undefined_column, datatype_mismatch, undefined_function (an operator for the types of
            // another table), invalid_column_reference (no such primary key)
            (_, Some("42P01" | "42703" | "42804" | "42883" | "42P10")) => StoreErrorKind::NotSetUp,
            _ => StoreErrorKind::Unavailable,
        };
        match kind {
            StoreErrorKind::NotSetUp => Self::with_source(kind, Unmigrated(error)),
            _ => Self::with_source(kind, error),
        }
    }
}

/// What is to be done about tables that are not there, or not ours.
#[derive(Debug)]
struct Unmigrated(sqlx::Error);

impl fmt::Display for Unmigrated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("run its migrations, or name a place of its own")
    }
}

impl Error for Unmigrated {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

/// The database said no: the next copy tries again.
impl From<sqlx::Error> for HandlerError {
    fn from(_: sqlx::Error) -> Self {
        Self::Failed
    }
}
