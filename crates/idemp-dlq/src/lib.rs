#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "conformance")]
pub mod conformance;
mod depth;
mod error;
mod filter;
mod letter;
mod memory;
#[cfg(feature = "object")]
mod object;
#[cfg(feature = "redis-streams")]
mod redis_streams;
mod replay;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod time;
mod wire;

pub use depth::record_depth;
pub use error::{StoreError, StoreErrorKind};
pub use filter::Filter;
pub use letter::{DeadLetter, Letterhead, ReplayFailure};
pub use memory::MemoryStore;
#[cfg(feature = "object")]
pub use object::{ObjectStoreDlq, S3Config};
#[cfg(feature = "redis-streams")]
pub use redis_streams::{RedisStreamsConfig, RedisStreamsStore};
pub use replay::{
    Fate, OptionsError, Progress, Refused, ReplayError, ReplayOptions, ReplaySummary, Replayer, Stopped, Target,
};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{Claim, DeadLetterStore, EntryId, LeaseToken, Listed, Loaded, Put, Selection, Settled, Stats};
pub use wire::RecordError;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/dlq.md")]
struct Guide;
