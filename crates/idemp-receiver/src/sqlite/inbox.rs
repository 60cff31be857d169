//! The inbox: a mark that commits with the handler's own work, in the application's database.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use idemp_core::Ttl;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot, watch};

use super::table::kind_of;
use super::unopened::Unopened;
use crate::claim::{ClaimKey, Claimant, Token};
use crate::event::{Event, HandlerError};
use crate::memory::MemoryStore;
use crate::store::{Claim, ClaimStore, Completed, StoreError, StoreErrorKind};

/// The table of [`SqliteInbox`] as SQL, for migration tools of your own. It may be run twice.
///
/// `SqliteInbox::new` and `SqliteInbox::open` run it as well.
pub const SQLITE_MIGRATIONS: &[&str] = &["
CREATE TABLE IF NOT EXISTS idemp_inbox (
    scope TEXT NOT NULL,
    event_key TEXT NOT NULL,
    fingerprint BLOB CHECK (length(fingerprint) = 16),
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (scope, event_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idemp_inbox_by_time ON idemp_inbox (created_ms);
"];

const MARK: &str = "INSERT INTO idemp_inbox (scope, event_key, fingerprint, created_ms) VALUES (?1, ?2, ?3, ?4) \
                    ON CONFLICT (scope, event_key) DO NOTHING";
const LOOK: &str = "SELECT fingerprint FROM idemp_inbox WHERE scope = ?1 AND event_key = ?2";
const PURGE: &str = "DELETE FROM idemp_inbox WHERE (scope, event_key) IN \
                     (SELECT scope, event_key FROM idemp_inbox WHERE created_ms <= ?1 ORDER BY created_ms LIMIT ?2)";

/// How long another writer on the same file is waited for.
const BUSY: Duration = Duration::from_secs(5);

/// How long a key is held in this process while its mark is written.
const WRITING: Duration = Duration::from_secs(10);

/// Jobs that may wait for the thread. Further ones wait to be put into the queue.
const QUEUE: usize = 1_024;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// Takes each effect in an SQLite database exactly once: the mark and what the handler writes commit in one
/// transaction, or neither does.
///
/// It stands where a claim store stands, so the receiver, its layer and its consumers work with it. The handler does its
/// work in [`run`](Self::run), which may come late in it: the database is locked for no longer than that takes. Copies
/// that arrive in the same process meanwhile are in progress. One that arrives in another process runs its
/// handler, too, up to `run`, which finds the mark and does nothing.
///
/// What the handler does outside of `run` is not covered by it. A handler that succeeds without it is marked afterwards.
/// A mark is remembered until [`purge`](Self::purge) deletes it.
///
/// One thread owns the connection, off the async ones. The file belongs to the application: nothing is assumed about
/// what else is in it.
///
/// ```no_run
/// use std::sync::Arc;
/// use axum::{Router, extract::State, routing::post};
/// use idemp_core::Secret;
/// use idemp_receiver::{Event, HandlerError, Receiver, ReceiverConfig, ReceiverLayer, SqliteInbox};
///
/// async fn tool_end(State(inbox): State<Arc<SqliteInbox>>, event: Event) -> Result<(), HandlerError> {
///     let output = event.data_bytes().to_vec();
///     inbox
///         .run(&event, |transaction| {
///             transaction.execute("INSERT INTO tool_calls (output) VALUES (?1)", [output])?;
///             Ok(())
///         })
///         .await?;
///     Ok(())
/// }
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = Arc::new(SqliteInbox::open("app.db")?);
/// let secret = Secret::new(std::env::var("WEBHOOK_SECRET")?)?;
/// let receiver = Receiver::new(Arc::clone(&inbox), &secret.into(), ReceiverConfig::default())?;
/// let app: Router = Router::new()
///     .route("/webhooks/langchain", post(tool_end).route_layer(ReceiverLayer::new(receiver)))
///     .with_state(inbox);
/// # Ok(())
/// # }
/// ```
pub struct SqliteInbox {
    /// `None` once it is closed.
    jobs: RwLock<Option<mpsc::Sender<Job>>>,
    /// Its other end lives as long as the thread.
    thread: watch::Receiver<()>,
    /// Who is at work in this process.
    leases: MemoryStore,
    /// Who has marked its event already.
    marked: Mutex<HashSet<Token>>,
}

impl SqliteInbox {
    /// Opens the file, or creates it, in WAL mode and with `synchronous=FULL`. Blocks for as long as that takes.
    ///
    /// # Errors
    /// If it cannot be opened or created, whose source names the file and says what is wrong with it, or the table cannot
    /// be made.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let absolute = std::path::absolute(path).map_err(|error| Unopened::io(path, error))?;
        let connect = || {
            let opened = Connection::open(absolute)?;
            opened.busy_timeout(BUSY)?;
            opened.pragma_update(None, "journal_mode", "wal")?;
            opened.pragma_update(None, "synchronous", "full")?;
            Ok(opened)
        };
        Self::new(connect().map_err(|error| Unopened::sqlite(path, error))?)
    }

    /// An inbox over a connection of your own. Other connections to the same database may write as well, if this one has
    /// a busy timeout.
    ///
    /// # Errors
    /// If the table cannot be made, or no thread can be started.
    pub fn new(mut connection: Connection) -> Result<Self, StoreError> {
        for migration in SQLITE_MIGRATIONS {
            connection.execute_batch(migration)?;
        }
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE);
        let (alive, thread) = watch::channel(());
        std::thread::Builder::new()
            .name("idemp-inbox".to_owned())
            .spawn(move || {
                while let Some(job) = queue.blocking_recv() {
                    job(&mut connection);
                }
                drop(connection);
                drop(alive);
            })
            .map_err(|error| StoreError::with_source(StoreErrorKind::Unavailable, error))?;
        Ok(Self {
            jobs: RwLock::new(Some(jobs)),
            thread,
            leases: MemoryStore::new(),
            marked: Mutex::default(),
        })
    }

    /// Runs `work` in the transaction that marks the event, and commits both if it succeeds. `None` if the event is done
    /// already, by a copy in another process: then `work` has not run, and the handler has nothing left to do.
    ///
    /// # Errors
    /// What `work` says, with everything rolled back; [`HandlerError::Failed`] if it panics or the database fails,
    /// [`HandlerError::Rejected`] if the key was done with another body.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the work done or not done, as a whole.
    pub async fn run<T, W>(&self, event: &Event, work: W) -> Result<Option<T>, HandlerError>
    where
        T: Send + 'static,
        W: FnOnce(&Transaction<'_>) -> Result<T, HandlerError> + Send + 'static,
    {
        let who = event.claimant().clone();
        let token = who.token;
        let ran = self.ask(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            if !mark(&transaction, &who.key, Some(who.fingerprint.as_bytes()))? {
                return match look(&transaction, &who.key)? {
                    Some(Some(body)) if body != *who.fingerprint.as_bytes() => Ok(Err(HandlerError::Rejected)),
                    _ => Ok(Ok(None)),
                };
            }
            let worked = catch_unwind(AssertUnwindSafe(|| work(&transaction))).unwrap_or(Err(HandlerError::Failed));
            if worked.is_ok() {
                transaction.commit()?;
            }
            Ok(worked.map(Some))
        });
        let ran = ran.await??;
        self.marked().insert(token);
        Ok(ran)
    }

    /// Deletes up to `most` marks that are older than `ttl` by the machine's clock and says how many. Call it again
    /// while it deletes as many as it may.
    ///
    /// # Errors
    /// If the database fails. Nothing has been deleted then.
    pub async fn purge(&self, ttl: Ttl, most: u32) -> Result<u64, StoreError> {
        let before = now().saturating_sub(ttl.as_duration());
        let deleted = self.ask(move |connection| connection.execute(PURGE, params![millis(before), most]));
        Ok(deleted.await? as u64)
    }

    /// Has `work` done by the thread. Nobody is answered by work that has not begun when the future is dropped: it is
    /// not done then.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let gone = || StoreError::new(StoreErrorKind::Unavailable);
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (asker, answer) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            if !asker.is_closed() {
                let _ = asker.send(work(connection));
            }
        });
        jobs.ok_or_else(gone)?.send(job).await.map_err(|_| gone())?;
        Ok(answer.await.map_err(|_| gone())??)
    }

    fn marked(&self) -> MutexGuard<'_, HashSet<Token>> {
        self.marked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the mark is new.
fn mark(connection: &Connection, key: &ClaimKey, body: Option<&[u8; 16]>) -> rusqlite::Result<bool> {
    let scope = key.scope().unwrap_or_default();
    let mut mark = connection.prepare_cached(MARK)?;
    Ok(mark.execute(params![scope, key.key(), body, millis(now())])? == 1)
}

/// The body under a mark, if there is a mark and it has one.
fn look(connection: &Connection, key: &ClaimKey) -> rusqlite::Result<Option<Option<[u8; 16]>>> {
    let mut look = connection.prepare_cached(LOOK)?;
    look.query_row(params![key.scope().unwrap_or_default(), key.key()], |row| row.get(0))
        .optional()
}

/// Since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Debug for SqliteInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteInbox").finish_non_exhaustive()
    }
}

#[async_trait]
impl ClaimStore for SqliteInbox {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        match self.leases.claim(claimant, lease).await? {
            Claim::Claimed => {}
            held => return Ok(held),
        }
        let key = claimant.key.clone();
        let seen = self.ask(move |connection| look(connection, &key)).await;
        let claim = match seen {
            Ok(None) => return Ok(Claim::Claimed),
            Ok(Some(Some(body))) if body != *claimant.fingerprint.as_bytes() => Ok(Claim::Conflict),
            Ok(Some(_)) => Ok(Claim::Duplicate),
            Err(error) => Err(error),
        };
        self.leases.release(claimant).await?;
        claim
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        self.leases.renew(claimant, lease).await
    }

    /// Without [`run`](SqliteInbox::run) before it, the mark is written now.
    async fn complete(&self, claimant: &Claimant, _ttl: Ttl) -> Result<Completed, StoreError> {
        // Nobody else claims the key while the mark is written.
        let live = self.leases.renew(claimant, WRITING).await?;
        let new = if self.marked().remove(&claimant.token) {
            Ok(true)
        } else if live || self.leases.claim(claimant, WRITING).await? == Claim::Claimed {
            let (key, body) = (claimant.key.clone(), *claimant.fingerprint.as_bytes());
            self.ask(move |connection| mark(connection, &key, Some(&body))).await
        } else {
            Ok(false)
        };
        // Also when nobody knows whether it is marked: the next copy finds the truth.
        self.leases.release(claimant).await?;
        Ok(match (new?, live) {
            (false, _) => Completed::Lost,
            (true, true) => Completed::Done,
            (true, false) => Completed::Late,
        })
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        self.marked().remove(&claimant.token);
        self.leases.release(claimant).await
    }

    async fn mark_seen(&self, key: &ClaimKey, _ttl: Ttl) -> Result<bool, StoreError> {
        let brief = Claimant::new(key.clone(), b"");
        if self.leases.claim(&brief, WRITING).await? != Claim::Claimed {
            return Ok(false);
        }
        let marked = key.clone();
        let new = self.ask(move |connection| mark(connection, &marked, None)).await;
        self.leases.release(&brief).await?;
        new
    }

    /// Waits until what was asked before is done and the connection is closed.
    async fn close(&self) {
        drop(self.jobs.write().unwrap_or_else(PoisonError::into_inner).take());
        let mut thread = self.thread.clone();
        // Nothing is ever sent: it returns when the thread has ended.
        let _ = thread.changed().await;
    }

    fn commits_effects(&self) -> bool {
        true
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::with_source(kind_of(&error), error)
    }
}

/// The database said no: the next copy tries again.
impl From<rusqlite::Error> for HandlerError {
    fn from(_: rusqlite::Error) -> Self {
        Self::Failed
    }
}
