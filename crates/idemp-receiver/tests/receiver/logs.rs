//! What an operator reads, and that it holds no payload.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post_service;
use idemp_receiver::{DataError, Event, HandlerError};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::LevelFilter;

use crate::support::{BODY, KEY, behind, by_default, request, send, sign, with_lines};

/// The lines of this thread, for as long as the guard lives.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn begin() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::INFO)
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .with_writer(move || writer.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    /// What was told since the last time.
    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }
}

/// A number where a text is wanted, in the second line of the data.
const ODD: &str = "{\"data\": {\n\"output\": 4711}, \"event\": \"tool_end\"}";

#[derive(serde::Deserialize)]
struct ToolEnd {
    #[expect(dead_code, reason = "only read")]
    output: String,
}

async fn reads(event: Event) -> Result<(), HandlerError> {
    event.data::<ToolEnd>()?;
    Ok(())
}

#[tokio::test]
async fn the_place_of_data_in_another_shape() {
    let as_it_is = async |event: Event| -> Result<(), DataError> { event.data::<ToolEnd>().map(drop) };
    let apps = [
        Router::new().route("/", post_service(by_default().service(reads))),
        behind(by_default(), reads),
        behind(by_default(), as_it_is),
    ];
    let (log, _logging) = Log::begin();
    for app in apps {
        send(&app, request(KEY, ODD))
            .await
            .is(422, r#"{"detail":"event was rejected"}"#);
        assert_eq!(
            log.take(),
            ["WARN the handler rejected the event key=\"req-42:tool_end:1\" \
              error=the data has an unexpected shape at line 2 column 14"]
        );
    }
}

/// The sender hears of a failure alone, and the status is often not the handler's own.
#[tokio::test]
async fn the_status_of_a_response_that_is_no_success() {
    let app = behind(by_default(), async |_: Event| StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let (log, _logging) = Log::begin();
    send(&app, request(KEY, BODY))
        .await
        .is(500, r#"{"detail":"handler failed"}"#);
    assert_eq!(
        log.take(),
        [
            "WARN the handler's response key=\"req-42:tool_end:1\" status=415",
            "WARN the handler failed key=\"req-42:tool_end:1\"",
        ]
    );
}

/// Anybody can send what has no good signature, and nobody can fill the log with it.
#[tokio::test]
async fn the_first_refused_signature_of_each_kind() {
    let app = behind(by_default(), async |event: Event| drop(event));
    let forged = || with_lines(request(KEY, BODY), "x-signature-256", &[&sign(b"another body")]);
    let missing = || with_lines(request(KEY, BODY), "x-signature-256", &[]);
    let refused = async |request: Request<Body>| {
        let answer = send(&app, request).await;
        answer.is(401, r#"{"detail":"bad signature"}"#);
    };
    let (log, _logging) = Log::begin();
    refused(forged()).await;
    assert_eq!(
        log.take(),
        ["WARN refused a signature; more of this kind are told at level debug reason=\"mismatch\""]
    );
    refused(missing()).await;
    assert_eq!(
        log.take(),
        ["WARN refused a signature; more of this kind are told at level debug reason=\"missing\""]
    );
    for _ in 0..3 {
        refused(forged()).await;
        refused(missing()).await;
    }
    assert_eq!(log.take(), [""; 0]);
}
