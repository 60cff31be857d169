//! The record as JSON: the form in which stores keep letters and commands print them (docs/dlq.md).

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use idemp_core::{
    AttemptRecord, Cause, Class, Code, Detail, ErrorClass, IdempotencyKey, KeyError, Message, Reason, SinkName,
    Transport,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{DeadLetter, Letterhead, time};

/// Version that is written, and the only one that is read.
const VERSION: u64 = 1;

/// Stands for a failure that this version has no code for.
const OTHER: &str = "other";

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    version: u64,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    sink: Cow<'a, str>,
    #[serde(borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    reason: Cow<'a, str>,
    #[serde(borrow)]
    class: Cow<'a, str>,
    maybe_delivered: bool,
    #[serde(borrow)]
    attempts: Vec<Attempt<'a>>,
    #[serde(borrow)]
    accepted_at: Cow<'a, str>,
    #[serde(borrow)]
    dead_at: Cow<'a, str>,
    #[serde(borrow)]
    not_before: Option<Cow<'a, str>>,
    replay_count: u32,
    body_len: u64,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    body_sha256: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    body: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
struct Attempt<'a> {
    n: u32,
    #[serde(borrow)]
    started: Cow<'a, str>,
    elapsed_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    code: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    detail: Cow<'a, str>,
}

/// What every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

impl DeadLetter {
    /// The record, versioned JSON on one line: times are RFC 3339 in UTC, the body is a JSON string.
    #[must_use]
    pub fn to_json(&self) -> String {
        let head = self.letterhead();
        let mut record = Record::of(&head);
        record.body_sha256 = Some(Cow::Owned(hex(&self.body_sha256())));
        // Canonical bodies are ASCII.
        record.body = Some(String::from_utf8_lossy(self.message.body()));
        write(&record)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If it is torn, of another version, or holds what no letter holds.
    pub fn from_json(json: &[u8]) -> Result<Self, RecordError> {
        let mut record = read(json)?;
        let body = record.body.take().ok_or(RecordError::Body)?;
        let body = Bytes::from(body.into_owned().into_bytes());
        if record.body_sha256.take().as_deref() != Some(&*hex(&Sha256::digest(&body).into())) {
            return Err(RecordError::Body);
        }
        record.into_head()?.with_body(body)
    }
}

impl Letterhead {
    /// The record without body and hash, for stores that keep those beside it.
    #[must_use]
    pub fn to_json(&self) -> String {
        write(&Record::of(self))
    }

    /// Reads a record, with or without body and hash, which are not looked at.
    ///
    /// # Errors
    /// If it is torn, of another version, or holds what no letter holds.
    pub fn from_json(json: &[u8]) -> Result<Self, RecordError> {
        read(json)?.into_head()
    }

    /// Puts a letter together again.
    ///
    /// # Errors
    /// If the bytes are no body of the key's event type, or of another length than they had.
    pub fn with_body(self, body: Bytes) -> Result<DeadLetter, RecordError> {
        if body.len() as u64 != self.body_len {
            return Err(RecordError::Body);
        }
        let message = Message::from_stored(self.key.clone(), body).map_err(|_| RecordError::Body)?;
        Ok(DeadLetter::assemble(self, message))
    }
}

impl<'a> Record<'a> {
    fn of(head: &'a Letterhead) -> Self {
        Self {
            version: VERSION,
            key: head.key.as_str().into(),
            sink: head.sink.as_str().into(),
            event_type: head.key.event_type().into(),
            reason: head.reason.code().into(),
            class: head.class.code().into(),
            maybe_delivered: head.maybe_delivered,
            attempts: head.attempts.iter().map(Attempt::of).collect(),
            accepted_at: time::to_text(head.accepted_at).into(),
            dead_at: time::to_text(head.dead_at).into(),
            not_before: head.not_before.map(|at| time::to_text(at).into()),
            replay_count: head.replay_count,
            body_len: head.body_len,
            body_sha256: None,
            body: None,
        }
    }

    fn into_head(self) -> Result<Letterhead, RecordError> {
        let code = |field| move |_| RecordError::Code { field };
        Ok(Letterhead {
            sink: SinkName::parse(&self.sink).map_err(RecordError::Name)?,
            key: IdempotencyKey::parse(&self.key).map_err(RecordError::Name)?,
            body_len: self.body_len,
            reason: self.reason.parse::<Reason>().map_err(code("reason"))?,
            class: self.class.parse::<Class>().map_err(code("class"))?,
            maybe_delivered: self.maybe_delivered,
            attempts: self.attempts.iter().map(Attempt::to_core).collect::<Result<_, _>>()?,
            accepted_at: read_time("accepted_at", &self.accepted_at)?,
            dead_at: read_time("dead_at", &self.dead_at)?,
            not_before: self.not_before.map(|at| read_time("not_before", &at)).transpose()?,
            replay_count: self.replay_count,
        })
    }
}

impl<'a> Attempt<'a> {
    fn of(attempt: &'a AttemptRecord) -> Self {
        let (status, error, code) = match &attempt.cause {
            None => (None, None, None),
            Some(Cause::Status(status)) => (Some(*status), None, None),
            Some(Cause::Transport(transport)) => (None, Some(transport.code()), None),
            Some(Cause::Code { class, code }) => (None, Some(class.code()), Some(code.as_str())),
            Some(_) => (None, Some(OTHER), None),
        };
        Self {
            n: attempt.number,
            started: time::to_text(attempt.started).into(),
            elapsed_ms: attempt.elapsed.as_millis().try_into().unwrap_or(u64::MAX),
            status,
            error: error.map(Cow::Borrowed),
            code: code.map(Cow::Borrowed),
            detail: attempt.detail.as_str().into(),
        }
    }

    fn to_core(&self) -> Result<AttemptRecord, RecordError> {
        let known = |error: &str| {
            if let Some(transport) = Transport::ALL.into_iter().find(|known| known.code() == error) {
                return Ok(Cause::Transport(transport));
            }
            let class = ErrorClass::ALL.into_iter().find(|known| known.code() == error);
            let code = Code::new(self.code.as_deref().unwrap_or_default());
            class
                .map(|class| Cause::Code { class, code })
                .ok_or(RecordError::Code { field: "error" })
        };
        Ok(AttemptRecord {
            number: self.n,
            started: read_time("started", &self.started)?,
            elapsed: Duration::from_millis(self.elapsed_ms),
            cause: match (self.status, self.error.as_deref()) {
                (Some(status), _) => Some(Cause::Status(status)),
                (None, None | Some(OTHER)) => None,
                (None, Some(error)) => Some(known(error)?),
            },
            detail: Detail::new(&self.detail),
        })
    }
}

fn read_time(field: &'static str, text: &str) -> Result<SystemTime, RecordError> {
    time::from_text(text).ok_or(RecordError::Time { field })
}

#[expect(clippy::expect_used, reason = "strings and numbers always have a JSON form")]
fn write(record: &Record<'_>) -> String {
    serde_json::to_string(record).expect("a record is plain data")
}

fn read(json: &[u8]) -> Result<Record<'_>, RecordError> {
    match serde_json::from_slice::<Record<'_>>(json) {
        Ok(record) if record.version == VERSION => Ok(record),
        Ok(Record { version: found, .. }) => Err(RecordError::Version { found }),
        // Another version may lack what this one wants.
        Err(error) => match serde_json::from_slice::<Versioned>(json) {
            Ok(Versioned { version: found }) if found != VERSION => Err(RecordError::Version { found }),
            _ => Err(RecordError::Torn {
                line: error.line(),
                column: error.column(),
            }),
        },
    }
}

fn hex(digest: &[u8; 32]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let nibbles = digest.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    nibbles.map(|nibble| char::from(DIGITS[usize::from(nibble)])).collect()
}

/// A record that cannot be read. It stays where it lies: nothing deletes it but a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// It is not the JSON of a record: torn, or something else.
    Torn {
        /// Line of the first fault, from 1.
        line: usize,
        /// Column of the first fault, in bytes.
        column: usize,
    },
    /// Another version of idemp wrote it.
    Version {
        /// The record's version.
        found: u64,
    },
    /// Its key or sink is none.
    Name(KeyError),
    /// A code that this version does not know.
    Code {
        /// Name of the field.
        field: &'static str,
    },
    /// A time that is not RFC 3339.
    Time {
        /// Name of the field.
        field: &'static str,
    },
    /// The body is missing, is not the one that the hash was made of, or belongs to another event type.
    Body,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn { line, column } => write!(f, "not a whole record: line {line}, column {column}"),
            Self::Version { found } => write!(f, "record of version {found}, this idemp reads version {VERSION}"),
            Self::Name(_) => f.write_str("record with a malformed name"),
            Self::Code { field } => write!(f, "record with an unknown {field}"),
            Self::Time { field } => write!(f, "record whose {field} is no time"),
            Self::Body => f.write_str("record whose body is damaged"),
        }
    }
}

impl std::error::Error for RecordError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Name(error) => Some(error),
            _ => None,
        }
    }
}
