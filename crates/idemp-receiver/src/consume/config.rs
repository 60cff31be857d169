//! What consumers of every transport have in common, and their error.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// How a consumer treats an event. Every field has a default; the consumer's constructor checks the rules.
#[derive(Clone, Debug)]
pub struct ConsumeConfig {
    /// Whether messages must be signed. Default: [`Signatures::Required`].
    pub signatures: Signatures,
    /// The waits before a failed handler is run again; with none it is run once. After the last run the message goes to
    /// quarantine. Default: 1, 5 and 30 s. At most 100 of them.
    pub retries: Vec<Duration>,
    /// How long one run of a handler or of the quarantine may take before it is cut. Default: 30 s. More than zero.
    ///
    /// It takes the place of the receiver's own cap, which is there for senders that wait for a reply.
    pub handler_cap: Duration,
    /// The wait before a store that was down or a quarantine that failed is asked again. Default: 1 s. More than zero.
    pub recheck: Duration,
}

/// Whether messages must be signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signatures {
    /// A message without a signature goes to quarantine.
    #[default]
    Required,
    /// A message without a signature is trusted: whoever can write to the broker can make events. One with a signature
    /// that is wrong still goes to quarantine.
    Optional,
}

/// Where a group begins that does not exist yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With the oldest message there is, so that none is lost.
    #[default]
    Earliest,
    /// With what comes from now on. On Kafka a partition for which nothing has been committed yet begins anew each time:
    /// what came while nobody read it, or was not settled when its consumer died, is passed over.
    Latest,
}

impl Default for ConsumeConfig {
    fn default() -> Self {
        Self {
            signatures: Signatures::default(),
            retries: [1, 5, 30].map(Duration::from_secs).to_vec(),
            handler_cap: Duration::from_secs(30),
            recheck: Duration::from_secs(1),
        }
    }
}

const MOST_RETRIES: usize = 100;

impl ConsumeConfig {
    pub(super) fn check(&self) -> Result<(), ConsumerError> {
        let rules = [
            (self.retries.len() > MOST_RETRIES, "there are more than 100 retries"),
            (self.handler_cap.is_zero(), "the handler's cap is zero and must be more"),
            (self.recheck.is_zero(), "recheck is zero and must be more"),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, why)) => Err(ConsumerError::configuration(why)),
            None => Ok(()),
        }
    }

    /// The longest time from a claim to the end of the last run, if everything takes as long as it may.
    #[cfg(feature = "redis-streams")]
    pub(super) fn longest(&self) -> Duration {
        let runs = u32::try_from(self.retries.len()).unwrap_or(u32::MAX).saturating_add(1);
        let waits = self
            .retries
            .iter()
            .fold(Duration::ZERO, |all, wait| all.saturating_add(*wait));
        self.handler_cap.saturating_mul(runs).saturating_add(waits)
    }
}

/// A consumer that cannot begin.
#[derive(Debug)]
pub struct ConsumerError {
    kind: ConsumerErrorKind,
    what: Cow<'static, str>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What keeps a consumer from beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerErrorKind {
    /// A field of the configuration breaks a rule.
    Configuration,
    /// The transport's client cannot be made.
    Client,
    /// The server or broker does not answer, or does not let us in.
    Unreachable,
}

impl ConsumerError {
    pub(super) fn configuration(what: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: ConsumerErrorKind::Configuration,
            what: what.into(),
            source: None,
        }
    }

    #[cfg(any(feature = "kafka", feature = "redis-streams"))]
    pub(super) fn client(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: ConsumerErrorKind::Client,
            what: "the client cannot be made".into(),
            source: Some(source.into()),
        }
    }

    #[cfg(any(feature = "kafka", feature = "redis-streams"))]
    pub(super) fn unreachable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind: ConsumerErrorKind::Unreachable,
            what: "no good answer".into(),
            source: Some(source.into()),
        }
    }

    /// What happened.
    #[must_use]
    pub const fn kind(&self) -> ConsumerErrorKind {
        self.kind
    }
}

impl fmt::Display for ConsumerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for ConsumerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
