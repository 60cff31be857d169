//! Signing secrets: not empty, wiped when dropped, never printed.

use std::error::Error;
use std::fmt;

use zeroize::Zeroizing;

/// A secret that sender and receiver share.
///
/// Its bytes are wiped from memory when it is dropped, and no method gives them out: `Debug` prints `Secret(..)`.
/// `X-Signature-256` uses the bytes as they are given; Standard Webhooks decodes them ([`StandardSigner`]).
///
/// [`StandardSigner`]: crate::StandardSigner
#[derive(Clone)]
pub struct Secret {
    label: String,
    bytes: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// Takes the secret's bytes under the label `default`.
    ///
    /// # Errors
    /// [`SecretError::Empty`] if there are none. An HMAC under an empty secret is one that everybody can make.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        Self::labelled("default", bytes)
    }

    /// Takes the secret's bytes under a label of your choice.
    ///
    /// The label tells which of several secrets matched, in logs and metrics: it must not be secret itself.
    ///
    /// # Errors
    /// As [`Secret::new`].
    pub fn labelled(label: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let label = label.into();
        let bytes = Zeroizing::new(bytes.into());
        if bytes.is_empty() {
            Err(SecretError::Empty { label })
        } else {
            Ok(Self { label, bytes })
        }
    }

    /// The secret's public name, `default` unless it was given one.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The secret itself, for key set-up only.
    pub(crate) fn expose(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// One or more secrets, any of which may have signed.
///
/// While a secret is being replaced, the receiver holds the old and the new one.
#[derive(Clone, Debug)]
pub struct Secrets(Vec<Secret>);

impl Secrets {
    /// Takes the secrets in the order in which they are tried.
    ///
    /// # Errors
    /// [`SecretError::NoSecret`] if there are none.
    pub fn new(secrets: Vec<Secret>) -> Result<Self, SecretError> {
        if secrets.is_empty() {
            Err(SecretError::NoSecret)
        } else {
            Ok(Self(secrets))
        }
    }

    /// The secrets in the order in which they are tried; at least one.
    pub fn iter(&self) -> std::slice::Iter<'_, Secret> {
        self.0.iter()
    }
}

impl From<Secret> for Secrets {
    fn from(secret: Secret) -> Self {
        Self(vec![secret])
    }
}

impl<'a> IntoIterator for &'a Secrets {
    type Item = &'a Secret;
    type IntoIter = std::slice::Iter<'a, Secret>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Why a secret cannot be used. It holds labels, never the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretError {
    /// The secret has no bytes, as given or after decoding.
    Empty {
        /// The secret's label.
        label: String,
    },
    /// A list of secrets has none in it.
    NoSecret,
    /// Standard Webhooks only: the secret is not padded base64 of the standard alphabet, with or without `whsec_`.
    NotBase64 {
        /// The secret's label.
        label: String,
    },
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { label } => write!(f, "secret `{label}` is empty"),
            Self::NoSecret => f.write_str("no secret was given"),
            Self::NotBase64 { label } => write!(
                f,
                "secret `{label}` cannot sign Standard Webhooks: it is not padded base64, with or without `whsec_`"
            ),
        }
    }
}

impl Error for SecretError {}
