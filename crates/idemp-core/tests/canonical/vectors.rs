//! `tests/data/canonical-json.jsonl`: what CPython prints.

use idemp_core::canonical::{self, CanonicalErrorKind};
use idemp_testkit::vectors::{self, unhex};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Vector {
    name: String,
    input_json: String,
    canonical_hex: String,
}

fn load() -> Vec<Vector> {
    vectors::load("canonical-json.jsonl")
}

/// Why a vector has no canonical form here although CPython prints one: two groups hold nothing else.
fn refusal(vector: &Vector) -> Option<CanonicalErrorKind> {
    if vector.name.starts_with("lone-surrogate/") {
        Some(CanonicalErrorKind::LoneSurrogate)
    } else if vector.name.starts_with("py-nonstandard/") {
        // The first number of these inputs that is written out is the one to blame.
        let digits = vector
            .input_json
            .find(|char: char| char.is_ascii_digit())
            .unwrap_or(usize::MAX);
        let word = ["NaN,", "NaN}", "NaN]", "NaN ", "Infinity"]
            .iter()
            .filter_map(|word| vector.input_json.find(word))
            .min();
        let word = if vector.input_json == "NaN" { Some(0) } else { word };
        Some(match word {
            Some(word) if word < digits => CanonicalErrorKind::NotFinite,
            _ => CanonicalErrorKind::NumberOutOfRange,
        })
    } else {
        None
    }
}

#[test]
fn every_vector_has_the_bytes_that_cpython_prints_or_is_refused() {
    let (mut made, mut refused) = (0, 0);
    for vector in load() {
        let name = &vector.name;
        let result = canonical::from_json(vector.input_json.as_bytes());
        match refusal(&vector) {
            Some(kind) => {
                let error = result.expect_err(name);
                assert_eq!(error.kind(), kind, "{name}: {error}");
                refused += 1;
            }
            None => {
                assert_eq!(result.expect(name), unhex(&vector.canonical_hex), "{name}");
                made += 1;
            }
        }
    }
    assert_eq!((made, refused), (695, 31));
}

#[test]
fn integers_of_any_length_keep_their_digits() {
    for len in [19, 20, 39, 40, 4_299, 4_300, 4_301, 100_000] {
        let digits = "1234567890".repeat(len / 10 + 1)[..len].to_owned();
        for text in [
            digits.clone(),
            format!("-{digits}"),
            format!("[-{digits}, {digits}, {{\"a\": {digits}}}]"),
        ] {
            assert_eq!(
                canonical::from_json(text.as_bytes()).unwrap(),
                text.as_bytes(),
                "{len} digits"
            );
        }
        // With a fraction or an exponent it is a float, however long.
        let float = format!("[{digits}.5e-{len}, \"\\u00e9\", {digits}e-{}]", len - 1);
        let expected = &b"[0.12345678901234568, \"\\u00e9\", 1.2345678901234567]"[..];
        assert_eq!(
            canonical::from_json(float.as_bytes()).unwrap(),
            expected,
            "{len} digits"
        );
    }
}

#[test]
fn what_cpython_prints_is_its_own_canonical_form() {
    for vector in load().iter().filter(|vector| refusal(vector).is_none()) {
        let bytes = unhex(&vector.canonical_hex);
        assert_eq!(
            canonical::from_json(&bytes).expect(&vector.name),
            bytes,
            "{}",
            vector.name
        );
    }
}

#[test]
fn a_prefix_in_the_buffer_stays() {
    for vector in load() {
        let mut out = b"{\"data\": ".to_vec();
        let result = canonical::from_json_into(vector.input_json.as_bytes(), &mut out);
        if refusal(&vector).is_none() {
            assert_eq!(result, Ok(()), "{}", vector.name);
            assert_eq!(
                out,
                [b"{\"data\": ", unhex(&vector.canonical_hex).as_slice()].concat(),
                "{}",
                vector.name
            );
        } else {
            assert!(result.is_err(), "{}", vector.name);
            assert_eq!(out, b"{\"data\": ", "{}", vector.name);
        }
    }
}

#[test]
fn values_have_the_same_bytes_where_serde_json_holds_them() {
    let mut held = 0;
    for vector in load().iter().filter(|vector| refusal(vector).is_none()) {
        let expected = unhex(&vector.canonical_hex);
        let Ok(value) = serde_json::from_str::<Value>(&vector.input_json) else {
            continue;
        };
        if holds(&value, &expected) {
            assert_eq!(
                canonical::to_vec(&value).expect(&vector.name),
                expected,
                "{}",
                vector.name
            );
            held += 1;
        }
    }
    assert!(held > 550, "serde_json holds only {held}");
}

/// Whether each number of the value is the one in the canonical bytes. Both come in the same order.
fn holds(value: &Value, canonical: &[u8]) -> bool {
    let mut numbers = Vec::new();
    collect(value, &mut numbers);
    let tokens = number_tokens(canonical);
    assert_eq!(numbers.len(), tokens.len());
    numbers.iter().zip(&tokens).all(|(number, token)| {
        if token.contains(['.', 'e']) {
            number.is_f64() && number.as_f64().map(f64::to_bits) == token.parse().ok().map(f64::to_bits)
        } else {
            number.to_string() == *token
        }
    })
}

fn collect<'v>(value: &'v Value, numbers: &mut Vec<&'v serde_json::Number>) {
    match value {
        Value::Number(number) => numbers.push(number),
        Value::Array(items) => items.iter().for_each(|item| collect(item, numbers)),
        Value::Object(map) => map.values().for_each(|item| collect(item, numbers)),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The numbers of a canonical text, in its order.
fn number_tokens(canonical: &[u8]) -> Vec<String> {
    let text = str::from_utf8(canonical).unwrap();
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => {
                let mut escaped = false;
                let end = rest[1..].find(|char| {
                    let end = char == '"' && !escaped;
                    escaped = char == '\\' && !escaped;
                    end
                });
                end.unwrap() + 2
            }
            '-' | '0'..='9' => {
                let len = rest.find([',', ']', '}']).unwrap_or(rest.len());
                tokens.push(rest[..len].to_owned());
                len
            }
            _ => 1,
        };
        rest = &rest[len..];
    }
    tokens
}

#[test]
fn recorded_events_come_out_the_same_from_text_and_from_values() {
    let mut compared = 0;
    for line in vectors::lines("langchain-events.jsonl") {
        let canonical = canonical::from_json(line.as_bytes()).unwrap();
        let value: Value = serde_json::from_str(&line).unwrap();
        if holds(&value, &canonical) {
            assert_eq!(canonical::to_vec(&value).unwrap(), canonical);
            compared += 1;
        }
    }
    assert!(compared > 500, "serde_json holds only {compared}");
}
