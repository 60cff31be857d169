//! Signatures by Standard Webhooks.

use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use idemp_core::{Secret, StandardSigner};
use idemp_receiver::{MemoryStore, Receiver, ReceiverConfig};

use crate::support::{BODY, KEY, Runs, counting, request, send, sign_with, with_lines};

const STANDARD_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn standard_app() -> (Router, Runs) {
    let config = ReceiverConfig {
        require_standard_webhooks: true,
        ..ReceiverConfig::default()
    };
    let secret = Secret::new(STANDARD_SECRET).unwrap();
    counting(Receiver::new(MemoryStore::new(), &secret.into(), config).unwrap())
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
    let signature = sign_with(&Secret::new(STANDARD_SECRET).unwrap(), BODY.as_bytes());
    let base = with_lines(request("k2", BODY), "x-signature-256", &[&signature]);
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

    let other_id = with_lines(standard_request(KEY, now), "webhook-id", &["req-42:tool_end:2"]);
    send(&app, other_id).await.is(401, bad);

    // The signed id is the key. One beside it must be the same.
    let beside = |keys: &[&str]| with_lines(standard_request(KEY, now), "idempotency-key", keys);
    send(&app, beside(&["req-42:tool_end:2"])).await.is(401, bad);
    send(&app, beside(&[KEY, KEY]))
        .await
        .is(400, r#"{"detail":"idempotency key is repeated"}"#);
    assert_eq!(runs.count(), 0);

    // Quoted it is the same key, and four minutes are not too old.
    let quoted = "\"req-42:tool_end:1\"";
    let same = with_lines(standard_request(KEY, now - minutes(4)), "idempotency-key", &[quoted]);
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
