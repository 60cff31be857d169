//! Why a configuration makes no sink.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// A [`WebhookConfig`](super::WebhookConfig) that makes no sink. It names the field, and holds neither URL nor secret
/// nor header value.
#[derive(Debug)]
pub struct WebhookError {
    kind: WebhookErrorKind,
    why: Cow<'static, str>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// Which part of the configuration is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WebhookErrorKind {
    /// `url`
    Url,
    /// `secret`, which does not suit the Standard Webhooks headers.
    Secret,
    /// `headers`
    Headers,
    /// `connect_timeout`
    ConnectTimeout,
    /// `root_certificates`
    RootCertificates,
    /// `proxy`
    Proxy,
    /// `user_agent`
    UserAgent,
    /// The HTTP client could not be set up.
    Client,
}

impl WebhookErrorKind {
    const fn field(self) -> &'static str {
        match self {
            Self::Url => "url",
            Self::Secret => "secret",
            Self::Headers => "headers",
            Self::ConnectTimeout => "connect_timeout",
            Self::RootCertificates => "root_certificates",
            Self::Proxy => "proxy",
            Self::UserAgent => "user_agent",
            Self::Client => "client",
        }
    }
}

impl WebhookError {
    pub(super) fn new(kind: WebhookErrorKind, why: impl Into<Cow<'static, str>>) -> Self {
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

    /// Which part of the configuration is at fault.
    #[must_use]
    pub const fn kind(&self) -> WebhookErrorKind {
        self.kind
    }
}

impl fmt::Display for WebhookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "webhook {}: {}", self.kind.field(), self.why)
    }
}

impl Error for WebhookError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
