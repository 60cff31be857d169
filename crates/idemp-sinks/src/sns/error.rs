//! Why a configuration makes no sink.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// A [`SnsConfig`](super::SnsConfig) that makes no sink. It names the field, and holds no secret and no credential.
#[derive(Debug)]
pub struct SnsError {
    kind: SnsErrorKind,
    why: Cow<'static, str>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnsErrorKind {
    /// `topic_arn`
    TopicArn,
    /// `region`
    Region,
    /// `endpoint_url`
    EndpointUrl,
    /// `max_message_bytes`
    MaxMessageBytes,
    /// `connect_timeout`
    ConnectTimeout,
    /// Nothing that AWS tools look at holds credentials.
    Credentials,
}

impl SnsErrorKind {
    const fn field(self) -> &'static str {
        match self {
            Self::TopicArn => "topic_arn",
            Self::Region => "region",
            Self::EndpointUrl => "endpoint_url",
            Self::MaxMessageBytes => "max_message_bytes",
            Self::ConnectTimeout => "connect_timeout",
            Self::Credentials => "credentials",
        }
    }
}

impl SnsError {
    pub(super) fn new(kind: SnsErrorKind, why: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            why: why.into(),
            source: None,
        }
    }

    pub(super) fn with_source(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self {
            source: Some(Box::new(source)),
            ..self
        }
    }

    /// What is at fault.
    #[must_use]
    pub const fn kind(&self) -> SnsErrorKind {
        self.kind
    }
}

impl fmt::Display for SnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sns {}: {}", self.kind.field(), self.why)
    }
}

impl Error for SnsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
