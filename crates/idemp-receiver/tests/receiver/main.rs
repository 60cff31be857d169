//! The receiver as its users see it: over HTTP, over its stores, in races.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

mod events;
mod http;
mod inbox;
mod logs;
mod metrics;
mod model;
mod races;
mod replies;
mod service;
mod stores;
mod support;
