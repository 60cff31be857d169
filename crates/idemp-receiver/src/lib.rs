#![cfg_attr(feature = "axum", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "axum"),
    doc = "Takes the effect of each event once: verify, claim, handle, complete. The features add HTTP and stores."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod claim;
mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(any(feature = "kafka", feature = "redis-streams"))]
pub mod consume;
mod due;
mod envelope;
mod event;
mod gate;
#[cfg(feature = "tower")]
mod http;
mod machine;
mod memory;
mod meters;
#[cfg(feature = "postgres")]
mod postgres;
mod receiver;
#[cfg(feature = "redis")]
mod redis;
mod reply;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod work;

pub use claim::{ClaimKey, ClaimKeyError, Claimant, Fingerprint, Scope, ScopeError, Token};
pub use config::{ConfigError, ReceiverConfig};
pub use event::{DataError, Event, HandlerError};
#[cfg(feature = "axum")]
pub use http::NoReceiver;
#[cfg(feature = "tower")]
pub use http::{HandlerService, ReceiverLayer, ReceiverService};
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::{InboxTransaction, POSTGRES_MIGRATIONS, PostgresInbox, PostgresStore};
pub use receiver::{Incoming, Receiver};
#[cfg(feature = "redis")]
pub use redis::{Checked, RedisConfig, RedisStore};
pub use reply::{BadRequest, Reply, Unavailable};
#[cfg(feature = "sqlite")]
pub use sqlite::{SQLITE_MIGRATIONS, SqliteInbox, SqliteStore};
pub use store::{Claim, ClaimStore, Completed, StoreError, StoreErrorKind};

#[cfg(all(doctest, feature = "axum", feature = "sqlite"))]
#[doc = include_str!("../../../docs/receiver.md")]
struct Guide;
