//! The SNS sink on a server that speaks SNS, with a queue behind the topic that a Python peer reads with boto3.
//!
//! `cargo xtask e2e sns` brings up what this needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

mod corpus;
mod faults;
mod support;
