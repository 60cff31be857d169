//! `kafka://BROKERS/TOPIC`: every option is a setting of librdkafka.

use std::sync::Arc;

use idemp_core::Sink;

use super::Spec;
use crate::exit::Failure;

#[cfg(feature = "kafka")]
pub(super) fn open(mut spec: Spec<'_>) -> Result<Arc<dyn Sink>, Failure> {
    use idemp_sinks::kafka::{KafkaConfig, KafkaSink};

    let (brokers, topic) = match spec.address.place.split_once('/') {
        Some((brokers, topic)) if !brokers.is_empty() && !topic.is_empty() => (brokers, topic),
        _ => return Err(Failure::usage("not of the form kafka://BROKERS/TOPIC")),
    };
    let properties = spec.address.options.take_all()?;
    let config = KafkaConfig {
        attempt_timeout: spec.attempt_timeout,
        // The sink keeps its own copies.
        properties: properties
            .iter()
            .map(|(name, value)| (name.clone(), value.to_string()))
            .collect(),
        ..KafkaConfig::new(brokers, topic, spec.secret)
    };
    let sink = KafkaSink::new(config).map_err(|error| Failure::usage("kafka").because(&error))?;
    Ok(Arc::new(sink))
}

#[cfg(not(feature = "kafka"))]
pub(super) fn open(_spec: Spec<'_>) -> Result<Arc<dyn Sink>, Failure> {
    Err(Failure::not_built("Kafka", "kafka"))
}
