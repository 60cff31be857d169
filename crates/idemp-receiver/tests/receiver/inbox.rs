//! The inbox in SQLite: the effect and its mark are one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idemp_core::Ttl;
use idemp_receiver::{
    Claim, ClaimKey, ClaimStore, Claimant, Completed, HandlerError, MemoryStore, Receiver, ReceiverConfig, Reply,
    SQLITE_MIGRATIONS, Scope, SqliteInbox, StoreError, StoreErrorKind, Unavailable,
};
use idemp_testkit::gate::Gate;
use rusqlite::Connection;

use crate::support::{BODY, KEY, Runs, Signed, receiver};

/// Limits that a busy machine does not meet.
fn patient() -> ReceiverConfig {
    ReceiverConfig {
        attempt_timeout: Duration::from_secs(120),
        handler_cap: Duration::from_secs(60),
        store_timeout: Duration::from_secs(60),
        ..ReceiverConfig::default()
    }
}

/// An application's file with a table for effects, an inbox in it, and a receiver over that.
struct Site {
    file: Connection,
    inbox: Arc<SqliteInbox>,
    receiver: Receiver,
}

impl Site {
    fn open(folder: &Path) -> Self {
        let path = folder.join("app.db");
        let inbox = Arc::new(SqliteInbox::open(&path).unwrap());
        let file = Connection::open(path).unwrap();
        file.execute_batch("CREATE TABLE IF NOT EXISTS effects (event_key TEXT NOT NULL)")
            .unwrap();
        let receiver = receiver(Arc::clone(&inbox), patient());
        Self { file, inbox, receiver }
    }

    /// Takes the effect, ends the transaction with `within`, and the handler with `after`.
    async fn receive(
        &self,
        event: &Signed,
        within: Result<(), HandlerError>,
        after: Result<(), HandlerError>,
    ) -> Reply {
        let inbox = Arc::clone(&self.inbox);
        let reply = self.receiver.receive(event.incoming(), move |event| async move {
            let key = event.key().to_owned();
            let work = move |transaction: &rusqlite::Transaction<'_>| {
                transaction.execute("INSERT INTO effects VALUES (?1)", [key])?;
                within
            };
            inbox.run(&event, work).await?;
            after
        });
        reply.await
    }

    /// How many effects and how many marks there are.
    fn counts(&self) -> (u32, u32) {
        let count = |table| self.file.query_row(table, [], |row| row.get(0)).unwrap();
        (
            count("SELECT count(*) FROM effects"),
            count("SELECT count(*) FROM idemp_inbox"),
        )
    }
}

#[tokio::test]
async fn effect_and_mark_come_together_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(folder.path());
    let event = Signed::new(KEY, BODY);
    let failed = Err(HandlerError::Failed);
    assert_eq!(site.receive(&event, failed, Ok(())).await, Reply::Failed);
    let rejected = Err(HandlerError::Rejected);
    assert_eq!(site.receive(&event, rejected, Ok(())).await, Reply::Rejected);
    assert_eq!(site.counts(), (0, 0));
    assert_eq!(site.receive(&event, Ok(()), Ok(())).await, Reply::Ok);
    assert_eq!(site.counts(), (1, 1));
    assert_eq!(site.receive(&event, Ok(()), Ok(())).await, Reply::Duplicate);
    let other = Signed::new(KEY, r#"{"data": 1, "event": "tool_end"}"#);
    assert_eq!(site.receive(&other, Ok(()), Ok(())).await, Reply::Conflict);

    // A file outlives its process.
    site.inbox.close().await;
    let again = Site::open(folder.path());
    assert_eq!(again.receive(&event, Ok(()), Ok(())).await, Reply::Duplicate);
    assert_eq!(again.counts(), (1, 1));
}

/// The effect is committed, and then the handler fails: the next copy must not take it again.
#[tokio::test]
async fn a_handler_that_fails_after_its_effect_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(folder.path());
    let event = Signed::new(KEY, BODY);
    assert_eq!(
        site.receive(&event, Ok(()), Err(HandlerError::Failed)).await,
        Reply::Failed
    );
    assert_eq!(site.receive(&event, Ok(()), Ok(())).await, Reply::Duplicate);
    assert_eq!(site.counts(), (1, 1));
}

#[tokio::test]
async fn work_that_panics_is_rolled_back_and_the_inbox_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(folder.path());
    let event = Signed::new(KEY, BODY);
    let inbox = Arc::clone(&site.inbox);
    let panics = site.receiver.receive(event.incoming(), move |event| async move {
        inbox
            .run(&event, |transaction| -> Result<(), HandlerError> {
                transaction.execute("INSERT INTO effects VALUES ('x')", [])?;
                panic!("on purpose")
            })
            .await?;
        Ok(())
    });
    assert_eq!(panics.await, Reply::Failed);
    assert_eq!(site.counts(), (0, 0));
    assert_eq!(site.receive(&event, Ok(()), Ok(())).await, Reply::Ok);
    assert_eq!(site.counts(), (1, 1));
}

#[tokio::test]
async fn a_handler_without_an_effect_is_marked_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(folder.path());
    let event = Signed::new(KEY, BODY);
    for expected in [Reply::Ok, Reply::Duplicate] {
        let idle = site.receiver.receive(event.incoming(), |_| async { Ok(()) });
        assert_eq!(idle.await, expected);
    }
    assert_eq!(site.counts(), (0, 1));
}

/// Two processes, as it were: each has its own leases, and the file decides.
#[tokio::test]
async fn a_copy_in_another_process_runs_but_takes_no_effect() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (Site::open(folder.path()), Site::open(folder.path()));
    let gate = Gate::shut();
    let event = Signed::new(KEY, BODY);
    let late = {
        let (receiver, inbox, gate) = (other.receiver.clone(), Arc::clone(&other.inbox), gate.clone());
        tokio::spawn(async move {
            let event = Signed::new(KEY, BODY);
            let reply = receiver.receive(event.incoming(), move |event| async move {
                gate.pass().await;
                let ran = inbox.run(&event, |_| Ok(())).await?;
                assert_eq!(ran, None);
                Ok(())
            });
            reply.await
        })
    };
    gate.arrived(1).await;
    let reply = other.receiver.receive(event.incoming(), |_| async { Ok(()) }).await;
    assert!(
        matches!(reply, Reply::InProgress { .. }),
        "in the same process: {reply:?}"
    );
    assert_eq!(one.receive(&event, Ok(()), Ok(())).await, Reply::Ok);
    gate.open();
    assert_eq!(late.await.unwrap(), Reply::Ok);
    assert_eq!(one.counts(), (1, 1));
}

#[tokio::test]
async fn marks_are_purged_by_age() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(folder.path());
    let day = Ttl::new(Duration::from_secs(86_400), Duration::from_secs(36)).unwrap();
    let key = |n: u32| ClaimKey::new(&Scope::default(), &format!("k{n}")).unwrap();
    for n in 0..50 {
        assert!(site.inbox.mark_seen(&key(n), day).await.unwrap());
        assert!(!site.inbox.mark_seen(&key(n), day).await.unwrap());
    }
    assert_eq!(site.inbox.purge(day, 1_000).await.unwrap(), 0);
    site.file
        .execute_batch("UPDATE idemp_inbox SET created_ms = created_ms - 86400000 WHERE event_key <> 'k7'")
        .unwrap();
    let mut purged = Vec::new();
    for _ in 0..4 {
        purged.push(site.inbox.purge(day, 20).await.unwrap());
    }
    assert_eq!(purged, [20, 20, 9, 0]);
    assert_eq!(site.counts(), (0, 1));
}

#[tokio::test]
async fn a_pending_key_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(folder.path());
    let day = Ttl::new(Duration::from_secs(86_400), Duration::from_secs(36)).unwrap();
    let who = Claimant::new(ClaimKey::new(&Scope::default(), KEY).unwrap(), BODY.as_bytes());
    assert_eq!(
        site.inbox.claim(&who, Duration::from_secs(6)).await.unwrap(),
        Claim::Claimed
    );
    assert!(!site.inbox.mark_seen(&who.key, day).await.unwrap());
    assert!(site.inbox.release(&who).await.unwrap());
    assert!(site.inbox.mark_seen(&who.key, day).await.unwrap());
}

/// The file is locked at the wrong moment: the next copy is not put off for the rest of a lease.
#[tokio::test]
async fn a_completion_that_fails_gives_the_key_back() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(folder.path());
    let impatient = Connection::open(folder.path().join("app.db")).unwrap();
    impatient.busy_timeout(Duration::ZERO).unwrap();
    let inbox = SqliteInbox::new(impatient).unwrap();
    let (lease, day) = (
        Duration::from_secs(6),
        Ttl::new(Duration::from_secs(86_400), Duration::ZERO).unwrap(),
    );
    let key = ClaimKey::new(&Scope::default(), KEY).unwrap();
    let copy = || Claimant::new(key.clone(), BODY.as_bytes());
    let (first, next) = (copy(), copy());
    assert_eq!(inbox.claim(&first, lease).await.unwrap(), Claim::Claimed);
    site.file.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(
        inbox.complete(&first, day).await.unwrap_err().kind(),
        StoreErrorKind::TimedOut
    );
    site.file.execute_batch("ROLLBACK").unwrap();
    assert_eq!(inbox.claim(&next, lease).await.unwrap(), Claim::Claimed);
    assert_eq!(inbox.complete(&next, day).await.unwrap(), Completed::Done);
}

#[tokio::test]
async fn a_closed_inbox_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(folder.path());
    for sql in SQLITE_MIGRATIONS {
        site.file.execute_batch(sql).unwrap();
    }
    site.receiver.close().await;
    let who = Claimant::new(ClaimKey::new(&Scope::default(), KEY).unwrap(), b"");
    let error = site.inbox.claim(&who, Duration::from_secs(6)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
}

/// A store whose completion fails, with and without the effect in it.
struct Uncommitted {
    inner: MemoryStore,
    holds_effects: bool,
}

#[async_trait]
impl ClaimStore for Uncommitted {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        self.inner.claim(claimant, lease).await
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        self.inner.renew(claimant, lease).await
    }

    async fn complete(&self, claimant: &Claimant, _: Ttl) -> Result<Completed, StoreError> {
        self.inner.release(claimant).await?;
        Err(StoreError::new(StoreErrorKind::Unavailable))
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        self.inner.release(claimant).await
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError> {
        self.inner.mark_seen(key, ttl).await
    }

    fn commits_effects(&self) -> bool {
        self.holds_effects
    }
}

#[tokio::test]
async fn a_completion_that_fails_is_a_success_only_if_the_effect_stands() {
    for (holds_effects, expected) in [(false, Reply::Ok), (true, Reply::Unavailable(Unavailable::Store))] {
        let store = Uncommitted {
            inner: MemoryStore::new(),
            holds_effects,
        };
        let receiver = receiver(Arc::new(store), patient());
        let runs = Runs::default();
        for run in 1..=2 {
            let handled = runs.clone();
            let event = Signed::new(KEY, BODY);
            let reply = receiver.receive(event.incoming(), move |_| async move {
                handled.add();
                Ok(())
            });
            assert_eq!(reply.await, expected);
            assert_eq!(runs.count(), run);
        }
    }
}
