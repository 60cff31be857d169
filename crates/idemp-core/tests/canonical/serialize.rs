//! Values through serde: as serde_json writes them, then canonical.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use idemp_core::canonical::{self, CanonicalErrorKind as Kind, MAX_DEPTH};
use serde::ser::{Error as _, SerializeMap, SerializeStruct};
use serde::{Serialize, Serializer};

fn canonical(value: &(impl Serialize + ?Sized)) -> String {
    String::from_utf8(canonical::to_vec(value).unwrap()).unwrap()
}

/// Checks the bytes, and that the text of serde_json has the same.
fn check(value: &(impl Serialize + ?Sized), expected: &str) {
    assert_eq!(canonical(value), expected);
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(
        String::from_utf8(canonical::from_json(text.as_bytes()).unwrap()).unwrap(),
        expected
    );
}

#[test]
fn scalars() {
    check(&true, "true");
    check(&(), "null");
    check(&None::<u8>, "null");
    check(&Some(7), "7");
    check(&'é', r#""\u00e9""#);
    check("a\"\\/\u{7f}\u{1f600}", r#""a\"\\/\u007f\ud83d\ude00""#);
    check(
        &[i64::MIN, -101, -100, -10, -9, -1, 0, 9, 10, 99, 100, 101, i64::MAX],
        "[-9223372036854775808, -101, -100, -10, -9, -1, 0, 9, 10, 99, 100, 101, 9223372036854775807]",
    );
    check(&u64::MAX, "18446744073709551615");
    check(
        &(i8::MIN, i16::MIN, i32::MIN, u8::MAX, u16::MAX, u32::MAX),
        "[-128, -32768, -2147483648, 255, 65535, 4294967295]",
    );
    check(&i128::MIN, "-170141183460469231731687303715884105728");
    check(&u128::MAX, "340282366920938463463374607431768211455");
    check(
        &[
            0.0,
            -0.0,
            0.1,
            1.0,
            1e15,
            1e16,
            1e-4,
            1e-5,
            1.5e-7,
            5e-324,
            f64::MAX,
            123_456_789_012_345_680.0,
        ],
        "[0.0, -0.0, 0.1, 1.0, 1000000000000000.0, 1e+16, 0.0001, 1e-05, 1.5e-07, 5e-324, 1.7976931348623157e+308, 1.2345678901234568e+17]",
    );
    // The shortest digits of the f32, not of the f64 of the same value.
    check(
        &[0.1_f32, 16_777_216.0, 3.402_823_5e38, 1e-45, 1e16, 1e-5, 9.999_999e-5],
        "[0.1, 16777216.0, 3.4028235e+38, 1e-45, 1e+16, 1e-05, 9.999999e-05]",
    );
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

#[test]
fn compounds() {
    check(&Shape::Unit, r#""Unit""#);
    check(&Shape::Newtype(1.0), r#"{"Newtype": 1.0}"#);
    check(&Shape::Tuple(1, "b"), r#"{"Tuple": [1, "b"]}"#);
    check(&Shape::Struct { z: 1, a: None }, r#"{"Struct": {"a": null, "z": 1}}"#);
    check(&Shape::Empty {}, r#"{"Empty": {}}"#);
    check(&Wrapper(1e16), "1e+16");
    check(&Pair(2, 1), "[2, 1]");
    check(&Unit, "null");
    check(&(1, "a", [(); 2], Vec::<u8>::new()), r#"[1, "a", [null, null], []]"#);
    check(&Bytes(b"\0\xff"), "[0, 255]");
    check(&Bytes(b""), "[]");
    check(&Displayed("é\""), r#""\u00e9\"\n\u00e9\"""#);
    let more = BTreeMap::from([("b", 1), ("zz", 2)]);
    let record = Record {
        zebra: 1,
        apple: vec![3, 2],
        elan: true,
        none: None,
        more,
    };
    check(
        &record,
        r#"{"apple": [3, 2], "b": 1, "zebra": 1, "zz": 2, "\u00c9lan": true}"#,
    );
    // A flattened key may equal a field: the last counts, as it does in the text.
    let record = Record {
        zebra: 1,
        apple: vec![],
        elan: true,
        none: Some(1),
        more: BTreeMap::from([("zebra", 9)]),
    };
    check(&record, r#"{"apple": [], "none": 1, "zebra": 9, "\u00c9lan": true}"#);
    check(
        &[
            record,
            Record {
                zebra: 0,
                apple: vec![],
                elan: false,
                none: None,
                more: BTreeMap::new(),
            },
        ],
        r#"[{"apple": [], "none": 1, "zebra": 9, "\u00c9lan": true}, {"apple": [], "zebra": 0, "\u00c9lan": false}]"#,
    );
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
        assert_eq!(canonical(&entries([key])), text.replace(':', ": "));
    }
    let text = serde_json::to_string(&entries([0.1_f32])).unwrap();
    assert_eq!(canonical(&entries([0.1_f32])), text.replace(':', ": "));
    check(&entries([Wrapper(1.5)]), r#"{"1.5": 0}"#);
    let map: HashMap<String, u8> = ('a'..='z').map(|char| (char.to_string(), char as u8)).collect();
    assert_eq!(canonical(&map), canonical(&map.iter().collect::<BTreeMap<_, _>>()));
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

#[derive(Serialize)]
struct Envelope<T> {
    data: T,
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

/// Arrays in each other.
struct Nested(usize);

impl Serialize for Nested {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == 1 {
            serializer.collect_seq([0_u8; 0])
        } else {
            serializer.collect_seq([Nested(self.0 - 1)])
        }
    }
}

#[test]
fn nesting() {
    let deepest = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
    assert_eq!(canonical(&Nested(MAX_DEPTH)), deepest);
    refused(&Nested(MAX_DEPTH + 1), Kind::TooDeep, &"[0]".repeat(MAX_DEPTH));
    refused(
        &Shape::Tuple(0, "").nested(MAX_DEPTH - 1),
        Kind::TooDeep,
        &("[0]".repeat(MAX_DEPTH - 1) + "Tuple").replace("]T", "].T"),
    );
    assert!(canonical::to_vec(&Shape::Tuple(0, "").nested(MAX_DEPTH - 2)).is_ok());
}

/// A shape in arrays.
struct InArrays(Shape, usize);

impl Shape {
    fn nested(self, depth: usize) -> InArrays {
        InArrays(self, depth)
    }
}

impl Serialize for InArrays {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn inner<S: Serializer>(shape: &Shape, depth: usize, serializer: S) -> Result<S::Ok, S::Error> {
            struct Level<'s>(&'s Shape, usize);
            impl Serialize for Level<'_> {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    inner(self.0, self.1, serializer)
                }
            }
            if depth == 0 {
                shape.serialize(serializer)
            } else {
                serializer.collect_seq([Level(shape, depth - 1)])
            }
        }
        inner(&self.0, self.1, serializer)
    }
}

#[test]
fn the_deepest_value_needs_little_stack() {
    let mut value = serde_json::json!(1);
    for _ in 0..MAX_DEPTH / 2 {
        value = serde_json::json!({"b": 0, "a": [value]});
    }
    let thread = std::thread::Builder::new().stack_size(512 * 1024);
    let made = thread
        .spawn(move || canonical::to_vec(&value).map(|bytes| bytes.len()))
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(made.unwrap(), MAX_DEPTH / 2 * r#"{"a": [], "b": 0}"#.len() + 1);
}

/// What serde_json's `RawValue` and `Number` do when their features are on.
struct Private(&'static str, &'static str);

const RAW_VALUE: &str = "$serde_json::private::RawValue";
const NUMBER: &str = "$serde_json::private::Number";

impl Serialize for Private {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct(self.0, 1)?;
        fields.serialize_field(self.0, self.1)?;
        fields.end()
    }
}

#[test]
fn raw_json_and_numbers_as_text() {
    assert_eq!(
        canonical(&Private(RAW_VALUE, r#" {"b": [1.0, 1E5], "a": "é"} "#)),
        r#"{"a": "\u00e9", "b": [1.0, 100000.0]}"#
    );
    let mixed = Envelope {
        data: (Private(RAW_VALUE, r#"{"b":1,"a":{"d":1,"c":2}}"#), entries(["z", "y"])),
    };
    assert_eq!(
        canonical(&mixed),
        r#"{"data": [{"a": {"c": 2, "d": 1}, "b": 1}, {"y": 1, "z": 0}]}"#
    );
    assert_eq!(
        canonical(&[
            Private(NUMBER, "1E5"),
            Private(NUMBER, "123456789012345678901234567890"),
            Private(NUMBER, "-0")
        ]),
        "[100000.0, 123456789012345678901234567890, 0]"
    );

    let error = canonical::to_vec(&Envelope {
        data: [Private(RAW_VALUE, "{\"a\":\n 01}")],
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid number at line 2 column 3 (byte 8) of the raw JSON at data[0]"
    );
    refused(&[Private(RAW_VALUE, "")], Kind::Syntax, "[0]");
    refused(&[Private(RAW_VALUE, "1 2")], Kind::Syntax, "[0]");
    for text in ["", " 1", "1 ", "null", "[1]", "\"1\"", "1 2", "NaN", "01"] {
        refused(
            &Envelope {
                data: Private(NUMBER, text),
            },
            Kind::Syntax,
            "data",
        );
    }
    refused(&[Private(NUMBER, "1e400")], Kind::NumberOutOfRange, "[0]");
    refused(&Private(RAW_VALUE, "?"), Kind::Syntax, "the top level");
    // The depth around a raw text counts.
    let deepest: &str = Box::leak(("[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH)).into_boxed_str());
    assert_eq!(canonical(&Private(RAW_VALUE, deepest)), deepest);
    refused(&[Private(RAW_VALUE, deepest)], Kind::TooDeep, "[0]");
}

/// A struct that only has the name of a private one.
struct Impostor<T: 'static>(&'static str, &'static [(&'static str, T)]);

impl<T: Serialize> Serialize for Impostor<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct(self.0, self.1.len())?;
        for (name, value) in self.1 {
            fields.serialize_field(name, value)?;
        }
        fields.end()
    }
}

#[test]
fn private_names_used_otherwise() {
    refused(&Impostor::<u8>(RAW_VALUE, &[]), Kind::Serialize, "the top level");
    refused(
        &Impostor(RAW_VALUE, &[(RAW_VALUE, 1)]),
        Kind::Serialize,
        "the top level",
    );
    refused(&Impostor(RAW_VALUE, &[("a", "1")]), Kind::Serialize, "the top level");
    refused(&Impostor(RAW_VALUE, &[(NUMBER, "1")]), Kind::Serialize, "the top level");
    refused(
        &Impostor(NUMBER, &[(NUMBER, "1"), (NUMBER, "2")]),
        Kind::Serialize,
        "the top level",
    );
    check(
        &Impostor("$serde_json::private::Other", &[("b", 1), ("a", 2)]),
        r#"{"a": 2, "b": 1}"#,
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
