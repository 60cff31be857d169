//! What one attempt found out: facts only. What follows from them is [`StatusPolicy`](crate::StatusPolicy)'s matter.

use crate::{Detail, RetryAfter};

/// The facts of one attempt. A failed attempt is a value, not an `Err`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The other side has it.
    Delivered {
        /// HTTP status, where the transport has one.
        status: Option<u16>,
    },
    /// The other side did not say that it has it.
    Failed(Failure),
}

/// What is known of a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why it failed.
    pub cause: Cause,
    /// When the peer asks to be left alone until.
    pub retry_after: Option<RetryAfter>,
    /// Whether the event may have arrived all the same.
    pub maybe_delivered: bool,
    /// A word for the operator.
    pub detail: Detail,
}

impl Failure {
    /// A failure by status: maybe delivered for 408 and 500 to 599, and for nothing else.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::new(Cause::Status(status), status == 408 || (500..=599).contains(&status))
    }

    /// A failure before a status came: maybe delivered for a timeout or a cut after the request went out.
    #[must_use]
    pub fn transport(transport: Transport) -> Self {
        Self::new(
            Cause::Transport(transport),
            matches!(transport, Transport::Timeout | Transport::Cut),
        )
    }

    fn new(cause: Cause, maybe_delivered: bool) -> Self {
        Self {
            cause,
            retry_after: None,
            maybe_delivered,
            detail: Detail::default(),
        }
    }

    /// Adds what the peer asked for.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Option<RetryAfter>) -> Self {
        self.retry_after = retry_after;
        self
    }

    /// Adds a word for the operator.
    #[must_use]
    pub fn with_detail(mut self, detail: Detail) -> Self {
        self.detail = detail;
        self
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The peer answered with this HTTP status.
    Status(u16),
    /// No answer came.
    Transport(Transport),
}

/// How a transport failed before an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// No connection: refused, unreachable, or not up in time.
    Connect,
    /// The name did not resolve.
    Dns,
    /// The TLS handshake failed.
    Tls,
    /// The attempt's time ran out after the request may have gone out.
    Timeout,
    /// The connection broke, or the answer was no answer, after the request may have gone out.
    Cut,
}

impl Transport {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Connect, Self::Dns, Self::Tls, Self::Timeout, Self::Cut];

    /// Stable code, as it stands in records and metrics.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Dns => "dns",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Cut => "cut",
        }
    }
}
