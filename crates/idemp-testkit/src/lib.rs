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
