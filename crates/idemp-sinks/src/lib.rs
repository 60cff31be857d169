#![doc = include_str!("../README.md")]

#[cfg(feature = "webhook")]
pub mod webhook;
