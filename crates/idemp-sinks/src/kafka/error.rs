//! Why a configuration makes no sink.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// A [`KafkaConfig`](super::KafkaConfig) that makes no sink. It names the field, and holds neither secret nor the value
/// of a property.
#[derive(Debug)]
pub struct KafkaError {
    kind: KafkaErrorKind,
    why: Cow<'static, str>,
}

/// Which part of the configuration is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KafkaErrorKind {
    /// `brokers`
    Brokers,
    /// `topic`
    Topic,
    /// `attempt_timeout`
    AttemptTimeout,
    /// `max_queued_messages` or `max_queued_bytes`
    Queue,
    /// `properties`
    Properties,
    /// librdkafka could not set up a producer with it.
    Client,
}

impl KafkaErrorKind {
    const fn field(self) -> &'static str {
        match self {
            Self::Brokers => "brokers",
            Self::Topic => "topic",
            Self::AttemptTimeout => "attempt_timeout",
            Self::Queue => "queue",
            Self::Properties => "properties",
            Self::Client => "client",
        }
    }
}

impl KafkaError {
    pub(super) fn new(kind: KafkaErrorKind, why: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, why: why.into() }
    }

    /// Which part of the configuration is at fault.
    #[must_use]
    pub const fn kind(&self) -> KafkaErrorKind {
        self.kind
    }
}

impl fmt::Display for KafkaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kafka {}: {}", self.kind.field(), self.why)
    }
}

// No source: librdkafka's own errors quote the values that they complain of.
impl Error for KafkaError {}
