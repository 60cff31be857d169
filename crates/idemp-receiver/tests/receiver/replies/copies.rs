//! A key that comes again: later, at the same time, with another body, in another scope.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use idemp_receiver::{Event, MemoryStore, Receiver, ReceiverConfig, Scope};
use tokio::sync::Notify;

use crate::support::{BODY, KEY, behind, by_default, counting, receiver, request, send};

const OTHER_BODY: &str = r#"{"data": {"output": "5"}, "event": "tool_end"}"#;

/// A handler that says when it has begun, and then waits until it may go on.
#[derive(Default)]
struct Gate {
    begun: Notify,
    go_on: Notify,
}

fn held(receiver: Receiver) -> (Router, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let handler = {
        let gate = Arc::clone(&gate);
        async move |_: Event| {
            gate.begun.notify_one();
            gate.go_on.notified().await;
        }
    };
    (behind(receiver, handler), gate)
}

#[tokio::test]
async fn new_then_duplicate() {
    let (app, runs) = counting(by_default());
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    send(&app, request(KEY, BODY))
        .await
        .is(200, r#"{"status":"duplicate"}"#);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn another_body_under_the_same_key() {
    let (app, runs) = counting(by_default());
    send(&app, request("k1", BODY)).await.is(200, r#"{"status":"ok"}"#);
    send(&app, request("k1", OTHER_BODY))
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
    let (app, gate) = held(by_default());
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request(KEY, BODY)).await }
    });
    gate.begun.notified().await;

    let answer = send(&app, request(KEY, BODY)).await;
    answer.is(503, r#"{"status":"in_progress"}"#);
    assert_eq!(answer.retry_after(), Some("6"));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(send(&app, request(KEY, BODY)).await.retry_after(), Some("5"));
    send(&app, request(KEY, OTHER_BODY))
        .await
        .is(422, r#"{"status":"conflict"}"#);

    gate.go_on.notify_one();
    first.await.unwrap().is(200, r#"{"status":"ok"}"#);
}

#[tokio::test]
async fn over_the_concurrency_limit() {
    let config = ReceiverConfig {
        concurrency: 1,
        ..ReceiverConfig::default()
    };
    let (app, gate) = held(receiver(MemoryStore::new(), config));
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request("k1", BODY)).await }
    });
    gate.begun.notified().await;
    let answer = send(&app, request("k2", BODY)).await;
    answer.is(503, r#"{"detail":"too many events at once"}"#);
    assert_eq!(answer.retry_after(), Some("1"));
    gate.go_on.notify_one();
    first.await.unwrap().is(200, r#"{"status":"ok"}"#);
    gate.go_on.notify_one();
    send(&app, request("k2", BODY)).await.is(200, r#"{"status":"ok"}"#);
}

/// One store, one key, three scopes: three different events.
#[tokio::test]
async fn scopes_do_not_collide() {
    let store = Arc::new(MemoryStore::new());
    let scoped = |scope: Scope| {
        let config = ReceiverConfig {
            scope,
            ..ReceiverConfig::default()
        };
        counting(receiver(Arc::clone(&store), config))
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
