use std::time::{Duration, UNIX_EPOCH};

use idemp_core::{Secret, Secrets, Signer, StandardHeaderValues, StandardVerifier, Verifier};

const BODY: &[u8] = br#"{"data": {"output": "4"}, "event": "tool_end"}"#;

/// Values of signature headers: nothing is accepted but the signature.
pub fn signatures(value: &[u8]) {
    // The secret of no other example.
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
    let secrets = Secrets::from(secret.clone());

    let right = Signer::new(&secret).header(BODY);
    let (prefix, digits) = right.as_str().split_at("sha256=".len());
    let is_right = value
        .split_at_checked(prefix.len())
        .is_some_and(|(before, after)| before == prefix.as_bytes() && after.eq_ignore_ascii_case(digits.as_bytes()));
    assert_eq!(Verifier::new(&secrets).verify([value], BODY).is_ok(), is_right);

    let mut lines = value.split(|byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default().into();
    let headers = StandardHeaderValues {
        id: line(),
        timestamp: line(),
        signature: line(),
    };
    let verifier = StandardVerifier::new(&secrets, Duration::from_secs(300)).expect("a secret of this kind");
    let now = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
    assert!(verifier.verify(headers, BODY, now).is_err(), "nobody signed it");
}
