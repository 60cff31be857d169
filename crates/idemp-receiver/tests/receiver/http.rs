//! What depends on the way a body comes in.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{post, post_service};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use idemp_receiver::{Event, MemoryStore, ReceiverConfig, ReceiverLayer};

use crate::support::{BODY, KEY, behind, by_default, connect, head, receiver, reply, request, send, serve, sign};

/// Both ways to put a receiver before a handler.
fn apps() -> [Router; 2] {
    let service = by_default().service(async |event: Event| {
        drop(event);
        Ok(())
    });
    [
        behind(by_default(), async |event: Event| drop(event)),
        Router::new().route("/", post_service(service)),
    ]
}

/// An event whose body is this long.
fn body_of(len: usize) -> String {
    let empty = r#"{"data": "", "event": "tool_end"}"#;
    empty.replace(r#""""#, &format!(r#""{}""#, "x".repeat(len - empty.len())))
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut chunks = Vec::new();
    for chunk in body.chunks(size) {
        chunks.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        chunks.extend_from_slice(chunk);
        chunks.extend_from_slice(b"\r\n");
    }
    chunks.extend_from_slice(b"0\r\n\r\n");
    chunks
}

const LIMIT: usize = 1024 * 1024;

#[tokio::test]
async fn the_limit_is_a_mebibyte() {
    let cases = [
        (LIMIT, "200"),
        (LIMIT + 1, "413"),
        (2 * LIMIT, "413"),
        (15 * LIMIT, "413"),
    ];
    for (app, (len, status)) in apps().iter().flat_map(|app| cases.map(|case| (app, case))) {
        let address = serve(app.clone()).await;
        let body = body_of(len);
        let key = format!("req-42:tool_end:{len}");
        let plain = head(&key, body.as_bytes()) + &format!("content-length: {len}\r\n\r\n");
        let answer = reply(connect(address, &plain, body.as_bytes()).await).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{len}: {answer}");

        let key = format!("req-43:tool_end:{len}");
        let by_chunks = head(&key, body.as_bytes()) + "transfer-encoding: chunked\r\n\r\n";
        let answer = reply(connect(address, &by_chunks, &chunked(body.as_bytes(), 60_000)).await).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{len} in chunks: {answer}"
        );
        if status == "413" {
            assert!(answer.ends_with(r#"{"detail":"body is too large"}"#), "{answer}");
        }
    }
}

/// `Expect: 100-continue` with a body that is too large: the answer comes in place of "go on".
#[tokio::test]
async fn a_client_that_asks_first_sends_nothing() {
    let body = body_of(2 * LIMIT);
    let head = head(KEY, body.as_bytes()) + &format!("content-length: {}\r\nexpect: 100-continue\r\n\r\n", body.len());
    for app in apps() {
        let answer = reply(connect(serve(app).await, &head, b"").await).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_without_content_length_is_not_empty() {
    let head = head(KEY, BODY.as_bytes()) + "transfer-encoding: chunked\r\n\r\n";
    for app in apps() {
        let address = serve(app).await;
        for status in ["ok", "duplicate"] {
            let answer = reply(connect(address, &head, &chunked(BODY.as_bytes(), 7)).await).await;
            assert!(answer.ends_with(&format!(r#"{{"status":"{status}"}}"#)), "{answer}");
        }
    }
}

/// A body that comes in pieces, and then perhaps stops or breaks.
struct Pieces {
    pieces: std::vec::IntoIter<&'static [u8]>,
    end: End,
}

#[derive(Clone, Copy)]
enum End {
    Whole,
    Stalls,
    Breaks,
    Never,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match (self.pieces.next(), self.end) {
            (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(piece))))),
            (None, End::Whole) => Poll::Ready(None),
            (None, End::Stalls) => Poll::Pending,
            (None, End::Never) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b' '; 60_000]))))),
            (None, End::Breaks) => Poll::Ready(Some(Err(std::io::Error::other("on purpose")))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

fn in_pieces(end: End) -> axum::http::Request<Body> {
    let (first, rest) = BODY.as_bytes().split_at(10);
    let (second, third) = rest.split_at(1);
    let pieces = vec![first, b"", second, third].into_iter();
    request(KEY, BODY).map(|_| Body::new(Pieces { pieces, end }))
}

#[tokio::test(start_paused = true)]
async fn bodies_come_in_pieces() {
    for app in apps() {
        let answer = send(&app, in_pieces(End::Breaks)).await;
        answer.is(400, r#"{"detail":"body could not be read"}"#);

        let started = tokio::time::Instant::now();
        let answer = send(&app, in_pieces(End::Stalls)).await;
        answer.is(408, r#"{"detail":"body did not arrive in time"}"#);
        assert_eq!(started.elapsed().as_secs(), 5);

        send(&app, in_pieces(End::Whole)).await.is(200, r#"{"status":"ok"}"#);
    }
}

/// It neither fills the memory nor keeps the place for ever.
#[tokio::test]
async fn a_body_without_end_is_given_up() {
    for app in apps() {
        let answer = send(&app, in_pieces(End::Never)).await;
        answer.is(413, r#"{"detail":"body is too large"}"#);
    }
}

/// A place is taken from the first byte on, so stalled bodies count, and are free again when they are given up.
#[tokio::test(start_paused = true)]
async fn stalled_bodies_take_places() {
    let config = ReceiverConfig {
        concurrency: 1,
        ..ReceiverConfig::default()
    };
    let handler = async |event: Event| drop(event);
    let app = behind(receiver(MemoryStore::new(), config), handler);
    let stalled = tokio::spawn({
        let app = app.clone();
        async move { send(&app, in_pieces(End::Stalls)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    send(&app, request(KEY, BODY))
        .await
        .is(503, r#"{"detail":"too many events at once"}"#);
    assert_eq!(stalled.await.unwrap().status, 408);
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
}

/// The handler may also read the body as it came.
#[tokio::test]
async fn other_extractors_work_beside_the_event() {
    let handler = async |event: Event, headers: axum::http::HeaderMap, body: Bytes| {
        assert_eq!(body, BODY);
        assert_eq!(event.body(), BODY);
        assert_eq!(
            (event.key(), event.event_type(), event.scope()),
            (KEY, "tool_end", None)
        );
        assert_eq!(event.canonical_key().unwrap().run_id(), "req-42");
        assert_eq!(headers["x-signature-256"], sign(BODY.as_bytes()).as_str());
        assert_eq!(
            event.data::<serde_json::Value>().unwrap(),
            serde_json::json!({"output": "4"})
        );
        assert_eq!(event.secret_label(), "default");
        assert!(!event.claim_lost());
    };
    let app = behind(by_default(), handler);
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
}

#[tokio::test]
async fn without_the_layer_the_extractor_says_so() {
    use http_body_util::BodyExt;
    use tower_service::Service;

    let mut app = Router::new().route("/", post(async |event: Event| drop(event)));
    let response = app.call(request(KEY, BODY)).await.unwrap();
    assert_eq!(response.status(), 500);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "the route has no receiver layer around it");
}

/// Any service will do, also one that has to be asked whether it is ready.
#[tokio::test(start_paused = true)]
async fn the_inner_service_may_take_its_time() {
    use axum::http::{Request, Response};
    use tower_layer::Layer;
    use tower_service::Service;

    #[derive(Clone)]
    struct Slow(bool);

    impl Service<Request<Body>> for Slow {
        type Response = Response<()>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<()>, Infallible>>;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            if std::mem::replace(&mut self.0, true) {
                return Poll::Ready(Ok(()));
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            assert!(self.0 && request.extensions().get::<Event>().is_some());
            std::future::ready(Ok(Response::new(())))
        }
    }

    let mut service = ReceiverLayer::new(by_default()).layer(Slow(false));
    let response = service.call(request(KEY, BODY)).await.unwrap();
    assert_eq!(response.status(), 200);
}
