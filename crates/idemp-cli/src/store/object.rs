//! `s3://BUCKET/PREFIX`: dead letters as objects.

use std::sync::Arc;

use idemp_dlq::DeadLetterStore;

use crate::address::Address;
use crate::exit::Failure;

#[cfg(not(feature = "object"))]
pub(super) async fn open(_address: Address) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    Err(Failure::not_built("S3", "object"))
}

#[cfg(feature = "object")]
pub(super) async fn open(mut address: Address) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    use idemp_dlq::{ObjectStoreDlq, S3Config};

    let (bucket, prefix) = match address.place.split_once('/') {
        Some((bucket, prefix)) => (bucket, prefix.trim_matches('/')),
        None => (address.place.as_str(), ""),
    };
    if bucket.is_empty() {
        return Err(Failure::usage("not of the form s3://BUCKET/PREFIX"));
    }
    let options = &mut address.options;
    let config = S3Config {
        prefix: prefix.to_owned(),
        endpoint: options.take("endpoint"),
        region: options.take("region"),
        allow_http: options.take_parsed("allow_http", "true or false")?.unwrap_or(false),
        ..S3Config::new(bucket)
    };
    address.options.finish()?;
    let store = ObjectStoreDlq::s3(config)
        .await
        .map_err(|error| Failure::usage("cannot open").because(&error))?;
    Ok(Arc::new(store))
}
