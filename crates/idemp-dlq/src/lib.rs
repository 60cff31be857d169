//! Dead letters: events that a sink did not take, kept until somebody replays or purges them.
//!
//! A [`DeadLetter`] holds the event's key and exact bytes and the story of its attempts. A [`DeadLetterStore`] keeps
//! letters and never evicts one: [`MemoryStore`] is always here, the feature `sqlite` adds `SqliteStore`, one file
//! that survives a crash. A [`Replayer`] sends what lies in a store once more, under the original key.
//!
//! The feature `conformance` has the checks that every store passes, for a store of your own.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//!
//! use idemp_core::{EventType, Reason, Run, SinkName};
//! use idemp_dlq::{DeadLetter, DeadLetterStore, Filter, MemoryStore, Put};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let reason = Reason::CircuitOpen;
//! let letter = DeadLetter {
//!     sink: SinkName::parse("webhook")?,
//!     message: Run::new().event(EventType::TOOL_END, "done")?,
//!     reason,
//!     class: reason.class(),
//!     maybe_delivered: false,
//!     attempts: Vec::new(),
//!     accepted_at: SystemTime::now(),
//!     dead_at: SystemTime::now(),
//!     not_before: None,
//!     replay_count: 0,
//! };
//! let store = MemoryStore::new();
//! assert_eq!(store.put(letter.clone()).await?, Put::Added);
//! assert_eq!(store.put(letter).await?, Put::Updated, "identity is the sink and the key");
//! assert_eq!(store.stats(&Filter::default()).await?.depth, 1);
//! # Ok(())
//! # })
//! # }
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod filter;
mod letter;
mod memory;
mod replay;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod time;
mod wire;

pub use error::{StoreError, StoreErrorKind};
pub use filter::Filter;
pub use letter::{DeadLetter, Letterhead, ReplayFailure};
pub use memory::MemoryStore;
pub use replay::{
    Fate, OptionsError, Progress, Refused, ReplayError, ReplayOptions, ReplaySummary, Replayer, Stopped, Target,
};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{Claim, DeadLetterStore, EntryId, LeaseToken, Listed, Loaded, Put, Selection, Settled, Stats};
pub use wire::RecordError;
