//! The private names under which serde_json hands over raw JSON and numbers as text.

use idemp_core::canonical::{self, CanonicalErrorKind as Kind, MAX_DEPTH};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::{Envelope, check, entries, refused, text_of};

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
        text_of(&Private(RAW_VALUE, r#" {"b": [1.0, 1E5], "a": "é"} "#)),
        r#"{"a": "\u00e9", "b": [1.0, 100000.0]}"#
    );
    let mixed = Envelope {
        data: (Private(RAW_VALUE, r#"{"b":1,"a":{"d":1,"c":2}}"#), entries(["z", "y"])),
    };
    assert_eq!(
        text_of(&mixed),
        r#"{"data": [{"a": {"c": 2, "d": 1}, "b": 1}, {"y": 1, "z": 0}]}"#
    );
    assert_eq!(
        text_of(&[
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
    assert_eq!(text_of(&Private(RAW_VALUE, deepest)), deepest);
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
