//! `redis://HOST:PORT/DB?stream=NAME`, or `rediss://` for TLS.

use std::sync::Arc;

use idemp_core::Sink;

use super::Spec;
use crate::exit::Failure;

#[cfg(feature = "redis")]
pub(super) fn open(spec: Spec<'_>) -> Result<Arc<dyn Sink>, Failure> {
    use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};

    use crate::redis_address::RedisAddress;

    let mut address = RedisAddress::take(spec.address)?;
    let stream = address.stream()?;
    let config = RedisStreamsConfig {
        username: address.login.username.take(),
        password: address.login.password.take().map(|password| password.to_string()),
        maxlen: address.options.take_parsed("maxlen", "a number")?,
        cluster: address.cluster,
        // A server that cannot be reached must not show as a timeout, after which it may have been delivered.
        connect_timeout: address.connect_timeout.min(spec.attempt_timeout * 3 / 5),
        root_certificates: address.root_certificates()?,
        ..RedisStreamsConfig::new(address.url.as_str(), stream, spec.secret)
    };
    address.options.finish()?;
    let sink = RedisStreamsSink::new(config).map_err(|error| Failure::usage("redis").because(&error))?;
    Ok(Arc::new(sink))
}

#[cfg(not(feature = "redis"))]
pub(super) fn open(_spec: Spec<'_>) -> Result<Arc<dyn Sink>, Failure> {
    Err(Failure::not_built("Redis", "redis"))
}
