//! What is a key, and what a canonical one must agree with.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use axum::http::HeaderValue;
use idemp_receiver::{MemoryStore, ReceiverConfig};

use crate::support::{BODY, Counted, KEY, by_default, counting, receiver, request, send, with_lines};

/// None of these is a key, and the store never hears of them.
#[tokio::test]
async fn keys_that_are_none() {
    let store = Arc::new(Counted::default());
    let (app, _) = counting(receiver(Arc::clone(&store), ReceiverConfig::default()));
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
        let request = with_lines(request("replaced", BODY), "idempotency-key", keys);
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
    let (app, runs) = counting(by_default());
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
    let (app, _) = counting(by_default());
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
    let (app, _) = counting(receiver(MemoryStore::new(), config));
    let answer = send(&app, request("k1", BODY)).await;
    answer.is(
        400,
        r#"{"detail":"idempotency key is not run_id:event_type:step_index"}"#,
    );
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
}
