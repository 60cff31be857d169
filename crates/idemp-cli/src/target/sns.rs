//! `sns:ARN`: credentials, region and endpoint come from the usual places of AWS.

use std::sync::Arc;

use idemp_core::{Mode, Sink};

use super::Spec;
use crate::exit::Failure;

#[cfg(feature = "sns")]
pub(super) async fn open(mut spec: Spec<'_>) -> Result<(Mode, Arc<dyn Sink>), Failure> {
    use idemp_sinks::sns::{DEFAULT_MODE, SnsConfig, SnsSink};

    let options = &mut spec.address.options;
    let defaults = SnsConfig::new(spec.address.place.as_str(), spec.secret);
    let config = SnsConfig {
        endpoint_url: options.take("endpoint"),
        region: options.take("region"),
        max_message_bytes: options
            .take_parsed("max_message_bytes", "a number of bytes")?
            .unwrap_or(defaults.max_message_bytes),
        connect_timeout: defaults.connect_timeout.min(spec.attempt_timeout * 3 / 5),
        ..defaults
    };
    spec.address.options.finish()?;
    let sink = SnsSink::new(config)
        .await
        .map_err(|error| Failure::usage("sns").because(&error))?;
    Ok((DEFAULT_MODE, Arc::new(sink)))
}

#[cfg(not(feature = "sns"))]
pub(super) async fn open(_spec: Spec<'_>) -> Result<(Mode, Arc<dyn Sink>), Failure> {
    Err(Failure::not_built("SNS", "sns"))
}
