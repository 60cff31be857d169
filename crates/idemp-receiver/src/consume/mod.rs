//! Consumers: the same verify, claim, handle, complete for events that come over Kafka and Redis Streams
//! (docs/consumers.md).
//!
//! A consumer works over a [`Receiver`](crate::Receiver), with its store, scope, secrets and limits: an event that comes
//! over HTTP as well as over a broker runs once. What differs is who tries again. Over HTTP it is the sender; here it is
//! the consumer itself, which holds the message until it is settled:
//!
//! * A message is acknowledged only after its event is recorded as done, here or by another copy.
//! * A handler that fails is run again after the waits of [`ConsumeConfig::retries`].
//! * What cannot be taken goes to quarantine, and the flow goes on.
//! * While the store or the quarantine is down, nothing is acknowledged.
//!
//! [`Flow`] is all of that without a broker, for a transport of your own.

mod config;
mod flow;
#[cfg(feature = "kafka")]
mod kafka;
mod message;
mod meters;
#[cfg(feature = "redis-streams")]
mod redis_streams;

pub use config::{ConsumeConfig, ConsumerError, ConsumerErrorKind, Signatures, Start};
pub use flow::{Flow, Settled};
#[cfg(feature = "kafka")]
pub use kafka::{KafkaConsumer, KafkaConsumerConfig};
pub use message::{Arrived, Position, QuarantineError, Quarantined};
#[cfg(feature = "redis-streams")]
pub use redis_streams::{RedisStreamsConsumer, RedisStreamsConsumerConfig};

#[cfg(all(doctest, feature = "kafka", feature = "redis-streams", feature = "sqlite"))]
#[doc = include_str!("../../../../docs/consumers.md")]
struct Guide;
