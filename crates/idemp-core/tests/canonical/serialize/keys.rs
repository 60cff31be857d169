//! Keys of maps: what becomes a string, and what is refused.

use std::collections::{BTreeMap, HashMap};

use idemp_core::canonical::{self, CanonicalErrorKind as Kind};
use serde::Serialize;

use super::{Bytes, Displayed, Entries, Pair, Record, Shape, Unit, Wrapper, check, entries, text_of};

#[test]
fn keys() {
    check(&entries(["b", "a", "b"]), r#"{"a": 1, "b": 2}"#);
    check(
        &entries(['b', 'é', '"', '😀', '\u{ffff}']),
        r#"{"\"": 2, "b": 0, "\u00e9": 1, "\uffff": 4, "\ud83d\ude00": 3}"#,
    );
    check(&entries([true, false]), r#"{"false": 1, "true": 0}"#);
    check(&entries([10, 9, -1]), r#"{"-1": 2, "10": 0, "9": 1}"#);
    check(&entries([u64::MAX]), r#"{"18446744073709551615": 0}"#);
    check(
        &entries([i128::MIN]),
        r#"{"-170141183460469231731687303715884105728": 0}"#,
    );
    check(
        &entries([u128::MAX]),
        r#"{"340282366920938463463374607431768211455": 0}"#,
    );
    check(&entries([i8::MIN]), r#"{"-128": 0}"#);
    check(&entries([Some("b"), Some("a")]), r#"{"a": 1, "b": 0}"#);
    check(&entries([Shape::Unit]), r#"{"Unit": 0}"#);
    check(
        &entries([Displayed("z"), Displayed("é")]),
        r#"{"z\nz": 0, "\u00e9\n\u00e9": 1}"#,
    );
    // Keys are strings: serde_json's spelling of floats, which no reader takes for numbers.
    for key in [1.5, -0.0, 1e16, 1e-7, 1e-5] {
        let text = serde_json::to_string(&entries([key])).unwrap();
        assert_eq!(text_of(&entries([key])), text.replace(':', ": "));
    }
    let text = serde_json::to_string(&entries([0.1_f32])).unwrap();
    assert_eq!(text_of(&entries([0.1_f32])), text.replace(':', ": "));
    check(&entries([Wrapper(1.5)]), r#"{"1.5": 0}"#);
    let map: HashMap<String, u8> = ('a'..='z').map(|char| (char.to_string(), char as u8)).collect();
    assert_eq!(text_of(&map), text_of(&map.iter().collect::<BTreeMap<_, _>>()));
}

#[test]
fn keys_that_are_no_strings() {
    fn refused(key: impl Serialize) {
        let map = Entries(vec![(key, 0)]);
        assert!(serde_json::to_string(&map).is_err());
        let error = canonical::to_vec(&map).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (Kind::KeyNotAString, "a map's key is not a string at {0}")
        );
    }
    refused(());
    refused(None::<u8>);
    refused(Unit);
    refused([1]);
    refused((1, 2));
    refused(Pair(1, 2));
    refused(Bytes(b"a"));
    refused(BTreeMap::<u8, u8>::new());
    refused(Shape::Newtype(1.0));
    refused(Shape::Tuple(1, ""));
    refused(Shape::Struct { z: 1, a: None });
    refused(Record {
        zebra: 1,
        apple: vec![],
        elan: true,
        none: None,
        more: BTreeMap::new(),
    });

    for key in [f64::NAN, f64::INFINITY] {
        let error = canonical::to_vec(&entries([key])).unwrap_err();
        assert_eq!(
            (error.kind(), error.path().unwrap().to_string().as_str()),
            (Kind::NotFinite, "{0}")
        );
    }
}
