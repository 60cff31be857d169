//! Properties of canonical bytes over values of all kinds.

use idemp_core::canonical;
use proptest::prelude::*;

use super::model::json;

fn canonical(text: &str) -> String {
    String::from_utf8(canonical::from_json(text.as_bytes()).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_plainest_implementation_agrees(value in json()) {
        prop_assert_eq!(canonical(&value.text("")), value.canonical());
    }

    #[test]
    fn canonical_bytes_are_their_own_canonical_form(value in json()) {
        let once = canonical(&value.text(""));
        prop_assert_eq!(&canonical(&once), &once);
    }

    #[test]
    fn white_space_does_not_count(value in json(), space in "[ \t\r\n]{0,3}") {
        prop_assert_eq!(canonical(&value.text(&space)), canonical(&value.text("")));
    }

    #[test]
    fn the_order_of_keys_does_not_count(value in json()) {
        let value = value.without_replaced();
        prop_assert_eq!(canonical(&value.reversed().text("")), canonical(&value.text("")));
    }

    #[test]
    fn text_and_value_have_the_same_bytes(value in json()) {
        // serde_json may read another number than the text has, so its own text is the one to compare with.
        if let Ok(value) = serde_json::from_str::<serde_json::Value>(&value.text("")) {
            let text = serde_json::to_string(&value).unwrap();
            prop_assert_eq!(canonical::to_vec(&value).unwrap(), canonical::from_json(text.as_bytes()).unwrap());
        }
    }

    #[test]
    fn floats_read_back_the_same(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        if value.is_finite() {
            let text = String::from_utf8(canonical::to_vec(&value).unwrap()).unwrap();
            prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), bits);
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut out = b"before".to_vec();
        if canonical::from_json_into(&bytes, &mut out).is_err() {
            prop_assert_eq!(out, b"before");
        } else {
            prop_assert!(out.is_ascii());
        }
    }

    #[test]
    fn damaged_text_is_taken_or_refused_without_a_panic(value in json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = value.text(" ").into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        match canonical::from_json(&text) {
            // What is wrong is found at the damage or after it, but for what the damage made part of one.
            Err(error) => prop_assert!(error.position().unwrap().offset <= text.len()),
            Ok(canonical) => prop_assert_eq!(canonical::from_json(&canonical).unwrap(), canonical),
        }
    }
}
