//! A message as a transport brought it, and what becomes of one that cannot be taken.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use idemp_core::headers::HeaderLine;

use crate::reply::Reply;

/// A message as it came, nothing of it believed yet.
#[derive(Clone)]
pub struct Arrived {
    /// Where it lies in the transport.
    pub position: Position,
    /// The record's key, on Kafka.
    pub record_key: Option<Bytes>,
    /// Its headers or fields by name, in the order in which they came.
    pub fields: Vec<(Bytes, Bytes)>,
    /// The bytes that are signed; `None` if they cannot be put together.
    pub body: Option<Bytes>,
    /// Name of the field that holds the idempotency key.
    pub key_field: &'static str,
    /// Name of the field that holds the signature.
    pub signature_field: &'static str,
}

impl Arrived {
    /// How many bytes it holds.
    #[cfg(feature = "kafka")]
    pub(super) fn len(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.len());
        let rest = [&self.record_key, &self.body].map(|bytes| bytes.as_ref().map_or(0, Bytes::len));
        fields.chain(rest).sum()
    }

    pub(super) fn key(&self) -> HeaderLine<'_> {
        self.line(self.key_field)
    }

    pub(super) fn signature(&self) -> HeaderLine<'_> {
        self.line(self.signature_field)
    }

    fn line(&self, name: &str) -> HeaderLine<'_> {
        let named = |(field, _): &&(Bytes, Bytes)| field.eq_ignore_ascii_case(name.as_bytes());
        self.fields.iter().filter(named).map(|(_, value)| &**value).collect()
    }
}

/// Leaves fields and body out.
impl fmt::Debug for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrived")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// Where a message lies: its identity for as long as the transport keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Position {
    /// A record of Kafka.
    Kafka {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The record's offset.
        offset: i64,
    },
    /// An entry of a Redis Stream.
    RedisStreams {
        /// The stream's key.
        stream: String,
        /// The entry's id.
        id: String,
    },
    /// A message of another transport.
    Other {
        /// The transport, a name for labels.
        transport: &'static str,
        /// What tells its messages apart.
        id: String,
    },
}

impl Position {
    /// The transport's name, as in labels (docs/metrics.md).
    #[must_use]
    pub const fn transport(&self) -> &'static str {
        match self {
            Self::Kafka { .. } => "kafka",
            Self::RedisStreams { .. } => "redis_streams",
            Self::Other { transport, .. } => transport,
        }
    }
}

/// `topic/partition/offset`, `stream/id`, or the other transport's id.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kafka {
                topic,
                partition,
                offset,
            } => write!(f, "{topic}/{partition}/{offset}"),
            Self::RedisStreams { stream, id } => write!(f, "{stream}/{id}"),
            Self::Other { id, .. } => f.write_str(id),
        }
    }
}

/// A message that cannot be taken, or whose handler has failed for the last time. Its bytes are all there, so that it
/// can be looked at and brought in again.
///
/// Copies of it may come: a quarantine that is cut off, or a consumer that dies before the message is acknowledged,
/// brings it again, with the same [`position`](Self::position).
#[derive(Clone)]
#[non_exhaustive]
pub struct Quarantined {
    /// Where it lies in the transport.
    pub position: Position,
    /// Why: what a sender over HTTP would have been told. [`Reply::code`] is a stable name.
    pub reason: Reply,
    /// The record's key, on Kafka.
    pub record_key: Option<Bytes>,
    /// Its headers or fields by name, in the order in which they came.
    pub fields: Vec<(Bytes, Bytes)>,
    /// The bytes that are signed; `None` if they could not be put together from the fields.
    pub body: Option<Bytes>,
}

impl Quarantined {
    pub(super) fn new(message: &Arrived, reason: Reply) -> Self {
        Self {
            position: message.position.clone(),
            reason,
            record_key: message.record_key.clone(),
            fields: message.fields.clone(),
            body: message.body.clone(),
        }
    }
}

/// Leaves fields and body out.
impl fmt::Debug for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quarantined")
            .field("position", &self.position)
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

/// Why a message could not be put into quarantine. Its text is logged and must not hold a secret or a payload.
pub type QuarantineError = Box<dyn Error + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name_whatever_its_case_and_never_twice() {
        let field = |name: &'static str, value: &'static str| (Bytes::from(name), Bytes::from(value));
        let mut message = Arrived {
            position: Position::Other {
                transport: "test",
                id: "1".to_owned(),
            },
            record_key: None,
            fields: vec![field("Idempotency-Key", "k1"), field("other", "x")],
            body: None,
            key_field: "idempotency-key",
            signature_field: "x-signature-256",
        };
        assert_eq!(message.key(), HeaderLine::One(b"k1"));
        assert_eq!(message.signature(), HeaderLine::Missing);
        message.fields.push(field("idempotency-key", "k1"));
        assert_eq!(message.key(), HeaderLine::Repeated);
    }

    #[test]
    fn debug_shows_no_bytes() {
        let message = Arrived {
            position: Position::Kafka {
                topic: "events".to_owned(),
                partition: 3,
                offset: 7,
            },
            record_key: None,
            fields: vec![(Bytes::from("idempotency-key"), Bytes::from("hush"))],
            body: Some(Bytes::from("hush")),
            key_field: "idempotency-key",
            signature_field: "x-signature-256",
        };
        let quarantined = Quarantined::new(&message, Reply::Conflict);
        let text = format!("{message:?} {quarantined:?}");
        assert!(!text.contains("hush") && text.contains("events"), "{text}");
        assert_eq!(message.position.to_string(), "events/3/7");
    }
}
