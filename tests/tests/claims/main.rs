//! Claims in Redis, Valkey and Postgres, and the inbox, on real servers that are cut off, stopped and flushed.
//!
//! `cargo xtask e2e claims` brings up what this needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

mod conformance;
mod faults;
mod fleet;
mod inbox;
mod kills;
mod outages;
mod support;
mod wire;
