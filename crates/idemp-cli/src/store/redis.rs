//! `redis://HOST:PORT/DB?stream=NAME`: dead letters in a stream.

use std::sync::Arc;

use idemp_dlq::DeadLetterStore;

use super::Missing;
use crate::address::Address;
use crate::exit::Failure;

#[cfg(not(feature = "redis"))]
pub(super) async fn open(_address: Address, _missing: Missing) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    Err(Failure::not_built("Redis", "redis"))
}

#[cfg(feature = "redis")]
pub(super) async fn open(address: Address, missing: Missing) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    use idemp_dlq::{RedisStreamsConfig, RedisStreamsStore};

    use crate::redis_address::RedisAddress;

    let mut address = RedisAddress::take(address)?;
    let defaults = RedisStreamsConfig::new(address.url.as_str());
    let config = RedisStreamsConfig {
        stream: address.options.take("stream").unwrap_or(defaults.stream),
        username: address.login.username.take(),
        password: address.login.password.take().map(|password| password.to_string()),
        cluster: address.cluster,
        root_certificates: address.root_certificates()?,
        ..RedisStreamsConfig::new(address.url.as_str())
    };
    address.options.finish()?;
    let opened = match missing {
        Missing::Make => RedisStreamsStore::open(&config).await,
        Missing::Refuse => RedisStreamsStore::open_existing(&config).await,
    };
    let store = opened.map_err(|error| Failure::usage("cannot open").because(&error))?;
    Ok(Arc::new(store))
}
