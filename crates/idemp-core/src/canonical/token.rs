//! serde_json's private way to hand JSON text through serde: a struct of one field, both with the same secret name.
//!
//! `RawValue` and, with serde_json's feature `arbitrary_precision`, `Number` come like this when the application has switched
//! these features on. The names are stable in practice: other crates rely on them too.

use serde::ser::{Impossible, Serialize, Serializer};

use super::draft::Draft;
use super::error::{CanonicalError, Problem};
use super::refuse::refuse;
use super::text;

/// What kind of text it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    RawValue,
    Number,
}

/// A token whose text is still to come, or has come.
pub(super) struct RawToken<'d, 'o> {
    token: Token,
    draft: &'d mut Draft<'o>,
    written: bool,
}

impl Token {
    const fn name(self) -> &'static str {
        match self {
            Self::RawValue => "$serde_json::private::RawValue",
            Self::Number => "$serde_json::private::Number",
        }
    }

    /// The token of a struct with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        if !name.starts_with('$') {
            return None;
        }
        [Self::RawValue, Self::Number]
            .into_iter()
            .find(|token| token.name() == name)
    }
}

impl<'d, 'o> RawToken<'d, 'o> {
    pub(super) const fn new(token: Token, draft: &'d mut Draft<'o>) -> Self {
        Self {
            token,
            draft,
            written: false,
        }
    }

    pub(super) fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), CanonicalError> {
        if name != self.token.name() || std::mem::replace(&mut self.written, true) {
            return Err(CanonicalError::in_value(Problem::Serialize));
        }
        value.serialize(Text {
            token: self.token,
            draft: self.draft,
        })
    }

    pub(super) fn end(self) -> Result<(), CanonicalError> {
        if self.written {
            Ok(())
        } else {
            Err(CanonicalError::in_value(Problem::Serialize))
        }
    }
}

/// Takes a string, and writes the JSON that it holds.
struct Text<'d, 'o> {
    token: Token,
    draft: &'d mut Draft<'o>,
}

impl Serializer for Text<'_, '_> {
    type Ok = ();
    type Error = CanonicalError;
    type SerializeSeq = Impossible<(), CanonicalError>;
    type SerializeTuple = Impossible<(), CanonicalError>;
    type SerializeTupleStruct = Impossible<(), CanonicalError>;
    type SerializeTupleVariant = Impossible<(), CanonicalError>;
    type SerializeMap = Impossible<(), CanonicalError>;
    type SerializeStruct = Impossible<(), CanonicalError>;
    type SerializeStructVariant = Impossible<(), CanonicalError>;

    fn serialize_str(self, value: &str) -> Result<(), CanonicalError> {
        if self.token == Token::Number && !is_number(value) {
            return Err(CanonicalError::in_value(Problem::InvalidNumber));
        }
        text::write(value.as_bytes(), self.draft).map_err(CanonicalError::of_raw_text)
    }

    refuse!(scalars Problem::Serialize);
    refuse!(containers Problem::Serialize);
}

/// Whether a JSON text, if it is one, is a number without white space around.
fn is_number(text: &str) -> bool {
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
        && text.ends_with(|last: char| last.is_ascii_digit())
}
