//! Where messages come from on Kafka and how, as plain data, and the checks that turn it into librdkafka's settings.

use std::fmt;
use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};

use crate::consume::config::{ConsumerError, Start};

/// Where messages come from on Kafka, and how. Begin with [`KafkaConsumerConfig::new`] and change what differs.
///
/// `Debug` shows no value of a property.
#[derive(Clone)]
pub struct KafkaConsumerConfig {
    /// The brokers to begin with, `HOST:PORT` with commas between.
    pub brokers: String,
    /// The consumer group, not empty.
    pub group: String,
    /// The topics, at least one. One that does not exist yet is looked for every 10 s.
    pub topics: Vec<String>,
    /// Where the group begins in a partition for which it has committed nothing. Default: [`Start::Earliest`].
    pub start: Start,
    /// How many messages of a partition may be in memory, waiting for the one before them; at so many, or at 16 MiB of
    /// them, the partition is paused until half of them are gone. Default: 1,024. From 1 to 100,000. A pause costs a
    /// round trip or two: with few of them and a fast handler, it is the pauses that bound the flow.
    pub buffer: usize,
    /// The time between two commits. What was settled since the last one and was not committed comes again after a
    /// crash, and is then known as done. Default: 100 ms. From 1 ms to 60 s.
    pub commit_every: Duration,
    /// Further settings of librdkafka by name and value: TLS (`security.protocol`, `ssl.ca.location`), SASL
    /// (`sasl.mechanisms`, `sasl.username`, `sasl.password`), `client.id`, `session.timeout.ms`, `group.instance.id`,
    /// `partition.assignment.strategy`. Those on which the consumer's promises rest are refused. None by default.
    pub properties: Vec<(String, String)>,
}

impl KafkaConsumerConfig {
    /// The defaults, for these brokers, this group and one topic.
    #[must_use]
    pub fn new(brokers: impl Into<String>, group: impl Into<String>, topic: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            group: group.into(),
            topics: vec![topic.into()],
            start: Start::default(),
            buffer: 1_024,
            commit_every: Duration::from_millis(100),
            properties: Vec::new(),
        }
    }

    /// The settings, with every field checked.
    pub(super) fn checked(&self) -> Result<ClientConfig, ConsumerError> {
        let rules = [
            (self.brokers.trim().is_empty(), "no broker is given"),
            (self.group.is_empty(), "the group has no name"),
            (
                self.topics.is_empty() || self.topics.iter().any(String::is_empty),
                "no topic is given, or one has no name",
            ),
            (
                !(1..=100_000).contains(&self.buffer),
                "buffer is not between 1 and 100,000",
            ),
            (
                !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&self.commit_every),
                "commit_every is not between 1 ms and 60 s",
            ),
        ];
        if let Some((_, why)) = rules.into_iter().find(|(broken, _)| *broken) {
            return Err(ConsumerError::configuration(why));
        }
        let mut config = self.settings();
        for (name, value) in &self.properties {
            let fault = |why| ConsumerError::configuration(format!("`{}` {why}", name.escape_debug()));
            if OWNED.contains(&name.as_str()) {
                return Err(fault("is not free: the consumer rests on it"));
            }
            // Alone, so that it is this one that librdkafka complains of; its text may quote the value.
            if ClientConfig::from_iter([(name.clone(), value.clone())])
                .create_native_config()
                .is_err()
            {
                return Err(fault(
                    "is not known to librdkafka, or has a value that it does not take",
                ));
            }
            config.set(name, value);
        }
        Ok(config)
    }

    fn settings(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Info);
        config
            .set("bootstrap.servers", self.brokers.as_str())
            .set("group.id", self.group.as_str())
            .set("client.id", "idemp")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set(
                "auto.offset.reset",
                match self.start {
                    Start::Earliest => "earliest",
                    Start::Latest => "latest",
                },
            )
            .set("reconnect.backoff.max.ms", "2000")
            // A topic that is made later, and a leader that has moved, are found soon.
            .set("topic.metadata.refresh.interval.ms", "10000")
            // A paused partition that is resumed has to wait for the fetch of the others.
            .set("fetch.wait.max.ms", "100")
            // What is fetched ahead lies in memory for each partition, besides `buffer`.
            .set("queued.min.messages", "1000")
            .set("queued.max.messages.kbytes", "16384");
        config
    }
}

/// Properties on which the consumer's promises rest, under all their names.
const OWNED: &[&str] = &[
    "bootstrap.servers",
    "metadata.broker.list",
    "group.id",
    "enable.auto.commit",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
];

impl fmt::Debug for KafkaConsumerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.properties.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("KafkaConsumerConfig")
            .field("brokers", &self.brokers)
            .field("group", &self.group)
            .field("topics", &self.topics)
            .field("start", &self.start)
            .field("buffer", &self.buffer)
            .field("commit_every", &self.commit_every)
            .field("properties", &names)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> KafkaConsumerConfig {
        KafkaConsumerConfig::new("127.0.0.1:9092", "idemp", "events")
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut KafkaConsumerConfig), expected: &str) {
        let mut config = config();
        change(&mut config);
        assert_eq!(config.checked().unwrap_err().to_string(), expected);
    }

    #[test]
    fn each_rule_is_checked() {
        assert!(config().checked().is_ok());
        refused(|config| config.brokers = " ".to_owned(), "no broker is given");
        refused(|config| config.group.clear(), "the group has no name");
        refused(|config| config.topics.clear(), "no topic is given, or one has no name");
        refused(|config| config.buffer = 0, "buffer is not between 1 and 100,000");
        refused(
            |config| config.commit_every = Duration::ZERO,
            "commit_every is not between 1 ms and 60 s",
        );
        let property = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        refused(
            |config| config.properties = property("enable.auto.commit", "true"),
            "`enable.auto.commit` is not free: the consumer rests on it",
        );
        refused(
            |config| config.properties = property("session.timeout.ms", "hush"),
            "`session.timeout.ms` is not known to librdkafka, or has a value that it does not take",
        );
    }

    #[test]
    fn properties_are_set_and_their_values_not_shown() {
        let config = KafkaConsumerConfig {
            properties: vec![("client.id".to_owned(), "hush".to_owned())],
            ..config()
        };
        assert_eq!(config.checked().unwrap().get("client.id"), Some("hush"));
        let text = format!("{config:?}");
        assert!(text.contains("client.id") && !text.contains("hush"), "{text}");
    }
}
