//! What the handler answers, and what becomes of it when it fails, panics or takes too long.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use idemp_receiver::{Event, MemoryStore, ReceiverConfig};

use crate::support::{BODY, KEY, Runs, behind, by_default, receiver, request, send};

/// A handler that answers with this status each time.
fn answering(status: StatusCode) -> Router {
    let handler = async move |_: Event| status;
    behind(by_default(), handler)
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

/// What the handler answers with 422 is rejected for good, and its claim is released.
#[tokio::test]
async fn an_event_that_can_never_work() {
    let app = answering(StatusCode::UNPROCESSABLE_ENTITY);
    for _ in 0..2 {
        send(&app, request(KEY, BODY))
            .await
            .is(422, r#"{"detail":"event was rejected"}"#);
    }
}

/// A handler that passes on that the data is not what it expects rejects the event for good.
#[tokio::test]
async fn data_of_another_shape_can_never_work() {
    let handler = async |event: Event| event.data::<Vec<u8>>().map(drop);
    let app = behind(by_default(), handler);
    send(&app, request(KEY, BODY))
        .await
        .is(422, r#"{"detail":"event was rejected"}"#);
}

#[tokio::test]
async fn panics_are_failures_and_release_the_claim() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        async move |_: Event| assert!(runs.add() > 2, "on purpose")
    };
    let app = behind(by_default(), handler);
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
    let app = behind(by_default(), handler);
    let started = tokio::time::Instant::now();
    let answer = send(&app, request(KEY, BODY)).await;
    answer.is(503, r#"{"detail":"handler ran out of time"}"#);
    assert_eq!(answer.retry_after(), Some("1"));
    assert_eq!(started.elapsed().as_secs(), 4);
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cap_may_be_for_ever() {
    let config = ReceiverConfig {
        attempt_timeout: Duration::MAX,
        handler_cap: Duration::MAX - Duration::from_secs(1),
        ..ReceiverConfig::default()
    };
    let handler = async |_: Event| tokio::time::sleep(Duration::from_secs(60)).await;
    let app = behind(receiver(MemoryStore::new(), config), handler);
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
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
    let app = behind(receiver(MemoryStore::new(), config), handler);
    let answer = send(&app, request(KEY, BODY)).await;
    answer.is(503, r#"{"detail":"handler ran out of time"}"#);
}
