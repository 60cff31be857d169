//! Scalars and compounds.

use std::collections::BTreeMap;

use super::{Bytes, Displayed, Pair, Record, Shape, Unit, Wrapper, check};

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
