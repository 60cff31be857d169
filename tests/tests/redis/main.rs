//! The Redis Streams sink on real servers: every test runs on each server program that is there.
//!
//! `cargo xtask e2e redis` brings up what this needs. A consumer with redis-py (`python/redis_consumer.py`) and CPython
//! (`python/compare.py`) judge what arrived.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails loudly"
)]

mod consumer;
mod corpus;
mod outages;
mod refusals;
mod support;
mod tls;
