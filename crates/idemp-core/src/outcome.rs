//! What one attempt found out: facts only. What follows from them is [`StatusPolicy`](crate::StatusPolicy)'s matter.

use std::fmt;

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

    /// A failure by the code of a transport that has no HTTP status: maybe delivered if the class is
    /// [`ErrorClass::Ambiguous`].
    #[must_use]
    pub fn code(class: ErrorClass, code: &str) -> Self {
        Self::new(
            Cause::Code {
                class,
                code: Code::new(code),
            },
            class.maybe_delivered(),
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
    /// The transport, or the server behind it, gave this code of its own, as Kafka, Redis and SNS do.
    Code {
        /// What the sink knows the code to mean.
        class: ErrorClass,
        /// The code.
        code: Code,
    },
}

/// What a code of a transport without HTTP statuses means. A code that a sink does not know is
/// [`Ambiguous`](Self::Ambiguous).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// It may pass, and the event surely did not arrive: tried again.
    Transient,
    /// It may pass, and the event may have arrived all the same: tried again.
    Ambiguous,
    /// This event is refused, and would be again.
    RejectsEvent,
    /// Everything from us is refused until somebody mends address, credentials or permissions.
    RejectsConfiguration,
    /// There is no room at the moment, and the event surely did not arrive: tried again, and not counted as one of the
    /// schedule's attempts.
    PushBack,
}

impl ErrorClass {
    /// Every class.
    pub const ALL: [Self; 5] = [
        Self::Transient,
        Self::Ambiguous,
        Self::RejectsEvent,
        Self::RejectsConfiguration,
        Self::PushBack,
    ];

    /// Stable code, as it stands in records.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Ambiguous => "ambiguous",
            Self::RejectsEvent => "rejects_event",
            Self::RejectsConfiguration => "rejects_configuration",
            Self::PushBack => "push_back",
        }
    }

    /// Whether the event may have arrived although the answer was this.
    #[must_use]
    pub const fn maybe_delivered(self) -> bool {
        matches!(self, Self::Ambiguous)
    }
}

/// A transport's own code, such as `MessageTimedOut` or `OOM`: at most 47 bytes of visible ASCII.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code {
    len: u8,
    bytes: [u8; Self::MAX_LEN],
}

impl Code {
    /// Longest code, in bytes.
    pub const MAX_LEN: usize = 47;

    /// Keeps what fits; every byte that is not visible ASCII becomes `_`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut code = Self {
            len: 0,
            bytes: [b'_'; Self::MAX_LEN],
        };
        for (kept, byte) in code.bytes.iter_mut().zip(text.bytes()) {
            if byte.is_ascii_graphic() {
                *kept = byte;
            }
            code.len += 1;
        }
        code
    }

    /// The code as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // All bytes are ASCII.
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({})", self.as_str())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_keeps_what_fits_and_is_visible() {
        assert_eq!(Code::new("MessageTimedOut").as_str(), "MessageTimedOut");
        assert_eq!(Code::new("").as_str(), "");
        assert_eq!(Code::new("a b\n\u{e9}").as_str(), "a_b___");
        assert_eq!(Code::new(&"x".repeat(48)).as_str(), "x".repeat(47));
    }

    #[test]
    fn only_an_ambiguous_code_leaves_it_open_whether_the_event_arrived() {
        let open: Vec<_> = ErrorClass::ALL
            .into_iter()
            .filter(|class| Failure::code(*class, "X").maybe_delivered)
            .collect();
        assert_eq!(open, [ErrorClass::Ambiguous]);
    }
}
