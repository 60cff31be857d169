//! What is claimed, by whom, for which body.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use idemp_core::{IdempotencyKey, KeyParts};
use twox_hash::XxHash3_128;

/// Longest key that is taken, in bytes.
const MAX_KEY: usize = 255;

/// Longest scope name, in bytes.
const MAX_SCOPE: usize = 64;

/// Keeps the keys of one route or tenant apart from those of another over the same store.
///
/// The default is the unnamed scope. A name is 1 to 64 bytes of `A-Z a-z 0-9 _ . -`, the first a letter or digit.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Scope(Option<Arc<str>>);

impl Scope {
    /// Takes a name.
    ///
    /// # Errors
    /// If it is not 1 to 64 bytes of `A-Z a-z 0-9 _ . -` with a letter or digit first.
    pub fn named(name: &str) -> Result<Self, ScopeError> {
        let bytes = name.as_bytes();
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
        let good = bytes.len() <= MAX_SCOPE
            && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.iter().all(allowed);
        if good {
            Ok(Self(Some(Arc::from(name))))
        } else {
            Err(ScopeError)
        }
    }

    /// The name, `None` for the unnamed scope.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({})", self.name().unwrap_or_default())
    }
}

/// The text is no name of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeError;

impl fmt::Display for ScopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scope is 1 to 64 bytes of A-Z a-z 0-9 _ . -, the first a letter or digit")
    }
}

impl Error for ScopeError {}

/// A key within a scope: what a store claims.
///
/// Keys of other senders are opaque: 1 to 255 bytes of visible ASCII without space, comma, quote and brace. Those that
/// have the form `run_id:event_type:step_index` are canonical. Cloning shares the text.
///
/// ```
/// use idemp_receiver::{ClaimKey, Scope};
///
/// let scope = Scope::default();
/// let bare = ClaimKey::from_header(&scope, b"req-42:tool_end:1")?;
/// let quoted = ClaimKey::from_header(&scope, b"\"req-42:tool_end:1\"")?;
/// assert_eq!(bare, quoted);
/// assert_ne!(bare, ClaimKey::new(&Scope::named("orders")?, "req-42:tool_end:1")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClaimKey {
    /// `:key` or `/scope:key`: a scope has no colon in it, so no two pairs share a text.
    text: Arc<str>,
    /// Where the key begins.
    key_at: u8,
}

impl ClaimKey {
    /// Takes a key as it is.
    ///
    /// # Errors
    /// If it is not 1 to 255 bytes of visible ASCII without space, comma, quote and brace.
    pub fn new(scope: &Scope, key: &str) -> Result<Self, ClaimKeyError> {
        if key.is_empty() {
            return Err(ClaimKeyError::Empty);
        }
        if key.len() > MAX_KEY {
            return Err(ClaimKeyError::TooLong { len: key.len() });
        }
        let allowed = |byte: u8| byte.is_ascii_graphic() && !b",\"{}".contains(&byte);
        if let Some(at) = key.bytes().position(|byte| !allowed(byte)) {
            return Err(ClaimKeyError::Character { at });
        }
        let (slash, name) = scope.name().map_or(("", ""), |name| ("/", name));
        let mut text = [0; 1 + MAX_SCOPE + 1 + MAX_KEY];
        let mut len = 0;
        for part in [slash, name, ":", key] {
            text[len..len + part.len()].copy_from_slice(part.as_bytes());
            len += part.len();
        }
        let text = std::str::from_utf8(&text[..len]).map_err(|_| ClaimKeyError::Character { at: 0 })?;
        Ok(Self {
            text: text.into(),
            // At most 1 + 64 + 1.
            key_at: (len - key.len()) as u8,
        })
    }

    /// Takes the value of an `Idempotency-Key` header: the bare key, or the same key as a string of RFC 8941
    /// (section 3.3.3) in double quotes. Parameters after the string are refused.
    ///
    /// # Errors
    /// As [`ClaimKey::new`], or if the quoted form is malformed.
    pub fn from_header(scope: &Scope, value: &[u8]) -> Result<Self, ClaimKeyError> {
        let text = std::str::from_utf8(value).map_err(|error| ClaimKeyError::Character {
            at: error.valid_up_to(),
        })?;
        let Some(quoted) = text.strip_prefix('"') else {
            return Self::new(scope, text);
        };
        let inner = quoted.strip_suffix('"').ok_or(ClaimKeyError::Quoting)?;
        if !inner.contains('\\') {
            return Self::new(scope, inner);
        }
        let mut key = String::with_capacity(inner.len());
        let mut chars = inner.chars();
        while let Some(char) = chars.next() {
            match char {
                '\\' => match chars.next() {
                    Some(escaped @ ('\\' | '"')) => key.push(escaped),
                    _ => return Err(ClaimKeyError::Quoting),
                },
                _ => key.push(char),
            }
        }
        Self::new(scope, &key)
    }

    /// The key alone.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.text[self.key_at.into()..]
    }

    /// The scope's name, `None` for the unnamed one.
    #[must_use]
    pub fn scope(&self) -> Option<&str> {
        self.text[..usize::from(self.key_at) - 1].strip_prefix('/')
    }

    /// One text per pair of scope and key: `:key`, or `/scope:key` in a named scope.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same as a shared text.
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// The key as a sender has it, if it is canonical (docs/keys.md).
    #[must_use]
    pub fn canonical(&self) -> Option<IdempotencyKey> {
        IdempotencyKey::parse(self.key()).ok()
    }

    /// The key's parts, if it is canonical.
    pub(crate) fn parts(&self) -> Option<KeyParts<'_>> {
        KeyParts::parse(self.key()).ok()
    }
}

impl fmt::Debug for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimKey({})", self.text)
    }
}

/// What is wrong with a received key. It does not hold the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimKeyError {
    /// It has no characters.
    Empty,
    /// It is longer than 255 bytes.
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A byte that is not visible ASCII, or a space, comma, quote or brace.
    Character {
        /// Offset in bytes.
        at: usize,
    },
    /// It begins with a quote and is no string of RFC 8941, or something follows the string.
    Quoting,
}

impl fmt::Display for ClaimKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the key is empty"),
            Self::TooLong { len } => write!(f, "the key has {len} bytes, at most {MAX_KEY} are allowed"),
            Self::Character { at } => {
                write!(
                    f,
                    "byte {at} of the key is not visible ASCII, or a space, comma, quote or brace"
                )
            }
            Self::Quoting => f.write_str("the quoted key is not one string of RFC 8941"),
        }
    }
}

impl Error for ClaimKeyError {}

/// Tells whether two bodies under one key are the same: the body's XXH3 with 128 bits.
///
/// Not a cryptographic hash, and much faster than one. Bodies are verified before they come here, and whoever can sign
/// two bodies with one fingerprint could as well send them under two keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// The fingerprint of these body bytes.
    #[must_use]
    pub fn of(body: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(body).to_be_bytes())
    }

    /// A fingerprint that a store kept.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for a store to keep.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:032x})", u128::from_be_bytes(self.0))
    }
}

/// Names the owner of a claim: each copy that arrives draws its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// A token that no other claim has, in this process or in another: 122 random bits that the process drew once, plus
    /// a count.
    ///
    /// # Panics
    /// If the operating system gives no random bytes, the first time.
    #[must_use]
    pub fn unique() -> Self {
        static DRAWN: LazyLock<u128> = LazyLock::new(|| uuid::Uuid::new_v4().as_u128());
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Relaxed);
        Self(DRAWN.wrapping_add(count.into()).to_be_bytes())
    }

    /// A token that a store kept.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for a store to keep.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:032x})", u128::from_be_bytes(self.0))
    }
}

/// One copy of an event that asks a store for its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// What is asked for.
    pub key: ClaimKey,
    /// Who asks.
    pub token: Token,
    /// For which body.
    pub fingerprint: Fingerprint,
}

impl Claimant {
    /// A copy that has just arrived, with a token of its own.
    ///
    /// # Panics
    /// As [`Token::unique`].
    #[must_use]
    pub fn new(key: ClaimKey, body: &[u8]) -> Self {
        Self {
            key,
            token: Token::unique(),
            fingerprint: Fingerprint::of(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &[u8], expected: Result<&str, ClaimKeyError>) {
        let key = ClaimKey::from_header(&Scope::default(), value);
        assert_eq!(key.as_ref().map(ClaimKey::key), expected.as_ref().copied());
    }

    #[test]
    fn takes_bare_and_quoted_keys() {
        check(b"k1", Ok("k1"));
        check(b"\"k1\"", Ok("k1"));
        check(br"a\b", Ok(r"a\b"));
        check(br#""a\\b""#, Ok(r"a\b"));
        check(b"!~;=#'()<>[]", Ok("!~;=#'()<>[]"));
        let longest = "k".repeat(255);
        check(longest.as_bytes(), Ok(&longest));
        check(format!("\"{longest}\"").as_bytes(), Ok(&longest));
    }

    #[test]
    fn refuses_what_is_no_key() {
        check(b"", Err(ClaimKeyError::Empty));
        check(b"\"\"", Err(ClaimKeyError::Empty));
        check(&[b'k'; 256], Err(ClaimKeyError::TooLong { len: 256 }));
        for (value, at) in [
            (&b"a b"[..], 1),
            (b" a", 0),
            (b"a,b", 1),
            (b"a\"b", 1),
            (b"{a", 0),
            (b"a}", 1),
            (b"a\tb", 1),
            (b"a\x7f", 1),
            ("é".as_bytes(), 0),
            (b"ab\xff", 2),
            (br#""a\"b""#, 1),
        ] {
            check(value, Err(ClaimKeyError::Character { at }));
        }
        for value in [&b"\""[..], b"\"a", b"\"a\";x=1", br#""a\n""#, br#""a\""#] {
            check(value, Err(ClaimKeyError::Quoting));
        }
    }

    #[test]
    fn keeps_scopes_apart() {
        let orders = Scope::named("orders").unwrap();
        let scoped = ClaimKey::new(&orders, "k1").unwrap();
        assert_eq!(scoped.as_str(), "/orders:k1");
        assert_eq!((scoped.scope(), scoped.key()), (Some("orders"), "k1"));
        let unnamed = ClaimKey::new(&Scope::default(), "k1").unwrap();
        assert_eq!(unnamed.as_str(), ":k1");
        assert_eq!((unnamed.scope(), unnamed.key()), (None, "k1"));
        // An opaque key may look like a scoped one.
        let sly = ClaimKey::new(&Scope::default(), "/orders:k1").unwrap();
        assert_ne!(sly, scoped);
        assert_ne!(sly.as_str(), scoped.as_str());
        for name in ["", "a:b", "a b", "-a", "{a}", &"s".repeat(65)] {
            assert_eq!(Scope::named(name), Err(ScopeError), "{name}");
        }
        assert!(Scope::named(&"s".repeat(64)).is_ok());
    }

    #[test]
    fn knows_canonical_keys() {
        let canonical = |key| ClaimKey::new(&Scope::default(), key).unwrap().canonical();
        assert_eq!(canonical("req-42:tool_end:7").unwrap().event_type(), "tool_end");
        assert_eq!(canonical("req-42:tool_end:07"), None);
        assert_eq!(canonical("k1"), None);
    }

    #[test]
    fn fingerprints_are_those_of_the_c_library() {
        for (body, expected) in [
            (&b""[..], 0x99aa_06d3_0147_98d8_6001_c324_468d_497f_u128),
            (b"abc", 0x06b0_5ab6_733a_6185_78af_5f94_892f_3950),
            (&[b'a'; 1_000], 0xb01d_a365_edda_a29c_b3e7_af62_7147_db7c),
        ] {
            assert_eq!(Fingerprint::of(body).as_bytes(), &expected.to_be_bytes());
        }
    }
}
