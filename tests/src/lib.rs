//! What the integration tests in `tests/` share: the binary under test, child processes that never outlive a test,
//! waiting by a probe, data files, and the choice of slow suites.
//!
//! A test that needs a service belongs to a suite and runs only when that suite is [`selected`]; `cargo xtask e2e`
//! starts the services and selects it.

#![expect(clippy::expect_used, clippy::panic, reason = "a test fails loudly")]

mod binary;
mod corpus;
mod kafka;
mod ministack;
mod net;
mod postgres;
mod process;
mod redis;
mod script;
mod server;
mod suite;

use std::path::{Path, PathBuf};

pub use binary::{idemp, idemp_bin};
pub use corpus::{EVENTS, corpus};
pub use kafka::{Kafka, LossyProxy, kafka_script, make_topic};
pub use ministack::{AwsServer, aws_script, forward, ministack};
pub use net::http_get;
pub use postgres::Postgres;
pub use process::{Finished, Process};
pub use redis::{Redis, RedisClient, RedisReply, redis_programs};
pub use script::json_of;
pub use server::{Server, free_address};
pub use suite::{Suite, selected};

/// A folder that is removed when the value is dropped.
///
/// # Panics
///
/// When it cannot be made.
#[must_use]
pub fn temp_dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("idemp-test-")
        .tempdir()
        .expect("no temporary folder")
}

/// The path of a file in `tests/data/`.
#[must_use]
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
