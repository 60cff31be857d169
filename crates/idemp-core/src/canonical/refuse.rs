//! Methods of a serde serialiser that takes only some kinds of value.

/// `refuse!(containers problem)` refuses everything that holds other values, and what stands for nothing;
/// `refuse!(scalars problem)` the rest, apart from `serialize_str`.
macro_rules! refuse {
    (containers $problem:expr) => {
        refuse! { @values $problem; serialize_bytes(&[u8]) }
        refuse! { @values $problem; serialize_unit_struct(&'static str) }

        fn serialize_none(self) -> Result<(), CanonicalError> {
            Err(CanonicalError::in_value($problem))
        }

        fn serialize_unit(self) -> Result<(), CanonicalError> {
            Err(CanonicalError::in_value($problem))
        }

        fn serialize_newtype_variant<T: Serialize + ?Sized>(
            self,
            _name: &'static str,
            _index: u32,
            _variant: &'static str,
            _value: &T,
        ) -> Result<(), CanonicalError> {
            Err(CanonicalError::in_value($problem))
        }

        refuse! { @compound $problem; serialize_seq(Option<usize>) -> SerializeSeq }
        refuse! { @compound $problem; serialize_tuple(usize) -> SerializeTuple }
        refuse! { @compound $problem; serialize_tuple_struct(&'static str, usize) -> SerializeTupleStruct }
        refuse! { @compound $problem;
            serialize_tuple_variant(&'static str, u32, &'static str, usize) -> SerializeTupleVariant }
        refuse! { @compound $problem; serialize_map(Option<usize>) -> SerializeMap }
        refuse! { @compound $problem; serialize_struct(&'static str, usize) -> SerializeStruct }
        refuse! { @compound $problem;
            serialize_struct_variant(&'static str, u32, &'static str, usize) -> SerializeStructVariant }
    };
    (scalars $problem:expr) => {
        refuse! { @values $problem;
            serialize_bool(bool) serialize_char(char) serialize_f32(f32) serialize_f64(f64)
            serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64) serialize_i128(i128)
            serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64) serialize_u128(u128)
            serialize_unit_variant(&'static str, u32, &'static str)
        }

        fn serialize_some<T: Serialize + ?Sized>(self, _value: &T) -> Result<(), CanonicalError> {
            Err(CanonicalError::in_value($problem))
        }

        fn serialize_newtype_struct<T: Serialize + ?Sized>(
            self,
            _name: &'static str,
            _value: &T,
        ) -> Result<(), CanonicalError> {
            Err(CanonicalError::in_value($problem))
        }
    };
    (@values $problem:expr; $($method:ident($($argument:ty),*))*) => {
        $(
            fn $method(self, $(_: $argument),*) -> Result<(), CanonicalError> {
                Err(CanonicalError::in_value($problem))
            }
        )*
    };
    (@compound $problem:expr; $method:ident($($argument:ty),*) -> $compound:ident) => {
        fn $method(self, $(_: $argument),*) -> Result<Self::$compound, CanonicalError> {
            Err(CanonicalError::in_value($problem))
        }
    };
}

pub(super) use refuse;
