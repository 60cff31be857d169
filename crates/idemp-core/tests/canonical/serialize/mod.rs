//! Values through serde: as serde_json writes them, then canonical.

mod depth;
mod failures;
mod keys;
mod private;
mod values;

use std::collections::BTreeMap;
use std::fmt;

use idemp_core::canonical::{self, CanonicalErrorKind as Kind};
use serde::{Serialize, Serializer};

fn text_of(value: &(impl Serialize + ?Sized)) -> String {
    String::from_utf8(canonical::to_vec(value).unwrap()).unwrap()
}

/// Checks the bytes, and that the text of serde_json has the same.
fn check(value: &(impl Serialize + ?Sized), expected: &str) {
    assert_eq!(text_of(value), expected);
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(
        String::from_utf8(canonical::from_json(text.as_bytes()).unwrap()).unwrap(),
        expected
    );
}

fn refused(value: &(impl Serialize + ?Sized), kind: Kind, path: &str) {
    let mut out = b"before".to_vec();
    let error = canonical::to_vec_into(value, &mut out).unwrap_err();
    assert_eq!(
        (error.kind(), error.path().unwrap().to_string().as_str()),
        (kind, path),
        "{error}"
    );
    assert_eq!(out, b"before");
}

#[derive(Serialize)]
enum Shape {
    Unit,
    Newtype(f64),
    Tuple(u8, &'static str),
    Struct { z: u8, a: Option<u8> },
    Empty {},
}

#[derive(Serialize)]
struct Wrapper(f64);

#[derive(Serialize)]
struct Pair(u8, u8);

#[derive(Serialize)]
struct Unit;

#[derive(Serialize)]
struct Record {
    zebra: u8,
    apple: Vec<u8>,
    #[serde(rename = "Élan")]
    elan: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    none: Option<u8>,
    #[serde(flatten)]
    more: BTreeMap<&'static str, u8>,
}

/// Bytes, which serde_json writes as an array.
struct Bytes(&'static [u8]);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Written as it displays itself.
struct Displayed(&'static str);

impl fmt::Display for Displayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.0, self.0)
    }
}

impl Serialize for Displayed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A map with entries in this order.
struct Entries<K, V>(Vec<(K, V)>);

impl<K: Serialize, V: Serialize> Serialize for Entries<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

fn entries<K: Serialize>(keys: impl IntoIterator<Item = K>) -> Entries<K, usize> {
    Entries(keys.into_iter().enumerate().map(|(index, key)| (key, index)).collect())
}

#[derive(Serialize)]
struct Envelope<T> {
    data: T,
}
