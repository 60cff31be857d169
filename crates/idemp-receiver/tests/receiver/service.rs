//! A receiver and its handler as one service.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::routing::post_service;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use idemp_receiver::{Event, HandlerError, MemoryStore, Receiver, ReceiverConfig};
use tokio::sync::Notify;
use tokio::time::timeout;
use tower_service::Service;

use crate::support::{BODY, KEY, Runs, by_default, receiver, request, send, sign, with_lines};

/// Takes POSTs to `/`.
fn app<H, F>(receiver: &Receiver, handler: H) -> Router
where
    H: FnOnce(Event) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    Router::new().route("/", post_service(receiver.service(handler)))
}

const OK: &str = r#"{"status":"ok"}"#;
const DUPLICATE: &str = r#"{"status":"duplicate"}"#;

/// A handler that owns what it uses, as an async closure does.
#[tokio::test]
async fn the_handler_gets_the_event_once() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        async move |event: Event| {
            assert_eq!((event.key(), event.event_type()), (KEY, "tool_end"));
            assert_eq!(event.body(), BODY);
            tokio::task::yield_now().await;
            runs.add();
            Ok(())
        }
    };
    let app = app(&by_default(), handler);
    send(&app, request(KEY, BODY)).await.is(200, OK);
    send(&app, request(KEY, BODY)).await.is(200, DUPLICATE);
    let quoted = with_lines(request(KEY, BODY), "idempotency-key", &[&format!("\"{KEY}\"")]);
    send(&app, quoted).await.is(200, DUPLICATE);
    assert_eq!(runs.count(), 1);
}

/// The first copy fails in some way, the second one runs.
#[tokio::test]
async fn what_the_handler_returns_decides() {
    async fn returns(event: Event) -> Result<(), HandlerError> {
        match event.data::<u8>()? {
            0 => Ok(()),
            1 => Err(HandlerError::Failed),
            2 => Err(HandlerError::Rejected),
            _ => panic!("on purpose"),
        }
    }
    let app = app(&by_default(), returns);
    let cases = [
        ("0", 200, OK),
        ("1", 500, r#"{"detail":"handler failed"}"#),
        ("2", 422, r#"{"detail":"event was rejected"}"#),
        ("3", 500, r#"{"detail":"handler failed"}"#),
        ("\"of another shape\"", 422, r#"{"detail":"event was rejected"}"#),
    ];
    for ((data, status, body), step) in cases.into_iter().zip(1..) {
        let event = format!(r#"{{"data":{data},"event":"tool_end"}}"#);
        let key = format!("req-42:tool_end:{step}");
        send(&app, request(&key, event.clone())).await.is(status, body);
        let again = send(&app, request(&key, event)).await;
        // Only success is remembered.
        again.is(status, if status == 200 { DUPLICATE } else { body });
    }
}

/// The panic of a handler that is no `async fn` comes before there is a future.
#[tokio::test]
async fn a_handler_may_panic_as_it_is_called() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |_: Event| {
            assert!(runs.add() > 1, "on purpose");
            std::future::ready(Ok(()))
        }
    };
    let app = app(&by_default(), handler);
    let answer = send(&app, request(KEY, BODY)).await;
    answer.is(500, r#"{"detail":"handler failed"}"#);
    send(&app, request(KEY, BODY)).await.is(200, OK);
}

#[tokio::test(start_paused = true)]
async fn a_handler_over_its_cap_is_cut() {
    let app = app(&by_default(), async |_: Event| std::future::pending().await);
    let started = tokio::time::Instant::now();
    let answer = send(&app, request(KEY, BODY)).await;
    answer.is(503, r#"{"detail":"handler ran out of time"}"#);
    assert_eq!(answer.retry_after(), Some("1"));
    assert_eq!(started.elapsed().as_secs(), 4);
}

/// Nothing that is refused reaches the handler.
#[tokio::test]
async fn refused_requests_do_not_reach_the_handler() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        async move |_: Event| {
            runs.add();
            Ok(())
        }
    };
    let app = app(&by_default(), handler);
    let forged = sign(b"another body");
    let answer = send(&app, with_lines(request(KEY, BODY), "x-signature-256", &[&forged])).await;
    answer.is(401, r#"{"detail":"bad signature"}"#);
    let answer = send(&app, with_lines(request(KEY, BODY), "idempotency-key", &[])).await;
    answer.is(400, r#"{"detail":"idempotency key is missing"}"#);
    let answer = send(&app, request("req-42:chain_end:1", BODY)).await;
    answer.is(
        400,
        r#"{"detail":"event type of the idempotency key is not the event of the body"}"#,
    );
    assert_eq!(runs.count(), 0);
}

/// The future of the request is dropped while the handler runs. A copy is put off until the mark is written.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_cuts_nothing_in_half() {
    let (runs, go_on) = (Runs::default(), Arc::new(Notify::new()));
    let handler = {
        let (runs, go_on) = (runs.clone(), Arc::clone(&go_on));
        async move |_: Event| {
            go_on.notified().await;
            runs.add();
            Ok(())
        }
    };
    let receiver = by_default();
    let mut service = receiver.service(handler);
    let given_up = timeout(Duration::from_secs(1), service.call(request(KEY, BODY))).await;
    assert!(given_up.is_err());

    let in_progress = service.call(request(KEY, BODY)).await.unwrap();
    assert_eq!(in_progress.status(), 503);
    assert_eq!(in_progress.headers()["retry-after"], "5");
    go_on.notify_one();
    receiver.drain().await;
    assert_eq!(runs.count(), 1);
}

/// The service asks no more of a body than that it is one; a server's own type need not be made from bytes.
#[tokio::test]
async fn any_type_of_body_will_do() {
    let mut service = by_default().service(async |event: Event| {
        drop(event);
        Ok(())
    });
    let boxed = request(KEY, BODY).map(|_| Full::new(Bytes::from_static(BODY.as_bytes())).boxed());
    let response = service.call(boxed).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), OK);

    let empty: Request<Empty<Bytes>> = request(KEY, "").map(|_| Empty::new());
    assert_eq!(service.call(empty).await.unwrap().status(), 400);
}

/// A receiver has one number of places, however many services it is in.
#[tokio::test(start_paused = true)]
async fn services_of_one_receiver_share_its_places() {
    let config = ReceiverConfig {
        concurrency: 1,
        ..ReceiverConfig::default()
    };
    let receiver = receiver(MemoryStore::new(), config);
    let slow = app(&receiver, async |_: Event| {
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    });
    let other = app(&receiver, async |_: Event| Ok(()));
    let running = tokio::spawn(async move { send(&slow, request(KEY, BODY)).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let answer = send(&other, request("req-42:tool_end:2", BODY)).await;
    answer.is(503, r#"{"detail":"too many events at once"}"#);
    running.await.unwrap().is(200, OK);
    send(&other, request("req-42:tool_end:2", BODY)).await.is(200, OK);
}
