//! Values that have no JSON form or fail to serialise themselves.

use std::collections::BTreeMap;
use std::fmt;

use idemp_core::canonical::{self, CanonicalErrorKind as Kind};
use serde::ser::{Error as _, SerializeMap};
use serde::{Serialize, Serializer};

use super::{Entries, Envelope, Shape, Wrapper, check, refused};

#[test]
fn not_finite() {
    refused(&f64::NAN, Kind::NotFinite, "the top level");
    refused(&f64::INFINITY, Kind::NotFinite, "the top level");
    refused(&f64::NEG_INFINITY, Kind::NotFinite, "the top level");
    refused(&f32::NAN, Kind::NotFinite, "the top level");
    refused(&[0.0, f64::NAN], Kind::NotFinite, "[1]");
    refused(
        &Envelope {
            data: vec![(0, [1.0]), (1, [f64::NAN])],
        },
        Kind::NotFinite,
        "data[1][1][0]",
    );
    refused(
        &Envelope {
            data: Envelope {
                data: BTreeMap::from([("a", 1.0), ("secret", f64::NAN)]),
            },
        },
        Kind::NotFinite,
        "data.data{1}",
    );
    refused(&Shape::Newtype(f64::NAN), Kind::NotFinite, "Newtype");
    refused(&[Wrapper(f64::NAN)], Kind::NotFinite, "[0]");
    assert_eq!(
        canonical::to_vec(&Envelope { data: [f64::NAN] })
            .unwrap_err()
            .to_string(),
        "NaN and infinities have no JSON form at data[0]"
    );
}

/// Fails with the payload in its message.
struct Failing;

impl Serialize for Failing {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom("hunter2"))
    }
}

impl fmt::Display for Failing {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Err(fmt::Error)
    }
}

/// Written as it displays itself, which fails.
struct Undisplayed;

impl Serialize for Undisplayed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Failing)
    }
}

/// A map whose keys and values do not alternate.
struct Uneven(&'static str);

impl Serialize for Uneven {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for step in self.0.chars() {
            if step == 'k' {
                map.serialize_key("a")?
            } else {
                map.serialize_value(&1)?
            }
        }
        map.end()
    }
}

#[test]
fn values_that_fail_themselves() {
    refused(&Envelope { data: (1, Failing) }, Kind::Serialize, "data[1]");
    refused(&[Undisplayed], Kind::Serialize, "[0]");
    refused(
        &Entries(vec![("a", None), ("hunter2", Some(Failing))]),
        Kind::Serialize,
        "{1}",
    );
    refused(&Entries(vec![(Undisplayed, 1)]), Kind::Serialize, "{0}");
    for steps in ["v", "k", "kk", "kkv", "kvv", "kvk"] {
        refused(&Uneven(steps), Kind::Serialize, "the top level");
    }
    check(&Uneven("kvkv"), r#"{"a": 1}"#);

    let error = canonical::to_vec(&Entries(vec![("hunter2", [Failing])])).unwrap_err();
    let shown = format!("{error} {error:?} {error:#?}");
    assert!(!shown.contains("hunter"), "{shown}");
    assert_eq!(error.to_string(), "the value failed to serialise itself at {0}[0]");
}
