//! Keys of maps: what serde_json takes as a key, spelled as serde_json spells it.

use std::fmt;

use serde::ser::{Impossible, Serialize, Serializer};

use super::draft::{Draft, Object};
use super::error::{CanonicalError, Problem};
use super::number;
use super::refuse::refuse;

/// Takes a string, char, bool, number or unit variant, and writes it as a key.
pub(super) struct MapKey<'d, 'o> {
    pub(super) draft: &'d mut Draft<'o>,
    pub(super) object: &'d mut Object,
}

impl MapKey<'_, '_> {
    /// A key without anything to escape.
    fn plain(self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), CanonicalError> {
        self.draft.plain_key(self.object, write);
        Ok(())
    }

    /// A float as a string: serde_json's spelling, since no reader takes it for a number.
    fn float<F: zmij::Float>(self, value: F, is_finite: bool) -> Result<(), CanonicalError> {
        if !is_finite {
            return Err(CanonicalError::in_value(Problem::NotFinite));
        }
        self.plain(|out| out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes()))
    }
}

impl Serializer for MapKey<'_, '_> {
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
        self.draft.key(self.object, value);
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), CanonicalError> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_unit_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
    ) -> Result<(), CanonicalError> {
        self.serialize_str(variant)
    }

    fn serialize_bool(self, value: bool) -> Result<(), CanonicalError> {
        self.serialize_str(if value { "true" } else { "false" })
    }

    fn serialize_i8(self, value: i8) -> Result<(), CanonicalError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), CanonicalError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), CanonicalError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), CanonicalError> {
        self.plain(|out| number::write_i64(out, value))
    }

    fn serialize_i128(self, value: i128) -> Result<(), CanonicalError> {
        self.plain(|out| number::write_i128(out, value))
    }

    fn serialize_u8(self, value: u8) -> Result<(), CanonicalError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), CanonicalError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), CanonicalError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), CanonicalError> {
        self.plain(|out| number::write_u64(out, value))
    }

    fn serialize_u128(self, value: u128) -> Result<(), CanonicalError> {
        self.plain(|out| number::write_u128(out, value))
    }

    fn serialize_f32(self, value: f32) -> Result<(), CanonicalError> {
        self.float(value, value.is_finite())
    }

    fn serialize_f64(self, value: f64) -> Result<(), CanonicalError> {
        self.float(value, value.is_finite())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        value: &T,
    ) -> Result<(), CanonicalError> {
        value.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), CanonicalError> {
        value.serialize(self)
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<(), CanonicalError> {
        self.draft.display_key(self.object, value)
    }

    refuse!(containers Problem::KeyNotAString);
}
