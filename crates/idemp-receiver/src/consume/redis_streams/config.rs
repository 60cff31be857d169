//! Where entries come from on Redis Streams and how, as plain data, and its checks.

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::consume::config::{ConsumeConfig, ConsumerError, Start};

/// Where entries come from on Redis Streams, and how. Begin with [`RedisStreamsConsumerConfig::new`] and change what
/// differs.
///
/// `Debug` leaves the address out.
#[derive(Clone)]
pub struct RedisStreamsConsumerConfig {
    /// `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS. It may hold a password, so it is in
    /// no log and no error. A node of a cluster will do only if it is the one that has the stream.
    pub url: String,
    /// User name (ACL), in place of the one in the URL. Default: none, which is the server's default user.
    pub username: Option<String>,
    /// Password, in place of the one in the URL. Default: none.
    pub password: Option<String>,
    /// Certificates of authorities to trust with `rediss://` **in place of** those that the system trusts, as PEM.
    /// Default: none.
    pub root_certificates: Vec<u8>,
    /// The stream's key, not empty. It is made if it does not exist.
    pub stream: String,
    /// The consumer group, not empty. It is made if it does not exist, also after a restart that has lost it.
    pub group: String,
    /// This consumer's name in the group, not empty and not in use by another process. Default: `idemp-` and a random
    /// UUID.
    pub consumer: String,
    /// Where a group begins that does not exist yet. Default: [`Start::Earliest`]. After a loss the group is made with
    /// the same beginning, not later: what was done already is known as done.
    pub start: Start,
    /// How many entries may be at work at one time. Default: 64. From 1 to 10,000.
    pub concurrency: usize,
    /// For how long nothing must have been heard of an entry before it is taken over from its consumer, which is then
    /// taken for dead. Default: 3 minutes. More than the longest handling: all runs of the handler and the waits between
    /// them ([`ConsumeConfig`]).
    pub min_idle: Duration,
    /// The time between two looks for such entries. Default: 15 s. More than zero.
    pub reclaim_every: Duration,
    /// How long the server may hold back its answer when there is nothing new. Also how long a stop may take longer.
    /// Default: 1 s. From 1 ms to 60 s.
    pub block: Duration,
    /// How long connecting may take. Default: 2 s. More than zero.
    pub connect_timeout: Duration,
    /// How long an answer may take, beyond `block` where that is waited for. Default: 2 s. More than zero.
    pub response_timeout: Duration,
}

impl RedisStreamsConsumerConfig {
    /// The defaults, for this server, stream and group.
    #[must_use]
    pub fn new(url: impl Into<String>, stream: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            username: None,
            password: None,
            root_certificates: Vec::new(),
            stream: stream.into(),
            group: group.into(),
            consumer: format!("idemp-{}", Uuid::new_v4()),
            start: Start::default(),
            concurrency: 64,
            min_idle: Duration::from_secs(180),
            reclaim_every: Duration::from_secs(15),
            block: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(2),
        }
    }

    pub(super) fn check(&self, consume: &ConsumeConfig) -> Result<(), ConsumerError> {
        let longest = consume.longest();
        if self.min_idle <= longest {
            return Err(ConsumerError::configuration(format!(
                "min_idle of {:?} is not above the longest handling, {longest:?}",
                self.min_idle
            )));
        }
        let rules = [
            (self.stream.is_empty(), "the stream has no name"),
            (self.group.is_empty(), "the group has no name"),
            (self.consumer.is_empty(), "the consumer has no name"),
            (
                !(1..=10_000).contains(&self.concurrency),
                "concurrency is not between 1 and 10,000",
            ),
            (self.reclaim_every.is_zero(), "reclaim_every is zero and must be more"),
            (
                !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&self.block),
                "block is not between 1 ms and 60 s",
            ),
            (
                self.connect_timeout.is_zero(),
                "connect_timeout is zero and must be more",
            ),
            (
                self.response_timeout.is_zero(),
                "response_timeout is zero and must be more",
            ),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, why)) => Err(ConsumerError::configuration(why)),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for RedisStreamsConsumerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamsConsumerConfig")
            .field("stream", &self.stream)
            .field("group", &self.group)
            .field("consumer", &self.consumer)
            .field("start", &self.start)
            .field("concurrency", &self.concurrency)
            .field("min_idle", &self.min_idle)
            .field("reclaim_every", &self.reclaim_every)
            .field("block", &self.block)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RedisStreamsConsumerConfig {
        RedisStreamsConsumerConfig::new("redis://:hush@127.0.0.1:6379", "events", "idemp")
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut RedisStreamsConsumerConfig), expected: &str) {
        let mut config = config();
        change(&mut config);
        let error = config.check(&ConsumeConfig::default()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn each_rule_is_checked() {
        assert!(config().check(&ConsumeConfig::default()).is_ok());
        // Four runs of 30 s and 36 s between them.
        refused(
            |config| config.min_idle = Duration::from_secs(156),
            "min_idle of 156s is not above the longest handling, 156s",
        );
        refused(|config| config.stream.clear(), "the stream has no name");
        refused(|config| config.group.clear(), "the group has no name");
        refused(|config| config.consumer.clear(), "the consumer has no name");
        refused(
            |config| config.concurrency = 0,
            "concurrency is not between 1 and 10,000",
        );
        refused(
            |config| config.reclaim_every = Duration::ZERO,
            "reclaim_every is zero and must be more",
        );
        refused(
            |config| config.block = Duration::from_secs(61),
            "block is not between 1 ms and 60 s",
        );
        refused(
            |config| config.connect_timeout = Duration::ZERO,
            "connect_timeout is zero and must be more",
        );
        refused(
            |config| config.response_timeout = Duration::ZERO,
            "response_timeout is zero and must be more",
        );
    }

    #[test]
    fn debug_shows_no_address() {
        let config = RedisStreamsConsumerConfig {
            username: Some("hushed".to_owned()),
            password: Some("hush".to_owned()),
            ..config()
        };
        assert!(!format!("{config:?}").contains("hush"));
    }
}
