//! `redis://HOST:PORT/DB?stream=NAME`: dead letters in a stream.

use std::sync::Arc;

use idemp_dlq::DeadLetterStore;

use crate::address::Address;
use crate::exit::Failure;

#[cfg(not(feature = "redis"))]
pub(super) async fn open(_address: Address) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    Err(super::missing("Redis", "redis"))
}

#[cfg(feature = "redis")]
pub(super) async fn open(_address: Address) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    Err(super::missing("Redis", "redis"))
}
