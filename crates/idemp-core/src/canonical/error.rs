//! Why a text or a value has no canonical form, and where. Nothing here holds any of the payload.

use std::fmt;

use super::MAX_DEPTH;

/// A text or value has no canonical form.
///
/// It says what is wrong and where, and holds nothing of the text or value itself: keys and values are payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalError(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    problem: Problem,
    position: Option<Position>,
    path: Option<ValuePath>,
}

/// What is wrong, for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CanonicalErrorKind {
    /// The text is not JSON (RFC 8259).
    Syntax,
    /// The text is not UTF-8.
    InvalidUtf8,
    /// A string has half of a surrogate pair, which stands for no character.
    LoneSurrogate,
    /// NaN or an infinity.
    NotFinite,
    /// A number with a fraction or an exponent that is beyond the largest double, such as `1e400`.
    NumberOutOfRange,
    /// More than [`MAX_DEPTH`](super::MAX_DEPTH) levels of arrays and objects.
    TooDeep,
    /// A map's key has no form as a string.
    KeyNotAString,
    /// The value's own `Serialize` failed. Its message is left out: it may quote the payload.
    Serialize,
}

/// A place in a JSON text.
///
/// It is the first byte that cannot go on a JSON text, or its end; the backslash of a bad escape or lone surrogate; the
/// first byte of a number that has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Position {
    /// Line, from 1. Lines end at `\n`.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Bytes before it in the text.
    pub offset: usize,
}

/// A place in a value, from the outermost part to the innermost.
///
/// Printed as `.items[2].score`, without the first dot: `.name` is a struct's field or an enum's variant, `[2]` an
/// element of a sequence and `{2}` an entry of a map, both counted from 0 in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValuePath {
    /// Innermost first: an error collects them on its way out.
    steps: Vec<Step>,
}

/// One step from a value to a part of it. Only numbers, and names that stand in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Field(&'static str),
    Element(usize),
    Entry(usize),
}

/// What is wrong, for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    UnexpectedEnd,
    ExpectedValue,
    ExpectedLiteral,
    ExpectedKey,
    ExpectedColon,
    ExpectedListEnd,
    ExpectedObjectEnd,
    TrailingComma,
    TrailingText,
    InvalidNumber,
    InvalidEscape,
    ControlCharacter,
    ByteOrderMark,
    InvalidUtf8,
    LoneSurrogate,
    NotFinite,
    NumberOutOfRange,
    TooDeep,
    KeyNotAString,
    Serialize,
}

impl CanonicalError {
    /// What is wrong, for a program.
    #[must_use]
    pub fn kind(&self) -> CanonicalErrorKind {
        self.0.problem.kind()
    }

    /// Where in the JSON text. None for a value, unless a raw JSON text within it is wrong: then it is the place in that.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        self.0.position
    }

    /// Where in the value that was serialised. None for a JSON text.
    #[must_use]
    pub fn path(&self) -> Option<&ValuePath> {
        self.0.path.as_ref()
    }

    pub(super) fn in_text(problem: Problem, text: &[u8], offset: usize) -> Self {
        Self(Box::new(Inner {
            problem,
            position: Some(Position::find(text, offset)),
            path: None,
        }))
    }

    #[cold]
    pub(super) fn in_value(problem: Problem) -> Self {
        Self(Box::new(Inner {
            problem,
            position: None,
            path: Some(ValuePath::default()),
        }))
    }

    /// The same, seen from the value that holds the one with the error.
    #[cold]
    pub(super) fn under(mut self, step: Step) -> Self {
        self.0.path.get_or_insert_default().steps.push(step);
        self
    }

    /// The same, when a raw JSON text is a value.
    #[cold]
    pub(super) fn of_raw_text(mut self) -> Self {
        self.0.path.get_or_insert_default();
        self
    }
}

impl fmt::Display for CanonicalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            problem,
            position,
            path,
        } = &*self.0;
        write!(f, "{problem}")?;
        match (position, path) {
            (Some(position), None) => write!(f, " at {position}"),
            (None, Some(path)) => write!(f, " at {path}"),
            (Some(position), Some(path)) => write!(f, " at {position} of the raw JSON at {path}"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for CanonicalError {}

impl serde::ser::Error for CanonicalError {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self::in_value(Problem::Serialize)
    }
}

impl Position {
    fn find(text: &[u8], offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        Self {
            line: 1 + before.iter().filter(|&&byte| byte == b'\n').count(),
            column: 1 + before[line_start..]
                .iter()
                .filter(|&&byte| starts_character(byte))
                .count(),
            offset,
        }
    }
}

/// All bytes but UTF-8's continuation bytes.
const fn starts_character(byte: u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} column {} (byte {})", self.line, self.column, self.offset)
    }
}

impl fmt::Display for ValuePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return f.write_str("the top level");
        }
        for (index, step) in self.steps.iter().rev().enumerate() {
            match step {
                Step::Field(name) if index == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Element(at) => write!(f, "[{at}]")?,
                Step::Entry(at) => write!(f, "{{{at}}}")?,
            }
        }
        Ok(())
    }
}

impl Problem {
    const fn kind(self) -> CanonicalErrorKind {
        match self {
            Self::UnexpectedEnd
            | Self::ExpectedValue
            | Self::ExpectedLiteral
            | Self::ExpectedKey
            | Self::ExpectedColon
            | Self::ExpectedListEnd
            | Self::ExpectedObjectEnd
            | Self::TrailingComma
            | Self::TrailingText
            | Self::InvalidNumber
            | Self::InvalidEscape
            | Self::ControlCharacter
            | Self::ByteOrderMark => CanonicalErrorKind::Syntax,
            Self::InvalidUtf8 => CanonicalErrorKind::InvalidUtf8,
            Self::LoneSurrogate => CanonicalErrorKind::LoneSurrogate,
            Self::NotFinite => CanonicalErrorKind::NotFinite,
            Self::NumberOutOfRange => CanonicalErrorKind::NumberOutOfRange,
            Self::TooDeep => CanonicalErrorKind::TooDeep,
            Self::KeyNotAString => CanonicalErrorKind::KeyNotAString,
            Self::Serialize => CanonicalErrorKind::Serialize,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnexpectedEnd => "the JSON text ends too early",
            Self::ExpectedValue => "expected a JSON value",
            Self::ExpectedLiteral => "expected null, true or false",
            Self::ExpectedKey => "expected a string as key",
            Self::ExpectedColon => "expected `:`",
            Self::ExpectedListEnd => "expected `,` or `]`",
            Self::ExpectedObjectEnd => "expected `,` or `}`",
            Self::TrailingComma => "trailing comma",
            Self::TrailingText => "text after the JSON value",
            Self::InvalidNumber => "invalid number",
            Self::InvalidEscape => "invalid escape in a string",
            Self::ControlCharacter => "control character in a string",
            Self::ByteOrderMark => "byte order mark before the JSON text",
            Self::InvalidUtf8 => "invalid UTF-8",
            Self::LoneSurrogate => "lone surrogate in a string",
            Self::NotFinite => "NaN and infinities have no JSON form",
            Self::NumberOutOfRange => "number out of range",
            Self::TooDeep => return write!(f, "more than {MAX_DEPTH} levels of nesting"),
            Self::KeyNotAString => "a map's key is not a string",
            Self::Serialize => "the value failed to serialise itself",
        })
    }
}
