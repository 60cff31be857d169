//! The SNS sink against a peer that answers as SNS does, and misbehaves, over real connections.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails loudly"
)]

mod codes;
mod config;
mod faults;
mod requests;

use std::time::{Duration, Instant, SystemTime};

use aws_sdk_sns::Client;
use aws_sdk_sns::config::{BehaviorVersion, Credentials, Region};
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use idemp_core::{Attempt, EventType, Failure, Message, Outcome, Run, Secret, Sink};
use idemp_sinks::sns::{SnsConfig, SnsSink};
use idemp_testkit::peer::Answer;

/// More than any attempt here takes: where it runs out, the test was to end otherwise.
const AMPLE: Duration = Duration::from_secs(60);
/// For attempts that are meant to run out of time.
const SHORT: Duration = Duration::from_millis(1_500);

const TOPIC: &str = "arn:aws:sns:eu-west-1:123456789012:events";
const FIFO: &str = "arn:aws:sns:eu-west-1:123456789012:events.fifo";

const DELIVERED: Outcome = Outcome::Delivered { status: None };

/// Key `req-42:tool_end:1`, and the body of the vector `order/callback envelope`.
fn message() -> Message {
    let run = Run::with_id("req-42".parse().unwrap());
    let data = br#"{"output": "ok", "name": "t"}"#;
    run.event_from_json(EventType::TOOL_END, data).unwrap()
}

fn attempt(timeout: Duration) -> Attempt {
    Attempt {
        number: 1,
        now: SystemTime::now(),
        deadline: Instant::now() + timeout,
    }
}

fn config(topic_arn: &str) -> SnsConfig {
    SnsConfig::new(topic_arn, Secret::new("whsec_test_secret").unwrap())
}

/// A client with the SDK's own retries on, as applications have it.
fn client(url: &str) -> Client {
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let config = aws_sdk_sns::Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .http_client(http)
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("AKIDEXAMPLE", "secret", None, None, "tests"))
        .endpoint_url(url);
    Client::from_conf(config.build())
}

fn sink(url: &str) -> SnsSink {
    SnsSink::from_client(&client(url), config(TOPIC)).unwrap()
}

async fn deliver(sink: &SnsSink, timeout: Duration) -> Outcome {
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

/// What SNS says when it has taken a message (API reference, Publish).
fn taken() -> Answer {
    Answer::status(200).header("Content-Type", "text/xml").body(
        r#"<PublishResponse xmlns="https://sns.amazonaws.com/doc/2010-03-31/"><PublishResult>
<MessageId>567910cd-659e-55d4-8ccb-5aaf14679dc0</MessageId></PublishResult><ResponseMetadata>
<RequestId>d74b8436-ae13-5ab4-a9ff-ce54dfea72a0</RequestId></ResponseMetadata></PublishResponse>"#,
    )
}

/// What it says when it has not.
fn refused(status: u16, code: &str) -> Answer {
    Answer::status(status).header("Content-Type", "text/xml").body(format!(
        r#"<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender</Type>
<Code>{code}</Code><Message>as the peer said</Message></Error>
<RequestId>9dd01905-5012-5f99-8663-4b3ecd0dfaef</RequestId></ErrorResponse>"#
    ))
}
