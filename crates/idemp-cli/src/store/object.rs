//! `s3://BUCKET/PREFIX`: dead letters as objects.

use std::sync::Arc;

use idemp_dlq::DeadLetterStore;

use crate::address::Address;
use crate::exit::Failure;

#[cfg(not(feature = "object"))]
pub(super) async fn open(_address: Address) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    Err(super::missing("S3", "object"))
}

#[cfg(feature = "object")]
pub(super) async fn open(_address: Address) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    Err(super::missing("S3", "object"))
}
