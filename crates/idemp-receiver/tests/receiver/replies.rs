//! Every row of the table in docs/receiver.md, as bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use idemp_core::{Secret, Secrets, Signer, StandardSigner};
use idemp_receiver::{Event, MemoryStore, Receiver, ReceiverConfig, ReceiverLayer, Scope};
use tokio::sync::Notify;

use crate::support::{BODY, Counted, Fault, Faulty, KEY, Runs, by_default, receiver, request, secret, send, sign};

fn app(receiver: Receiver) -> (Router, Runs) {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |_: Event| {
        counted.add();
    };
    (
        Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(receiver))),
        runs,
    )
}

/// A handler that answers with this status each time.
fn answering(status: StatusCode) -> Router {
    let handler = async move |_: Event| status;
    Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(by_default())))
}

#[tokio::test]
async fn new_then_duplicate() {
    let (app, runs) = app(by_default());
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    send(&app, request(KEY, BODY))
        .await
        .is(200, r#"{"status":"duplicate"}"#);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn every_2xx_of_the_handler_is_ok() {
    for status in [200, 201, 202, 204, 299] {
        let app = answering(StatusCode::from_u16(status).unwrap());
        send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
        send(&app, request(KEY, BODY))
            .await
            .is(200, r#"{"status":"duplicate"}"#);
    }
}

#[tokio::test]
async fn every_other_status_of_the_handler_is_a_failure() {
    for status in [100, 302, 400, 401, 404, 409, 429, 500, 503] {
        let app = answering(StatusCode::from_u16(status).unwrap());
        // Twice, because the claim is released.
        for _ in 0..2 {
            let answer = send(&app, request(KEY, BODY)).await;
            answer.is(500, r#"{"detail":"handler failed"}"#);
            assert_eq!(answer.retry_after(), None);
        }
    }
}

#[tokio::test]
async fn an_event_that_can_never_work() {
    let app = answering(StatusCode::UNPROCESSABLE_ENTITY);
    for _ in 0..2 {
        send(&app, request(KEY, BODY))
            .await
            .is(422, r#"{"detail":"event was rejected"}"#);
    }
}

#[tokio::test]
async fn data_of_another_shape_can_never_work() {
    let handler = async |event: Event| event.data::<Vec<u8>>().map(drop);
    let app = Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(by_default())));
    send(&app, request(KEY, BODY))
        .await
        .is(422, r#"{"detail":"event was rejected"}"#);
}

#[tokio::test]
async fn another_body_under_the_same_key() {
    let (app, runs) = app(by_default());
    send(&app, request("k1", BODY)).await.is(200, r#"{"status":"ok"}"#);
    let other = r#"{"data": {"output": "5"}, "event": "tool_end"}"#;
    send(&app, request("k1", other))
        .await
        .is(422, r#"{"status":"conflict"}"#);
    send(&app, request("k1", BODY))
        .await
        .is(200, r#"{"status":"duplicate"}"#);
    assert_eq!(runs.count(), 1);
}

/// While the handler runs: another copy is put off for the rest of the lease, another body is a conflict at once.
#[tokio::test(start_paused = true)]
async fn another_copy_is_running() {
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
        async move |_: Event| {
            begun.notify_one();
            go_on.notified().await;
        }
    };
    let app = Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(by_default())));
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request(KEY, BODY)).await }
    });
    begun.notified().await;

    let answer = send(&app, request(KEY, BODY)).await;
    answer.is(503, r#"{"status":"in_progress"}"#);
    assert_eq!(answer.retry_after(), Some("6"));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(send(&app, request(KEY, BODY)).await.retry_after(), Some("5"));
    let other = r#"{"data": {"output": "5"}, "event": "tool_end"}"#;
    send(&app, request(KEY, other))
        .await
        .is(422, r#"{"status":"conflict"}"#);

    go_on.notify_one();
    first.await.unwrap().is(200, r#"{"status":"ok"}"#);
}

/// Missing, repeated, malformed and wrong signatures are answered alike, and the store never hears of them.
#[tokio::test]
async fn bad_signatures_never_reach_the_store() {
    let store = Arc::new(Counted::default());
    let (app, runs) = app(receiver(Arc::clone(&store), ReceiverConfig::default()));
    let good = sign(BODY.as_bytes());
    let stranger = Signer::new(&Secret::new("stranger").unwrap()).header(BODY.as_bytes());
    let lines: &[&[&str]] = &[
        &[],
        &[""],
        &[&good, &good],
        &[&good, "sha256=00"],
        &[&good[7..]],
        &[&good[..70]],
        &[&format!("{good}0")],
        &[&format!("{good},{good}")],
        &[&good.replace("sha256=", "SHA256=")],
        &[&good.replace("sha256=", "sha1=")],
        &[&good.replace("sha256=", "sha256= ")],
        &[&format!("sha256={}", "z".repeat(64))],
        &[&format!("sha256={}", "0".repeat(64))],
        &[stranger.as_str()],
    ];
    for lines in lines {
        let mut request = request(KEY, BODY);
        request.headers_mut().remove("x-signature-256");
        for line in *lines {
            let line = HeaderValue::from_str(line).unwrap();
            request.headers_mut().append("x-signature-256", line);
        }
        send(&app, request).await.is(401, r#"{"detail":"bad signature"}"#);
    }
    // Signed, but another body came.
    let mut forged = request(KEY, BODY);
    *forged.body_mut() = Body::from(BODY.replace('4', "5"));
    send(&app, forged).await.is(401, r#"{"detail":"bad signature"}"#);
    // Malformed in every way: the signature is looked at first.
    let unsigned = Request::post("/")
        .header("idempotency-key", "{}")
        .body(Body::empty())
        .unwrap();
    send(&app, unsigned).await.is(401, r#"{"detail":"bad signature"}"#);

    assert_eq!((store.calls.load(SeqCst), runs.count()), (0, 0));
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    assert_eq!((store.calls.load(SeqCst), runs.count()), (2, 1));
}

#[tokio::test]
async fn keys_that_are_none() {
    let store = Arc::new(Counted::default());
    let (app, _) = app(receiver(Arc::clone(&store), ReceiverConfig::default()));
    let malformed = r#"{"detail":"idempotency key is malformed"}"#;
    let long = "k".repeat(256);
    let cases: &[(&[&str], &str)] = &[
        (&[], r#"{"detail":"idempotency key is missing"}"#),
        (&["k1", "k1"], r#"{"detail":"idempotency key is repeated"}"#),
        (&["k1", "k2"], r#"{"detail":"idempotency key is repeated"}"#),
        (&[""], malformed),
        (&["k1, k2"], malformed),
        (&["k 1"], malformed),
        (&["{k1}"], malformed),
        (&["\"k1"], malformed),
        (&["\"k1\";p=1"], malformed),
        (&[&long], malformed),
    ];
    for (keys, detail) in cases {
        let mut request = request("replaced", BODY);
        request.headers_mut().remove("idempotency-key");
        for key in *keys {
            request
                .headers_mut()
                .append("idempotency-key", HeaderValue::from_str(key).unwrap());
        }
        send(&app, request).await.is(400, detail);
    }
    let mut latin1 = request("replaced", BODY);
    latin1
        .headers_mut()
        .insert("idempotency-key", HeaderValue::from_bytes(b"k\xe9").unwrap());
    send(&app, latin1).await.is(400, malformed);
    assert_eq!(store.calls.load(SeqCst), 0);
}

#[tokio::test]
async fn the_quoted_key_is_the_same_key() {
    let (app, runs) = app(by_default());
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    send(&app, request(&format!("\"{KEY}\""), BODY))
        .await
        .is(200, r#"{"status":"duplicate"}"#);
    // The check of the event type is not fooled by quotes either.
    let answer = send(&app, request("\"req-42:llm_end:1\"", BODY)).await;
    answer.is(
        400,
        r#"{"detail":"event type of the idempotency key is not the event of the body"}"#,
    );
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_canonical_key_names_the_event_of_the_body() {
    let (app, _) = app(by_default());
    let mismatch = r#"{"detail":"event type of the idempotency key is not the event of the body"}"#;
    send(&app, request("req-42:llm_end:1", BODY)).await.is(400, mismatch);
    // Not canonical, so it names nothing.
    send(&app, request("req-42:llm_end:01", BODY))
        .await
        .is(200, r#"{"status":"ok"}"#);
    send(&app, request("req-42:llm_end", BODY))
        .await
        .is(200, r#"{"status":"ok"}"#);
}

#[tokio::test]
async fn canonical_keys_can_be_required() {
    let config = ReceiverConfig {
        require_canonical: true,
        ..ReceiverConfig::default()
    };
    let (app, _) = app(receiver(MemoryStore::new(), config));
    let answer = send(&app, request("k1", BODY)).await;
    answer.is(
        400,
        r#"{"detail":"idempotency key is not run_id:event_type:step_index"}"#,
    );
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
}

/// Signed, and no event: what is signed is the raw bytes, so each of these is looked at as it is.
#[tokio::test]
async fn bodies_that_are_no_events() {
    let (app, _) = app(by_default());
    for body in [
        &b""[..],
        b"null",
        b"[]",
        b"{}",
        br#"{"event": "tool_end"}"#,
        br#"{"data": {}}"#,
        br#"{"event": 7, "data": {}}"#,
        br#"{"event": "tool_end", "data": }"#,
        b"{\"event\": \"tool_end\", \"data\": \"\xff\"}",
        b"\x1f\x8b\x08\x00",
    ] {
        let answer = send(&app, request(KEY, Bytes::copy_from_slice(body))).await;
        answer.is(400, r#"{"detail":"body is not a JSON object with event and data"}"#);
    }
}

/// None of these survives being parsed and printed again.
#[tokio::test]
async fn raw_bytes_are_verified_and_handed_over() {
    for data in [
        "1.0",
        r#""\u00e9""#,
        r#"{"a": 1, "a": 2}"#,
        "\"\u{1f600}\"",
        "1e2",
        r#""\/""#,
        "[ 1 ]",
    ] {
        let handler = async move |event: Event| {
            assert_eq!(event.data_bytes(), data.as_bytes());
        };
        let app = Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(by_default())));
        let body = format!("{{\"event\":\"tool_end\",\"data\":{data}}}\n");
        send(&app, request(KEY, body)).await.is(200, r#"{"status":"ok"}"#);
    }
}

#[tokio::test]
async fn panics_are_failures_and_release_the_claim() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        async move |_: Event| assert!(runs.add() > 2, "on purpose")
    };
    let app = Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(by_default())));
    for _ in 0..2 {
        send(&app, request(KEY, BODY))
            .await
            .is(500, r#"{"detail":"handler failed"}"#);
    }
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
}

#[tokio::test(start_paused = true)]
async fn a_handler_over_its_cap_is_cut_and_releases_the_claim() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        async move |_: Event| {
            if runs.add() == 1 {
                std::future::pending::<()>().await;
            }
        }
    };
    let app = Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(by_default())));
    let started = tokio::time::Instant::now();
    let answer = send(&app, request(KEY, BODY)).await;
    answer.is(503, r#"{"detail":"handler ran out of time"}"#);
    assert_eq!(answer.retry_after(), Some("1"));
    assert_eq!(started.elapsed().as_secs(), 4);
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    assert_eq!(runs.count(), 2);
}

/// It never waits for anything, and only lets others run when tokio makes it.
#[tokio::test]
async fn a_busy_handler_is_cut_too() {
    let handler = async |_: Event| -> StatusCode {
        loop {
            tokio::task::consume_budget().await;
        }
    };
    let config = ReceiverConfig {
        handler_cap: Duration::from_millis(20),
        ..ReceiverConfig::default()
    };
    let layer = ReceiverLayer::new(receiver(MemoryStore::new(), config));
    let app = Router::new().route("/", post(handler).route_layer(layer));
    let answer = send(&app, request(KEY, BODY)).await;
    answer.is(503, r#"{"detail":"handler ran out of time"}"#);
}

#[tokio::test(start_paused = true)]
async fn the_store_is_down() {
    for fault in [Fault::Down, Fault::AnswerLost, Fault::AnswerHangs] {
        let store = Faulty {
            claim: fault,
            ..Faulty::default()
        };
        let (app, runs) = app(receiver(store, ReceiverConfig::default()));
        let started = tokio::time::Instant::now();
        let answer = send(&app, request(KEY, BODY)).await;
        answer.is(503, r#"{"detail":"claim store is not available"}"#);
        let seconds: u64 = answer.retry_after().unwrap().parse().unwrap();
        assert!((1..=5).contains(&seconds), "{seconds}");
        assert!(
            started.elapsed() <= Duration::from_millis(1_001),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(runs.count(), 0);
    }
}

#[tokio::test]
async fn failing_open_is_a_choice() {
    let config = ReceiverConfig {
        fail_open: true,
        ..ReceiverConfig::default()
    };
    let store = Faulty {
        claim: Fault::Down,
        ..Faulty::default()
    };
    let (app, runs) = app(receiver(store, config));
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn the_mark_cannot_be_written() {
    for fault in [Fault::Down, Fault::AnswerLost] {
        let store = Faulty {
            complete: fault,
            ..Faulty::default()
        };
        let (app, runs) = app(receiver(store, ReceiverConfig::default()));
        send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn over_the_concurrency_limit() {
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
        async move |_: Event| {
            begun.notify_one();
            go_on.notified().await;
        }
    };
    let config = ReceiverConfig {
        concurrency: 1,
        ..ReceiverConfig::default()
    };
    let layer = ReceiverLayer::new(receiver(MemoryStore::new(), config));
    let app = Router::new().route("/", post(handler).route_layer(layer));
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request("k1", BODY)).await }
    });
    begun.notified().await;
    let answer = send(&app, request("k2", BODY)).await;
    answer.is(503, r#"{"detail":"too many events at once"}"#);
    assert_eq!(answer.retry_after(), Some("1"));
    go_on.notify_one();
    first.await.unwrap().is(200, r#"{"status":"ok"}"#);
    go_on.notify_one();
    send(&app, request("k2", BODY)).await.is(200, r#"{"status":"ok"}"#);
}

#[tokio::test]
async fn secrets_rotate() {
    let old = Secret::labelled("old", "old secret").unwrap();
    let new = Secret::labelled("new", "new secret").unwrap();
    let secrets = Secrets::new(vec![old.clone(), new.clone()]).unwrap();
    let receiver = Receiver::new(MemoryStore::new(), &secrets, ReceiverConfig::default()).unwrap();
    let labels = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler = {
        let labels = Arc::clone(&labels);
        async move |event: Event| labels.lock().unwrap().push(event.secret_label().to_owned())
    };
    let app = Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(receiver)));
    for (key, secret) in [("k1", &old), ("k2", &new)] {
        let mut request = request(key, BODY);
        let signature = Signer::new(secret).header(BODY.as_bytes());
        let signature = HeaderValue::from_str(signature.as_str()).unwrap();
        request.headers_mut().insert("x-signature-256", signature);
        send(&app, request).await.is(200, r#"{"status":"ok"}"#);
    }
    // Signed with a secret that is none of the two.
    send(&app, request("k3", BODY))
        .await
        .is(401, r#"{"detail":"bad signature"}"#);
    assert_eq!(*labels.lock().unwrap(), ["old", "new"]);
}

#[tokio::test]
async fn scopes_do_not_collide() {
    let store = Arc::new(MemoryStore::new());
    let scoped = |scope: Scope| {
        let config = ReceiverConfig {
            scope,
            ..ReceiverConfig::default()
        };
        app(receiver(Arc::clone(&store), config))
    };
    let apps = [
        scoped(Scope::default()),
        scoped(Scope::named("orders").unwrap()),
        scoped(Scope::named("invoices").unwrap()),
    ];
    for (app, _) in &apps {
        send(app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    }
    for (app, runs) in &apps {
        send(app, request(KEY, BODY)).await.is(200, r#"{"status":"duplicate"}"#);
        assert_eq!(runs.count(), 1);
    }
}

const STANDARD_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn standard_app() -> (Router, Runs) {
    let config = ReceiverConfig {
        require_standard_webhooks: true,
        ..ReceiverConfig::default()
    };
    let secret = Secret::new(STANDARD_SECRET).unwrap();
    app(Receiver::new(MemoryStore::new(), &secret.into(), config).unwrap())
}

/// A request with Standard Webhooks headers alone.
fn standard_request(id: &str, at: SystemTime) -> Request<Body> {
    let signer = StandardSigner::new(&Secret::new(STANDARD_SECRET).unwrap()).unwrap();
    let headers = signer.sign(id, at, BODY.as_bytes()).unwrap();
    Request::post("/")
        .header("webhook-id", headers.id)
        .header("webhook-timestamp", headers.timestamp)
        .header("webhook-signature", headers.signature)
        .body(Body::from(BODY))
        .unwrap()
}

#[tokio::test]
async fn standard_webhooks_can_be_required() {
    let (app, runs) = standard_app();
    let now = SystemTime::now();
    send(&app, standard_request(KEY, now))
        .await
        .is(200, r#"{"status":"ok"}"#);
    // The next attempt is signed afresh and is a copy all the same.
    let later = now + Duration::from_secs(1);
    send(&app, standard_request(KEY, later))
        .await
        .is(200, r#"{"status":"duplicate"}"#);

    // A good signature of the body alone is not enough.
    let mut base = request("k2", BODY);
    let signature = Signer::new(&Secret::new(STANDARD_SECRET).unwrap()).header(BODY.as_bytes());
    base.headers_mut()
        .insert("x-signature-256", HeaderValue::from_str(signature.as_str()).unwrap());
    send(&app, base).await.is(401, r#"{"detail":"bad signature"}"#);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn standard_webhooks_cover_key_and_time() {
    let (app, runs) = standard_app();
    let now = SystemTime::now();
    let bad = r#"{"detail":"bad signature"}"#;
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    send(&app, standard_request(KEY, now - minutes(6))).await.is(401, bad);
    send(&app, standard_request(KEY, now + minutes(6))).await.is(401, bad);

    let mut other_id = standard_request(KEY, now);
    other_id
        .headers_mut()
        .insert("webhook-id", HeaderValue::from_static("req-42:tool_end:2"));
    send(&app, other_id).await.is(401, bad);

    // The signed id is the key. One beside it must be the same.
    let mut beside = standard_request(KEY, now);
    beside
        .headers_mut()
        .insert("idempotency-key", HeaderValue::from_static("req-42:tool_end:2"));
    send(&app, beside).await.is(401, bad);
    let mut repeated = standard_request(KEY, now);
    for _ in 0..2 {
        repeated
            .headers_mut()
            .append("idempotency-key", HeaderValue::from_static(KEY));
    }
    send(&app, repeated)
        .await
        .is(400, r#"{"detail":"idempotency key is repeated"}"#);
    assert_eq!(runs.count(), 0);

    let mut same = standard_request(KEY, now - minutes(4));
    same.headers_mut()
        .insert("idempotency-key", HeaderValue::from_static("\"req-42:tool_end:1\""));
    send(&app, same).await.is(200, r#"{"status":"ok"}"#);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn standard_ids_follow_the_rules_of_keys() {
    let (app, _) = standard_app();
    let now = SystemTime::now();
    let answer = send(&app, standard_request("a,b", now)).await;
    answer.is(400, r#"{"detail":"idempotency key is malformed"}"#);
    let answer = send(&app, standard_request("req-42:llm_end:1", now)).await;
    answer.is(
        400,
        r#"{"detail":"event type of the idempotency key is not the event of the body"}"#,
    );
}

#[test]
fn nothing_secret_is_printed() {
    let receiver = receiver(MemoryStore::new(), ReceiverConfig::default());
    let printed = format!("{receiver:?} {:?} {:?}", ReceiverLayer::new(receiver.clone()), secret());
    assert!(!printed.contains("whsec_test_secret"), "{printed}");
}

#[tokio::test]
async fn the_payload_is_not_printed() {
    let handler = async |event: Event| {
        let error = event.data::<u64>().unwrap_err();
        for printed in [format!("{event:?}"), format!("{error:?}"), error.to_string()] {
            assert!(!printed.contains("payload"), "{printed}");
        }
    };
    let app = Router::new().route("/", post(handler).route_layer(ReceiverLayer::new(by_default())));
    let body = r#"{"data": "payload", "event": "tool_end"}"#;
    send(&app, request("k1", body)).await.is(200, r#"{"status":"ok"}"#);
}
