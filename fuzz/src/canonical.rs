use idemp_core::canonical::{from_json, to_vec};
use serde_json::Value;

use crate::levels;

/// serde_json reads values up to this depth.
const DEPTH_OF_SERDE_JSON: usize = 127;

/// A decimal integer of so many digits may be beyond every double, of which serde_json makes an error. Here it stays.
const DIGITS_OF_A_DOUBLE: usize = 309;

/// JSON texts and values, beside serde_json.
pub fn canonical(text: &[u8]) {
    let ours = from_json(text);
    match &ours {
        Ok(bytes) => {
            assert!(bytes.iter().all(|byte| matches!(byte, b' '..=b'~')), "printable ASCII");
            assert_eq!(from_json(bytes).as_ref(), Ok(bytes), "canonical bytes are their own");
        }
        Err(error) => {
            let place = error.position().expect("an error of a text has a place");
            assert!(place.offset <= text.len(), "{error}");
        }
    }
    match (ours, serde_json::from_slice::<Value>(text)) {
        (Ok(bytes), Ok(value)) => {
            let back = serde_json::from_slice(&bytes).expect("canonical bytes are JSON");
            assert!(same(&back, &value), "another value");
            let written = serde_json::to_vec(&value).expect("a value has a text");
            assert_eq!(to_vec(&value), from_json(&written), "a value and its text");
        }
        (Err(error), Ok(_)) => panic!("serde_json takes it: {error}"),
        (Ok(_), Err(error)) => assert!(
            levels(text) > DEPTH_OF_SERDE_JSON || digits(text) >= DIGITS_OF_A_DOUBLE,
            "serde_json refuses it: {error}"
        ),
        (Err(_), Err(_)) => {}
    }
}

fn digits(text: &[u8]) -> usize {
    text.iter().filter(|byte| byte.is_ascii_digit()).count()
}

/// Whether two values are equal. `-0` is the integer 0 here and a negative zero there.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left == right || left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(name, left)| right.get(name).is_some_and(|right| same(left, right)))
        }
        _ => left == right,
    }
}
