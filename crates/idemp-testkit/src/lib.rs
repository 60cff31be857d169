//! Test support for the workspace: vectors, clocks, scripted sinks and peers. Not published.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "test support fails loudly"
)]

pub mod clock;
pub mod gate;
pub mod peer;
pub mod proxy;
pub mod sink;
pub mod vectors;

use std::time::{Duration, Instant};

/// Looks again and again until the condition holds, in real time.
///
/// # Panics
/// If it does not within a minute: a test that waits for ever tells nothing.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
