//! The object store beyond the contract: the layout, lost replies, refused requests, damage.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use idemp_core::{Cause, Detail, Reason};
use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, ObjectStoreDlq, Put, RecordError, ReplayFailure,
    S3Config, Settled, StoreErrorKind,
};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tokio::task::JoinSet;

use crate::letters::{self, at, contents, ids, letters, listed};

const LEASE: Duration = Duration::from_secs(30);
const DAY: u64 = 24 * 60 * 60;

/// A step of one run.
fn letter(step: u64) -> DeadLetter {
    letters::letter(&format!("r1:tool_end:{step}"))
}

/// What goes wrong with writes to paths that hold a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is denied.
    Denied,
    /// The answer is yes, and nothing was written.
    Swallowed,
    /// It is written, the reply is lost, and the client, which sends it again, meets its own write.
    ReplyLost,
}

/// Objects in memory, and what goes wrong with them.
#[derive(Debug, Default)]
struct Objects {
    inner: InMemory,
    puts: Mutex<Option<(&'static str, Fault)>>,
    deletes_denied: Mutex<bool>,
    /// What somebody else writes to the path of the next write, right before it.
    intervention: Mutex<Option<Vec<u8>>>,
    requests: AtomicUsize,
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty objects")
    }
}

fn denied(path: &Path) -> Error {
    Error::PermissionDenied {
        path: path.to_string(),
        source: "not today".into(),
    }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> object_store::Result<PutResult> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let intervention = self.intervention.lock().unwrap().take();
        if let Some(bytes) = intervention {
            self.inner.put(path, bytes.into()).await?;
        }
        let fault = *self.puts.lock().unwrap();
        match fault.filter(|(word, _)| path.as_ref().contains(word)) {
            None => self.inner.put_opts(path, payload, options).await,
            Some((_, Fault::Denied)) => Err(denied(path)),
            Some((_, Fault::Swallowed)) => Ok(PutResult {
                e_tag: Some("\"1\"".to_owned()),
                version: None,
                extensions: Default::default(),
            }),
            Some((_, Fault::ReplyLost)) => {
                self.inner.put_opts(path, payload, options).await?;
                Err(Error::Precondition {
                    path: path.to_string(),
                    source: "it is there already".into(),
                })
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        if *self.deletes_denied.lock().unwrap() {
            return paths.map(|path| Err(denied(&path?))).boxed();
        }
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A store and the objects beneath it.
struct Place {
    objects: Arc<Objects>,
    store: ObjectStoreDlq,
}

impl Deref for Place {
    type Target = ObjectStoreDlq;

    fn deref(&self) -> &ObjectStoreDlq {
        &self.store
    }
}

impl Place {
    fn new() -> Self {
        let objects = Arc::new(Objects::default());
        let store = ObjectStoreDlq::new(Arc::clone(&objects) as _, "team");
        Self { objects, store }
    }

    fn break_puts(&self, word: &'static str, fault: Fault) {
        *self.objects.puts.lock().unwrap() = Some((word, fault));
    }

    fn deny_deletes(&self) {
        *self.objects.deletes_denied.lock().unwrap() = true;
    }

    fn mend(&self) {
        *self.objects.puts.lock().unwrap() = None;
        *self.objects.deletes_denied.lock().unwrap() = false;
    }

    /// The paths of all objects.
    async fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self
            .objects
            .inner
            .list(None)
            .map_ok(|meta| meta.location.to_string())
            .try_collect()
            .await
            .unwrap();
        paths.sort();
        paths
    }

    async fn bytes(&self, path: &str) -> Vec<u8> {
        let object = self.objects.inner.get(&Path::from(path)).await.unwrap();
        object.bytes().await.unwrap().to_vec()
    }

    async fn lay(&self, path: &str, bytes: &str) {
        let payload = PutPayload::from(bytes.to_owned());
        self.objects.inner.put(&Path::from(path), payload).await.unwrap();
    }

    /// Puts one letter into an empty store and claims it.
    async fn claimed(&self, letter: &DeadLetter) -> (EntryId, LeaseToken) {
        self.store.put(letter.clone()).await.unwrap();
        let (id, token) = (ids(&self.store).await.remove(0), LeaseToken::random());
        assert!(self.claims(&id, &token, 100).await);
        (id, token)
    }

    async fn claims(&self, id: &EntryId, token: &LeaseToken, now: u64) -> bool {
        let claim = self.store.claim(id, token, LEASE, at(now)).await.unwrap();
        matches!(claim, Claim::Claimed(_))
    }
}

const FIRST: &str = "webhook/2026/11/30/r1/r1:tool_end:1.json";

fn dead(path: &str) -> String {
    format!("team/dlq/{path}")
}

fn replayed(path: &str) -> String {
    format!("team/replayed/{path}")
}

#[tokio::test]
async fn a_letter_lies_where_the_docs_say_and_moves_when_it_is_replayed() {
    let place = Place::new();
    let (id, token) = place.claimed(&letter(1)).await;
    assert_eq!(place.paths().await, [dead(FIRST)]);
    let bytes = place.bytes(&dead(FIRST)).await;
    assert_eq!(
        DeadLetter::from_json(&bytes),
        Ok(letter(1)),
        "an object is a record, with something of the store's own"
    );

    assert_eq!(place.mark_replayed(&id, &token, at(101)).await.unwrap(), Settled::Done);
    assert_eq!(place.paths().await, [replayed(FIRST)]);
    let bytes = place.bytes(&replayed(FIRST)).await;
    assert_eq!(DeadLetter::from_json(&bytes), Ok(letter(1)));
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(json["store"]["replayed_at"], "2026-11-30T00:01:41Z");
    assert_eq!(json["store"].get("lease"), None);
}

#[tokio::test]
async fn a_key_that_is_replayed_twice_leaves_both_behind() {
    let place = Place::new();
    for _ in 0..2 {
        let (id, token) = place.claimed(&letter(1)).await;
        assert_eq!(place.mark_replayed(&id, &token, at(101)).await.unwrap(), Settled::Done);
    }
    let paths = place.paths().await;
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(paths.iter().all(|path| path.starts_with("team/replayed/")), "{paths:?}");
    assert!(paths.contains(&replayed(FIRST)), "{paths:?}");
}

#[tokio::test]
async fn identity_does_not_end_with_the_day() {
    let place = Place::new();
    place.put(letter(1)).await.unwrap();
    let later = DeadLetter {
        accepted_at: at(3 * DAY),
        dead_at: at(3 * DAY + 40),
        ..letter(1)
    };
    assert_eq!(place.put(later.clone()).await.unwrap(), Put::Updated);
    let other = DeadLetter {
        message: idemp_core::Message::new(later.message.key().clone(), "other bytes").unwrap(),
        ..later
    };
    assert_eq!(place.put(other.clone()).await.unwrap(), Put::Conflict);
    assert_eq!(place.put(other).await.unwrap(), Put::Updated);
    let reasons: Vec<Reason> = contents(&place.store)
        .await
        .iter()
        .map(|letter| letter.reason)
        .collect();
    assert_eq!(reasons.len(), 2);
    assert!(reasons.contains(&Reason::KeyConflict), "{reasons:?}");

    // Another process, which has seen nothing of this yet.
    let fresh = ObjectStoreDlq::new(Arc::clone(&place.objects) as _, "team");
    let again = DeadLetter {
        accepted_at: at(9 * DAY),
        ..letter(1)
    };
    assert_eq!(fresh.put(again).await.unwrap(), Put::Updated);
}

#[tokio::test]
async fn a_letter_costs_two_requests() {
    let place = Place::new();
    place.put(letter(1)).await.unwrap();
    let before = place.objects.requests.load(Ordering::SeqCst);
    for step in 2..=11 {
        assert_eq!(place.put(letter(step)).await.unwrap(), Put::Added);
    }
    assert_eq!(place.objects.requests.load(Ordering::SeqCst) - before, 20);
}

#[tokio::test]
async fn a_refused_delete_loses_nothing_and_the_next_run_finishes_it() {
    let place = Place::new();
    let (id, token) = place.claimed(&letter(1)).await;
    place.deny_deletes();
    let error = place.mark_replayed(&id, &token, at(101)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CannotOpen);
    assert_eq!(place.paths().await, [dead(FIRST), replayed(FIRST)]);
    assert_eq!(contents(&place.store).await, [letter(1)]);

    // While it is refused the entry stays, and nobody is told otherwise.
    let next = LeaseToken::random();
    assert!(place.claim(&id, &next, LEASE, at(130)).await.is_err());
    place.mend();
    assert_eq!(
        place.claim(&id, &next, LEASE, at(129)).await.unwrap(),
        Claim::Held { until: at(130) }
    );
    assert_eq!(
        place.claim(&id, &next, LEASE, at(130)).await.unwrap(),
        Claim::Gone,
        "it was delivered, so it is not sent again"
    );
    assert_eq!(place.paths().await, [replayed(FIRST)]);
}

#[tokio::test]
async fn a_failing_copy_leaves_the_entry_where_it_is() {
    let place = Place::new();
    let (id, token) = place.claimed(&letter(1)).await;
    for fault in [Fault::Denied, Fault::Swallowed] {
        place.break_puts("replayed/", fault);
        let error = place.mark_replayed(&id, &token, at(101)).await.unwrap_err();
        let kind = if fault == Fault::Denied {
            StoreErrorKind::CannotOpen
        } else {
            StoreErrorKind::Unavailable
        };
        assert_eq!(error.kind(), kind, "{fault:?}");
        assert_eq!(place.paths().await, [dead(FIRST)], "{fault:?}");
        assert_eq!(contents(&place.store).await, [letter(1)], "{fault:?}");
    }
    place.mend();
    assert!(place.claims(&id, &LeaseToken::random(), 130).await);
    // The new holder has it now.
    assert_eq!(place.mark_replayed(&id, &token, at(131)).await.unwrap(), Settled::Lost);
}

#[tokio::test]
async fn a_lost_reply_is_not_taken_for_somebody_elses_write() {
    let place = Place::new();
    place.break_puts("/", Fault::ReplyLost);
    assert_eq!(place.put(letter(1)).await.unwrap(), Put::Added);
    let (id, token) = (ids(&place.store).await.remove(0), LeaseToken::random());
    assert!(place.claims(&id, &token, 100).await);
    let failure = ReplayFailure {
        attempt: idemp_core::AttemptRecord {
            number: 2,
            started: at(100),
            elapsed: Duration::from_millis(1),
            cause: Some(Cause::Status(503)),
            detail: Detail::default(),
        },
        reason: None,
        maybe_delivered: true,
        not_before: None,
    };
    assert_eq!(place.record_failure(&id, &token, failure).await.unwrap(), Settled::Done);
    let there = contents(&place.store).await.remove(0);
    assert_eq!(
        (there.replay_count, there.attempts.len()),
        (1, letter(1).attempts.len() + 1)
    );
    assert!(place.claims(&id, &token, 101).await);
    assert_eq!(place.mark_replayed(&id, &token, at(102)).await.unwrap(), Settled::Done);
    assert_eq!(place.paths().await, [replayed(FIRST)]);
}

#[tokio::test]
async fn what_somebody_else_writes_between_reading_and_writing_is_not_lost() {
    let place = Place::new();
    let (id, token) = place.claimed(&letter(1)).await;
    let held = place.bytes(&dead(FIRST)).await;
    place.release(&id, &token).await.unwrap();
    let free = place.bytes(&dead(FIRST)).await;
    let intervene = |bytes: &[u8]| *place.objects.intervention.lock().unwrap() = Some(bytes.to_vec());

    intervene(&held);
    let claim = place.claim(&id, &LeaseToken::random(), LEASE, at(101)).await.unwrap();
    assert_eq!(claim, Claim::Held { until: at(130) });

    // A letter is taken into what the other has written.
    intervene(&free);
    let newer = DeadLetter {
        dead_at: at(500),
        ..letter(1)
    };
    assert_eq!(place.put(newer).await.unwrap(), Put::Updated);
    let there = place.load(&id).await.unwrap().unwrap();
    assert_eq!((there.letter.dead_at, there.held_until), (at(500), None));

    // A new letter does not take the place of one that has just come.
    place.purge(&Filter::default()).await.unwrap();
    intervene(&held);
    let other = DeadLetter {
        message: idemp_core::Message::new(letter(1).message.key().clone(), "other bytes").unwrap(),
        ..letter(1)
    };
    assert_eq!(place.put(other).await.unwrap(), Put::Conflict);
    assert_eq!(contents(&place.store).await.len(), 2);
}

#[tokio::test]
async fn an_id_means_one_entry_for_ever() {
    let place = Place::new();
    let (first, token) = place.claimed(&letter(1)).await;
    let mut frozen = place.select(&Filter::default()).await.unwrap();
    place.mark_replayed(&first, &token, at(101)).await.unwrap();
    assert_eq!(place.put(letter(1)).await.unwrap(), Put::Added);
    assert_eq!(
        frozen.next_page().await.unwrap(),
        None,
        "it was not there when the selection was frozen"
    );
    assert_eq!(place.load(&first).await.unwrap(), None);
    assert_eq!(place.claim(&first, &token, LEASE, at(102)).await.unwrap(), Claim::Gone);
    assert_ne!(ids(&place.store).await, [first]);
}

#[tokio::test]
async fn an_object_deleted_under_the_list_is_left_out() {
    let place = Place::new();
    for letter in letters(3) {
        place.put(letter).await.unwrap();
    }
    let all = ids(&place.store).await;
    let mut selection = place.select(&Filter::default()).await.unwrap();
    let second = dead("webhook/2026/11/30/r1/r1:tool_end:2.json");
    place.objects.inner.delete(&Path::from(second)).await.unwrap();
    let page = selection.next_page().await.unwrap().unwrap();
    let steps: Vec<u64> = page
        .into_iter()
        .map(|listed| listed.letterhead.unwrap().key.step_index().as_u64())
        .collect();
    assert_eq!(steps, [1, 3]);
    assert_eq!(place.load(&all[1]).await.unwrap(), None);
    let claim = place.claim(&all[1], &LeaseToken::random(), LEASE, at(100)).await;
    assert_eq!(claim.unwrap(), Claim::Gone);
}

#[tokio::test]
async fn what_cannot_be_read_is_listed_kept_and_in_nobodys_way() {
    let place = Place::new();
    for letter in letters(2) {
        place.put(letter).await.unwrap();
    }
    let torn = dead("webhook/2026/11/30/r1/r1:tool_end:3.json");
    place.lay(&torn, "{\"version\":1,").await;
    let future = dead("webhook/2026/11/30/r1/r1:tool_end:4.json");
    place.lay(&future, "{\"version\":2,\"key\":\"r1:tool_end:4\"}").await;
    // Not named like an entry: somebody else's.
    place.lay("team/dlq/readme.txt", "hands off").await;
    place
        .lay("other/dlq/webhook/2026/11/30/r9/r9:tool_end:1.json", "{}")
        .await;

    let heads = listed(&place.store).await;
    assert_eq!(heads.len(), 4);
    assert!(matches!(heads[2].letterhead, Err(RecordError::Torn { .. })));
    assert_eq!(heads[3].letterhead, Err(RecordError::Version { found: 2 }));
    for unread in &heads[2..] {
        let token = LeaseToken::random();
        let error = place.claim(&unread.id, &token, LEASE, at(100)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Record);
        assert!(error.record().is_some());
        assert!(place.load(&unread.id).await.is_err());
    }
    let stats = place.stats(&Filter::default()).await.unwrap();
    assert_eq!((stats.depth, stats.by_reason.values().sum::<u64>()), (4, 2));

    // A letter whose place is taken by something unreadable is kept beside it.
    assert_eq!(place.put(letter(3)).await.unwrap(), Put::Conflict);
    assert_eq!(place.put(letter(3)).await.unwrap(), Put::Updated);
    assert_eq!(place.bytes(&torn).await, b"{\"version\":1,");

    assert_eq!(place.purge(&Filter::default()).await.unwrap(), 5);
    assert_eq!(
        place.paths().await,
        [
            "other/dlq/webhook/2026/11/30/r9/r9:tool_end:1.json",
            "team/dlq/readme.txt"
        ]
    );
}

#[tokio::test]
async fn a_record_laid_there_by_hand_is_an_entry() {
    let place = Place::new();
    place.lay(&dead(FIRST), &letter(1).to_json()).await;
    assert_eq!(contents(&place.store).await, [letter(1)]);
    let (id, token) = (ids(&place.store).await.remove(0), LeaseToken::random());
    assert!(place.claims(&id, &token, 100).await);
    assert_eq!(place.mark_replayed(&id, &token, at(101)).await.unwrap(), Settled::Done);
    assert_eq!(place.paths().await, [replayed(FIRST)]);
}

#[tokio::test]
async fn an_endpoint_with_a_login_is_refused_without_being_shown() {
    for endpoint in [
        "http://me:hunter2@127.0.0.1:1",
        "https://hunter2@127.0.0.1:1/path",
        "https://me:hunter2@127.0.0.1:1?x",
    ] {
        let config = S3Config {
            endpoint: Some(endpoint.to_owned()),
            allow_http: true,
            ..S3Config::new("letters")
        };
        assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
        let error = ObjectStoreDlq::s3(config).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::CannotOpen, "{endpoint}");
        assert!(error.to_string().contains("user name or password"), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test]
async fn a_write_that_is_denied_says_so() {
    let place = Place::new();
    place.break_puts("dlq/", Fault::Denied);
    let error = place.put(letter(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CannotOpen);
    assert!(!error.to_string().contains("not today"), "{error}");
    assert_eq!(place.paths().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_letters_from_sixteen_tasks_are_all_there() {
    let place = Arc::new(Place::new());
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let place = Arc::clone(&place);
        tasks.spawn(async move {
            for step in 0..625 {
                let put = place.put(letter(1 + task * 625 + step)).await.unwrap();
                assert_eq!(put, Put::Added);
            }
        });
    }
    tasks.join_all().await;
    let heads = listed(&place.store).await;
    let steps = heads
        .into_iter()
        .map(|listed| listed.letterhead.unwrap().key.step_index().as_u64());
    assert!(steps.eq(1..=10_000));
    assert_eq!(place.stats(&Filter::default()).await.unwrap().depth, 10_000);
}
