//! The SQLite store beyond the contract: the file, crashes, damage, group commit.

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use idemp_core::{AttemptRecord, Reason};
use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, Filter, LeaseToken, Put, RecordError, Settled, SqliteStore, StoreErrorKind,
};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::letters::{at, contents, ids, letter, letters, listed, sink};

const LEASE: Duration = Duration::from_secs(30);

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("dlq.db")
    }

    fn store(&self) -> SqliteStore {
        SqliteStore::open(self.path()).unwrap()
    }

    /// Another program that has the file open.
    fn raw(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }
}

async fn put(store: &SqliteStore, letters: impl IntoIterator<Item = DeadLetter>) {
    for letter in letters {
        store.put(letter).await.unwrap();
    }
}

#[tokio::test]
async fn letters_and_leases_outlive_the_store() {
    let place = Place::new();
    let token = LeaseToken::random();
    {
        let store = place.store();
        put(&store, letters(3)).await;
        let second = ids(&store).await.remove(1);
        assert!(matches!(
            store.claim(&second, &token, LEASE, at(100)).await,
            Ok(Claim::Claimed(_))
        ));
    }
    let store = place.store();
    assert_eq!(contents(&store).await, letters(3));
    let second = ids(&store).await.remove(1);
    let other = store
        .claim(&second, &LeaseToken::random(), LEASE, at(101))
        .await
        .unwrap();
    assert_eq!(other, Claim::Held { until: at(130) });
    assert_eq!(
        store.mark_replayed(&second, &token, at(102)).await.unwrap(),
        Settled::Done
    );
}

type Pending<'a> = Vec<Pin<Box<dyn Future<Output = Result<Put, idemp_dlq::StoreError>> + Send + 'a>>>;

/// Hands letters over, at most 100, without waiting for an answer. (tokio makes a task that does much more at a time
/// wait.)
fn hand_over(store: &SqliteStore, letters: impl IntoIterator<Item = DeadLetter>) -> Pending<'_> {
    let mut pending: Pending<'_> = letters.into_iter().map(|letter| store.put(letter)).collect();
    for put in &mut pending {
        assert!(put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    pending
}

async fn answers(pending: Pending<'_>) -> Vec<Result<Put, StoreErrorKind>> {
    let mut answers = Vec::new();
    for put in pending {
        answers.push(put.await.map_err(|error| error.kind()));
    }
    answers
}

#[tokio::test]
async fn what_was_handed_over_is_written_though_nobody_waits() {
    let place = Place::new();
    let lock = {
        let store = place.store();
        let lock = place.raw();
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();
        drop(hand_over(&store, letters(20)));
        std::thread::spawn(move || lock.execute_batch("COMMIT").unwrap())
        // Dropping the store waits for its writes.
    };
    lock.join().unwrap();
    assert_eq!(contents(&place.store()).await, letters(20));
}

#[tokio::test]
async fn a_closed_store_has_written_and_says_that_it_is_closed() {
    let place = Place::new();
    let store = place.store();
    let pending = hand_over(&store, letters(20));
    store.close().await;
    assert_eq!(answers(pending).await, vec![Ok(Put::Added); 20]);
    assert_eq!(
        store.put(letter("r2:tool_end:1")).await.unwrap_err().kind(),
        StoreErrorKind::Closed
    );
    assert_eq!(
        store.select(&Filter::default()).await.err().unwrap().kind(),
        StoreErrorKind::Closed
    );
    store.close().await;
    let beside: Vec<_> = fs::read_dir(place.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(beside, ["dlq.db"], "SQLite has tidied up");
}

#[tokio::test]
async fn an_acknowledged_letter_is_there_for_another_program() {
    let place = Place::new();
    let store = place.store();
    for (number, letter) in letters(5).into_iter().enumerate() {
        store.put(letter.clone()).await.unwrap();
        let bodies: Vec<Vec<u8>> = place
            .raw()
            .prepare("SELECT body FROM letters ORDER BY id")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(bodies.len(), number + 1);
        assert_eq!(bodies[number], **letter.message.body());
    }
    let mode: String = place
        .raw()
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "wal");
}

/// Commits in the write-ahead log: a frame is 24 bytes and a page, and the last of a commit says how large the file
/// is (SQLite's file format, section 4.2).
fn commits(place: &Place) -> usize {
    let log = fs::read(place.folder.path().join("dlq.db-wal")).unwrap();
    let word = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let page = word(8) as usize;
    (32..log.len())
        .step_by(24 + page)
        .filter(|frame| word(frame + 4) != 0)
        .count()
}

#[tokio::test]
async fn what_waits_shares_one_commit() {
    let place = Place::new();
    let store = place.store();
    let before = commits(&place);
    let lock = place.raw();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let pending = hand_over(&store, letters(100));
    lock.execute_batch("COMMIT").unwrap();
    assert_eq!(answers(pending).await, vec![Ok(Put::Added); 100]);
    assert_eq!(commits(&place) - before, 1);

    put(&store, (1..=5).map(|step| letter(&format!("r2:tool_end:{step}")))).await;
    assert_eq!(
        commits(&place) - before,
        6,
        "one after the other, each has a commit of its own"
    );
}

#[tokio::test]
async fn one_bad_letter_fails_alone() {
    // The first takes back its own statement only, the second the transaction that it shares with the others.
    for damage in ["ABORT", "ROLLBACK"] {
        let place = Place::new();
        let store = place.store();
        let lock = place.raw();
        lock.execute_batch(&format!(
            "CREATE TRIGGER bad BEFORE INSERT ON letters WHEN new.sink = 'bad' BEGIN SELECT RAISE({damage}, 'no'); END;
             BEGIN IMMEDIATE"
        ))
        .unwrap();
        let mut batch = letters(9);
        batch[4].sink = sink("bad");
        let pending = hand_over(&store, batch);
        lock.execute_batch("COMMIT").unwrap();
        let mut expected = vec![Ok(Put::Added); 9];
        expected[4] = Err(StoreErrorKind::Unavailable);
        assert_eq!(answers(pending).await, expected, "{damage}");
        assert_eq!(ids(&store).await.len(), 8);
        put(&store, [letter("r1:tool_end:5")]).await;
        assert_eq!(contents(&store).await, letters(9), "{damage}");
    }
}

#[tokio::test]
async fn lists_do_not_wait_for_a_writer() {
    let place = Place::new();
    let store = place.store();
    put(&store, letters(2)).await;
    let lock = place.raw();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let pending = hand_over(&store, [letter("r2:tool_end:1")]);
    assert_eq!(contents(&store).await, letters(2));
    lock.execute_batch("COMMIT").unwrap();
    answers(pending).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_on_one_file_share_it() {
    let place = Place::new();
    let (one, other) = (Arc::new(place.store()), Arc::new(place.store()));
    let mut tasks = tokio::task::JoinSet::new();
    for step in 1..=100 {
        let store = Arc::clone(if step % 2 == 0 { &one } else { &other });
        tasks.spawn(async move { store.put(letter(&format!("r1:tool_end:{step}"))).await.unwrap() });
    }
    assert_eq!(tasks.join_all().await, vec![Put::Added; 100]);
    assert_eq!(contents(&*one).await, letters(100));

    let id = ids(&*one).await.remove(0);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let (store, id) = (Arc::clone(if number % 2 == 0 { &one } else { &other }), id.clone());
        tasks.spawn(async move { store.claim(&id, &LeaseToken::random(), LEASE, at(100)).await.unwrap() });
    }
    let won = tasks
        .join_all()
        .await
        .into_iter()
        .filter(|claim| matches!(claim, Claim::Claimed(_)))
        .count();
    assert_eq!(won, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_may_open_a_new_file_at_once() {
    let place = Place::new();
    let mut tasks = tokio::task::JoinSet::new();
    for step in 1..=8 {
        let path = place.path();
        tasks.spawn(async move {
            let store = tokio::task::spawn_blocking(|| SqliteStore::open(path))
                .await
                .unwrap()
                .unwrap();
            store.put(letter(&format!("r1:tool_end:{step}"))).await.unwrap();
        });
    }
    tasks.join_all().await;
    assert_eq!(contents(&place.store()).await, letters(8));
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt;

    let place = Place::new();
    let store = place.store();
    put(&store, letters(1)).await;
    let mut modes: Vec<_> = fs::read_dir(place.folder.path())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (
                entry.file_name().into_string().unwrap(),
                entry.metadata().unwrap().permissions().mode() & 0o777,
            )
        })
        .collect();
    modes.sort();
    assert_eq!(
        modes,
        [("dlq.db", 0o600), ("dlq.db-shm", 0o600), ("dlq.db-wal", 0o600)].map(|(n, m)| (n.to_owned(), m))
    );
}

fn refused(path: &Path) -> (StoreErrorKind, String) {
    let error = SqliteStore::open(path).unwrap_err();
    assert!(
        error.to_string().starts_with(&path.display().to_string()),
        "{error} does not name the place"
    );
    (error.kind(), error.to_string())
}

#[test]
fn what_cannot_be_opened_is_named() {
    let place = Place::new();
    let folder = place.folder.path();
    assert_eq!(refused(&folder.join("none/dlq.db")).0, StoreErrorKind::CannotOpen);
    assert_eq!(refused(folder).0, StoreErrorKind::CannotOpen);

    fs::write(place.path(), "{\"not\": \"a database\"}\n".repeat(100)).unwrap();
    assert_eq!(refused(&place.path()).0, StoreErrorKind::Corrupt);
    assert_eq!(fs::read(place.path()).unwrap().len(), 2_200, "it is left as it was");

    let missing = folder.join("missing.db");
    assert_eq!(
        SqliteStore::open_existing(&missing).unwrap_err().kind(),
        StoreErrorKind::CannotOpen
    );
    assert!(!missing.exists());
}

#[test]
fn somebody_elses_database_is_left_as_it_is() {
    let place = Place::new();
    place.raw().execute_batch("CREATE TABLE letters (mine TEXT)").unwrap();
    let before = fs::read(place.path()).unwrap();
    assert_eq!(refused(&place.path()).0, StoreErrorKind::Corrupt);
    assert_eq!(fs::read(place.path()).unwrap(), before);
}

#[test]
fn a_later_schema_is_named() {
    let place = Place::new();
    drop(place.store());
    place.raw().pragma_update(None, "user_version", 99).unwrap();
    let (kind, message) = refused(&place.path());
    assert_eq!(kind, StoreErrorKind::Version);
    assert!(message.contains("schema 99"), "{message}");
}

#[tokio::test]
async fn a_damaged_entry_is_listed_and_disturbs_no_other() {
    let cases: [(&str, RecordError); 4] = [
        (
            "UPDATE letters SET head = substr(head, 1, 50) WHERE step = 2",
            RecordError::Torn { line: 1, column: 50 },
        ),
        (
            "UPDATE letters SET head = replace(head, '\"version\":1', '\"version\":2') WHERE step = 2",
            RecordError::Version { found: 2 },
        ),
        (
            "UPDATE letters SET head = replace(head, 'retries_exhausted', 'later_reason') WHERE step = 2",
            RecordError::Code { field: "reason" },
        ),
        (
            "UPDATE letters SET body = CAST(replace(body, 'r1', 'r2') AS BLOB) WHERE step = 2",
            RecordError::Body,
        ),
    ];
    for (damage, expected) in cases {
        let place = Place::new();
        let store = place.store();
        put(&store, letters(3)).await;
        assert_eq!(place.raw().execute(damage, []).unwrap(), 1);

        let entries = listed(&store).await;
        let damaged = entries[1].id.clone();
        if expected != RecordError::Body {
            assert_eq!(entries[1].letterhead, Err(expected));
        }
        let error = store.load(&damaged).await.unwrap_err();
        assert_eq!((error.kind(), error.record()), (StoreErrorKind::Record, Some(expected)));
        assert!(error.to_string().contains(&format!("entry {damaged} ")), "{error}");
        let token = LeaseToken::random();
        let error = store.claim(&damaged, &token, LEASE, at(100)).await.unwrap_err();
        assert_eq!((error.kind(), error.record()), (StoreErrorKind::Record, Some(expected)));
        assert_eq!(
            store.release(&damaged, &token).await.unwrap(),
            Settled::Lost,
            "it was not taken"
        );

        for (entry, whole) in [(0, letter("r1:tool_end:1")), (2, letter("r1:tool_end:3"))] {
            let claim = store.claim(&entries[entry].id, &token, LEASE, at(100)).await.unwrap();
            assert_eq!(claim, Claim::Claimed(Box::new(whole)));
        }
        assert_eq!(store.stats(&Filter::default()).await.unwrap().depth, 3);

        if expected != RecordError::Body {
            assert_eq!(
                store.put(letter("r1:tool_end:2")).await.unwrap(),
                Put::Added,
                "beside the damaged one"
            );
            assert_eq!(listed(&store).await.len(), 4, "which is still there");
            assert_eq!(store.put(letter("r1:tool_end:2")).await.unwrap(), Put::Updated);
        }
        store.purge(&Filter::default()).await.unwrap();
        assert_eq!(listed(&store).await, []);
    }
}

#[tokio::test]
async fn a_replayed_letter_leaves_a_line_until_it_is_purged() {
    let place = Place::new();
    let store = place.store();
    put(&store, letters(2)).await;
    let token = LeaseToken::random();
    for id in ids(&store).await {
        assert!(matches!(
            store.claim(&id, &token, LEASE, at(100)).await,
            Ok(Claim::Claimed(_))
        ));
        assert_eq!(store.mark_replayed(&id, &token, at(101)).await.unwrap(), Settled::Done);
    }
    let lines = |sql: &str| place.raw().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(
        lines("SELECT count(*) FROM replayed WHERE key IN ('r1:tool_end:1', 'r1:tool_end:2')"),
        2
    );
    assert_eq!(lines("SELECT count(*) FROM letters"), 0);
    assert_eq!(lines("SELECT count(*) FROM leases"), 0);

    let one = Filter {
        key: Some("r1:tool_end:1".parse().unwrap()),
        ..Filter::default()
    };
    assert_eq!(
        store.purge(&one).await.unwrap(),
        0,
        "it is no dead letter, so it is not counted"
    );
    assert_eq!(lines("SELECT count(*) FROM replayed"), 1);
    let other = Filter {
        reason: Some(Reason::Shutdown),
        ..Filter::default()
    };
    store.purge(&other).await.unwrap();
    assert_eq!(lines("SELECT count(*) FROM replayed"), 1);
}

#[tokio::test]
async fn the_same_letter_twice_is_the_same_though_the_record_is_coarser() {
    let place = Place::new();
    let store = place.store();
    let mut fine = letter("r1:tool_end:1");
    fine.attempts[0].elapsed = Duration::from_nanos(1_234_567);
    assert_eq!(store.put(fine.clone()).await.unwrap(), Put::Added);
    assert_eq!(store.put(fine.clone()).await.unwrap(), Put::Updated);
    let attempts = contents(&store).await.remove(0).attempts;
    assert_eq!(
        attempts,
        [AttemptRecord {
            elapsed: Duration::from_millis(1),
            ..fine.attempts[0].clone()
        }]
    );
}

#[tokio::test]
async fn the_file_is_used_again_after_a_purge() {
    let place = Place::new();
    let store = place.store();
    let mut pages = Vec::new();
    for _ in 0..5 {
        put(&store, letters(200)).await;
        pages.push(
            place
                .raw()
                .pragma_query_value(None, "page_count", |row| row.get::<_, i64>(0))
                .unwrap(),
        );
        assert_eq!(store.purge(&Filter::default()).await.unwrap(), 200);
    }
    assert!(pages[4] <= pages[1], "{pages:?}");
}
