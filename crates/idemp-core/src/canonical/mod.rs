//! Canonical JSON: one sequence of bytes for one value, so that it can be signed and compared.
//!
//! The form is, byte for byte, what CPython prints for `json.dumps(json.loads(text), sort_keys=True).encode()`:
//!
//! * object keys sorted by code point at every level, the last of equal keys kept (equal after unescaping);
//! * `", "` and `": "` between, no other white space;
//! * printable ASCII as it is; `\" \\ \b \f \n \r \t`; everything else `\u` and four lower-case hex digits, beyond
//!   the basic plane a surrogate pair;
//! * integers of any size digit for digit, `-0` as `0`;
//! * floats as Python's `repr`: the shortest digits that read back the same, `0.1`, `1e-07`, `1e+16`, `-0.0`.
//!
//! Refused, with the place: NaN and infinities, numbers that no double holds (`1e400`), lone surrogates, more than
//! [`MAX_DEPTH`] levels of arrays and objects, and whatever RFC 8259 does not allow. This also holds for a value that a
//! later equal key would replace. CPython prints some of these; what it prints is not JSON.
//!
//! The cost is linear in the text, apart from sorting the keys of objects whose keys come out of order.
//!
//! ```
//! use idemp_core::canonical;
//!
//! let text = r#"{"b": [1.0, 1E-7, -0], "a": "4 °C", "b": [1e16]}"#;
//! assert_eq!(canonical::from_json(text.as_bytes())?, br#"{"a": "4 \u00b0C", "b": [1e+16]}"#);
//!
//! assert_eq!(canonical::to_vec(&("é", 0.5))?, br#"["\u00e9", 0.5]"#);
//!
//! let error = canonical::from_json(b"{\"score\":\n NaN}").unwrap_err();
//! assert_eq!(error.to_string(), "NaN and infinities have no JSON form at line 2 column 2 (byte 11)");
//! # Ok::<(), canonical::CanonicalError>(())
//! ```

mod draft;
mod error;
mod fault;
mod map_key;
mod number;
mod order;
mod refuse;
mod serializer;
mod string;
mod text;
mod token;

use serde::Serialize;

pub use error::{CanonicalError, CanonicalErrorKind, Position, ValuePath};

use draft::Draft;

/// How deep arrays and objects may lie in each other, in levels: `[[1]]` has two.
pub const MAX_DEPTH: usize = 256;

/// Room made for a value whose size is not known, in bytes.
const TYPICAL: usize = 1024;

/// Canonical bytes of a JSON text (RFC 8259, UTF-8 without a byte order mark).
///
/// # Errors
/// If the text is not JSON or has no canonical form.
pub fn from_json(text: &[u8]) -> Result<Vec<u8>, CanonicalError> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 8);
    from_json_into(text, &mut out)?;
    Ok(out)
}

/// As [`from_json`], appended to what `out` holds.
///
/// # Errors
/// If the text is not JSON or has no canonical form. `out` then holds what it held before.
pub fn from_json_into(text: &[u8], out: &mut Vec<u8>) -> Result<(), CanonicalError> {
    append(out, |draft| text::write(text, draft))
}

/// Canonical bytes of a value.
///
/// They equal those of the JSON text that serde_json writes for the value, except that NaN and infinities, which
/// serde_json writes as `null`, are refused. serde_json's `RawValue` and, with its feature `arbitrary_precision`, its
/// `Number` are read as the JSON text that they hold.
///
/// # Errors
/// If the value has no canonical form, a map's key is not a string, number, bool or unit variant, or the value's own
/// `Serialize` fails.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    let mut out = Vec::with_capacity(TYPICAL);
    to_vec_into(value, &mut out)?;
    Ok(out)
}

/// As [`to_vec`], appended to what `out` holds.
///
/// # Errors
/// As [`to_vec`]. `out` then holds what it held before.
pub fn to_vec_into<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), CanonicalError> {
    append(out, |draft| serializer::write(value, draft))
}

fn append(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Draft<'_>) -> Result<(), CanonicalError>,
) -> Result<(), CanonicalError> {
    let before = out.len();
    let mut draft = Draft::new(out);
    match write(&mut draft) {
        Ok(()) => {
            draft.finish();
            Ok(())
        }
        Err(error) => {
            out.truncate(before);
            Err(error)
        }
    }
}
