//! Writes a value through serde, as serde_json would, into the same draft as the reader of text.

use std::fmt;

use serde::ser::{self, Serialize};

use super::draft::{Draft, Object};
use super::error::{CanonicalError, Problem, Step};
use super::map_key::MapKey;
use super::number;
use super::token::{RawToken, Token};

type Result<T = (), E = CanonicalError> = std::result::Result<T, E>;

/// Writes one value.
pub(super) fn write<T: Serialize + ?Sized>(value: &T, draft: &mut Draft<'_>) -> Result {
    value.serialize(Value { draft })
}

pub(super) struct Value<'d, 'o> {
    pub(super) draft: &'d mut Draft<'o>,
}

pub(super) struct Array<'d, 'o> {
    draft: &'d mut Draft<'o>,
    len: usize,
}

pub(super) struct Map<'d, 'o> {
    draft: &'d mut Draft<'o>,
    object: Object,
    len: usize,
    /// Whether a key waits for its value.
    half: bool,
}

pub(super) struct Fields<'d, 'o> {
    draft: &'d mut Draft<'o>,
    object: Object,
}

pub(super) enum Struct<'d, 'o> {
    Fields(Fields<'d, 'o>),
    Token(RawToken<'d, 'o>),
}

/// An enum's variant that holds something: `{"Variant": inner}`.
pub(super) struct Variant<T> {
    name: &'static str,
    object: Object,
    inner: T,
}

impl<'d, 'o> Value<'d, 'o> {
    fn array(self) -> Result<Array<'d, 'o>> {
        self.draft.begin_array().map_err(CanonicalError::in_value)?;
        Ok(Array {
            draft: self.draft,
            len: 0,
        })
    }

    fn fields(self) -> Result<Fields<'d, 'o>> {
        let object = self.draft.begin_object().map_err(CanonicalError::in_value)?;
        Ok(Fields {
            draft: self.draft,
            object,
        })
    }

    /// The object around what an enum's variant holds.
    fn variant(&mut self, name: &str) -> Result<Object> {
        let mut object = self.draft.begin_object().map_err(CanonicalError::in_value)?;
        self.draft.key(&mut object, name);
        Ok(object)
    }
}

impl<'d, 'o> ser::Serializer for Value<'d, 'o> {
    type Ok = ();
    type Error = CanonicalError;
    type SerializeSeq = Array<'d, 'o>;
    type SerializeTuple = Array<'d, 'o>;
    type SerializeTupleStruct = Array<'d, 'o>;
    type SerializeTupleVariant = Variant<Array<'d, 'o>>;
    type SerializeMap = Map<'d, 'o>;
    type SerializeStruct = Struct<'d, 'o>;
    type SerializeStructVariant = Variant<Fields<'d, 'o>>;

    fn serialize_bool(self, value: bool) -> Result {
        self.draft.literal(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result {
        number::write_i64(self.draft.out, value);
        Ok(())
    }

    fn serialize_i128(self, value: i128) -> Result {
        number::write_i128(self.draft.out, value);
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result {
        number::write_u64(self.draft.out, value);
        Ok(())
    }

    fn serialize_u128(self, value: u128) -> Result {
        number::write_u128(self.draft.out, value);
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result {
        if !value.is_finite() {
            return Err(CanonicalError::in_value(Problem::NotFinite));
        }
        number::write_f32(self.draft.out, value);
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Result {
        if !value.is_finite() {
            return Err(CanonicalError::in_value(Problem::NotFinite));
        }
        number::write_f64(self.draft.out, value);
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result {
        self.draft.string(value);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result {
        let mut array = self.array()?;
        for byte in value {
            ser::SerializeSeq::serialize_element(&mut array, byte)?;
        }
        ser::SerializeSeq::end(array)
    }

    fn serialize_none(self) -> Result {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result {
        self.draft.literal("null");
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Result {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Result {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result {
        let object = self.variant(variant)?;
        write(value, self.draft).map_err(|error| error.under(Step::Field(variant)))?;
        self.draft.end_object(&object);
        Ok(())
    }

    fn serialize_seq(self, _len: Option<usize>) -> Result<Self::SerializeSeq> {
        self.array()
    }

    fn serialize_tuple(self, _len: usize) -> Result<Self::SerializeTuple> {
        self.array()
    }

    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Self::SerializeTupleStruct> {
        self.array()
    }

    fn serialize_tuple_variant(
        mut self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeTupleVariant> {
        let object = self.variant(variant)?;
        let inner = self.array().map_err(|error| error.under(Step::Field(variant)))?;
        Ok(Variant {
            name: variant,
            object,
            inner,
        })
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<Self::SerializeMap> {
        let Fields { draft, object } = self.fields()?;
        Ok(Map {
            draft,
            object,
            len: 0,
            half: false,
        })
    }

    fn serialize_struct(self, name: &'static str, _len: usize) -> Result<Self::SerializeStruct> {
        match Token::named(name) {
            Some(token) => Ok(Struct::Token(RawToken::new(token, self.draft))),
            None => self.fields().map(Struct::Fields),
        }
    }

    fn serialize_struct_variant(
        mut self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeStructVariant> {
        let object = self.variant(variant)?;
        let inner = self.fields().map_err(|error| error.under(Step::Field(variant)))?;
        Ok(Variant {
            name: variant,
            object,
            inner,
        })
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result {
        self.draft.display(value)
    }
}

impl ser::SerializeSeq for Array<'_, '_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        if self.len > 0 {
            self.draft.next_element();
        }
        write(value, self.draft).map_err(|error| error.under(Step::Element(self.len)))?;
        self.len += 1;
        Ok(())
    }

    fn end(self) -> Result {
        self.draft.end_array();
        Ok(())
    }
}

impl ser::SerializeTuple for Array<'_, '_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        ser::SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result {
        ser::SerializeSeq::end(self)
    }
}

impl ser::SerializeTupleStruct for Array<'_, '_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        ser::SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result {
        ser::SerializeSeq::end(self)
    }
}

impl ser::SerializeTupleVariant for Variant<Array<'_, '_>> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        ser::SerializeSeq::serialize_element(&mut self.inner, value)
            .map_err(|error| error.under(Step::Field(self.name)))
    }

    fn end(self) -> Result {
        self.inner.draft.end_array();
        self.inner.draft.end_object(&self.object);
        Ok(())
    }
}

impl ser::SerializeMap for Map<'_, '_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result {
        if std::mem::replace(&mut self.half, true) {
            return Err(CanonicalError::in_value(Problem::Serialize));
        }
        key.serialize(MapKey {
            draft: self.draft,
            object: &mut self.object,
        })
        .map_err(|error| error.under(Step::Entry(self.len)))
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        if !std::mem::replace(&mut self.half, false) {
            return Err(CanonicalError::in_value(Problem::Serialize));
        }
        write(value, self.draft).map_err(|error| error.under(Step::Entry(self.len)))?;
        self.len += 1;
        Ok(())
    }

    fn end(self) -> Result {
        if self.half {
            return Err(CanonicalError::in_value(Problem::Serialize));
        }
        self.draft.end_object(&self.object);
        Ok(())
    }
}

impl Fields<'_, '_> {
    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result {
        self.draft.key(&mut self.object, name);
        write(value, self.draft).map_err(|error| error.under(Step::Field(name)))
    }

    fn end(self) {
        self.draft.end_object(&self.object);
    }
}

impl ser::SerializeStruct for Struct<'_, '_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result {
        match self {
            Self::Fields(fields) => fields.field(name, value),
            Self::Token(token) => token.field(name, value),
        }
    }

    fn end(self) -> Result {
        match self {
            Self::Fields(fields) => {
                fields.end();
                Ok(())
            }
            Self::Token(token) => token.end(),
        }
    }
}

impl ser::SerializeStructVariant for Variant<Fields<'_, '_>> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result {
        self.inner
            .field(name, value)
            .map_err(|error| error.under(Step::Field(self.name)))
    }

    fn end(self) -> Result {
        let Fields { draft, object } = self.inner;
        draft.end_object(&object);
        draft.end_object(&self.object);
        Ok(())
    }
}
