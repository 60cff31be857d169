//! The inbox: a mark that commits with the handler's own work.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use idemp_core::Ttl;
use sqlx::PgPool;
use sqlx::postgres::PgTransaction;
use tokio::sync::{Mutex as AsyncMutex, OwnedMappedMutexGuard, OwnedMutexGuard};

use super::{Again, again, code, micros};
use crate::claim::{ClaimKey, Claimant, Token};
use crate::event::Event;
use crate::store::{Claim, ClaimStore, Completed, StoreError, StoreErrorKind};

/// One row, and the key's lock until the transaction ends; or no row, at once, if another transaction has the lock or
/// the key is there. The lock keeps copies from queueing on connections behind the first one. Two keys with one hash
/// only keep each other waiting.
const MARK: &str = "
    WITH free AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(hashtextextended($1 || ':' || $2, 452857814384)) AS ok)
    INSERT INTO idemp_inbox (scope, event_key, fingerprint) SELECT $1, $2, $3 FROM free WHERE ok
    ON CONFLICT (scope, event_key) DO NOTHING";

const LOOK: &str = "SELECT fingerprint FROM idemp_inbox WHERE scope = $1 AND event_key = $2";

const PURGE: &str = "
    DELETE FROM idemp_inbox WHERE (scope, event_key) IN (
        SELECT scope, event_key FROM idemp_inbox
        WHERE created_at <= clock_timestamp() - $1 * interval '1 microsecond'
        ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)";

/// For a copy whose first one is at work in a transaction: nobody knows how much longer.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Takes each effect in Postgres (version 12 or later) exactly once: the mark and what the handler writes commit in one
/// transaction, or neither does. No lease, no kill and no lost answer comes between them.
///
/// It stands where a claim store stands, so the receiver, its layer and its consumers work with it:
///
/// * A claim begins a transaction and writes the mark. Another copy is in progress until that transaction ends.
/// * The handler does its work in [`transaction`](Self::transaction).
/// * If it succeeds, the transaction is committed, and only then is the sender told so. When the outcome of the commit is
///   not known, or it fails, the sender is put off with 503, and the next copy finds the truth.
/// * If it fails, runs over its cap or dies, the transaction is rolled back, mark and all.
///
/// What the handler does outside of that transaction is not covered by it. A mark is remembered until
/// [`purge`](Self::purge) deletes it. Another body under the key of an event at work is in progress first, and a
/// conflict once that one is done.
///
/// Each event at work holds a connection. Let [`ReceiverConfig::concurrency`](crate::ReceiverConfig::concurrency) be no
/// more than the pool has.
///
/// ```no_run
/// use std::sync::Arc;
/// use axum::{Router, extract::State, routing::post};
/// use idemp_core::Secret;
/// use idemp_receiver::{Event, HandlerError, PostgresInbox, Receiver, ReceiverConfig, ReceiverLayer};
/// use sqlx::postgres::PgPoolOptions;
///
/// async fn tool_end(State(inbox): State<Arc<PostgresInbox>>, event: Event) -> Result<(), HandlerError> {
///     let mut transaction = inbox.transaction(&event).await?;
///     sqlx::query("INSERT INTO tool_calls (call, output) VALUES ($1, $2)")
///         .bind(event.key())
///         .bind(event.data_bytes())
///         .execute(&mut **transaction)
///         .await?;
///     // The receiver commits.
///     Ok(())
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PgPoolOptions::new().max_connections(32).connect("postgres://127.0.0.1/app").await?;
/// let inbox = Arc::new(PostgresInbox::new(pool));
/// inbox.migrate().await?;
/// let secret = Secret::new(std::env::var("WEBHOOK_SECRET")?)?;
/// let config = ReceiverConfig { concurrency: 32, ..ReceiverConfig::default() };
/// let receiver = Receiver::new(Arc::clone(&inbox), &secret.into(), config)?;
/// let app: Router = Router::new()
///     .route("/webhooks/langchain", post(tool_end).route_layer(ReceiverLayer::new(receiver)))
///     .with_state(inbox);
/// # Ok(())
/// # }
/// ```
pub struct PostgresInbox {
    pool: PgPool,
    open: Mutex<HashMap<Token, Open>>,
}

/// A transaction that holds a mark. `None` once it is ended.
type Open = Arc<AsyncMutex<Option<PgTransaction<'static>>>>;

/// A handler's hold on its transaction: a [`sqlx::postgres::PgTransaction`] behind two dereferences.
///
/// Let it go before the handler ends, or the receiver cannot commit. Neither commit nor roll back in it; savepoints are
/// fine.
pub type InboxTransaction = OwnedMappedMutexGuard<Option<PgTransaction<'static>>, PgTransaction<'static>>;

impl PostgresInbox {
    /// An inbox in the database of this pool.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self {
            pool,
            open: Mutex::default(),
        }
    }

    /// Makes the tables of the store and of the inbox where they are not there yet.
    ///
    /// # Errors
    /// If the server cannot be reached or does not allow it.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        super::migrate(&self.pool).await
    }

    /// The transaction in which this event is marked.
    ///
    /// # Errors
    /// If this inbox has none for the event: its receiver has another store, or runs without a claim (`fail_open`).
    pub async fn transaction(&self, event: &Event) -> Result<InboxTransaction, StoreError> {
        let none = || StoreError::new(StoreErrorKind::Unavailable);
        let open = self.open().get(&event.claimant().token).cloned().ok_or_else(none)?;
        OwnedMutexGuard::try_map(open.lock_owned().await, Option::as_mut).map_err(|_| none())
    }

    /// Deletes up to `most` marks that are older than `ttl` and says how many. Rows that others are at are passed over,
    /// so several may purge at once. Call it again while it deletes as many as it may.
    ///
    /// # Errors
    /// If the server fails. Nothing has been deleted then.
    pub async fn purge(&self, ttl: Ttl, most: u32) -> Result<u64, StoreError> {
        let done = sqlx::query(PURGE)
            .bind(micros(ttl.as_duration()))
            .bind(i64::from(most))
            .execute(&self.pool)
            .await?;
        Ok(done.rows_affected())
    }

    async fn begin(&self, who: &Claimant) -> sqlx::Result<Claim> {
        let mut transaction = self.pool.begin().await?;
        let body = who.fingerprint.as_bytes();
        if mark(&mut transaction, &who.key, Some(body)).await? {
            let open = Arc::new(AsyncMutex::new(Some(transaction)));
            self.open().insert(who.token, open);
            return Ok(Claim::Claimed);
        }
        let seen: Option<Option<Vec<u8>>> = sqlx::query_scalar(LOOK)
            .bind(who.key.scope().unwrap_or_default())
            .bind(who.key.key())
            .fetch_optional(&mut *transaction)
            .await?;
        transaction.rollback().await?;
        Ok(match seen {
            None => Claim::InProgress {
                retry_after: RETRY_AFTER,
            },
            Some(Some(seen)) if seen != body => Claim::Conflict,
            Some(_) => Claim::Duplicate,
        })
    }

    /// Takes the claimant's transaction away, once its handler has let go of it.
    async fn end(&self, who: &Claimant) -> Option<PgTransaction<'static>> {
        let open = self.open().remove(&who.token)?;
        open.lock().await.take()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Token, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the mark is new.
async fn mark(transaction: &mut PgTransaction<'_>, key: &ClaimKey, body: Option<&[u8; 16]>) -> sqlx::Result<bool> {
    let marked = sqlx::query(MARK)
        .bind(key.scope().unwrap_or_default())
        .bind(key.key())
        .bind(body.map(|body| &body[..]))
        .execute(&mut **transaction)
        .await?;
    Ok(marked.rows_affected() == 1)
}

/// What keeps a transaction from being committed: the server and others on it, or what was done in it.
fn uncommitted(error: sqlx::Error) -> StoreError {
    // By their classes: the connection, rollbacks that others cause, resources, operators, the system, the server itself.
    const NOT_OURS: [&str; 6] = ["08", "40", "53", "57", "58", "XX"];
    match code(&error) {
        Some(code) if !NOT_OURS.iter().any(|class| code.starts_with(class)) => {
            StoreError::with_source(StoreErrorKind::Refused, error)
        }
        _ => error.into(),
    }
}

impl fmt::Debug for PostgresInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresInbox")
            .field("open", &self.open().len())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ClaimStore for PostgresInbox {
    /// The lease is the transaction's life: it ends with its process or its connection.
    async fn claim(&self, claimant: &Claimant, _lease: Duration) -> Result<Claim, StoreError> {
        if self.open().contains_key(&claimant.token) {
            return Ok(Claim::Claimed);
        }
        match self.begin(claimant).await {
            Ok(claim) => Ok(claim),
            // lock_not_available by a lock_timeout of the database, or others at the same key at the same time.
            Err(error) if again(&error) == Again::Contended || code(&error).as_deref() == Some("55P03") => {
                Ok(Claim::InProgress {
                    retry_after: RETRY_AFTER,
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn renew(&self, claimant: &Claimant, _lease: Duration) -> Result<bool, StoreError> {
        Ok(self.open().contains_key(&claimant.token))
    }

    async fn complete(&self, claimant: &Claimant, _ttl: Ttl) -> Result<Completed, StoreError> {
        let Some(mut transaction) = self.end(claimant).await else {
            return Err(StoreError::new(StoreErrorKind::Unavailable));
        };
        // After a statement that failed, COMMIT quietly rolls back, while this fails as well.
        sqlx::query("SELECT 1")
            .execute(&mut *transaction)
            .await
            .map_err(uncommitted)?;
        transaction.commit().await.map_err(uncommitted)?;
        Ok(Completed::Done)
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        let Some(transaction) = self.end(claimant).await else {
            return Ok(false);
        };
        transaction.rollback().await?;
        Ok(true)
    }

    async fn mark_seen(&self, key: &ClaimKey, _ttl: Ttl) -> Result<bool, StoreError> {
        let mut transaction = self.pool.begin().await?;
        let new = mark(&mut transaction, key, None).await?;
        transaction.commit().await?;
        Ok(new)
    }

    /// Closes the pool, also for others who use it.
    async fn close(&self) {
        self.pool.close().await;
    }

    fn commits_effects(&self) -> bool {
        true
    }
}
