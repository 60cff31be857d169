use std::time::Duration;

use idemp_core::{Secret, SecretError, Secrets, Signer, StandardSigner, StandardVerifier, Verifier};
use proptest::prelude::*;

use crate::{BODY, NOW, at};

#[test]
fn an_empty_secret_is_refused() {
    assert_eq!(
        Secret::new("").unwrap_err(),
        SecretError::Empty {
            label: "default".into()
        }
    );
    assert_eq!(
        Secret::labelled("old", []).unwrap_err(),
        SecretError::Empty { label: "old".into() }
    );
    assert_eq!(Secrets::new(vec![]).unwrap_err(), SecretError::NoSecret);
    let only_prefix = Secret::labelled("old", "whsec_").unwrap();
    assert_eq!(
        StandardSigner::new(&only_prefix).unwrap_err(),
        SecretError::Empty { label: "old".into() }
    );
}

#[test]
fn standard_secrets_are_strict_base64_with_or_without_prefix() {
    let make = |text: &str| {
        let secret = Secret::labelled("mine", text).unwrap();
        assert_eq!(
            StandardVerifier::new(&secret.clone().into(), Duration::ZERO).map(|_| ()),
            StandardSigner::new(&secret).map(|_| ()),
        );
        StandardSigner::new(&secret).map(|_| ())
    };
    for good in ["whsec_SmVmZQ==", "SmVmZQ==", "whsec_SmVm", "whsec_+/+/"] {
        assert_eq!(make(good), Ok(()), "{good}");
    }
    for bad in [
        "whsec_SmVmZQ",
        "whsec_SmVmZQ=",
        "SmVmZQ",
        "whsec_SmVmZR==",
        "whsec_-_-_",
        "whsec_SmVm\n",
        " SmVm",
        "whsec_SmVm ",
        "WHSEC_SmVm",
        "whsec_whsec_SmVm",
        "not base64",
        "schlüssel",
    ] {
        assert_eq!(
            make(bad),
            Err(SecretError::NotBase64 { label: "mine".into() }),
            "{bad:?}"
        );
    }
}

#[test]
fn secrets_are_gone_over_in_the_order_in_which_they_are_tried() {
    let secret = |label| Secret::labelled(label, "x").unwrap();
    let secrets = Secrets::new(vec![secret("new"), secret("old")]).unwrap();
    let mut labels = Vec::new();
    for secret in &secrets {
        labels.push(secret.label());
    }
    assert_eq!(labels, ["new", "old"]);
    assert_eq!(Secret::new("x").unwrap().label(), "default");
}

#[test]
fn why_a_secret_cannot_be_used_is_said_by_its_label() {
    let label = || "2026-07".to_owned();
    for (error, says) in [
        (SecretError::Empty { label: label() }, "secret `2026-07` is empty"),
        (SecretError::NoSecret, "no secret was given"),
        (
            SecretError::NotBase64 { label: label() },
            "secret `2026-07` cannot sign Standard Webhooks: it is not padded base64, with or without `whsec_`",
        ),
    ] {
        assert_eq!(error.to_string(), says);
    }
}

#[test]
fn nothing_prints_a_secret_or_a_signature() {
    let text = "whsec_c2Vzc2FtZSBvZmZuZSBkaWNo";
    let secret = Secret::labelled("2026-07", text).unwrap();
    assert_eq!(format!("{secret:?}"), "Secret(..)");
    assert_eq!(format!("{:?}", Secrets::from(secret.clone())), "Secrets([Secret(..)])");
    assert_eq!(format!("{:?}", Verifier::new(&secret.clone().into())), "Verifier(..)");
    assert_eq!(format!("{:?}", Signer::new(&secret)), "Signer(..)");
    assert_eq!(
        format!("{:?}", Signer::new(&secret).header(BODY)),
        "SignatureHeader(..)"
    );
    let standard = StandardSigner::new(&secret).unwrap();
    assert_eq!(format!("{standard:?}"), "StandardSigner(..)");
    let sent = standard.sign("k1", at(NOW), BODY).unwrap();
    assert_eq!(
        format!("{sent:?}"),
        "StandardHeaders { id: \"k1\", timestamp: \"1796040000\", .. }"
    );
    let verifier = StandardVerifier::new(&secret.into(), Duration::from_secs(300)).unwrap();
    assert_eq!(format!("{verifier:?}"), "StandardVerifier { tolerance: 300s, .. }");

    let broken = Secret::labelled("2026-07", "whsec_sesam!").unwrap();
    let error = StandardSigner::new(&broken).unwrap_err();
    for shown in [error.to_string(), format!("{error:?}")] {
        assert!(shown.contains("2026-07") && !shown.contains("sesam"), "{shown}");
    }
}

proptest! {
    #[test]
    fn no_secret_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 1..100)) {
        let secret = Secret::new(bytes).unwrap();
        let _ = StandardSigner::new(&secret);
        let header = Signer::new(&secret).header(b"");
        prop_assert_eq!(header.as_str().len(), 71);
    }
}
