//! Every dead-letter store on something real: files, servers of both kinds, clusters.
//!
//! `cargo xtask e2e dead-letters` brings up what this needs. What holds for every store runs on each of
//! [`support::places`]; what only one kind of store can meet has tests of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails loudly"
)]

mod every_store;
mod letters;
mod many;
mod redis;
mod redis_outages;
mod rights;
mod support;
