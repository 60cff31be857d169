//! The tests of this crate's public side.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails loudly")]

#[cfg(feature = "conformance")]
mod conformance;
mod letters;
#[cfg(feature = "object")]
mod object;
mod reasons;
mod record;
mod replay;
#[cfg(feature = "sqlite")]
mod sqlite;
