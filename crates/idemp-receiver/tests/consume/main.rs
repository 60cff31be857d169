//! Consumers as their users see them: the flow on scripted stores and a clock that jumps, Kafka on a broker in process.
//! Real servers are in the workspace's own tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

mod flow;
mod kafka;
mod refusals;
mod support;
