//! What is refused, why and where.

use idemp_core::canonical::{self, CanonicalErrorKind as Kind, MAX_DEPTH};

fn check(text: impl AsRef<[u8]>, kind: Kind, offset: usize) {
    let text = text.as_ref();
    let shown = String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned();
    let error = canonical::from_json(text).expect_err(&shown);
    assert_eq!(error.kind(), kind, "{shown:?}: {error}");
    assert_eq!(error.position().unwrap().offset, offset, "{shown:?}: {error}");
    assert_eq!(error.path(), None);

    // The same within something; the grammar may allow other things there.
    for before in ["[", "{\"\u{e9}\": ", "[[1.5, \"\\n\"], {\"k\": ["] {
        let nested = [before.as_bytes(), text].concat();
        if kind != Kind::Syntax {
            let error = canonical::from_json(&nested).expect_err(&shown);
            let offset = offset + before.len();
            assert_eq!(
                (error.kind(), error.position().unwrap().offset),
                (kind, offset),
                "{shown:?} in {before:?}: {error}"
            );
        }
    }
}

#[test]
fn grammar() {
    for (text, offset) in [
        // Nothing, or not all.
        ("", 0),
        (" \n\t\r", 4),
        ("[", 1),
        ("[1", 2),
        ("[1,", 3),
        ("{", 1),
        ("{\"a\"", 4),
        ("{\"a\":", 5),
        ("{\"a\": 1", 7),
        ("{\"a\": 1,", 8),
        // No value.
        ("]", 0),
        ("}", 0),
        (",", 0),
        (":", 0),
        ("?", 0),
        ("'a'", 0),
        ("a", 0),
        ("[a]", 1),
        ("undefined", 0),
        ("None", 0),
        ("True", 0),
        ("NULL", 0),
        ("Inf", 0),
        ("nan", 1),
        // Literals.
        ("tru", 3),
        ("trux", 3),
        ("nul", 3),
        ("nuLl", 2),
        ("fals", 4),
        ("truee", 4),
        ("nulll", 4),
        // Numbers.
        ("-", 1),
        ("--1", 1),
        ("- 1", 1),
        ("-a", 1),
        ("+1", 0),
        (".5", 0),
        ("-.5", 1),
        ("1.", 2),
        ("1.]", 2),
        ("1.e5", 2),
        ("1e", 2),
        ("1e+", 3),
        ("1e-", 3),
        ("1e+x", 3),
        ("1ex", 2),
        ("0e", 2),
        ("0.", 2),
        ("01", 1),
        ("-01", 2),
        ("00", 1),
        ("-00", 2),
        ("0x10", 1),
        ("1_000", 1),
        ("1,5", 1),
        ("1.5.5", 3),
        ("1e5.5", 3),
        ("1e5e5", 3),
        ("1a", 1),
        ("0b1", 1),
        ("1L", 1),
        ("12 3", 3),
        ("-Inf", 1),
        // Strings.
        ("\"", 1),
        ("\"a", 2),
        ("\"a\\", 3),
        ("\"\\\"", 3),
        ("\"\n\"", 1),
        ("\"a\tb\"", 2),
        ("\"\0\"", 1),
        ("\"\u{1f}\"", 1),
        ("\"\\n\u{1}\"", 3),
        ("\"0123456789abcdef\u{1}\"", 17),
        ("\"\\x41\"", 1),
        ("\"\\'\"", 1),
        ("\"\\0\"", 1),
        ("\"ab\\a\"", 3),
        ("\"\\U0041\"", 1),
        ("\"\\u\"", 1),
        ("\"\\u12\"", 1),
        ("\"\\u12g4\"", 1),
        ("\"\\u+123\"", 1),
        ("\"\\u 123\"", 1),
        ("\"\\u00e\"", 1),
        ("\"\\u123", 6),
        ("\"\\u1234", 7),
        ("\"\\ud83d", 7),
        ("\"\\ud83d\\", 8),
        ("\"\\ud83d\\u", 9),
        ("\"\\ud83d\\ude0", 12),
        ("\"\\ud83d\\ude0g\"", 7),
        ("\"\\ud83d\\u\"", 7),
        // Arrays and objects.
        ("[1,]", 3),
        ("[,1]", 1),
        ("[,]", 1),
        ("[1,,2]", 3),
        ("[1 2]", 3),
        ("[1:2]", 2),
        ("[1}", 2),
        ("[\"a\" \"b\"]", 5),
        ("{\"a\": 1,}", 8),
        ("{,}", 1),
        ("{\"a\"}", 4),
        ("{\"a\" 1}", 5),
        ("{\"a\"; 1}", 4),
        ("{\"a\": }", 6),
        ("{\"a\":: 1}", 5),
        ("{\"a\": 1 \"b\": 2}", 8),
        ("{\"a\": 1,, \"b\": 2}", 8),
        ("{\"a\": 1]", 7),
        ("{a: 1}", 1),
        ("{1: 1}", 1),
        ("{null: 1}", 1),
        ("{'a': 1}", 1),
        ("{[]: 1}", 1),
        ("{\"a\": 1, b: 2}", 9),
        ("{\"\\q\": 1}", 2),
        ("{\"a\n\": 1}", 3),
        // Comments, and white space that is none.
        ("// a\n1", 0),
        ("/* a */ 1", 0),
        ("1 // a", 2),
        ("[1, /* a */ 2]", 4),
        ("# a\n1", 0),
        ("\u{b}1", 0),
        ("\u{c}1", 0),
        ("1\u{c}", 1),
        ("\u{a0}1", 0),
        ("\u{2028}1", 0),
        ("\u{feff}1", 0),
        ("[\u{feff}1]", 1),
        ("1\u{feff}", 1),
        ("\0", 0),
        ("1\0", 1),
        // More than one value.
        ("1 2", 2),
        ("{}{}", 2),
        ("[] []", 3),
        ("\"a\" \"b\"", 4),
        ("null,", 4),
        ("[1]]", 3),
        ("{}}", 2),
    ] {
        check(text, Kind::Syntax, offset);
    }
}

#[test]
fn after_a_long_number() {
    let digits = "9".repeat(5_000);
    for (rest, offset) in [
        (".", 1),
        (".x", 1),
        ("e", 1),
        ("e+", 2),
        (".5e", 3),
        ("x", 0),
        (" 1", 1),
        (", 01", 3),
        ("", 0),
    ] {
        check(format!("[{digits}{rest}"), Kind::Syntax, 1 + digits.len() + offset);
    }
    check(
        format!("[{digits}, \"\\ud800\"]"),
        Kind::LoneSurrogate,
        digits.len() + 4,
    );
    check(
        format!("[-{digits}, {digits}, NaN]"),
        Kind::NotFinite,
        2 * digits.len() + 6,
    );
    check(
        format!("[{digits}, \"\\n\u{e9}\", 1e400]"),
        Kind::NumberOutOfRange,
        digits.len() + 11,
    );
}

#[test]
fn not_finite_and_out_of_range() {
    for (text, offset) in [
        ("NaN", 0),
        ("Infinity", 0),
        ("-Infinity", 0),
        ("  NaN", 2),
        ("[NaN]", 1),
        ("[1, -Infinity]", 4),
        ("{\"a\": {\"b\": [Infinity]}}", 13),
        // A later equal key would replace it.
        ("{\"a\": NaN, \"a\": 1}", 6),
    ] {
        check(text, Kind::NotFinite, offset);
    }
    for (text, offset) in [
        ("1e400", 0),
        ("-1e400", 0),
        ("1e309", 0),
        ("1.7976931348623159e308", 0),
        ("[0.5, 1e999999999999999999999]", 6),
        ("{\"a\": 1e400, \"a\": 1}", 6),
    ] {
        check(text, Kind::NumberOutOfRange, offset);
    }
    check(format!("{}.0", "9".repeat(400)), Kind::NumberOutOfRange, 0);
    check(format!("[-{}e1]", "9".repeat(5_000)), Kind::NumberOutOfRange, 1);
}

#[test]
fn lone_surrogates() {
    for (text, offset) in [
        (r#""\ud800""#, 1),
        (r#""\udfff""#, 1),
        (r#""ab\udc00""#, 3),
        (r#""\ud83dx""#, 1),
        (r#""\ud83d\n""#, 1),
        (r#""\ud83d\\ude00""#, 1),
        (r#""\ud83d\u0041""#, 1),
        (r#""\ud83d\ud83d\ude00""#, 1),
        (r#""\ud83d\ude00\ude00""#, 13),
        (r#"{"k\udead": 1}"#, 3),
        (r#"[{"a": "\n\uD800 "}]"#, 10),
    ] {
        check(text, Kind::LoneSurrogate, offset);
    }
}

#[test]
fn invalid_utf8() {
    let cases: &[(&[u8], usize)] = &[
        (b"\"\x80\"", 1),
        (b"\"\xff\"", 1),
        (b"\"a\xc3\"", 2),
        (b"\"\xe2\x82\"", 1),
        (b"\"\xf0\x9f\x98\"", 1),
        // Overlong forms, surrogates and code points beyond the last.
        (b"\"\xc0\x80\"", 1),
        (b"\"\xc0\xaf\"", 1),
        (b"\"\xe0\x80\xaf\"", 1),
        (b"\"\xf0\x80\x80\xaf\"", 1),
        (b"\"\xed\xa0\x80\"", 1),
        (b"\"\xed\xa0\xbd\xed\xb8\x80\"", 1),
        (b"\"\xf4\x90\x80\x80\"", 1),
        // After escapes, after long text, in keys, at the end.
        (b"\"\\n\\n\\n\xff\"", 7),
        (b"\"\\u00e9\xff\"", 7),
        (b"\"0123456789abcdef0123456789\xff\"", 27),
        (b"{\"\xff\": 1}", 2),
        (b"{\"a\\t\xff\": 1}", 5),
        (b"\"\xc3\xa9\xc3", 3),
        (b"\"\xe2\x82", 1),
        // Before what is wrong later, and split by an escape.
        (b"\"\xff\n\"", 1),
        (b"\"\xc3\\u00a9\"", 1),
        // Outside of strings.
        (b"\xff", 0),
        (b"[1, \xc3]", 4),
        (b"{\xff: 1}", 1),
        (b"1 \xff", 2),
        (b"[1\xff]", 2),
    ];
    for &(text, offset) in cases {
        check(text, Kind::InvalidUtf8, offset);
    }
    // What is wrong first counts.
    check(b"\"\x01\xff\"", Kind::Syntax, 1);
    check(b"\"\\ud800\xff\"", Kind::LoneSurrogate, 1);
    check(b"[01, \"\xff\"]", Kind::Syntax, 2);
}

#[test]
fn nesting() {
    for (open, inner, close) in [
        ("[", "", "]"),
        ("{\"a\": ", "1", "}"),
        ("[{\"b\": 0, \"a\": ", "1", "}]"),
    ] {
        let levels = open.matches(['[', '{']).count();
        let nested = |depth: usize| format!("{}{inner}{}", open.repeat(depth / levels), close.repeat(depth / levels));
        assert!(canonical::from_json(nested(MAX_DEPTH).as_bytes()).is_ok());
        let last = open.find(['[', '{']).unwrap();
        check_depth(&nested(MAX_DEPTH + levels), open.len() * MAX_DEPTH / levels + last);
    }
    // Beside each other is not within each other.
    let wide = format!("[{}]", vec!["[[], {}]"; 1_000].join(", "));
    assert_eq!(canonical::from_json(wide.as_bytes()).unwrap(), wide.as_bytes());
    // Far deeper, and never closed.
    check_depth(&"[".repeat(1_000_000), MAX_DEPTH);
}

fn check_depth(text: &str, offset: usize) {
    let error = canonical::from_json(text.as_bytes()).unwrap_err();
    assert_eq!(
        (error.kind(), error.position().unwrap().offset),
        (Kind::TooDeep, offset)
    );
}

#[test]
fn the_deepest_text_needs_little_stack() {
    let text = format!(
        "{}1{}",
        r#"{"b": 0, "a": ["#.repeat(MAX_DEPTH / 2),
        "]}".repeat(MAX_DEPTH / 2)
    );
    let expected = format!(
        "{}1{}",
        r#"{"a": ["#.repeat(MAX_DEPTH / 2),
        r#"], "b": 0}"#.repeat(MAX_DEPTH / 2)
    );
    let thread = std::thread::Builder::new().stack_size(64 * 1024);
    let made = thread
        .spawn(move || canonical::from_json(text.as_bytes()))
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(String::from_utf8(made.unwrap()).unwrap(), expected);
}

#[test]
fn places_have_lines_and_columns() {
    for (text, shown) in [
        ("[1,\n 2,\n  01]", "invalid number at line 3 column 4 (byte 11)"),
        (
            "{\"é\": \"ü\", \"x\": 1e400}",
            "number out of range at line 1 column 17 (byte 18)",
        ),
        ("[\r\n1\r\n 2]", "expected `,` or `]` at line 3 column 2 (byte 7)"),
        ("\"a\n", "control character in a string at line 1 column 3 (byte 2)"),
        ("[1\n", "the JSON text ends too early at line 2 column 1 (byte 3)"),
        (
            "\u{feff}{}",
            "byte order mark before the JSON text at line 1 column 1 (byte 0)",
        ),
        (
            "{\"key\": [NaN]}",
            "NaN and infinities have no JSON form at line 1 column 10 (byte 9)",
        ),
        ("{} x", "text after the JSON value at line 1 column 4 (byte 3)"),
    ] {
        assert_eq!(canonical::from_json(text.as_bytes()).unwrap_err().to_string(), shown);
    }
}

#[test]
fn errors_hold_nothing_of_the_text() {
    for text in [
        r#"{"hunter2": "hunter2\ud800"}"#,
        r#"{"hunter2": hunter2}"#,
        r#"{"hunter2": 1e400}"#,
        "{\"hunter2\": \"hunter2\u{1}\"}",
        r#"{"hunter2": "hunter2"#,
        r#"{"hunter2" "hunter2"}"#,
    ] {
        let error = canonical::from_json(text.as_bytes()).unwrap_err();
        let shown = format!("{error} {error:?} {error:#?}");
        assert!(!shown.contains("hunter"), "{shown}");
    }
}
