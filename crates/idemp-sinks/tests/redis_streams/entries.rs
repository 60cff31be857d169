//! What goes out, and when.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::task::JoinSet;

use super::*;
use server::Reply;

/// HMAC-SHA256 in hex, by the library alone.
fn hmac_hex(secret: &str, bytes: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(bytes);
    let bytes = mac.finalize().into_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn an_entry_has_four_fields() {
    let server = Server::start(&[Reply::Id]).await;
    assert_eq!(deliver(&sink(&server), AMPLE).await, DELIVERED);
    let payload = r#"{"name": "t", "output": "ok"}"#;
    let body = format!(r#"{{"data": {payload}, "event": "tool_end"}}"#);
    let signature = format!("sha256={}", hmac_hex("whsec_test_secret", body.as_bytes()));
    assert_eq!(
        server.commands(),
        [[
            "XADD",
            "webhooks",
            "*",
            "idempotency_key",
            "req-42:tool_end:1",
            "event_type",
            "tool_end",
            "payload",
            payload,
            "signature",
            &signature,
        ]]
    );
}

#[tokio::test]
async fn a_bound_is_approximate() {
    let server = Server::start(&[Reply::Id]).await;
    let sink = RedisStreamsSink::new(RedisStreamsConfig {
        maxlen: Some(100_000),
        ..config(&server)
    })
    .unwrap();
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    assert_eq!(
        server.commands()[0][..6],
        ["XADD", "webhooks", "MAXLEN", "~", "100000", "*"]
    );
}

/// The clock stands still: it would have to move if anything waited for it.
#[test]
fn a_lone_event_goes_out_at_once() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        // A paused clock jumps whenever there is nothing to do but this, which lasts until the end of the test.
        let (held, hold) = std::sync::mpsc::channel::<()>();
        let _held = tokio::task::spawn_blocking(move || hold.recv());
        let server = Server::start(&[Reply::Id]).await;
        let sink = sink(&server);
        let before = tokio::time::Instant::now();
        assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
        assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(server.reads(), [1, 1]);
        drop(held);
    });
}

/// On one thread, so that all of them have asked before the connection's task writes anything.
#[tokio::test]
async fn what_waits_shares_a_pipeline() {
    let server = Server::start(&[Reply::Id]).await;
    let sink = Arc::new(sink(&server));
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let sink = Arc::clone(&sink);
        tasks.spawn(async move { deliver(&sink, AMPLE).await });
    }
    assert_eq!(tasks.join_all().await, vec![DELIVERED; 100]);
    assert_eq!(server.connections(), 1);
    let reads = server.reads();
    assert_eq!(reads.iter().sum::<usize>(), 101);
    assert!(
        reads.len() <= 20,
        "100 waiting events came in {} reads",
        reads.len() - 1
    );
}
