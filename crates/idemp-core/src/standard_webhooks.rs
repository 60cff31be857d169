//! Standard Webhooks signatures, which cover the key and the time as well as the body (docs/spec.md, "Signature").
//!
//! Signed is `{webhook-id}.{webhook-timestamp}.{body}`, where the id is the idempotency key and the timestamp that of
//! the attempt, in Unix seconds: every attempt and every replay signs afresh.

use std::error::Error;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::Mac;
use hmac::digest::CtOutput;
use zeroize::Zeroizing;

use crate::headers::{HeaderLine, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
use crate::signature::{HmacSha256, LabelledKey, keyed};
use crate::{Secret, SecretError, Secrets, decimal};

const SECRET_PREFIX: &[u8] = b"whsec_";
const MAC_LEN: usize = 32;

/// Signs with one secret in the form of Standard Webhooks.
///
/// The key state is wiped when the signer is dropped.
#[derive(Clone)]
pub struct StandardSigner(HmacSha256);

impl StandardSigner {
    /// Prepares to sign with the bytes that the secret stands for.
    ///
    /// A secret is base64 with `whsec_` in front. Without the prefix it is base64 all the same, because the libraries
    /// of Standard Webhooks read it so, and a signature that only we could check would be of no use.
    ///
    /// # Errors
    /// [`SecretError::NotBase64`] if the text is not base64 of the standard alphabet with its padding, and
    /// [`SecretError::Empty`] if it stands for no bytes.
    pub fn new(secret: &Secret) -> Result<Self, SecretError> {
        Ok(Self(keyed(&decode_secret(secret)?)))
    }

    /// Whether a key can be signed so, to be asked when an event is accepted and not first when it is sent.
    ///
    /// # Errors
    /// [`KeyHasDot`] if there is a `.` in it.
    pub fn check_key(key: &str) -> Result<(), KeyHasDot> {
        if key.contains('.') { Err(KeyHasDot) } else { Ok(()) }
    }

    /// The three headers for one attempt that starts at `at`, which is counted in whole seconds. A clock before 1970
    /// counts as 1970.
    ///
    /// # Errors
    /// As [`StandardSigner::check_key`].
    pub fn sign(&self, key: &str, at: SystemTime, body: &[u8]) -> Result<StandardHeaders, KeyHasDot> {
        Self::check_key(key)?;
        let timestamp = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().to_string();
        let mac = mac_over(&self.0, key.as_bytes(), timestamp.as_bytes(), body);
        let mut signature = String::with_capacity("v1,".len() + MAC_LEN.div_ceil(3) * 4);
        signature.push_str("v1,");
        STANDARD.encode_string(mac.into_bytes(), &mut signature);
        Ok(StandardHeaders {
            id: key.to_owned(),
            timestamp,
            signature,
        })
    }
}

impl fmt::Debug for StandardSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StandardSigner(..)")
    }
}

/// What goes out with one attempt. `Debug` leaves the signature out.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StandardHeaders {
    /// Value of `webhook-id`: the idempotency key.
    pub id: String,
    /// Value of `webhook-timestamp`: Unix seconds in decimal.
    pub timestamp: String,
    /// Value of `webhook-signature`: `v1,` and padded base64.
    pub signature: String,
}

impl fmt::Debug for StandardHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandardHeaders")
            .field("id", &self.id)
            .field("timestamp", &self.timestamp)
            .finish_non_exhaustive()
    }
}

/// A key with a `.` in it cannot be signed in the form of Standard Webhooks.
///
/// Id, timestamp and body are joined by dots there, so a dot in the id would let one signature fit two messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHasDot;

impl fmt::Display for KeyHasDot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key with a `.` in it cannot be signed for Standard Webhooks")
    }
}

impl Error for KeyHasDot {}

/// What came in: the three headers of one request.
///
/// Collect each from all values that the request has under its name.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardHeaderValues<'h> {
    /// `webhook-id`.
    pub id: HeaderLine<'h>,
    /// `webhook-timestamp`.
    pub timestamp: HeaderLine<'h>,
    /// `webhook-signature`.
    pub signature: HeaderLine<'h>,
}

/// Checks Standard Webhooks headers against one or more secrets.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use idemp_core::{Secret, StandardHeaderValues, StandardSigner, StandardVerifier};
///
/// let secret = Secret::new("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")?;
/// let now = UNIX_EPOCH + Duration::from_secs(1_796_040_000);
/// let sent = StandardSigner::new(&secret)?.sign("req-42:tool_end:1", now, b"{}")?;
///
/// let verifier = StandardVerifier::new(&secret.into(), StandardVerifier::DEFAULT_TOLERANCE)?;
/// let received = StandardHeaderValues {
///     id: sent.id.as_str().into(),
///     timestamp: sent.timestamp.as_str().into(),
///     signature: sent.signature.as_str().into(),
/// };
/// assert_eq!(verifier.verify(received, b"{}", now)?, "default");
/// assert!(verifier.verify(received, b"{}", now + Duration::from_secs(301)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct StandardVerifier {
    keys: Vec<LabelledKey>,
    tolerance: Duration,
}

impl StandardVerifier {
    /// Five minutes, as in the libraries of Standard Webhooks.
    pub const DEFAULT_TOLERANCE: Duration = Duration::from_secs(300);

    /// Prepares to accept messages signed with any of these secrets, whose timestamp is at most `tolerance` away from
    /// the receiver's clock, in the past or in the future.
    ///
    /// # Errors
    /// As [`StandardSigner::new`], for the first secret that cannot be used.
    pub fn new(secrets: &Secrets, tolerance: Duration) -> Result<Self, SecretError> {
        let key = |secret: &Secret| Ok(LabelledKey::new(secret.label(), &decode_secret(secret)?));
        Ok(Self {
            keys: secrets.iter().map(key).collect::<Result<_, _>>()?,
            tolerance,
        })
    }

    /// Checks the headers against the raw body bytes at the time `now` and gives the label of the secret that matched.
    ///
    /// Each header stands there once and is not empty; the timestamp is decimal digits only; the signature is a list
    /// separated by single spaces, in which one good `v1,` and strict base64 of 32 bytes is enough. Entries of other
    /// versions and malformed ones are passed over, wherever they stand. The comparison takes the same time wherever
    /// the bytes differ.
    ///
    /// Ids of other senders may have dots in them.
    ///
    /// # Errors
    /// Says which check failed, for counting. The sender should be told no more than that it failed.
    pub fn verify(
        &self,
        headers: StandardHeaderValues<'_>,
        body: &[u8],
        now: SystemTime,
    ) -> Result<&str, StandardError> {
        let id = only(WEBHOOK_ID, headers.id)?;
        let timestamp = only(WEBHOOK_TIMESTAMP, headers.timestamp)?;
        let signatures = only(WEBHOOK_SIGNATURE, headers.signature)?;
        self.check_time(timestamp, now)?;
        if v1_entries(signatures).next().is_none() {
            return Err(StandardError::NoV1Signature);
        }
        self.keys
            .iter()
            .find(|key| {
                let right = mac_over(&key.mac, id, timestamp, body);
                v1_entries(signatures).any(|given| right == CtOutput::new(given.into()))
            })
            .map(|key| &*key.label)
            .ok_or(StandardError::Mismatch)
    }

    fn check_time(&self, timestamp: &[u8], now: SystemTime) -> Result<(), StandardError> {
        let seconds = decimal::parse_saturating(timestamp).ok_or(StandardError::MalformedTimestamp)?;
        let Some(sent) = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) else {
            return Err(StandardError::TooNew);
        };
        match now.duration_since(sent) {
            Ok(age) if age > self.tolerance => Err(StandardError::TooOld),
            Err(ahead) if ahead.duration() > self.tolerance => Err(StandardError::TooNew),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for StandardVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandardVerifier")
            .field("tolerance", &self.tolerance)
            .finish_non_exhaustive()
    }
}

/// Which check of the Standard Webhooks headers failed. It holds neither signatures nor body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StandardError {
    /// The request lacks this header, or its value is empty.
    Missing {
        /// The header's name.
        header: &'static str,
    },
    /// The request has this header more than once.
    Repeated {
        /// The header's name.
        header: &'static str,
    },
    /// The timestamp is not decimal digits only.
    MalformedTimestamp,
    /// The timestamp is further in the past than the tolerance.
    TooOld,
    /// The timestamp is further in the future than the tolerance.
    TooNew,
    /// The list of signatures has no well-formed `v1` entry.
    NoV1Signature,
    /// No secret gives any of the signatures for this id, timestamp and body.
    Mismatch,
}

impl fmt::Display for StandardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { header } => write!(f, "the header `{header}` is missing or empty"),
            Self::Repeated { header } => write!(f, "the header `{header}` is there more than once"),
            Self::MalformedTimestamp => f.write_str("the timestamp is not decimal digits only"),
            Self::TooOld => f.write_str("the timestamp is too old"),
            Self::TooNew => f.write_str("the timestamp is too far in the future"),
            Self::NoV1Signature => f.write_str("there is no well-formed v1 signature"),
            Self::Mismatch => f.write_str("the signature does not match"),
        }
    }
}

impl Error for StandardError {}

/// The bytes that a secret's text stands for.
fn decode_secret(secret: &Secret) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let text = secret.expose();
    let text = text.strip_prefix(SECRET_PREFIX).unwrap_or(text);
    // Large enough from the start: growing would leave a copy behind that is not wiped.
    let mut bytes = Zeroizing::new(vec![0; base64::decoded_len_estimate(text.len())]);
    let len = STANDARD
        .decode_slice(text, &mut bytes)
        .map_err(|_| SecretError::NotBase64 {
            label: secret.label().to_owned(),
        })?;
    if len == 0 {
        return Err(SecretError::Empty {
            label: secret.label().to_owned(),
        });
    }
    bytes.truncate(len);
    Ok(bytes)
}

fn mac_over(key: &HmacSha256, id: &[u8], timestamp: &[u8], body: &[u8]) -> CtOutput<HmacSha256> {
    let mut mac = key.clone();
    for part in [id, b".", timestamp, b".", body] {
        mac.update(part);
    }
    mac.finalize()
}

fn only<'h>(header: &'static str, line: HeaderLine<'h>) -> Result<&'h [u8], StandardError> {
    match line {
        HeaderLine::One(value) if !value.is_empty() => Ok(value),
        HeaderLine::One(_) | HeaderLine::Missing => Err(StandardError::Missing { header }),
        HeaderLine::Repeated => Err(StandardError::Repeated { header }),
    }
}

/// The well-formed `v1` signatures of a list.
fn v1_entries(list: &[u8]) -> impl Iterator<Item = [u8; MAC_LEN]> {
    list.split(|&byte| byte == b' ').filter_map(|entry| {
        let mut mac = [0; MAC_LEN];
        let len = STANDARD.decode_slice(entry.strip_prefix(b"v1,")?, &mut mac).ok()?;
        (len == MAC_LEN).then_some(mac)
    })
}
