#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "redis-streams")]
pub mod redis_streams;
#[cfg(feature = "sns")]
pub mod sns;
#[cfg(feature = "webhook")]
pub mod webhook;
