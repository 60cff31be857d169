//! Objects in memory with faults, and a store of dead letters over them.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use idemp_dlq::{Claim, DeadLetter, DeadLetterStore, EntryId, LeaseToken, ObjectStoreDlq};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use crate::letters::{self, at, ids};

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A step of one run.
pub(crate) fn letter(step: u64) -> DeadLetter {
    letters::letter(&format!("r1:tool_end:{step}"))
}

/// The path of a step of the run while it is dead.
pub(crate) fn dead(step: u64) -> String {
    format!("team/dlq/webhook/2026/11/30/r1/r1:tool_end:{step}.json")
}

/// The path of a step of the run after it was replayed.
pub(crate) fn replayed(step: u64) -> String {
    format!("team/replayed/webhook/2026/11/30/r1/r1:tool_end:{step}.json")
}

/// What goes wrong with writes to paths that hold a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is denied.
    Denied,
    /// The answer is yes, and nothing was written.
    Swallowed,
    /// It is written, the reply is lost, and the client, which sends it again, meets its own write.
    ReplyLost,
}

/// Objects in memory, and what goes wrong with them.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) inner: InMemory,
    puts: Mutex<Option<(&'static str, Fault)>>,
    deletes_denied: Mutex<bool>,
    /// What somebody else writes to the path of the next write, right before it.
    pub(crate) intervention: Mutex<Option<Vec<u8>>>,
    /// How many requests were made of it, deletes and full lists apart.
    pub(crate) requests: AtomicUsize,
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
pub(crate) struct Place {
    pub(crate) objects: Arc<Objects>,
    pub(crate) store: ObjectStoreDlq,
}

impl Deref for Place {
    type Target = ObjectStoreDlq;

    fn deref(&self) -> &ObjectStoreDlq {
        &self.store
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        let objects = Arc::new(Objects::default());
        let store = ObjectStoreDlq::new(Arc::clone(&objects) as _, "team");
        Self { objects, store }
    }

    /// From now on, this goes wrong with writes to paths that hold the word.
    pub(crate) fn break_puts(&self, word: &'static str, fault: Fault) {
        *self.objects.puts.lock().unwrap() = Some((word, fault));
    }

    pub(crate) fn deny_deletes(&self) {
        *self.objects.deletes_denied.lock().unwrap() = true;
    }

    /// From now on, nothing goes wrong.
    pub(crate) fn mend(&self) {
        *self.objects.puts.lock().unwrap() = None;
        *self.objects.deletes_denied.lock().unwrap() = false;
    }

    /// The paths of all objects.
    pub(crate) async fn paths(&self) -> Vec<String> {
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

    pub(crate) async fn bytes(&self, path: &str) -> Vec<u8> {
        let object = self.objects.inner.get(&Path::from(path)).await.unwrap();
        object.bytes().await.unwrap().to_vec()
    }

    /// Writes an object past the store.
    pub(crate) async fn lay(&self, path: &str, bytes: &str) {
        let payload = PutPayload::from(bytes.to_owned());
        self.objects.inner.put(&Path::from(path), payload).await.unwrap();
    }

    /// Puts one letter into an empty store and claims it.
    pub(crate) async fn claimed(&self, letter: &DeadLetter) -> (EntryId, LeaseToken) {
        self.store.put(letter.clone()).await.unwrap();
        self.claim_first().await
    }

    /// Claims the first entry, at 100 s.
    pub(crate) async fn claim_first(&self) -> (EntryId, LeaseToken) {
        let (id, token) = (ids(&self.store).await.remove(0), LeaseToken::random());
        assert!(self.claims(&id, &token, 100).await);
        (id, token)
    }

    /// Whether this claim is granted.
    pub(crate) async fn claims(&self, id: &EntryId, token: &LeaseToken, now: u64) -> bool {
        let claim = self.store.claim(id, token, LEASE, at(now)).await.unwrap();
        matches!(claim, Claim::Claimed(_))
    }
}
