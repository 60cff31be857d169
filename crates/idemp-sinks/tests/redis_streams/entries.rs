//! What goes out, and when.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use idemp_core::{Cause, Transport};
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
    spawn(&mut tasks, &sink, 100);
    assert_eq!(tasks.join_all().await, vec![DELIVERED; 100]);
    assert_eq!(server.connections(), 1);
    let reads = server.reads();
    assert_eq!(reads.iter().sum::<usize>(), 101);
    assert!(reads.len() <= 8, "100 waiting events came in {} reads", reads.len() - 1);
}

fn spawn(tasks: &mut JoinSet<Outcome>, sink: &Arc<RedisStreamsSink>, count: usize) {
    for _ in 0..count {
        let sink = Arc::clone(sink);
        tasks.spawn(async move { deliver(&sink, AMPLE).await });
    }
}

/// A sink whose server answers nothing, with eight events on their way, each by itself.
async fn unanswered(server: &Server, tasks: &mut JoinSet<Outcome>) -> Arc<RedisStreamsSink> {
    let sink = Arc::new(sink(server));
    for sent in 1..=8 {
        spawn(tasks, &sink, 1);
        idemp_testkit::until("it arrives", || server.reads().len() == sent).await;
    }
    sink
}

/// On one thread, where everybody has had a turn.
async fn settled() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_full_pipeline_waits_for_no_answer() {
    let server = Server::start(&[Reply::Silence]).await;
    let mut tasks = JoinSet::new();
    let sink = unanswered(&server, &mut tasks).await;
    spawn(&mut tasks, &sink, 10);
    settled().await;
    spawn(&mut tasks, &sink, 10);
    idemp_testkit::until("the pipeline arrives", || server.reads().len() > 8).await;
    settled().await;
    assert_eq!(server.reads(), [1, 1, 1, 1, 1, 1, 1, 1, 16]);
}

#[tokio::test]
async fn whoever_has_gone_while_it_waited_sends_nothing() {
    let server = Server::start(&[Reply::Silence]).await;
    let mut tasks = JoinSet::new();
    let sink = unanswered(&server, &mut tasks).await;
    let mut gone = JoinSet::new();
    spawn(&mut gone, &sink, 4);
    settled().await;
    gone.shutdown().await;
    spawn(&mut tasks, &sink, 12);
    idemp_testkit::until("the pipeline arrives", || server.reads().len() > 8).await;
    assert_eq!(server.reads(), [1, 1, 1, 1, 1, 1, 1, 1, 12]);
}

/// What the server had answered before it went away is not told apart.
#[tokio::test]
async fn a_pipeline_that_is_cut_may_have_arrived_as_a_whole() {
    let server = Server::start(&[Reply::Id, Reply::Id, Reply::Close, Reply::Id]).await;
    let sink = Arc::new(sink(&server));
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    let mut tasks = JoinSet::new();
    spawn(&mut tasks, &sink, 5);
    for outcome in tasks.join_all().await {
        let Outcome::Failed(failure) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(
            (failure.cause, failure.maybe_delivered),
            (Cause::Transport(Transport::Cut), true)
        );
    }
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    assert_eq!(server.connections(), 2);
}
