//! Where events go on Kafka and how, as plain data, and the checks that turn it into librdkafka's settings.

use std::fmt;
use std::time::Duration;

use idemp_core::{ErrorClass, Secret};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError as ClientError;

use super::error::{KafkaError, KafkaErrorKind as Kind};

/// What an attempt has over librdkafka's own time for a message, which it looks after once a second: so the report of a
/// message that ran out of time still comes before the attempt does.
const REPORT_TIME: Duration = Duration::from_millis(1_500);

/// Least time of librdkafka's own.
const LEAST_MESSAGE_TIME: Duration = Duration::from_millis(500);

const LONGEST_ATTEMPT: Duration = Duration::from_secs(60 * 60);

/// Where events go on Kafka, and how. Start from [`KafkaConfig::new`] and change what differs.
///
/// `Debug` shows neither the secret nor the value of a property.
#[derive(Clone)]
pub struct KafkaConfig {
    /// The brokers to begin with, `HOST:PORT` with commas between. A login has properties of its own.
    pub brokers: String,
    /// The topic: 1 to 249 characters of `A-Z a-z 0-9 _ . -`, as Kafka has it. It should exist.
    pub topic: String,
    /// What bodies are signed with.
    pub secret: Secret,
    /// Time of an attempt, 2 s to an hour; the same as the lane's. 5 s by default. librdkafka has 1.5 s less than that
    /// for a message, its own resends among them (`message.timeout.ms`).
    pub attempt_timeout: Duration,
    /// How many messages may lie in the producer's queue, 1 to 10,000,000. 10,000 by default. An attempt that finds
    /// the queue full waits, and is then pushed back.
    pub max_queued_messages: u32,
    /// How many bytes may lie in that queue: 1 MiB to 2 TiB, counted in KiB. 64 MiB by default.
    pub max_queued_bytes: u64,
    /// What `PolicyViolation` means. Some hosted services throttle with it, hence [`ErrorClass::PushBack`] by default; a
    /// broker with a policy of its own means [`ErrorClass::RejectsEvent`] or [`ErrorClass::RejectsConfiguration`].
    pub policy_violation: ErrorClass,
    /// Further settings of librdkafka by name and value, each name once: TLS (`security.protocol`, `ssl.ca.location`),
    /// SASL (`sasl.mechanisms`, `sasl.username`, `sasl.password`), `client.id`, `linger.ms`, `partitioner`,
    /// `message.max.bytes`. Those on which the sink's promises rest are refused. None by default. TLS and SASL SCRAM
    /// need the crate's feature `kafka-tls`.
    pub properties: Vec<(String, String)>,
}

impl KafkaConfig {
    /// The defaults, for these brokers, this topic and secret.
    #[must_use]
    pub fn new(brokers: impl Into<String>, topic: impl Into<String>, secret: Secret) -> Self {
        Self {
            brokers: brokers.into(),
            topic: topic.into(),
            secret,
            attempt_timeout: Duration::from_secs(5),
            max_queued_messages: 10_000,
            max_queued_bytes: 64 << 20,
            policy_violation: ErrorClass::PushBack,
            properties: Vec::new(),
        }
    }

    /// librdkafka's own time for a message.
    pub(super) fn message_timeout(&self) -> Duration {
        self.attempt_timeout.saturating_sub(REPORT_TIME)
    }

    /// The settings, with every field checked.
    pub(super) fn checked(&self) -> Result<ClientConfig, KafkaError> {
        self.check_brokers()?;
        self.check_topic()?;
        if !(LEAST_MESSAGE_TIME + REPORT_TIME..=LONGEST_ATTEMPT).contains(&self.attempt_timeout) {
            return Err(KafkaError::new(Kind::AttemptTimeout, "must be 2 s to an hour"));
        }
        if !(1..=10_000_000).contains(&self.max_queued_messages) {
            return Err(KafkaError::new(
                Kind::Queue,
                "max_queued_messages must be 1 to 10,000,000",
            ));
        }
        let queued_kib = self.max_queued_bytes >> 10;
        if !(1024..=i32::MAX as u64).contains(&queued_kib) {
            return Err(KafkaError::new(Kind::Queue, "max_queued_bytes must be 1 MiB to 2 TiB"));
        }
        let mut config = self.settings(queued_kib);
        self.add_properties(&mut config)?;
        Ok(config)
    }

    fn settings(&self, queued_kib: u64) -> ClientConfig {
        let timeout = self.message_timeout();
        let at_most = |longest: u64| timeout.min(Duration::from_millis(longest));
        let ms = |time: Duration| time.as_millis().to_string();
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.brokers.as_str())
            .set("client.id", "idemp")
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("compression.type", "lz4")
            .set("message.timeout.ms", ms(timeout))
            .set("request.timeout.ms", ms(at_most(30_000)))
            // A broker that does not answer must not cost more than one attempt.
            .set("socket.timeout.ms", ms(at_most(60_000)))
            .set(
                "socket.connection.setup.timeout.ms",
                ms(at_most(30_000).max(Duration::from_secs(1))),
            )
            .set("reconnect.backoff.max.ms", "500")
            // Within a message's time, or a missing topic would show as a time-out.
            .set(
                "topic.metadata.propagation.max.ms",
                ms((timeout / 2).min(Duration::from_secs(2))),
            )
            .set("queue.buffering.max.messages", self.max_queued_messages.to_string())
            .set("queue.buffering.max.kbytes", queued_kib.to_string())
            // A lone event is not held back; under load messages gather while requests are in flight.
            .set("linger.ms", "0");
        config
    }

    fn add_properties(&self, config: &mut ClientConfig) -> Result<(), KafkaError> {
        for (index, (name, value)) in self.properties.iter().enumerate() {
            let fault = |why: &str| KafkaError::new(Kind::Properties, format!("`{}` {why}", name.escape_debug()));
            if let Some((_, why)) = OWNED.iter().find(|(owned, _)| owned == name) {
                return Err(fault(why));
            }
            if self.properties[..index].iter().any(|(other, _)| other == name) {
                return Err(fault("is given twice"));
            }
            // Alone, so that it is this one that librdkafka complains of.
            let alone = ClientConfig::from_iter([(name.clone(), value.clone())]);
            if let Err(error) = alone.create_native_config() {
                return Err(fault(complaint(name, &error)));
            }
            config.set(name, value);
        }
        Ok(())
    }

    fn check_brokers(&self) -> Result<(), KafkaError> {
        let well = |broker: &str| {
            let address = broker.split_once("://").map_or(broker, |(_, address)| address);
            let (host, port) = match address.rsplit_once(':') {
                // The colons of `[::1]` are the host's.
                Some((host, port)) if !port.contains(']') => (host, Some(port)),
                _ => (address, None),
            };
            let port_is_well = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
            port_is_well && !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@')
        };
        if !self.brokers.split(',').map(str::trim).all(well) {
            return Err(KafkaError::new(
                Kind::Brokers,
                "must be `HOST:PORT`, with commas between several",
            ));
        }
        Ok(())
    }

    /// Kafka's own rule, `org.apache.kafka.common.internals.Topic`.
    fn check_topic(&self) -> Result<(), KafkaError> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let topic = self.topic.as_str();
        if !(1..=249).contains(&topic.len()) || !topic.bytes().all(legal) || matches!(topic, "." | "..") {
            let why = "must be 1 to 249 characters of `A-Z a-z 0-9 _ . -`, and neither `.` nor `..`";
            return Err(KafkaError::new(Kind::Topic, why));
        }
        Ok(())
    }

    /// librdkafka would not make a client of settings that it had taken one by one. Its text may quote a value, so that
    /// only the names in it are told.
    pub(super) fn refused(&self, error: &ClientError) -> KafkaError {
        let text = error.to_string();
        let names = self.properties.iter().map(|(name, _)| name.as_str());
        let named: Vec<&str> = names.filter(|name| text.contains(name)).collect();
        let why = match named.as_slice() {
            [] => "librdkafka makes no producer of these properties".to_owned(),
            named => format!(
                "librdkafka makes no producer of these properties: look at {}",
                named.join(", ")
            ),
        };
        KafkaError::new(Kind::Client, why)
    }
}

/// Properties on which the sink's promises rest, under all their names, and why each is not free.
const OWNED: &[(&str, &str)] = {
    const FIELD: &str = "is what the field `brokers` says";
    const TIME: &str = "follows from `attempt_timeout`";
    const QUEUE: &str = "follows from `max_queued_messages` and `max_queued_bytes`";
    const ONCE: &str = "is fixed: without it resends would make duplicates, or lose events";
    const OTHER: &str = "is not for this sink";
    &[
        ("bootstrap.servers", FIELD),
        ("metadata.broker.list", FIELD),
        ("enable.idempotence", ONCE),
        ("acks", ONCE),
        ("request.required.acks", ONCE),
        ("retries", ONCE),
        ("message.send.max.retries", ONCE),
        ("max.in.flight", ONCE),
        ("max.in.flight.requests.per.connection", ONCE),
        ("queuing.strategy", ONCE),
        ("queue.buffering.backpressure.threshold", ONCE),
        (
            "enable.gapless.guarantee",
            "would turn one lost message into a broken producer",
        ),
        ("compression.type", "is fixed: lz4"),
        ("compression.codec", "is fixed: lz4"),
        ("message.timeout.ms", TIME),
        ("delivery.timeout.ms", TIME),
        ("request.timeout.ms", TIME),
        ("socket.timeout.ms", TIME),
        ("socket.connection.setup.timeout.ms", TIME),
        ("reconnect.backoff.max.ms", "is fixed: 500"),
        ("topic.metadata.propagation.max.ms", TIME),
        ("queue.buffering.max.messages", QUEUE),
        ("queue.buffering.max.kbytes", QUEUE),
        ("delivery.report.only.error", "is fixed: every event has its report"),
        ("transactional.id", OTHER),
        ("transaction.timeout.ms", OTHER),
        ("test.mock.num.brokers", OTHER),
        ("test.mock.broker.rtt", OTHER),
        ("log.queue", OTHER),
        ("statistics.interval.ms", OTHER),
    ]
};

/// In words that hold no value.
fn complaint(name: &str, error: &ClientError) -> &'static str {
    use rdkafka::types::RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN;
    let needs_tls = ["ssl.", "sasl."].iter().any(|prefix| name.starts_with(prefix)) || name == "security.protocol";
    match error {
        ClientError::ClientConfig(RD_KAFKA_CONF_UNKNOWN, ..) => "is no property of librdkafka",
        _ if needs_tls && !cfg!(feature = "kafka-tls") => {
            "has a value that this build's librdkafka does not take: TLS and SASL SCRAM need the feature kafka-tls"
        }
        _ => "has a value that librdkafka does not take",
    }
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.properties.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .field("topic", &self.topic)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("max_queued_messages", &self.max_queued_messages)
            .field("max_queued_bytes", &self.max_queued_bytes)
            .field("policy_violation", &self.policy_violation)
            .field("properties", &names)
            .finish_non_exhaustive()
    }
}
