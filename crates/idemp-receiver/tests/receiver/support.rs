//! Signed requests, stores that misbehave, a connection by hand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::handler::Handler;
use axum::http::{HeaderMap, HeaderValue, Request};
use axum::routing::post;
use bytes::Bytes;
use http_body_util::BodyExt;
use idemp_core::{Secret, Signer, Ttl};
use idemp_receiver::{
    Claim, ClaimKey, ClaimStore, Claimant, Completed, Event, Incoming, MemoryStore, Receiver, ReceiverConfig,
    ReceiverLayer, StoreError, StoreErrorKind,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

pub(crate) const KEY: &str = "req-42:tool_end:1";
pub(crate) const BODY: &str = r#"{"data": {"output": "4"}, "event": "tool_end"}"#;

pub(crate) fn secret() -> Secret {
    Secret::new("whsec_test_secret").unwrap()
}

pub(crate) fn sign(body: &[u8]) -> String {
    sign_with(&secret(), body)
}

pub(crate) fn sign_with(secret: &Secret, body: &[u8]) -> String {
    Signer::new(secret).header(body).as_str().to_owned()
}

pub(crate) fn receiver(store: impl ClaimStore, config: ReceiverConfig) -> Receiver {
    Receiver::new(store, &secret().into(), config).unwrap()
}

pub(crate) fn by_default() -> Receiver {
    receiver(MemoryStore::new(), ReceiverConfig::default())
}

/// Takes POSTs to `/`: first the receiver, then the handler.
pub(crate) fn behind<H, T>(receiver: Receiver, handler: H) -> Router
where
    H: Handler<T, ()>,
    T: 'static,
{
    Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(receiver)))
}

/// A handler that does nothing, and how often it ran.
pub(crate) fn counting(receiver: Receiver) -> (Router, Runs) {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |_: Event| {
        counted.add();
    };
    (behind(receiver, handler), runs)
}

/// What comes in for one event, without HTTP.
pub(crate) struct Signed {
    pub(crate) key: String,
    pub(crate) body: String,
    pub(crate) signature: String,
}

impl Signed {
    pub(crate) fn new(key: &str, body: &str) -> Self {
        Self {
            key: key.to_owned(),
            body: body.to_owned(),
            signature: sign(body.as_bytes()),
        }
    }

    pub(crate) fn incoming(&self) -> Incoming<'_> {
        Incoming {
            key: self.key.as_str().into(),
            signature: self.signature.as_str().into(),
            body: Bytes::from(self.body.clone()),
            ..Incoming::default()
        }
    }
}

/// A signed POST.
pub(crate) fn request(key: &str, body: impl Into<Bytes>) -> Request<Body> {
    let body = body.into();
    Request::post("/")
        .header("idempotency-key", key)
        .header("x-signature-256", sign(&body))
        .body(Body::from(body))
        .unwrap()
}

/// The request with these lines of a header in the place of what it had.
pub(crate) fn with_lines(mut request: Request<Body>, name: &'static str, values: &[&str]) -> Request<Body> {
    let headers = request.headers_mut();
    headers.remove(name);
    for value in values {
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    request
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn retry_after(&self) -> Option<&str> {
        self.headers.get("retry-after").map(|value| value.to_str().unwrap())
    }

    #[track_caller]
    pub(crate) fn is(&self, status: u16, body: &str) {
        assert_eq!((self.status, self.body.as_str()), (status, body));
    }
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Answer {
    let response = app.clone().call(request).await.unwrap();
    let (parts, body) = response.into_parts();
    assert_eq!(parts.headers["content-type"], "application/json");
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// Counts what it is asked, and passes it on.
#[derive(Default)]
pub(crate) struct Counted {
    pub(crate) inner: MemoryStore,
    pub(crate) calls: AtomicUsize,
}

#[async_trait]
impl ClaimStore for Counted {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        self.calls.fetch_add(1, SeqCst);
        self.inner.claim(claimant, lease).await
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        self.calls.fetch_add(1, SeqCst);
        self.inner.renew(claimant, lease).await
    }

    async fn complete(&self, claimant: &Claimant, ttl: Ttl) -> Result<Completed, StoreError> {
        self.calls.fetch_add(1, SeqCst);
        self.inner.complete(claimant, ttl).await
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        self.calls.fetch_add(1, SeqCst);
        self.inner.release(claimant).await
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError> {
        self.calls.fetch_add(1, SeqCst);
        self.inner.mark_seen(key, ttl).await
    }
}

/// Does nothing, says nothing, or does it and then fails, one operation at a time.
#[derive(Default)]
pub(crate) struct Faulty {
    pub(crate) inner: MemoryStore,
    pub(crate) claim: Fault,
    pub(crate) renew: Fault,
    pub(crate) complete: Fault,
}

#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Fails without having done it.
    Down,
    /// Finds under the key what it did not write.
    Foreign,
    /// Does it; the answer is lost.
    AnswerLost,
    /// Does it; the answer never comes.
    AnswerHangs,
}

impl Fault {
    async fn around<T>(self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        if self == Self::Down {
            return Err(StoreError::new(StoreErrorKind::Unavailable));
        }
        if self == Self::Foreign {
            return Err(StoreError::new(StoreErrorKind::Foreign));
        }
        let answer = work.await;
        match self {
            Self::AnswerHangs => std::future::pending().await,
            Self::AnswerLost => Err(StoreError::new(StoreErrorKind::Unavailable)),
            Self::None | Self::Down | Self::Foreign => answer,
        }
    }
}

#[async_trait]
impl ClaimStore for Faulty {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        self.claim.around(self.inner.claim(claimant, lease)).await
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        self.renew.around(self.inner.renew(claimant, lease)).await
    }

    async fn complete(&self, claimant: &Claimant, ttl: Ttl) -> Result<Completed, StoreError> {
        self.complete.around(self.inner.complete(claimant, ttl)).await
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        self.inner.release(claimant).await
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError> {
        self.inner.mark_seen(key, ttl).await
    }
}

/// Serves on a free port until the test ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Writes a request by hand.
pub(crate) async fn connect(address: SocketAddr, head: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream
}

/// Reads a whole reply; the request asked for the connection to be closed.
pub(crate) async fn reply(mut stream: TcpStream) -> String {
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
}

/// Head of a signed request, without what says how long the body is.
pub(crate) fn head(key: &str, body: &[u8]) -> String {
    format!(
        "POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\nidempotency-key: {key}\r\nx-signature-256: {}\r\n",
        sign(body)
    )
}

/// Counts runs of a handler.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    pub(crate) fn add(&self) -> usize {
        self.0.fetch_add(1, SeqCst) + 1
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}
