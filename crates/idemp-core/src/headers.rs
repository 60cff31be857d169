//! Names of the request headers (docs/spec.md, "Wire"), and the rule that a signed header stands there once.

/// The event's idempotency key.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
/// `sha256=` and the HMAC-SHA256 of the body in hex.
pub const X_SIGNATURE_256: &str = "X-Signature-256";
/// The event's type, for routing without a look into the body.
pub const X_EVENT_TYPE: &str = "X-Event-Type";
/// Standard Webhooks: the message id, which is the idempotency key.
pub const WEBHOOK_ID: &str = "webhook-id";
/// Standard Webhooks: time of the attempt, in Unix seconds.
pub const WEBHOOK_TIMESTAMP: &str = "webhook-timestamp";
/// Standard Webhooks: space-separated signatures.
pub const WEBHOOK_SIGNATURE: &str = "webhook-signature";

/// The same names in lower case, as HTTP/2, `http::HeaderName::from_static`, Kafka and SNS want them.
pub mod lower {
    pub use super::{WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};

    /// The event's idempotency key.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// `sha256=` and the HMAC-SHA256 of the body in hex.
    pub const X_SIGNATURE_256: &str = "x-signature-256";
    /// The event's type. On Kafka and SNS it is called `event-type`.
    pub const X_EVENT_TYPE: &str = "x-event-type";
}

/// The lines of one header in a request, of which exactly one is wanted.
///
/// Two lines with one name are never resolved by taking the first or the last: a proxy in front may have looked at
/// the other one. Collect it from the values of a header map:
///
/// ```
/// use idemp_core::headers::HeaderLine;
///
/// let line: HeaderLine<'_> = [b"a".as_slice()].into_iter().collect();
/// assert_eq!(line, HeaderLine::One(b"a"));
/// let line: HeaderLine<'_> = [b"a".as_slice(), b"a"].into_iter().collect();
/// assert_eq!(line, HeaderLine::Repeated);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderLine<'h> {
    /// No line has this name.
    #[default]
    Missing,
    /// The value of the only line, without the spaces and tabs around it, which HTTP does not count as part of it
    /// (RFC 9110, section 5.5).
    One(&'h [u8]),
    /// More than one line has this name.
    Repeated,
}

impl<'h> FromIterator<&'h [u8]> for HeaderLine<'h> {
    fn from_iter<I: IntoIterator<Item = &'h [u8]>>(values: I) -> Self {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (None, _) => Self::Missing,
            (Some(value), None) => Self::One(value),
            (Some(_), Some(_)) => Self::Repeated,
        }
    }
}

impl<'h> From<&'h [u8]> for HeaderLine<'h> {
    fn from(value: &'h [u8]) -> Self {
        Self::One(value)
    }
}

impl<'h> From<&'h str> for HeaderLine<'h> {
    fn from(value: &'h str) -> Self {
        Self::One(value.as_bytes())
    }
}
