//! The Redis Streams sink against servers that are scripted, over real connections. Real servers are the matter of the
//! end-to-end tests.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails loudly"
)]

mod config;
mod connections;
mod entries;
mod server;

use std::time::{Duration, Instant, SystemTime};

use idemp_core::{Attempt, EventType, Message, Outcome, Run, Secret, Sink};
use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};

use server::Server;

/// More than any attempt here takes: where it runs out, the test was to end otherwise.
const AMPLE: Duration = Duration::from_secs(60);
/// For attempts that are meant to run out of time.
const SHORT: Duration = Duration::from_millis(300);

const DELIVERED: Outcome = Outcome::Delivered { status: None };

/// Key `req-42:tool_end:1`.
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

fn config(server: &Server) -> RedisStreamsConfig {
    let secret = Secret::new("whsec_test_secret").unwrap();
    RedisStreamsConfig::new(format!("redis://{}", server.address()), "webhooks", secret)
}

fn sink(server: &Server) -> RedisStreamsSink {
    RedisStreamsSink::new(config(server)).unwrap()
}

async fn deliver(sink: &RedisStreamsSink, timeout: Duration) -> Outcome {
    sink.deliver(&message(), attempt(timeout)).await
}
