//! What the server answers, and what an entry holds.

use bytes::Bytes;
use idemp_core::EventType;
use redis::Value;

use crate::consume::message::{Arrived, Position};

/// The cursor of a look for entries, at its beginning and again at its end.
pub(super) const ENDS: &str = "0-0";

/// An entry as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: String,
    /// `None` if it was trimmed while it was pending.
    pub(super) fields: Option<Vec<(Bytes, Bytes)>>,
}

/// Answer to XAUTOCLAIM.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claimed {
    /// Where to go on; `0-0` at the end.
    pub(super) cursor: String,
    pub(super) entries: Vec<Entry>,
    /// How many pending entries had been trimmed and are not pending any more.
    pub(super) trimmed: usize,
    /// How many had been trimmed and are pending still, under the name of who asked.
    pub(super) nameless: usize,
}

/// The answer has a shape that no server gives.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misshapen;

/// The entries of the one stream in an answer to XREADGROUP.
pub(super) fn read(answer: Value) -> Result<Vec<Entry>, Misshapen> {
    let entries = match answer {
        Value::Nil => return Ok(Vec::new()),
        Value::Array(mut streams) => match (streams.pop(), streams.is_empty()) {
            (Some(Value::Array(mut stream)), true) => stream.pop(),
            (None, _) => return Ok(Vec::new()),
            _ => None,
        },
        Value::Map(mut streams) => streams.pop().map(|(_, entries)| entries),
        _ => None,
    };
    match entries {
        Some(Value::Array(entries)) => all(entries),
        _ => Err(Misshapen),
    }
}

/// Redis 6.2 answers with two parts and hands trimmed entries over as nil. Later servers let go of them and name them in
/// a third part.
pub(super) fn claimed(answer: Value) -> Result<Claimed, Misshapen> {
    let Value::Array(parts) = answer else {
        return Err(Misshapen);
    };
    let mut parts = parts.into_iter();
    let (Some(cursor), Some(Value::Array(entries))) = (parts.next(), parts.next()) else {
        return Err(Misshapen);
    };
    let trimmed = match parts.next() {
        Some(Value::Array(ids)) => ids.len(),
        None => 0,
        _ => return Err(Misshapen),
    };
    let (there, gone): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| !matches!(entry, Value::Nil));
    Ok(Claimed {
        cursor: text(cursor)?,
        entries: all(there)?,
        trimmed,
        nameless: gone.len(),
    })
}

fn all(entries: Vec<Value>) -> Result<Vec<Entry>, Misshapen> {
    entries.into_iter().map(entry).collect()
}

fn entry(value: Value) -> Result<Entry, Misshapen> {
    let Value::Array(parts) = value else {
        return Err(Misshapen);
    };
    let mut parts = parts.into_iter();
    let (Some(id), Some(fields), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err(Misshapen);
    };
    let fields = match fields {
        Value::Nil => None,
        Value::Array(flat) if flat.is_empty() => None,
        Value::Array(flat) => {
            let mut flat = flat.into_iter();
            let mut fields = Vec::with_capacity(flat.len() / 2);
            while let Some(name) = flat.next() {
                fields.push((bytes(name)?, bytes(flat.next().ok_or(Misshapen)?)?));
            }
            Some(fields)
        }
        Value::Map(pairs) => {
            let pairs = pairs.into_iter().map(|(name, value)| Ok((bytes(name)?, bytes(value)?)));
            Some(pairs.collect::<Result<_, Misshapen>>()?)
        }
        _ => return Err(Misshapen),
    };
    Ok(Entry { id: text(id)?, fields })
}

fn bytes(value: Value) -> Result<Bytes, Misshapen> {
    match value {
        Value::BulkString(bytes) => Ok(bytes.into()),
        Value::SimpleString(text) => Ok(text.into()),
        _ => Err(Misshapen),
    }
}

fn text(value: Value) -> Result<String, Misshapen> {
    String::from_utf8(bytes(value)?.into()).map_err(|_| Misshapen)
}

/// The message in an entry's fields.
pub(super) fn arrived(stream: &str, id: String, fields: Vec<(Bytes, Bytes)>) -> Arrived {
    Arrived {
        position: Position::RedisStreams {
            stream: stream.to_owned(),
            id,
        },
        record_key: None,
        body: signed_bytes(&fields),
        fields,
        key_field: "idempotency_key",
        signature_field: "signature",
    }
}

/// The body that was signed, of which an entry holds the parts (docs/spec.md, "Wire"): `payload` is the slice of it
/// that is the data.
fn signed_bytes(fields: &[(Bytes, Bytes)]) -> Option<Bytes> {
    let (payload, event_type) = (only(fields, b"payload")?, only(fields, b"event_type")?);
    // With a quote in it, it could bring members of its own.
    EventType::parse(std::str::from_utf8(event_type).ok()?).ok()?;
    let parts: [&[u8]; 5] = [br#"{"data": "#, payload, br#", "event": ""#, event_type, br#""}"#];
    Some(parts.concat().into())
}

fn only<'f>(fields: &'f [(Bytes, Bytes)], name: &[u8]) -> Option<&'f [u8]> {
    let mut values = fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
    match (values.next(), values.next()) {
        (Some((_, value)), None) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn raw_entry(id: &str, fields: &[&str]) -> Value {
        let fields = fields.iter().map(|field| bulk(field)).collect();
        Value::Array(vec![bulk(id), Value::Array(fields)])
    }

    fn field(name: &'static str, value: &'static str) -> (Bytes, Bytes) {
        (Bytes::from(name), Bytes::from(value))
    }

    fn there(id: &str, fields: &[(&'static str, &'static str)]) -> Entry {
        let fields = fields.iter().map(|(name, value)| field(name, value)).collect();
        Entry {
            id: id.to_owned(),
            fields: Some(fields),
        }
    }

    #[test]
    fn reads_what_servers_answer() {
        assert_eq!(read(Value::Nil), Ok(vec![]));
        let entries = Value::Array(vec![
            raw_entry("1-0", &["a", "b", "a", "c"]),
            Value::Array(vec![bulk("2-0"), Value::Nil]),
        ]);
        let expected = Ok(vec![
            there("1-0", &[("a", "b"), ("a", "c")]),
            Entry {
                id: "2-0".to_owned(),
                fields: None,
            },
        ]);
        let two = Value::Array(vec![Value::Array(vec![bulk("events"), entries.clone()])]);
        assert_eq!(read(two), expected);
        assert_eq!(read(Value::Map(vec![(bulk("events"), entries)])), expected);
        assert_eq!(read(Value::Okay), Err(Misshapen));
        assert_eq!(read(Value::Array(vec![Value::Int(1)])), Err(Misshapen));
    }

    #[test]
    fn reads_claims_of_old_and_new_servers() {
        let expected = |trimmed, nameless| {
            Ok(Claimed {
                cursor: "5-0".to_owned(),
                entries: vec![there("1-0", &[("a", "b")])],
                trimmed,
                nameless,
            })
        };
        let entry = || raw_entry("1-0", &["a", "b"]);
        let old = vec![bulk("5-0"), Value::Array(vec![entry(), Value::Nil])];
        assert_eq!(claimed(Value::Array(old)), expected(0, 1));
        let gone = Value::Array(vec![bulk("2-0"), bulk("3-0")]);
        let new = vec![bulk("5-0"), Value::Array(vec![entry()]), gone];
        assert_eq!(claimed(Value::Array(new)), expected(2, 0));
        assert_eq!(claimed(Value::Array(vec![bulk("0-0")])), Err(Misshapen));
    }

    #[test]
    fn the_signed_bytes_are_put_together_again() {
        let good = [field("payload", r#"{"output": "4"}"#), field("event_type", "tool_end")];
        let body = signed_bytes(&good).unwrap();
        assert_eq!(&body[..], br#"{"data": {"output": "4"}, "event": "tool_end"}"#);
        for bad in [
            vec![field("payload", "1")],
            vec![field("event_type", "tool_end")],
            vec![field("payload", "1"), field("payload", "1"), field("event_type", "a")],
            vec![field("payload", "1"), field("event_type", r#"a", "event": "b"#)],
        ] {
            assert_eq!(signed_bytes(&bad), None, "{bad:?}");
        }
    }
}
