#![doc = include_str!("../README.md")]

#[cfg(feature = "sns")]
pub mod sns;
#[cfg(feature = "redis-streams")]
pub mod redis_streams;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "webhook")]
pub mod webhook;
