//! Canonical JSON: vectors made by CPython, refusals with their places, and properties.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails loudly")]

mod model;
mod properties;
mod refusals;
mod serialize;
mod vectors;
