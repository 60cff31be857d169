//! The short text an operator sees beside a failed attempt.

use std::fmt;

/// At most 512 bytes of UTF-8 without control characters.
///
/// It may quote what the peer answered, so it belongs into the dead letter, where the payload lies too, and nowhere
/// else: `Debug` shows its length only.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Detail(Box<str>);

impl Detail {
    /// Longest detail, in bytes.
    pub const MAX_LEN: usize = 512;

    /// Keeps what fits and drops control characters.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut kept = String::new();
        for character in text.chars().filter(|character| !character.is_control()) {
            if kept.len() + character.len_utf8() > Self::MAX_LEN {
                break;
            }
            kept.push(character);
        }
        Self(kept.into())
    }

    /// As [`new`](Self::new), from bytes of unknown encoding: what is not UTF-8 is replaced.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        // Enough to fill the detail even if most of it is dropped, and no more work than that.
        Self::new(&String::from_utf8_lossy(&bytes[..bytes.len().min(4 * Self::MAX_LEN)]))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Detail({} bytes)", self.0.len())
    }
}
