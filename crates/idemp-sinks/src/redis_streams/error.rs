//! Why a configuration makes no sink.

use std::error::Error;
use std::fmt;

/// A [`RedisStreamsConfig`](super::RedisStreamsConfig) that makes no sink. It names the field, and holds neither URL
/// nor user name nor password nor secret.
#[derive(Debug)]
pub struct RedisStreamsError {
    kind: RedisStreamsErrorKind,
    why: &'static str,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// Which part of the configuration is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisStreamsErrorKind {
    /// `url`
    Url,
    /// `startup_nodes`
    StartupNodes,
    /// `stream`
    Stream,
    /// `maxlen`
    Maxlen,
    /// `connect_timeout`
    ConnectTimeout,
    /// `root_certificates`
    RootCertificates,
    /// The client could not be set up.
    Client,
}

impl RedisStreamsErrorKind {
    const fn field(self) -> &'static str {
        match self {
            Self::Url => "url",
            Self::StartupNodes => "startup_nodes",
            Self::Stream => "stream",
            Self::Maxlen => "maxlen",
            Self::ConnectTimeout => "connect_timeout",
            Self::RootCertificates => "root_certificates",
            Self::Client => "client",
        }
    }
}

impl RedisStreamsError {
    pub(super) fn new(kind: RedisStreamsErrorKind, why: &'static str) -> Self {
        Self {
            kind,
            why,
            source: None,
        }
    }

    pub(super) fn with_source(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self {
            source: Some(Box::new(source)),
            ..self
        }
    }

    /// Which part of the configuration is at fault.
    #[must_use]
    pub const fn kind(&self) -> RedisStreamsErrorKind {
        self.kind
    }
}

impl fmt::Display for RedisStreamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis streams {}: {}", self.kind.field(), self.why)
    }
}

impl Error for RedisStreamsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
