//! What both readers write into: canonical scalars in the order in which they come, and a list of what to reorder.
//!
//! As long as the keys of every object come sorted, the draft is the result. Otherwise one last pass copies it in the right
//! order. So nothing is copied more than once, however deep it lies.

use std::fmt;

use super::MAX_DEPTH;
use super::error::{CanonicalError, Problem};
use super::order::{self, Entry, Key, Unsorted};
use super::string;

/// Room made for keys at first.
const TYPICAL_KEYS: usize = 32;

/// Room made for objects that are to be reordered, when there is one.
const TYPICAL_UNSORTED: usize = 8;

const SEPARATOR: &[u8] = b", ";

pub(super) struct Draft<'o> {
    /// The draft stands after what the caller had in it.
    pub(super) out: &'o mut Vec<u8>,
    depth: usize,
    /// Keys of the objects that are open, the innermost object's last.
    keys: Vec<Key>,
    /// Objects that are to be reordered, in the order in which they end.
    unsorted: Vec<Unsorted>,
    /// Their entries.
    entries: Vec<Entry>,
}

/// An object that is being written.
pub(super) struct Object {
    start: usize,
    first_key: usize,
    unsorted_before: usize,
    sorted: bool,
}

impl<'o> Draft<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>) -> Self {
        Self {
            out,
            depth: 0,
            keys: Vec::with_capacity(TYPICAL_KEYS),
            unsorted: Vec::new(),
            entries: Vec::new(),
        }
    }

    pub(super) fn literal(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    pub(super) fn string(&mut self, text: &str) {
        string::write(self.out, text);
    }

    /// Writes a string as `value` displays itself.
    pub(super) fn display<T: fmt::Display + ?Sized>(&mut self, value: &T) -> Result<(), CanonicalError> {
        self.out.push(b'"');
        string::write_display(self.out, value).map_err(unprintable)?;
        self.out.push(b'"');
        Ok(())
    }

    pub(super) fn begin_array(&mut self) -> Result<(), Problem> {
        self.descend()?;
        self.out.push(b'[');
        Ok(())
    }

    /// Must stand before every element but the first.
    pub(super) fn next_element(&mut self) {
        self.out.extend_from_slice(SEPARATOR);
    }

    pub(super) fn end_array(&mut self) {
        self.depth -= 1;
        self.out.push(b']');
    }

    pub(super) fn begin_object(&mut self) -> Result<Object, Problem> {
        self.descend()?;
        let start = self.out.len();
        self.out.push(b'{');
        Ok(Object {
            start,
            first_key: self.keys.len(),
            unsorted_before: self.unsorted.len(),
            sorted: true,
        })
    }

    /// Writes a key; its value must follow.
    pub(super) fn key(&mut self, object: &mut Object, text: &str) {
        self.out.reserve(text.len() + 6);
        let start = self.begin_key(object);
        let escaped = string::write_inner(self.out, text);
        self.end_key(object, start, escaped, order::prefix(text.as_bytes()));
    }

    /// Writes a key without anything to escape.
    pub(super) fn plain_key(&mut self, object: &mut Object, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.begin_key(object);
        write(self.out);
        let prefix = order::prefix(&self.out[start + 1..]);
        self.end_key(object, start, false, prefix);
    }

    /// Writes a key as `value` displays itself.
    pub(super) fn display_key<T: fmt::Display + ?Sized>(
        &mut self,
        object: &mut Object,
        value: &T,
    ) -> Result<(), CanonicalError> {
        let start = self.begin_key(object);
        let escaped = string::write_display(self.out, value).map_err(unprintable)?;
        let prefix = order::prefix(&self.out[start + 1..]);
        self.end_key(object, start, escaped, prefix);
        Ok(())
    }

    /// Writes what stands before the inside of a key, and says where the key starts.
    fn begin_key(&mut self, object: &Object) -> usize {
        if self.keys.len() == object.first_key {
            self.out.push(b'"');
        } else {
            self.out.extend_from_slice(b", \"");
        }
        self.out.len() - 1
    }

    fn end_key(&mut self, object: &mut Object, start: usize, escaped: bool, prefix: u64) {
        let key = Key {
            start,
            end: self.out.len() + 1,
            escaped,
            prefix,
        };
        if object.sorted && self.keys.len() > object.first_key {
            object.sorted = self
                .keys
                .last()
                .is_none_or(|last| order::compare(self.out, last, &key).is_lt());
        }
        self.keys.push(key);
        self.out.extend_from_slice(b"\": ");
    }

    pub(super) fn end_object(&mut self, object: &Object) {
        self.depth -= 1;
        self.out.push(b'}');
        if !object.sorted {
            self.note_unsorted(object);
        }
        self.keys.truncate(object.first_key);
    }

    /// Brings the draft into its final order.
    pub(super) fn finish(self) {
        if !self.unsorted.is_empty() {
            self.reorder();
        }
    }

    fn descend(&mut self) -> Result<(), Problem> {
        if self.depth == MAX_DEPTH {
            return Err(Problem::TooDeep);
        }
        self.depth += 1;
        Ok(())
    }

    #[inline(never)]
    fn note_unsorted(&mut self, object: &Object) {
        if self.unsorted.is_empty() {
            self.unsorted.reserve(TYPICAL_UNSORTED);
            self.entries.reserve(TYPICAL_KEYS);
        }
        let first = self.entries.len();
        let keys = &self.keys[object.first_key..];
        let ends = keys[1..]
            .iter()
            .map(|next| next.start - SEPARATOR.len())
            .chain([self.out.len() - 1]);
        self.entries
            .extend(keys.iter().zip(ends).map(|(&key, end)| Entry { key, end }));
        order::sort(self.out, &mut self.entries, first);
        self.unsorted.push(Unsorted {
            place: object.start..self.out.len(),
            entries: first..self.entries.len(),
            within: self.unsorted.len() - object.unsorted_before,
        });
    }

    #[inline(never)]
    fn reorder(mut self) {
        // As large as before, for what the caller will append.
        let mut result = Vec::with_capacity(self.out.capacity());
        self.pieces(|piece| result.extend_from_slice(piece));
        *self.out = result;
    }

    /// Gives the draft to `put`, piece by piece, in its final order.
    fn pieces(&mut self, put: impl FnMut(&[u8])) {
        self.unsorted.sort_unstable_by_key(|object| object.place.start);
        order::emit(self.out, &self.unsorted, &self.entries, put);
    }
}

fn unprintable(_: fmt::Error) -> CanonicalError {
    CanonicalError::in_value(Problem::Serialize)
}

#[cfg(test)]
mod tests {
    use super::Draft;
    use crate::canonical::{MAX_DEPTH, text};

    /// Pieces and bytes that the last pass copies for a JSON text, and the length of the draft.
    fn work(json: &str) -> (usize, usize, usize) {
        let mut out = Vec::new();
        let mut draft = Draft::new(&mut out);
        text::write(json.as_bytes(), &mut draft).unwrap();
        let (mut pieces, mut bytes) = (0, 0);
        draft.pieces(|piece| {
            pieces += 1;
            bytes += piece.len();
        });
        (pieces, bytes, out.len())
    }

    #[test]
    fn every_byte_is_copied_once_however_deep_it_lies() {
        let body = "x".repeat(1 << 20);
        for depth in [1, 16, MAX_DEPTH] {
            let json = format!(r#"{}"{body}"{}"#, r#"{"b": 0, "a": "#.repeat(depth), "}".repeat(depth));
            let (pieces, bytes, len) = work(&json);
            assert_eq!(bytes, len, "depth {depth}");
            assert!(pieces <= 6 * depth + 1, "{pieces} pieces at depth {depth}");
        }
    }

    #[test]
    fn work_grows_with_the_number_of_entries() {
        // Unsorted objects side by side, each with sorted ones in it.
        let one = r#"{"z": {"a": 1, "b": 2}, "y": [{"a": 1}, {"d": 1, "c": 2}], "x": 3}"#;
        let many = |count: usize| format!("[{}]", vec![one; count].join(", "));
        let (pieces, ..) = work(&many(1));
        for count in [10, 1_000] {
            let (more, bytes, len) = work(&many(count));
            assert_eq!(bytes, len);
            assert!(
                more <= count * pieces,
                "{more} pieces for {count} objects, {pieces} for one"
            );
        }
    }

    #[test]
    fn replaced_values_are_not_copied() {
        let (_, bytes, _) = work(r#"{"a": {"c": 1, "b": [1, 2, 3]}, "a": 0}"#);
        assert_eq!(bytes, r#"{"a": 0}"#.len());
    }
}
