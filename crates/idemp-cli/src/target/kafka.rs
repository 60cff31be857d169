//! `kafka://BROKERS/TOPIC`: every option but `policy_violation` is a setting of librdkafka.

use std::sync::Arc;

#[cfg(feature = "kafka")]
use idemp_core::ErrorClass;
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
    let policy_violation = policy_violation(&mut spec.address.options)?;
    let properties = spec.address.options.take_all()?;
    let defaults = KafkaConfig::new(brokers, topic, spec.secret);
    let config = KafkaConfig {
        attempt_timeout: spec.attempt_timeout,
        policy_violation: policy_violation.unwrap_or(defaults.policy_violation),
        // The sink keeps its own copies.
        properties: properties
            .iter()
            .map(|(name, value)| (name.clone(), value.to_string()))
            .collect(),
        ..defaults
    };
    let sink = KafkaSink::new(config).map_err(|error| Failure::usage("kafka").because(&error))?;
    Ok(Arc::new(sink))
}

/// What the option `policy_violation` says that this code means, by the name of a class.
#[cfg(feature = "kafka")]
fn policy_violation(options: &mut crate::address::Options) -> Result<Option<ErrorClass>, Failure> {
    let Some(text) = options.take("policy_violation") else {
        return Ok(None);
    };
    let class = ErrorClass::ALL.into_iter().find(|class| class.code() == text);
    let unknown = || {
        let known = ErrorClass::ALL.map(ErrorClass::code).join(", ");
        Failure::usage(format_args!("option policy_violation: not one of {known}"))
    };
    class.map(Some).ok_or_else(unknown)
}

#[cfg(not(feature = "kafka"))]
pub(super) fn open(_spec: Spec<'_>) -> Result<Arc<dyn Sink>, Failure> {
    Err(Failure::not_built("Kafka", "kafka"))
}

#[cfg(all(test, feature = "kafka"))]
mod tests {
    use super::*;
    use crate::address::Address;

    fn taken(address: &str) -> Result<(Option<ErrorClass>, usize), Failure> {
        let mut options = Address::parse(address).map_err(Failure::usage)?.options;
        Ok((policy_violation(&mut options)?, options.take_all()?.len()))
    }

    #[test]
    fn what_a_policy_violation_means_is_no_setting_of_librdkafka() {
        assert_eq!(taken("kafka://h:9092/t?linger.ms=5").unwrap(), (None, 1));
        let address = "kafka://h:9092/t?policy_violation=rejects_event&linger.ms=5";
        assert_eq!(taken(address).unwrap(), (Some(ErrorClass::RejectsEvent), 1));
        let failure = taken("kafka://h:9092/t?policy_violation=reject").unwrap_err();
        assert!(format!("{failure:?}").contains("push_back"), "{failure:?}");
    }
}
