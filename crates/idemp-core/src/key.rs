//! `{run_id}:{event_type}:{step_index}` and its three parts (docs/spec.md, "Keys").
//!
//! One string per key and one key per string: only the canonical form parses, so equal events have equal keys.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest run id or event type, in bytes.
const MAX_NAME: usize = 64;

/// Identifies one invocation of a chain, graph or request.
///
/// A UUIDv4 in lower-case hyphenated form when we make it; from outside also the application's own id:
/// 1 to 64 bytes of `A-Z a-z 0-9 _ . -`, the first a letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Arc<str>);

impl RunId {
    /// A fresh UUIDv4 (RFC 9562).
    ///
    /// # Panics
    /// If the operating system gives no random bytes.
    #[must_use]
    pub fn random() -> Self {
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        Self(Arc::from(&*uuid::Uuid::new_v4().hyphenated().encode_lower(&mut text)))
    }

    /// Takes the application's own id.
    ///
    /// # Errors
    /// If it is not 1 to 64 bytes of `A-Z a-z 0-9 _ . -` with a letter or digit first.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        check_name(KeyPart::RunId, text, u8::is_ascii_alphanumeric)?;
        Ok(Self(Arc::from(text)))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What happened: `tool_end`, `chain_end`, `llm_end`, `tool_error`, or the application's own name.
///
/// 1 to 64 bytes of `A-Z a-z 0-9 _ . -`, the first a letter. No `:`, which would make two triples share a key,
/// and no braces, which Redis Cluster takes for hash tags.
#[derive(Clone)]
pub struct EventType(Name);

#[derive(Clone)]
enum Name {
    Known(&'static str),
    Own(Arc<str>),
}

impl EventType {
    /// A tool finished.
    pub const TOOL_END: Self = Self(Name::Known("tool_end"));
    /// A chain finished.
    pub const CHAIN_END: Self = Self(Name::Known("chain_end"));
    /// A model call finished.
    pub const LLM_END: Self = Self(Name::Known("llm_end"));
    /// A tool failed.
    pub const TOOL_ERROR: Self = Self(Name::Known("tool_error"));

    /// Takes an event type by name.
    ///
    /// # Errors
    /// If it is not 1 to 64 bytes of `A-Z a-z 0-9 _ . -` with a letter first.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        for known in [Self::TOOL_END, Self::CHAIN_END, Self::LLM_END, Self::TOOL_ERROR] {
            if known.as_str() == text {
                return Ok(known);
            }
        }
        check_name(KeyPart::EventType, text, u8::is_ascii_alphabetic)?;
        Ok(Self(Name::Own(Arc::from(text))))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Known(name) => name,
            Name::Own(name) => name,
        }
    }
}

impl PartialEq for EventType {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for EventType {}

impl std::hash::Hash for EventType {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

/// Ordinal of an event within its run, from 1 to `i64::MAX` (it is stored in SQL).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepIndex(u64);

impl StepIndex {
    /// The first step of a run: 1.
    pub const FIRST: Self = Self(1);
    /// The last one there is: `i64::MAX`.
    pub const LAST: Self = Self(i64::MAX as u64);

    /// Takes a number.
    ///
    /// # Errors
    /// If it is 0 or above `i64::MAX`.
    pub fn new(step: u64) -> Result<Self, KeyError> {
        if (Self::FIRST.0..=Self::LAST.0).contains(&step) {
            Ok(Self(step))
        } else {
            Err(KeyError::new(KeyPart::StepIndex, KeyFault::StepOutOfRange))
        }
    }

    /// Parses decimal digits without sign, blanks or leading zeros.
    ///
    /// # Errors
    /// If the text is anything else, or the number is 0 or above `i64::MAX`.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let fault = |fault| Err(KeyError::new(KeyPart::StepIndex, fault));
        if text.is_empty() {
            return fault(KeyFault::Empty);
        }
        if let Some(at) = text.bytes().position(|byte| !byte.is_ascii_digit()) {
            return fault(KeyFault::Character { at });
        }
        if text.len() > 1 && text.starts_with('0') {
            return fault(KeyFault::LeadingZero);
        }
        match text.parse() {
            Ok(step) => Self::new(step),
            Err(_) => fault(KeyFault::StepOutOfRange),
        }
    }

    /// The number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The number as SQL keeps it.
    #[must_use]
    pub const fn as_i64(self) -> i64 {
        self.0.cast_signed()
    }
}

/// The key of one event: `{run_id}:{event_type}:{step_index}`, at most 149 bytes of visible ASCII.
///
/// Minted once, when the event is created. No retry, replay, fan-out or restart mints another.
#[derive(Clone)]
pub struct IdempotencyKey {
    text: Arc<str>,
    run_end: u8,
    event_end: u8,
    step: StepIndex,
}

impl IdempotencyKey {
    /// Longest key, in bytes.
    pub const MAX_LEN: usize = 2 * MAX_NAME + 2 + 19;

    /// Puts the three parts together.
    #[must_use]
    pub fn new(run_id: &RunId, event_type: &EventType, step: StepIndex) -> Self {
        let (run_id, event_type) = (run_id.as_str(), event_type.as_str());
        Self::assemble(
            format!("{run_id}:{event_type}:{}", step.0).into(),
            run_id.len(),
            event_type.len(),
            step,
        )
    }

    /// Takes a key apart. Accepts only what [`new`](Self::new) prints.
    ///
    /// # Errors
    /// Names the part that is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let parts = KeyParts::parse(text)?;
        Ok(Self::assemble(
            text.into(),
            parts.run_id.len(),
            parts.event_type.len(),
            parts.step_index,
        ))
    }

    fn assemble(text: Arc<str>, run_len: usize, event_len: usize, step: StepIndex) -> Self {
        // Both names are at most 64 bytes, so the offsets fit.
        let (run_end, event_end) = (run_len as u8, (run_len + 1 + event_len) as u8);
        Self {
            text,
            run_end,
            event_end,
            step,
        }
    }

    /// The key as it stands in the `Idempotency-Key` header.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The run's part.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.text[..self.run_end.into()]
    }

    /// The event type's part.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.text[usize::from(self.run_end) + 1..self.event_end.into()]
    }

    /// The step's part.
    #[must_use]
    pub const fn step_index(&self) -> StepIndex {
        self.step
    }
}

/// The parts of a key's text, for a look at them without an [`IdempotencyKey`] of one's own.
///
/// ```
/// use idemp_core::KeyParts;
///
/// assert_eq!(KeyParts::parse("r1:tool_end:7")?.event_type, "tool_end");
/// # Ok::<(), idemp_core::KeyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyParts<'k> {
    /// The run's part.
    pub run_id: &'k str,
    /// The event type's part.
    pub event_type: &'k str,
    /// The step's part.
    pub step_index: StepIndex,
}

impl<'k> KeyParts<'k> {
    /// Takes a key apart, as [`IdempotencyKey::parse`] does.
    ///
    /// # Errors
    /// Names the part that is wrong, and where.
    pub fn parse(text: &'k str) -> Result<Self, KeyError> {
        let mut parts = text.split(':');
        let (Some(run_id), Some(event_type), Some(step), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(KeyError::new(
                KeyPart::Key,
                KeyFault::Parts {
                    found: text.split(':').count(),
                },
            ));
        };
        check_name(KeyPart::RunId, run_id, u8::is_ascii_alphanumeric)?;
        check_name(KeyPart::EventType, event_type, u8::is_ascii_alphabetic)?;
        Ok(Self {
            run_id,
            event_type,
            step_index: StepIndex::parse(step)?,
        })
    }
}

impl PartialEq for IdempotencyKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for IdempotencyKey {}

impl std::hash::Hash for IdempotencyKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Borrow<str> for IdempotencyKey {
    fn borrow(&self) -> &str {
        &self.text
    }
}

/// What every type that is a checked text can do.
macro_rules! text_impls {
    ($($type:ident),*) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($type), "({})"), self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::KeyError;

            fn from_str(text: &str) -> Result<Self, $crate::KeyError> {
                Self::parse(text)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }
    )*};
}

pub(crate) use text_impls;

text_impls!(RunId, EventType, IdempotencyKey);

impl fmt::Display for StepIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for StepIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepIndex({})", self.0)
    }
}

impl FromStr for StepIndex {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

/// Which name, or which part of a key, is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyPart {
    /// The whole key.
    Key,
    /// The first part.
    RunId,
    /// The second part.
    EventType,
    /// The third part.
    StepIndex,
    /// A sink's name, which follows the rules of a run id.
    SinkName,
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key",
            Self::RunId => "run id",
            Self::EventType => "event type",
            Self::StepIndex => "step index",
            Self::SinkName => "sink name",
        })
    }
}

/// What is wrong with a part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyFault {
    /// It has no characters.
    Empty,
    /// It is longer than 64 bytes.
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A character that is not allowed there.
    Character {
        /// Offset in bytes within the part.
        at: usize,
    },
    /// A step index with leading zeros: another spelling of the same key.
    LeadingZero,
    /// A step index of 0 or above `i64::MAX`.
    StepOutOfRange,
    /// Not three parts with `:` between them.
    Parts {
        /// How many there are.
        found: usize,
    },
}

/// A text that is no key, or no part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError {
    part: KeyPart,
    fault: KeyFault,
}

impl KeyError {
    const fn new(part: KeyPart, fault: KeyFault) -> Self {
        Self { part, fault }
    }

    /// Which part is wrong.
    #[must_use]
    pub const fn part(&self) -> KeyPart {
        self.part
    }

    /// What is wrong with it.
    #[must_use]
    pub const fn fault(&self) -> KeyFault {
        self.fault
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = self.part;
        match self.fault {
            KeyFault::Empty => write!(f, "{part} is empty"),
            KeyFault::TooLong { len } => write!(f, "{part} has {len} bytes, at most {MAX_NAME} are allowed"),
            KeyFault::Character { at } if part == KeyPart::StepIndex => {
                write!(f, "{part} has a character at byte {at} that is not a digit")
            }
            KeyFault::Character { at: 0 } if part == KeyPart::RunId || part == KeyPart::SinkName => {
                write!(f, "{part} does not begin with a letter or digit")
            }
            KeyFault::Character { at: 0 } if part == KeyPart::EventType => {
                write!(f, "{part} does not begin with a letter")
            }
            KeyFault::Character { at } => {
                write!(
                    f,
                    "{part} has a character at byte {at} that is not one of A-Z a-z 0-9 _ . -"
                )
            }
            KeyFault::LeadingZero => write!(f, "{part} has leading zeros"),
            KeyFault::StepOutOfRange => write!(f, "{part} is not between {} and {}", StepIndex::FIRST, StepIndex::LAST),
            KeyFault::Parts { found } => {
                write!(
                    f,
                    "{part} has {found} parts, not the three of run_id:event_type:step_index"
                )
            }
        }
    }
}

impl std::error::Error for KeyError {}

pub(crate) fn check_name(part: KeyPart, text: &str, first: fn(&u8) -> bool) -> Result<(), KeyError> {
    let fault = |fault| Err(KeyError::new(part, fault));
    let bytes = text.as_bytes();
    let Some(head) = bytes.first() else {
        return fault(KeyFault::Empty);
    };
    if bytes.len() > MAX_NAME {
        return fault(KeyFault::TooLong { len: bytes.len() });
    }
    if !first(head) {
        return fault(KeyFault::Character { at: 0 });
    }
    match bytes
        .iter()
        .position(|byte| !(byte.is_ascii_alphanumeric() || b"_.-".contains(byte)))
    {
        Some(at) => fault(KeyFault::Character { at }),
        None => Ok(()),
    }
}
