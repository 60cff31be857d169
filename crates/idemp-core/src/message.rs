//! An event as it travels: its key and the exact bytes that are signed, sent, stored and replayed.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;

use crate::IdempotencyKey;
use crate::canonical::{self, CanonicalError};

const HEAD: &[u8] = br#"{"data": "#;
const MIDDLE: &[u8] = br#", "event": ""#;
const TAIL: &[u8] = br#""}"#;

/// Room made for a payload whose size is not known, in bytes; most events are smaller.
const TYPICAL_DATA: usize = 1024;

/// A key and its body: the canonical JSON of `{"event": event_type, "data": payload}`.
///
/// The bytes that are signed are the bytes that are sent, stored, replayed and verified. Cloning shares them.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    key: IdempotencyKey,
    body: Bytes,
}

impl Message {
    /// Makes the body of a payload whose key is known already.
    ///
    /// # Errors
    /// If the payload has no canonical form.
    pub fn new<T: Serialize + ?Sized>(key: IdempotencyKey, data: &T) -> Result<Self, CanonicalError> {
        let body = Self::body_of(key.event_type(), data)?;
        Ok(Self { key, body })
    }

    /// As [`new`](Self::new), with the payload as JSON text.
    ///
    /// # Errors
    /// If the text is not JSON or has no canonical form.
    pub fn from_json(key: IdempotencyKey, data: &[u8]) -> Result<Self, CanonicalError> {
        let body = Self::body_of_json(key.event_type(), data)?;
        Ok(Self { key, body })
    }

    /// Takes a body that was made earlier, as it lies in a dead-letter store, without making it again.
    ///
    /// # Errors
    /// If the bytes are not the frame of a body of this key's event type. What the payload holds is not looked at.
    pub fn from_stored(key: IdempotencyKey, body: Bytes) -> Result<Self, EnvelopeError> {
        let framed = body
            .strip_prefix(HEAD)
            .and_then(|rest| rest.strip_suffix(TAIL))
            .and_then(|rest| rest.strip_suffix(key.event_type().as_bytes()))
            .and_then(|rest| rest.strip_suffix(MIDDLE));
        match framed {
            Some(data) if !data.is_empty() && body.is_ascii() => Ok(Self { key, body }),
            _ => Err(EnvelopeError),
        }
    }

    pub(crate) fn body_of<T: Serialize + ?Sized>(event_type: &str, data: &T) -> Result<Bytes, CanonicalError> {
        let mut body = head(TYPICAL_DATA);
        canonical::to_vec_into(data, &mut body)?;
        Ok(finish(body, event_type))
    }

    pub(crate) fn body_of_json(event_type: &str, data: &[u8]) -> Result<Bytes, CanonicalError> {
        let mut body = head(data.len() + data.len() / 8);
        canonical::from_json_into(data, &mut body)?;
        Ok(finish(body, event_type))
    }

    pub(crate) const fn assembled(key: IdempotencyKey, body: Bytes) -> Self {
        Self { key, body }
    }

    /// The event's key.
    #[must_use]
    pub const fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// The exact bytes.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// The slice of the body that is the payload alone. The body is `{"data": ` + this + `, "event": "` + type + `"}`.
    #[must_use]
    pub fn data(&self) -> Bytes {
        let tail = MIDDLE.len() + self.key.event_type().len() + TAIL.len();
        self.body.slice(HEAD.len()..self.body.len() - tail)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("key", &self.key)
            .field("body_len", &self.body.len())
            .finish()
    }
}

/// The stored bytes are not the body of an event of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvelopeError;

impl fmt::Display for EnvelopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes are not an event body of the key's event type")
    }
}

impl std::error::Error for EnvelopeError {}

fn head(data_len: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(HEAD.len() + data_len + MIDDLE.len() + 64 + TAIL.len());
    body.extend_from_slice(HEAD);
    body
}

fn finish(mut body: Vec<u8>, event_type: &str) -> Bytes {
    body.extend_from_slice(MIDDLE);
    body.extend_from_slice(event_type.as_bytes());
    body.extend_from_slice(TAIL);
    body.into()
}
