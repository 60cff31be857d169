//! The tests of this crate's public side.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails loudly")]

#[cfg(feature = "conformance")]
mod conformance;
mod letters;
mod reasons;
mod record;
#[cfg(feature = "object")]
mod object;
mod replay;
#[cfg(feature = "sqlite")]
mod sqlite;
