use idemp_core::{Secret, Secrets, SignatureError, Signer, Verifier};
use idemp_testkit::vectors;
use proptest::prelude::*;
use serde::Deserialize;

use crate::{CONTESTED, Differing, expected, flipped};

#[derive(Deserialize)]
struct Vector256 {
    secret_hex: String,
    body_hex: String,
    header: String,
    valid: bool,
    why: String,
}

const DIFFERING_256: &[Differing] = &[
    (
        "contested: empty secret, HMAC is defined for it",
        false,
        "an empty secret is refused when it is made",
    ),
    (
        "contested: empty secret and empty body",
        false,
        "an empty secret is refused when it is made",
    ),
    ("contested: upper-case hex", true, "hex of either case is accepted"),
    ("contested: hex in mixed case", true, "hex of either case is accepted"),
];

#[test]
fn x_signature_256_vectors() {
    let all: Vec<Vector256> = vectors::load("x-signature-256.jsonl");
    assert_eq!(all.len(), 166);
    assert_eq!(
        all.iter().filter(|vector| vector.why.starts_with(CONTESTED)).count(),
        19
    );
    assert_eq!(
        all.iter().filter(|vector| vector.why.starts_with("RFC 4231 ")).count(),
        6
    );

    let (mut differing, mut accepted, mut signed) = (Vec::new(), 0, 0);
    for (line, vector) in (1..).zip(&all) {
        let body = vectors::unhex(&vector.body_hex);
        let secret = Secret::new(vectors::unhex(&vector.secret_hex));
        let verdict = secret.clone().is_ok_and(|secret| {
            Verifier::new(&secret.into()).verify([vector.header.as_bytes()], &body) == Ok("default")
        });
        let expected = expected(&vector.why, vector.valid, DIFFERING_256, &mut differing);
        assert_eq!(verdict, expected, "line {line}: {}", vector.why);
        accepted += usize::from(verdict);

        // What the vector's maker would have sent, we send too.
        if vector.valid
            && let Ok(secret) = secret
        {
            assert_eq!(
                Signer::new(&secret).header(&body).as_str(),
                vector.header,
                "line {line}: {}",
                vector.why
            );
            signed += 1;
        }
    }
    assert_eq!(
        differing.len(),
        DIFFERING_256.len(),
        "each differing vector is there once: {differing:?}"
    );
    assert_eq!(
        accepted,
        39 - 2 + 2,
        "all valid ones but two with empty secrets, and two spellings of hex"
    );
    assert_eq!(signed, 39 - 2);
}

#[test]
fn canonical_bodies_have_the_recorded_signature() {
    #[derive(Deserialize)]
    struct Canonical {
        name: String,
        canonical_hex: String,
        hmac_sha256_hex: String,
    }
    let all: Vec<Canonical> = vectors::load("canonical-json.jsonl");
    assert_eq!(all.len(), 726);
    let secret = Secret::new("whsec_test_secret").unwrap();
    let (signer, verifier) = (Signer::new(&secret), Verifier::new(&secret.into()));
    for vector in &all {
        let body = vectors::unhex(&vector.canonical_hex);
        let header = format!("sha256={}", vector.hmac_sha256_hex);
        assert_eq!(signer.header(&body).as_str(), header, "{}", vector.name);
        assert_eq!(
            verifier.verify([header.as_bytes()], &body),
            Ok("default"),
            "{}",
            vector.name
        );
    }
}

/// RFC 4231, test case 2.
const JEFE: (&str, &[u8], &str) = (
    "Jefe",
    b"what do ya want for nothing?",
    "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
);

#[test]
fn x_signature_256_wants_exactly_one_line() {
    let (secret, body, header) = JEFE;
    let verifier = Verifier::new(&Secret::new(secret).unwrap().into());
    let good = header.as_bytes();
    assert_eq!(verifier.verify([good], body), Ok("default"));
    assert_eq!(verifier.verify([], body), Err(SignatureError::Missing));
    assert_eq!(verifier.verify([good, good], body), Err(SignatureError::Repeated));
    assert_eq!(verifier.verify([good, b"sha256="], body), Err(SignatureError::Repeated));
    assert_eq!(
        verifier.verify([b"sha256=".as_slice(), good], body),
        Err(SignatureError::Repeated)
    );
}

#[test]
fn x_signature_256_says_what_failed_by_kind() {
    let (secret, body, header) = JEFE;
    let verifier = Verifier::new(&Secret::new(secret).unwrap().into());
    for malformed in [
        "",
        "sha256=",
        "sha1=00",
        &header[7..],
        &header[..70],
        &format!("{header}0"),
        &format!(" {header}"),
        // Two bad digits in one byte are no better than one.
        &format!("sha256={}", "zz".repeat(32)),
        &header.replace("=5b", "=zz"),
    ] {
        assert_eq!(
            verifier.verify([malformed.as_bytes()], body),
            Err(SignatureError::Malformed),
            "{malformed:?}"
        );
    }
    let other = header.replace("=5b", "=6b");
    assert_eq!(verifier.verify([other.as_bytes()], body), Err(SignatureError::Mismatch));
    assert_eq!(verifier.verify([header.as_bytes()], b""), Err(SignatureError::Mismatch));
}

/// Every byte in the place of every digit: the digit in either case is right, another digit wrong, all else malformed.
#[test]
fn each_digit_is_looked_at() {
    let secret = Secret::new("whsec_test_secret").unwrap();
    let header = Signer::new(&secret).header(b"body");
    let verifier = Verifier::new(&secret.into());
    let at = header.as_bytes().len() - 64;
    for place in at..header.as_bytes().len() {
        for byte in 0..=255 {
            let mut changed = header.as_bytes().to_vec();
            changed[place] = byte;
            let expected = if byte.eq_ignore_ascii_case(&header.as_bytes()[place]) {
                Ok("")
            } else if byte.is_ascii_hexdigit() {
                Err(SignatureError::Mismatch)
            } else {
                Err(SignatureError::Malformed)
            };
            let found = verifier.verify([&changed[..]], b"body").map(|_| "");
            assert_eq!(found, expected, "{byte:#x} at {place}");
        }
    }
}

#[test]
fn each_failed_check_of_x_signature_256_has_its_words() {
    for (error, says) in [
        (SignatureError::Missing, "the signature header is missing"),
        (SignatureError::Repeated, "the signature header is there more than once"),
        (
            SignatureError::Malformed,
            "the signature header is not `sha256=` and 64 hex digits",
        ),
        (SignatureError::Mismatch, "the signature does not match"),
    ] {
        assert_eq!(error.to_string(), says);
    }
}

#[test]
fn every_secret_is_tried_and_named() {
    let (secret, body, header) = JEFE;
    let right = || Secret::labelled("right", secret).unwrap();
    let other = |label: &str| Secret::labelled(label, format!("not {label}")).unwrap();
    for secrets in [
        vec![right()],
        vec![right(), other("a"), other("b")],
        vec![other("a"), right(), other("b")],
        vec![other("a"), other("b"), right()],
    ] {
        let verifier = Verifier::new(&Secrets::new(secrets).unwrap());
        assert_eq!(verifier.verify([header.as_bytes()], body), Ok("right"));
    }
    let verifier = Verifier::new(&Secrets::new(vec![other("a"), other("b")]).unwrap());
    assert_eq!(
        verifier.verify([header.as_bytes()], body),
        Err(SignatureError::Mismatch)
    );
}

#[test]
fn x_signature_256_takes_a_prefixed_secret_as_it_is() {
    // RFC 4231 knows no prefix, so this is Python's:
    // hmac.new(b"whsec_SmVmZQ==", b"{}", hashlib.sha256).hexdigest(); "SmVmZQ==" is base64 of "Jefe".
    let expected = "sha256=a0940827e50d09964b9dcdd2a7402fef69afbdfa82880b991a67243613939e75";
    let signer = Signer::new(&Secret::new("whsec_SmVmZQ==").unwrap());
    assert_eq!(signer.header(b"{}").as_str(), expected);
}

proptest! {
    #[test]
    fn x_signature_256_fails_on_any_flipped_bit(
        key in prop::collection::vec(any::<u8>(), 1..200),
        body in prop::collection::vec(any::<u8>(), 1..500),
        bit: prop::sample::Index,
    ) {
        let secret = Secret::new(key).unwrap();
        let header = Signer::new(&secret).header(&body);
        let verifier = Verifier::new(&secret.into());
        prop_assert_eq!(verifier.verify([header.as_bytes()], &body), Ok("default"));
        prop_assert_eq!(
            verifier.verify([header.as_bytes()], &flipped(&body, bit)),
            Err(SignatureError::Mismatch)
        );
        let mac = flipped(&vectors::unhex(&header.as_str()[7..]), bit);
        let hex: String = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        let changed = format!("sha256={hex}");
        prop_assert_eq!(verifier.verify([changed.as_bytes()], &body), Err(SignatureError::Mismatch));
    }
}
