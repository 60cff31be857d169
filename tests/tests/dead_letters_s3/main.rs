//! Dead letters in a bucket of a server that speaks S3.
//!
//! `cargo xtask e2e dead-letters` brings up what this needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

mod faults;
mod opening;
mod replays;
mod support;
