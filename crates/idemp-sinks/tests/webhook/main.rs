//! The webhook sink against peers that behave and misbehave, over real connections.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails loudly"
)]

mod config;
mod faults;
mod http2;
mod proxies;
mod requests;
mod statuses;
mod tls;

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use idemp_core::{Attempt, Cause, EventType, Failure, Message, Outcome, Run, Secret, Sink, Transport};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};

/// More than any attempt here takes: where it runs out, the test was to end otherwise.
const AMPLE: Duration = Duration::from_secs(60);
/// For attempts that are meant to run out of time.
const SHORT: Duration = Duration::from_millis(1_500);

const DELIVERED: Outcome = Outcome::Delivered { status: Some(200) };

/// Key `req-42:tool_end:1`, and the body of the vector `order/callback envelope`.
fn message() -> Message {
    let run = Run::with_id("req-42".parse().unwrap());
    let data = br#"{"output": "ok", "name": "t"}"#;
    run.event_from_json(EventType::TOOL_END, data).unwrap()
}

fn attempt(timeout: Duration) -> Attempt {
    Attempt {
        number: 1,
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_040_000),
        deadline: Instant::now() + timeout,
    }
}

/// The defaults, except that the environment's proxies do not count.
fn config(url: impl Into<String>) -> WebhookConfig {
    WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(url, Secret::new("whsec_test_secret").unwrap())
    }
}

fn sink(url: impl Into<String>) -> WebhookSink {
    WebhookSink::new(config(url)).unwrap()
}

async fn deliver(sink: &WebhookSink, timeout: Duration) -> Outcome {
    sink.deliver(&message(), attempt(timeout)).await
}

/// The failure of an attempt that is expected to fail.
#[track_caller]
fn failed(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        Outcome::Delivered { status } => panic!("delivered with {status:?}"),
    }
}

#[track_caller]
fn assert_transport(outcome: Outcome, transport: Transport, maybe_delivered: bool) -> Failure {
    let failure = failed(outcome);
    let detail = failure.detail.as_str();
    assert_eq!(failure.cause, Cause::Transport(transport), "{detail}");
    assert_eq!(failure.maybe_delivered, maybe_delivered, "{detail}");
    assert_eq!(failure.retry_after, None);
    assert!(!detail.is_empty());
    failure
}

/// Runs one test of this program in a process of its own, with these variables, by which it knows that it is the child:
/// setting variables in this process would be unsafe beside other tests.
async fn in_child(test: &str, variables: &[(&str, &str)]) {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.envs(variables.iter().copied()).stdin(Stdio::null());
    let output = command.output().await.unwrap();
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains(CHILD_DONE), "the child has done nothing: {printed}");
}

/// What a child prints when it is through.
const CHILD_DONE: &str = "the child is through";
