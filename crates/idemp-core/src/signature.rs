//! `X-Signature-256: sha256=<hex>`, the HMAC-SHA256 (RFC 2104) of the exact body bytes (docs/spec.md, "Signature").
//!
//! It covers the body alone. `Idempotency-Key` is not signed: whoever holds one signed body can send it under another
//! key. [`StandardSigner`](crate::StandardSigner) signs the key and the time as well.

use std::error::Error;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::ZeroizeOnDrop;

use crate::headers::HeaderLine;
use crate::{Secret, Secrets};

const PREFIX: &[u8] = b"sha256=";
const MAC_LEN: usize = 32;
const HEADER_LEN: usize = PREFIX.len() + 2 * MAC_LEN;

pub(crate) type HmacSha256 = Hmac<Sha256>;

/// Does not compile unless hash states, which are as good as the secret, are wiped when they are dropped.
const _: fn() = || {
    fn is_wiped<T: ZeroizeOnDrop>() {}
    is_wiped::<Sha256>();
};

/// Signs bodies with one secret.
///
/// The work that depends on the secret alone is done once, here; a signature then costs one pass over the body.
/// The key state is wiped when the signer is dropped.
#[derive(Clone)]
pub struct Signer(HmacSha256);

impl Signer {
    /// Prepares to sign with the secret's bytes as they were given: a `whsec_` in front is part of the secret.
    #[must_use]
    pub fn new(secret: &Secret) -> Self {
        Self(keyed(secret.expose()))
    }

    /// The value of `X-Signature-256` for these body bytes, to be sent unchanged with them.
    #[must_use]
    pub fn header(&self, body: &[u8]) -> SignatureHeader {
        let mac = self.0.clone().chain_update(body).finalize().into_bytes();
        let mut text = [0; HEADER_LEN];
        let (prefix, hex) = text.split_at_mut(PREFIX.len());
        prefix.copy_from_slice(PREFIX);
        for (pair, byte) in hex.chunks_exact_mut(2).zip(mac) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        SignatureHeader(text)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer(..)")
    }
}

/// `sha256=` and 64 lower-case hex digits: 71 bytes of ASCII, held in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SignatureHeader([u8; HEADER_LEN]);

impl SignatureHeader {
    /// The header value as text.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a fixed prefix and hex digits are ASCII")]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("ASCII")
    }

    /// The header value as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SignatureHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignatureHeader(..)")
    }
}

/// Checks `X-Signature-256` against one or more secrets.
///
/// ```
/// use idemp_core::{Secret, Secrets, Signer, Verifier};
///
/// let old = Secret::labelled("2026-01", "last year's secret")?;
/// let new = Secret::labelled("2026-07", "this year's secret")?;
/// let header = Signer::new(&new).header(b"{}");
///
/// let verifier = Verifier::new(&Secrets::new(vec![old, new])?);
/// assert_eq!(verifier.verify([header.as_bytes()], b"{}")?, "2026-07");
/// assert!(verifier.verify([header.as_bytes()], b"[]").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Verifier(Vec<LabelledKey>);

impl Verifier {
    /// Prepares to accept bodies signed with any of these secrets.
    #[must_use]
    pub fn new(secrets: &Secrets) -> Self {
        Self(
            secrets
                .iter()
                .map(|secret| LabelledKey::new(secret.label(), secret.expose()))
                .collect(),
        )
    }

    /// Checks the header against the raw body bytes and gives the label of the secret that matched.
    ///
    /// `header_values` are all values that the request has under this name, as HTTP gives them: without the spaces and
    /// tabs around them (RFC 9110, section 5.5). Nothing else is trimmed. Exactly one is wanted: `sha256=` in lower
    /// case and 64 hex digits of either case. `body` is what came over the wire, before parsing or decompressing.
    /// The comparison takes the same time wherever the digits differ; each secret that is tried costs one pass over
    /// the body.
    ///
    /// # Errors
    /// Says which check failed, for counting. The sender should be told no more than that it failed.
    pub fn verify<'h>(
        &self,
        header_values: impl IntoIterator<Item = &'h [u8]>,
        body: &[u8],
    ) -> Result<&str, SignatureError> {
        let value = match header_values.into_iter().collect() {
            HeaderLine::Missing => return Err(SignatureError::Missing),
            HeaderLine::Repeated => return Err(SignatureError::Repeated),
            HeaderLine::One(value) => value,
        };
        let mac = value
            .strip_prefix(PREFIX)
            .and_then(unhex)
            .ok_or(SignatureError::Malformed)?;
        self.0
            .iter()
            .find(|key| key.mac.clone().chain_update(body).verify_slice(&mac).is_ok())
            .map(|key| &*key.label)
            .ok_or(SignatureError::Mismatch)
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(..)")
    }
}

/// Which check of `X-Signature-256` failed. It holds neither digits nor body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SignatureError {
    /// The request has no such header.
    Missing,
    /// The request has more than one such header.
    Repeated,
    /// The value is not `sha256=` and 64 hex digits.
    Malformed,
    /// No secret gives these digits for this body.
    Mismatch,
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the signature header is missing",
            Self::Repeated => "the signature header is there more than once",
            Self::Malformed => "the signature header is not `sha256=` and 64 hex digits",
            Self::Mismatch => "the signature does not match",
        })
    }
}

impl Error for SignatureError {}

/// The key state of one secret, and the name to report when it matches.
#[derive(Clone)]
pub(crate) struct LabelledKey {
    pub(crate) label: Box<str>,
    pub(crate) mac: HmacSha256,
}

impl LabelledKey {
    pub(crate) fn new(label: &str, key: &[u8]) -> Self {
        Self {
            label: label.into(),
            mac: keyed(key),
        }
    }
}

/// HMAC-SHA256 with the key taken in and no data yet.
#[expect(
    clippy::expect_used,
    reason = "HMAC takes keys of every length (RFC 2104, section 3)"
)]
pub(crate) fn keyed(key: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(key).expect("any length")
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The bytes of exactly 64 hex digits.
fn unhex(text: &[u8]) -> Option<[u8; MAC_LEN]> {
    let digits: &[u8; 2 * MAC_LEN] = text.try_into().ok()?;
    let (mut bytes, mut bad) = ([0; MAC_LEN], 0);
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let (high, low) = (NIBBLES[usize::from(pair[0])], NIBBLES[usize::from(pair[1])]);
        bad |= high | low;
        *byte = high << 4 | low;
    }
    (bad < 16).then_some(bytes)
}

/// The value of each hex digit; 16 for every other byte.
const NIBBLES: [u8; 256] = {
    let mut table = [16; 256];
    let mut digit = 0;
    while digit < 16 {
        table[HEX[digit] as usize] = digit as u8;
        table[HEX[digit].to_ascii_uppercase() as usize] = digit as u8;
        digit += 1;
    }
    table
};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/signing.md")]
struct Guide;
