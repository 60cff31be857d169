//! The suite over both stores, and what only the SQLite file can do.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use idemp_core::Ttl;
use idemp_receiver::conformance::{Subject, check};
use idemp_receiver::{
    Claim, ClaimKey, ClaimStore, Claimant, Completed, MemoryStore, ReceiverConfig, Scope, SqliteInbox, SqliteStore,
    StoreError, StoreErrorKind,
};

use crate::support::{BODY, KEY, Runs, Signed, receiver};

const LEASE: Duration = Duration::from_secs(6);

fn copy() -> Claimant {
    Claimant::new(ClaimKey::new(&Scope::default(), KEY).unwrap(), BODY.as_bytes())
}

fn day() -> Ttl {
    Ttl::new(Duration::from_secs(86_400), Duration::from_secs(36)).unwrap()
}

/// A clock that is set by hand, in milliseconds since 1970.
#[derive(Clone)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_796_040_000_000)))
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_millis()).unwrap(), SeqCst);
    }

    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.load(SeqCst))
    }

    pub(crate) fn open(&self, path: &Path) -> SqliteStore {
        let clock = self.clone();
        SqliteStore::open_with_clock(path, move || clock.now()).unwrap()
    }
}

struct Memory(Arc<MemoryStore>);

#[async_trait]
impl Subject for Memory {
    fn store(&self) -> Arc<dyn ClaimStore> {
        self.0.clone()
    }

    async fn elapse(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

#[tokio::test(start_paused = true)]
async fn memory_conforms() {
    check(&Memory(Arc::new(MemoryStore::new()))).await;
}

struct Sqlite(Arc<SqliteStore>, Clock);

#[async_trait]
impl Subject for Sqlite {
    fn store(&self) -> Arc<dyn ClaimStore> {
        self.0.clone()
    }

    async fn elapse(&self, time: Duration) {
        self.1.advance(time);
    }
}

#[tokio::test]
async fn sqlite_conforms() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::new());
    let store = clock.open(&folder.path().join("claims.db"));
    check(&Sqlite(Arc::new(store), clock)).await;
}

/// Its leases go by tokio's clock.
struct Inbox(Arc<SqliteInbox>);

#[async_trait]
impl Subject for Inbox {
    fn store(&self) -> Arc<dyn ClaimStore> {
        self.0.clone()
    }

    async fn elapse(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_inbox_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let inbox = SqliteInbox::open(folder.path().join("app.db")).unwrap();
    check(&Inbox(Arc::new(inbox))).await;
}

/// Each thread opens the file for itself, as processes would, and all claim at once.
#[test]
fn twenty_openers_at_once_give_one_claim() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("claims.db");
    let barrier = Barrier::new(20);
    let claims: Vec<Claim> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..20)
            .map(|_| {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    barrier.wait();
                    let store = SqliteStore::open(&path).unwrap();
                    runtime.block_on(store.claim(&copy(), LEASE)).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(claims.iter().filter(|claim| **claim == Claim::Claimed).count(), 1);
    assert_eq!(
        claims
            .iter()
            .filter(|claim| matches!(claim, Claim::InProgress { .. }))
            .count(),
        19
    );
}

/// 20 threads, each with its own connection and 100 keys that all of them want.
#[test]
fn openers_do_not_lock_each_other_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("claims.db");
    let runs = Runs::default();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let store = SqliteStore::open(&path).unwrap();
                for n in 0..100 {
                    let key = ClaimKey::new(&Scope::default(), &format!("k{n}")).unwrap();
                    let who = Claimant::new(key, b"body");
                    runtime.block_on(async {
                        if store.claim(&who, LEASE).await.unwrap() == Claim::Claimed {
                            runs.add();
                            assert_eq!(store.complete(&who, day()).await.unwrap(), Completed::Done);
                        }
                    });
                }
            });
        }
    });
    assert_eq!(runs.count(), 100);
}

#[tokio::test]
async fn a_reopened_file_remembers() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::new());
    let path = folder.path().join("claims.db");
    let scope = Scope::named("orders").unwrap();
    let scoped = Claimant::new(ClaimKey::new(&scope, KEY).unwrap(), BODY.as_bytes());
    {
        let store = clock.open(&path);
        let owner = copy();
        assert_eq!(store.claim(&owner, LEASE).await.unwrap(), Claim::Claimed);
        assert_eq!(store.complete(&owner, day()).await.unwrap(), Completed::Done);
        assert_eq!(store.claim(&scoped, LEASE).await.unwrap(), Claim::Claimed);
    }
    let store = clock.open(&path);
    assert_eq!(store.claim(&copy(), LEASE).await.unwrap(), Claim::Duplicate);
    let other = Claimant::new(copy().key, b"another body");
    assert_eq!(store.claim(&other, LEASE).await.unwrap(), Claim::Conflict);
    // The claim is still its owner's, too.
    assert!(store.renew(&scoped, LEASE).await.unwrap());
    clock.advance(day().as_duration());
    assert_eq!(store.claim(&other, LEASE).await.unwrap(), Claim::Claimed);
}

/// As after a kill between claim and completion: the file says pending, and nobody is there to renew it.
#[tokio::test]
async fn a_claim_of_the_dead_ends_with_its_lease() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::new());
    let path = folder.path().join("claims.db");
    assert_eq!(clock.open(&path).claim(&copy(), LEASE).await.unwrap(), Claim::Claimed);

    let store = clock.open(&path);
    clock.advance(LEASE - Duration::from_millis(1));
    let retry_after = Duration::from_millis(1);
    assert_eq!(
        store.claim(&copy(), LEASE).await.unwrap(),
        Claim::InProgress { retry_after }
    );
    clock.advance(retry_after);
    assert_eq!(store.claim(&copy(), LEASE).await.unwrap(), Claim::Claimed);
}

/// A thousand records that are over, and a handful of claims later they are gone from the file.
#[tokio::test]
async fn the_file_does_not_grow_for_ever() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::new());
    let path = folder.path().join("claims.db");
    let store = clock.open(&path);
    let key = |n: u32| ClaimKey::new(&Scope::default(), &format!("k{n}")).unwrap();
    for n in 0..1_000 {
        assert!(store.mark_seen(&key(n), day()).await.unwrap());
    }
    clock.advance(day().as_duration());
    for n in 1_000..1_500 {
        assert!(store.mark_seen(&key(n), day()).await.unwrap());
    }
    drop(store);
    let file = rusqlite::Connection::open(&path).unwrap();
    let rows: u32 = file
        .query_row("SELECT count(*) FROM claims", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 500);
}

#[cfg(unix)]
#[tokio::test]
async fn the_files_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("claims.db")).unwrap();
    store.claim(&copy(), LEASE).await.unwrap();
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        seen.push((entry.file_name().into_string().unwrap(), format!("{mode:o}")));
    }
    seen.sort();
    let expected = ["claims.db", "claims.db-shm", "claims.db-wal"].map(|name| (name.to_owned(), "600".to_owned()));
    assert_eq!(seen, expected);
}

#[track_caller]
fn refused(path: PathBuf, kind: StoreErrorKind) -> StoreError {
    let error = SqliteStore::open(path).unwrap_err();
    assert_eq!(error.kind(), kind);
    error
}

/// The application's file may hold anything, but it has to be a database.
#[test]
fn an_inbox_names_the_file_that_it_cannot_open() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("no such folder/app.db");
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database, and long enough to be looked at as one").unwrap();
    for (path, kind, what) in [
        (nowhere, StoreErrorKind::Unavailable, "the file cannot be opened"),
        (text, StoreErrorKind::NotSetUp, "the file is no SQLite file"),
    ] {
        let error = SqliteInbox::open(&path).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(reason(&error), format!("{}: {what}", path.display()));
    }
}

#[test]
fn refuses_what_is_not_its_own() {
    let folder = tempfile::tempdir().unwrap();
    refused(
        folder.path().join("no such folder/claims.db"),
        StoreErrorKind::Unavailable,
    );
    refused(folder.path().to_owned(), StoreErrorKind::Unavailable);

    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database, and long enough to be looked at as one").unwrap();
    let error = refused(text.clone(), StoreErrorKind::NotSetUp);
    assert_eq!(
        reason(&error),
        format!("{}: the file is no SQLite file", text.display())
    );
    assert!(std::fs::read_to_string(text).unwrap().starts_with("not a database"));

    let other = folder.path().join("other.db");
    let file = rusqlite::Connection::open(&other).unwrap();
    file.execute_batch("CREATE TABLE invoices (id INTEGER)").unwrap();
    let error = refused(other.clone(), StoreErrorKind::NotSetUp);
    assert_eq!(
        reason(&error),
        format!(
            "{}: the file holds something else: name one for claims alone",
            other.display()
        )
    );

    let newer = folder.path().join("newer.db");
    SqliteStore::open(&newer).unwrap();
    let file = rusqlite::Connection::open(&newer).unwrap();
    file.pragma_update(None, "user_version", 2).unwrap();
    let error = refused(newer.clone(), StoreErrorKind::NotSetUp);
    assert_eq!(
        reason(&error),
        format!("{}: the file is of a later version", newer.display())
    );
}

fn reason(error: &StoreError) -> String {
    std::error::Error::source(error).unwrap().to_string()
}

/// A receiver over the file: 200 events from 20 tasks, each event twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_over_sqlite_runs_each_event_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("claims.db")).unwrap();
    let (receiver, runs) = (receiver(store, ReceiverConfig::default()), Runs::default());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..20 {
        let (receiver, runs) = (receiver.clone(), runs.clone());
        tasks.spawn(async move {
            for n in 0..20 {
                // Tasks 0 and 1 send the same events, 2 and 3, and so on.
                let signed = Signed::new(&format!("req-{}:tool_end:{}", task / 2, n + 1), BODY);
                let runs = runs.clone();
                let handler = async move |_| {
                    runs.add();
                    Ok(())
                };
                let reply = receiver.receive(signed.incoming(), handler).await;
                assert!(matches!(reply.status(), 200 | 503), "{reply:?}");
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(runs.count(), 200);
}

/// What was asked before is on disk, and nothing holds the file any more.
#[tokio::test]
async fn a_closed_file_is_let_go_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("claims.db");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.claim(&copy(), LEASE).await.unwrap(), Claim::Claimed);
    store.close().await;
    store.close().await;
    // The last connection takes the files beside it away.
    assert!(!folder.path().join("claims.db-wal").exists());
    let error = store.claim(&copy(), LEASE).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let again = SqliteStore::open(&path).unwrap();
    assert!(matches!(
        again.claim(&copy(), LEASE).await.unwrap(),
        Claim::InProgress { .. }
    ));
}
