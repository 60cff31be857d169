//! The binary `idemp` as its users meet it: real processes on the loopback interface.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

mod config;
mod dead_letters;
mod fallback;
mod input;
mod interrupt;
mod memory;
mod receive;
mod replay;
mod round_trip;
mod support;
mod tools;
