use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use idemp_core::headers::HeaderLine;
use idemp_core::{
    KeyHasDot, Secret, Secrets, StandardError, StandardHeaderValues, StandardSigner, StandardVerifier, Verifier,
};
use idemp_testkit::vectors;
use proptest::prelude::*;
use serde::Deserialize;

use crate::{BODY, CONTESTED, Differing, NOW, SECRET, at, expected, flipped};

#[derive(Deserialize)]
struct StandardVector {
    secret: String,
    now: u64,
    headers: BTreeMap<String, String>,
    body_hex: String,
    valid: bool,
    why: String,
}

const DIFFERING_STANDARD: &[Differing] = &[(
    "contested: secret without its base64 padding",
    false,
    "base64 is decoded strictly, so the secret is refused when the verifier is made",
)];

fn line<'h>(headers: &'h BTreeMap<String, String>, name: &str) -> HeaderLine<'h> {
    headers
        .iter()
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_bytes())
        .collect()
}

fn values(headers: &BTreeMap<String, String>) -> StandardHeaderValues<'_> {
    StandardHeaderValues {
        id: line(headers, "webhook-id"),
        timestamp: line(headers, "webhook-timestamp"),
        signature: line(headers, "webhook-signature"),
    }
}

#[test]
fn standard_webhooks_vectors() {
    let all: Vec<StandardVector> = vectors::load("standard-webhooks.jsonl");
    assert_eq!(all.len(), 109);
    assert_eq!(all.iter().filter(|vector| vector.why.starts_with(CONTESTED)).count(), 3);

    let (mut differing, mut accepted, mut signed, mut dotted) = (Vec::new(), 0, 0, 0);
    for (number, vector) in (1..).zip(&all) {
        let body = vectors::unhex(&vector.body_hex);
        let secret = Secret::new(vector.secret.as_str()).unwrap();
        let verifier = StandardVerifier::new(&secret.clone().into(), StandardVerifier::DEFAULT_TOLERANCE);
        let verdict = verifier
            .as_ref()
            .is_ok_and(|verifier| verifier.verify(values(&vector.headers), &body, at(vector.now)) == Ok("default"));
        let expected = expected(&vector.why, vector.valid, DIFFERING_STANDARD, &mut differing);
        assert_eq!(verdict, expected, "line {number}: {}", vector.why);
        accepted += usize::from(verdict);

        // What the library signed, we sign the same, where it is one signature of ours.
        if !vector.valid || verifier.is_err() || vector.headers.keys().any(|name| name.starts_with('W')) {
            continue;
        }
        let (id, timestamp) = (
            &vector.headers["webhook-id"],
            vector.headers["webhook-timestamp"].parse().unwrap(),
        );
        match StandardSigner::new(&secret).unwrap().sign(id, at(timestamp), &body) {
            Ok(sent) => {
                assert_eq!((&sent.id, &sent.timestamp), (id, &vector.headers["webhook-timestamp"]));
                let recorded = &vector.headers["webhook-signature"];
                assert!(
                    recorded.split(' ').any(|one| one == sent.signature),
                    "line {number}: {}",
                    vector.why
                );
                signed += 1;
            }
            Err(KeyHasDot) => {
                assert!(id.contains('.'));
                dotted += 1;
            }
        }
    }
    assert_eq!(
        differing.len(),
        DIFFERING_STANDARD.len(),
        "each differing vector is there once: {differing:?}"
    );
    assert_eq!(accepted, 33 - 1, "all valid ones but the one with the unpadded secret");
    assert_eq!(
        (signed, dotted),
        (33 - 3, 1),
        "all valid ones but that, the one in capitals and the dotted id"
    );
}

/// Made by the `standardwebhooks` library of Python for `msg_1`, NOW and BODY.
const GOOD: &str = "v1,KfVeZVVmFa/76Wqu/I3EJucOf0RTo6z/85dimfK7RNU=";

fn standard_verifier() -> StandardVerifier {
    StandardVerifier::new(
        &Secret::new(SECRET).unwrap().into(),
        StandardVerifier::DEFAULT_TOLERANCE,
    )
    .unwrap()
}

/// The signature over exactly this text of the timestamp, whatever it is.
fn signed_over(id: &str, timestamp: &str) -> String {
    let key: Vec<u8> = (1..=24).collect();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", BODY] {
        mac.update(part);
    }
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

fn verify(id: &str, timestamp: &str, signature: &str, now: SystemTime) -> Result<(), StandardError> {
    let headers = StandardHeaderValues {
        id: id.into(),
        timestamp: timestamp.into(),
        signature: signature.into(),
    };
    standard_verifier()
        .verify(headers, BODY, now)
        .map(|label| assert_eq!(label, "default"))
}

#[test]
fn one_good_signature_in_the_list_is_enough() {
    assert_eq!(
        signed_over("msg_1", "1796040000"),
        GOOD,
        "this test signs as the library does"
    );
    for before in [
        "v1,", "v1", ",", "v1,!!!!", "v1,AAAA", "garbage", "v1,a,b", "v1a,AAAA", "v2,AAAA", "v1,é", "\t", "",
    ] {
        for list in [
            format!("{before} {GOOD}"),
            format!("{GOOD} {before}"),
            format!("{before} {before} {GOOD} {before}"),
            format!("{before}  {GOOD}"),
        ] {
            assert_eq!(verify("msg_1", "1796040000", &list, at(NOW)), Ok(()), "{list:?}");
        }
    }
}

#[test]
fn a_signature_is_strict_base64_of_32_bytes() {
    let body = GOOD.strip_prefix("v1,").unwrap();
    for bad in [
        format!("v1,{}", body.trim_end_matches('=')),
        format!("v1,{body}="),
        // The same 32 bytes to a decoder that overlooks the bits behind the last one.
        format!("v1,{}", body.replace("RNU=", "RNV=")),
        format!("v1,{}", body.replace('/', "_")),
        format!("v1,\t{body}"),
        format!("v1,{body}\t"),
        format!("v1, {body}"),
        format!("v1,{}{}", &body[..20], &body[24..]),
        format!("v1,{body}{body}"),
        format!("V1,{body}"),
        format!("v1={body}"),
        format!("v1,{body},{body}"),
        format!("v1,\u{200b}{body}"),
    ] {
        assert_eq!(
            verify("msg_1", "1796040000", &bad, at(NOW)),
            Err(StandardError::NoV1Signature),
            "{bad:?}"
        );
    }
    let other = format!("v1,{}", STANDARD.encode([7; 32]));
    assert_eq!(
        verify("msg_1", "1796040000", &other, at(NOW)),
        Err(StandardError::Mismatch)
    );
}

#[test]
fn a_timestamp_is_decimal_digits_only() {
    for bad in [
        "+1796040000",
        "-1796040000",
        "1796040000.0",
        "1796040000.9",
        "1_796_040_000",
        "1,796,040,000",
        " 1796040000",
        "1796040000 ",
        "1796040000\n",
        "\u{ff11}796040000",
        "0x6b0d6540",
        "1.79604e9",
        "1796040000s",
        "NaN",
        "inf",
    ] {
        let signature = signed_over("msg_1", bad);
        let verdict = verify("msg_1", bad, &signature, at(NOW));
        assert_eq!(
            verdict,
            Err(StandardError::MalformedTimestamp),
            "{bad:?}, although it is signed"
        );
    }
    for (far, error) in [
        ("0", StandardError::TooOld),
        ("1796040000000", StandardError::TooNew),
        ("9223372036854775808", StandardError::TooNew),
        ("18446744073709551615", StandardError::TooNew),
        ("99999999999999999999999999999999999999", StandardError::TooNew),
    ] {
        assert_eq!(
            verify("msg_1", far, &signed_over("msg_1", far), at(NOW)),
            Err(error),
            "{far}"
        );
    }
}

#[test]
fn the_tolerance_includes_its_limit_both_ways() {
    let (limit, instant) = (Duration::from_secs(300), Duration::from_nanos(1));
    let check = |now| verify("msg_1", "1796040000", GOOD, now);
    assert_eq!(check(at(NOW) + limit), Ok(()));
    assert_eq!(check(at(NOW) + limit + instant), Err(StandardError::TooOld));
    assert_eq!(check(at(NOW) - limit), Ok(()));
    assert_eq!(check(at(NOW) - limit - instant), Err(StandardError::TooNew));
    assert_eq!(
        check(UNIX_EPOCH - limit),
        Err(StandardError::TooNew),
        "a clock before 1970"
    );

    let tolerant = StandardVerifier::new(&Secret::new(SECRET).unwrap().into(), Duration::MAX).unwrap();
    let headers = StandardHeaderValues {
        id: "msg_1".into(),
        timestamp: "0".into(),
        signature: GOOD.into(),
    };
    assert_eq!(tolerant.verify(headers, BODY, at(NOW)), Err(StandardError::Mismatch));
    let none = StandardVerifier::new(&Secret::new(SECRET).unwrap().into(), Duration::ZERO).unwrap();
    let headers = StandardHeaderValues {
        id: "msg_1".into(),
        timestamp: "1796040000".into(),
        signature: GOOD.into(),
    };
    assert_eq!(none.verify(headers, BODY, at(NOW)), Ok("default"));
    assert_eq!(
        none.verify(headers, BODY, at(NOW) + instant),
        Err(StandardError::TooOld)
    );
}

#[test]
fn standard_webhooks_want_each_header_once() {
    let good = StandardHeaderValues {
        id: "msg_1".into(),
        timestamp: "1796040000".into(),
        signature: GOOD.into(),
    };
    let check = |headers| standard_verifier().verify(headers, BODY, at(NOW)).map(|_| ());
    assert_eq!(check(good), Ok(()));
    for line in [HeaderLine::Missing, HeaderLine::One(b""), HeaderLine::Repeated] {
        let error = |header| match line {
            HeaderLine::Repeated => Err(StandardError::Repeated { header }),
            _ => Err(StandardError::Missing { header }),
        };
        assert_eq!(check(StandardHeaderValues { id: line, ..good }), error("webhook-id"));
        assert_eq!(
            check(StandardHeaderValues {
                timestamp: line,
                ..good
            }),
            error("webhook-timestamp")
        );
        assert_eq!(
            check(StandardHeaderValues {
                signature: line,
                ..good
            }),
            error("webhook-signature")
        );
    }
    let twice: HeaderLine<'_> = [GOOD.as_bytes(), GOOD.as_bytes()].into_iter().collect();
    assert_eq!(twice, HeaderLine::Repeated);
    assert_eq!([GOOD.as_bytes()].into_iter().collect::<HeaderLine<'_>>(), GOOD.into());
    assert_eq!([].into_iter().collect::<HeaderLine<'_>>(), HeaderLine::Missing);
    assert_eq!(HeaderLine::from(GOOD.as_bytes()), HeaderLine::One(GOOD.as_bytes()));
    assert_eq!(HeaderLine::from(GOOD), HeaderLine::One(GOOD.as_bytes()));
}

#[test]
fn standard_rotation_names_the_secret() {
    let new = Secret::labelled("new", SECRET).unwrap();
    let old = Secret::labelled("old", "whsec_eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5").unwrap();
    let headers = StandardHeaderValues {
        id: "msg_1".into(),
        timestamp: "1796040000".into(),
        signature: GOOD.into(),
    };
    for secrets in [vec![new.clone(), old.clone()], vec![old.clone(), new]] {
        let verifier = StandardVerifier::new(&Secrets::new(secrets).unwrap(), Duration::ZERO).unwrap();
        assert_eq!(verifier.verify(headers, BODY, at(NOW)), Ok("new"));
    }
    let verifier = StandardVerifier::new(&old.into(), Duration::ZERO).unwrap();
    assert_eq!(verifier.verify(headers, BODY, at(NOW)), Err(StandardError::Mismatch));
}

#[test]
fn a_key_with_a_dot_is_not_signed() {
    let signer = StandardSigner::new(&Secret::new(SECRET).unwrap()).unwrap();
    for key in [".", "a.b:tool_end:1", "r1:tool.end:1"] {
        assert_eq!(StandardSigner::check_key(key), Err(KeyHasDot));
        assert_eq!(signer.sign(key, at(NOW), BODY), Err(KeyHasDot));
    }
    assert_eq!(StandardSigner::check_key("r1:tool_end:1"), Ok(()));
}

#[test]
fn each_failed_check_of_standard_webhooks_has_its_words() {
    let header = "webhook-id";
    for (error, says) in [
        (
            StandardError::Missing { header },
            "the header `webhook-id` is missing or empty",
        ),
        (
            StandardError::Repeated { header },
            "the header `webhook-id` is there more than once",
        ),
        (
            StandardError::MalformedTimestamp,
            "the timestamp is not decimal digits only",
        ),
        (StandardError::TooOld, "the timestamp is too old"),
        (StandardError::TooNew, "the timestamp is too far in the future"),
        (StandardError::NoV1Signature, "there is no well-formed v1 signature"),
        (StandardError::Mismatch, "the signature does not match"),
    ] {
        assert_eq!(error.to_string(), says);
    }
    assert_eq!(
        KeyHasDot.to_string(),
        "a key with a `.` in it cannot be signed for Standard Webhooks"
    );
}

#[test]
fn every_attempt_signs_its_own_second() {
    let signer = StandardSigner::new(&Secret::new(SECRET).unwrap()).unwrap();
    let signature = |at| {
        let sent = signer.sign("msg_1", at, BODY).unwrap();
        (sent.timestamp, sent.signature)
    };
    assert_eq!(signature(at(NOW)), ("1796040000".into(), GOOD.into()));
    assert_eq!(
        signature(at(NOW) + Duration::from_millis(999)),
        ("1796040000".into(), GOOD.into())
    );
    let later = signature(at(NOW + 1));
    assert_eq!(later, ("1796040001".into(), signed_over("msg_1", "1796040001")));
    assert_ne!(later.1, GOOD);
    assert_eq!(signature(UNIX_EPOCH - Duration::from_secs(5)).0, "0");
}

proptest! {
    #[test]
    fn standard_webhooks_fail_on_any_flipped_bit(
        key in prop::collection::vec(any::<u8>(), 1..100),
        id in "[a-z0-9_:-]{1,40}",
        body in prop::collection::vec(any::<u8>(), 1..500),
        bit: prop::sample::Index,
    ) {
        let secret = Secret::new(format!("whsec_{}", STANDARD.encode(key))).unwrap();
        let sent = StandardSigner::new(&secret).unwrap().sign(&id, at(NOW), &body).unwrap();
        let verifier = StandardVerifier::new(&secret.into(), Duration::MAX).unwrap();
        let headers = StandardHeaderValues {
            id: sent.id.as_str().into(),
            timestamp: sent.timestamp.as_str().into(),
            signature: sent.signature.as_str().into(),
        };
        prop_assert_eq!(verifier.verify(headers, &body, at(NOW)), Ok("default"));
        prop_assert_eq!(verifier.verify(headers, &flipped(&body, bit), at(NOW)), Err(StandardError::Mismatch));

        let other_id = flipped(id.as_bytes(), bit);
        let changed = StandardHeaderValues { id: HeaderLine::One(&other_id), ..headers };
        prop_assert_eq!(verifier.verify(changed, &body, at(NOW)), Err(StandardError::Mismatch));

        let mac = flipped(&STANDARD.decode(sent.signature.strip_prefix("v1,").unwrap()).unwrap(), bit);
        let signature = format!("v1,{}", STANDARD.encode(mac));
        let changed = StandardHeaderValues { signature: signature.as_str().into(), ..headers };
        prop_assert_eq!(verifier.verify(changed, &body, at(NOW)), Err(StandardError::Mismatch));
    }

    #[test]
    fn no_header_bytes_panic_or_pass(
        values in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..100),
                "(sha256=|v1,|v1a,|[0-9]{1,25}| )?[0-9a-fA-F+/=, ]{0,70}".prop_map(String::into_bytes),
            ],
            0..4,
        ),
        now_seconds: u32,
    ) {
        let secret: Secrets = Secret::new(SECRET).unwrap().into();
        let lines = || values.iter().map(Vec::as_slice);
        prop_assert!(Verifier::new(&secret).verify(lines(), BODY).is_err());
        let nth = |n: usize| values.get(n).map_or(HeaderLine::Missing, |value| HeaderLine::One(value));
        let headers = StandardHeaderValues { id: nth(0), timestamp: nth(1), signature: nth(2) };
        prop_assert!(standard_verifier().verify(headers, BODY, at(u64::from(now_seconds))).is_err());
    }
}
