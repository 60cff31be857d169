//! A server that speaks S3 and is quick enough for ten thousand objects: s3s-fs, in the process of the test.

use std::collections::BTreeSet;
use std::fs;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::Method;
use axum::serve::ListenerExt;
use idemp_tests::temp_dir;
use s3s::auth::SimpleAuth;
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, GetObjectInput, GetObjectOutput, ListObjectsV2Input, ListObjectsV2Output,
    Object, PutObjectInput, PutObjectOutput,
};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpResponse, S3, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::RwLock;
use tokio::task::AbortHandle;

pub(crate) const BUCKET: &str = "dead-letters";

/// Objects of a page at most, as in S3.
const PAGE: usize = 1_000;
const LARGEST_BODY: usize = 16 * 1024 * 1024;
/// Bytes, several times what ten thousand letters need.
const ROOM: u64 = 1024 * 1024 * 1024;

/// A server with a bucket, which is a folder. It takes only requests that are signed with the credentials of the
/// environment, and ends when dropped.
pub(crate) struct S3Server {
    root: TempDir,
    address: SocketAddr,
    task: AbortHandle,
}

impl S3Server {
    pub(crate) async fn start() -> Self {
        let root = folder();
        fs::create_dir(root.path().join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(Paged {
            files: FileSystem::new(root.path()).unwrap(),
            lists: Mutex::default(),
        });
        let credential = |name| std::env::var(name).expect("the suite's credentials are set");
        builder.set_auth(SimpleAuth::from_single(
            credential("AWS_ACCESS_KEY_ID"),
            credential("AWS_SECRET_ACCESS_KEY"),
        ));
        let turns = Turns {
            service: builder.build(),
            turn: Arc::default(),
        };
        let app = Router::new().fallback(move |request| turns.clone().answer(request));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        let task = tokio::spawn(axum::serve(listener, app).into_future()).abort_handle();
        Self { root, address, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The paths of all objects below a folder of the bucket, relative to it, past the server.
    pub(crate) fn objects(&self, folder: &str) -> BTreeSet<String> {
        let folder = self.root.path().join(BUCKET).join(folder);
        let mut paths = BTreeSet::new();
        let mut folders = vec![folder.clone()];
        while let Some(next) = folders.pop() {
            // What was never written to is not there.
            for entry in fs::read_dir(next).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    assert!(paths.insert(below(&folder, &path)));
                }
            }
        }
        paths
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A folder in memory where the system has one with room. s3s-fs writes three files for an object, and most of what is
/// waited for would be the disk.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).map_or(0, |there| there.f_bavail.saturating_mul(there.f_frsize));
    let in_memory = tempfile::Builder::new().prefix("idemp-test-").tempdir_in(memory).ok();
    in_memory.filter(|_| room >= ROOM).unwrap_or_else(temp_dir)
}

fn below(folder: &Path, path: &Path) -> String {
    path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned()
}

/// s3s-fs looks at a condition and then writes, and keeps entity tags in files of their own. S3 does each in one step, so
/// here a write has the server to itself and goes on to its end even if the client is killed.
#[derive(Clone)]
struct Turns {
    service: S3Service,
    turn: Arc<RwLock<()>>,
}

impl Turns {
    async fn answer(self, request: Request) -> HttpResponse {
        let (parts, body) = request.into_parts();
        let Ok(body) = to_bytes(body, LARGEST_BODY).await else {
            // Cut off by the client: as if it had not come.
            return HttpResponse::new(Body::default());
        };
        let request = axum::http::Request::from_parts(parts, Body::from(body));
        let work = async move {
            let (_reading, _writing);
            if matches!(*request.method(), Method::GET | Method::HEAD) {
                _reading = self.turn.read().await;
            } else {
                _writing = self.turn.write().await;
            }
            self.service.call(request).await.unwrap()
        };
        tokio::spawn(work).await.unwrap()
    }
}

/// What a store asks for. s3s-fs looks at all files for each page of a list; here it looks once for all pages.
struct Paged {
    files: FileSystem,
    /// A page's token is a place in this and a place in that list.
    lists: Mutex<Vec<Arc<Vec<Object>>>>,
}

#[async_trait]
impl S3 for Paged {
    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.files.get_object(request).await
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.files.put_object(request).await
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.files.delete_object(request).await
    }

    async fn list_objects_v2(
        &self,
        mut request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let mut output = ListObjectsV2Output::default();
        let (number, start, list) = if let Some(token) = request.input.continuation_token.take() {
            let place = token.split_once('-');
            let place = place.and_then(|(number, start)| Some((number.parse().ok()?, start.parse().ok()?)));
            let (number, start): (usize, usize) = place.ok_or_else(|| s3_error!(InvalidArgument))?;
            let list = self.lists.lock().unwrap().get(number).cloned();
            (number, start, list.ok_or_else(|| s3_error!(InvalidArgument))?)
        } else {
            request.input.max_keys = Some(i32::MAX);
            output = self.files.list_objects_v2(request).await?.output;
            let list = Arc::new(output.contents.take().unwrap_or_default());
            let mut lists = self.lists.lock().unwrap();
            lists.push(Arc::clone(&list));
            (lists.len() - 1, 0, list)
        };
        let end = list.len().min(start + PAGE);
        output.contents = Some(list[start..end].to_vec());
        output.is_truncated = Some(end < list.len());
        output.next_continuation_token = (end < list.len()).then(|| format!("{number}-{end}"));
        Ok(S3Response::new(output))
    }
}
