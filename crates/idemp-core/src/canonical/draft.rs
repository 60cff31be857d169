//! What both readers write into: canonical scalars in the order in which they come, and a list of what to reorder.
//!
//! As long as the keys of every object come sorted, the draft is the result. A small object whose keys do not is brought
//! into order when it ends; the others in one last pass, which copies everything once, however deep it lies. So a byte is
//! moved at most as often as small objects can lie in each other.

use std::fmt;

use super::MAX_DEPTH;
use super::error::{CanonicalError, Problem};
use super::order::{self, Entry, SEPARATOR, Unsorted};
use super::string;

/// Room made for entries of open objects at first. Allocators are fastest for less than a kibibyte.
const TYPICAL_ENTRIES: usize = 24;

/// An object of at most this many bytes is reordered when it ends: it is in the cache, and needs no bookkeeping.
const SMALL: usize = 4096;

pub(super) struct Draft<'o> {
    /// The draft stands after what the caller had in it.
    pub(super) out: &'o mut Vec<u8>,
    depth: usize,
    /// Entries of the objects that are open, the innermost object's last.
    open: Vec<Entry>,
    /// Objects that are to be reordered at last, in the order in which they end.
    unsorted: Vec<Unsorted>,
    /// Their entries.
    entries: Vec<Entry>,
}

/// An object that is being written.
pub(super) struct Object {
    start: usize,
    first_entry: usize,
    unsorted_before: usize,
    sorted: bool,
}

impl<'o> Draft<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>) -> Self {
        Self {
            out,
            depth: 0,
            open: Vec::with_capacity(TYPICAL_ENTRIES),
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
            first_entry: self.open.len(),
            unsorted_before: self.unsorted.len(),
            sorted: true,
        })
    }

    /// Writes a key; its value must follow.
    pub(super) fn key(&mut self, object: &mut Object, text: &str) {
        let start = self.begin_key(object);
        let prefix = order::prefix(text.as_bytes());
        string::write_inner(self.out, text);
        self.end_key(object, start, prefix);
    }

    /// Writes a key without anything to escape.
    pub(super) fn plain_key(&mut self, object: &mut Object, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.begin_key(object);
        write(self.out);
        let prefix = order::prefix(&self.out[start + 1..]);
        self.end_key(object, start, prefix);
    }

    /// Writes a key as `value` displays itself.
    pub(super) fn display_key<T: fmt::Display + ?Sized>(
        &mut self,
        object: &mut Object,
        value: &T,
    ) -> Result<(), CanonicalError> {
        let start = self.begin_key(object);
        string::write_display(self.out, value).map_err(unprintable)?;
        let prefix = order::prefix_of_written(&self.out[start + 1..]);
        self.end_key(object, start, prefix);
        Ok(())
    }

    /// Writes what stands before the inside of a key, and says where the key starts.
    #[inline]
    fn begin_key(&mut self, object: &Object) -> usize {
        if self.open.len() == object.first_entry {
            self.out.push(b'"');
        } else {
            self.out.extend_from_slice(b", \"");
        }
        self.out.len() - 1
    }

    #[inline(always)]
    fn end_key(&mut self, object: &mut Object, start: usize, prefix: u64) {
        // Built in its place, and compared there: a copy of what was just written is slow.
        self.open.push(Entry {
            prefix,
            start,
            key_end: self.out.len() + 1,
            end: 0,
        });
        if object.sorted
            && let [.., last, entry] = &self.open[object.first_entry..]
        {
            object.sorted = order::compare(self.out, last, entry).is_lt();
        }
        self.out.extend_from_slice(b"\": ");
    }

    pub(super) fn end_object(&mut self, object: &Object) {
        self.depth -= 1;
        if object.sorted {
            self.out.push(b'}');
        } else {
            self.sort(object);
        }
        self.open.truncate(object.first_entry);
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

    /// Ends a small object in the right order; notes another one for later.
    #[inline(never)]
    fn sort(&mut self, object: &Object) {
        let entries = &mut self.open[object.first_entry..];
        self.out.extend_from_slice(SEPARATOR);
        let mut end = self.out.len();
        for entry in entries.iter_mut().rev() {
            entry.end = end;
            end = entry.start;
        }
        let entries = order::sort(self.out, entries);
        if self.out.len() - object.start <= SMALL {
            order::rewrite(self.out, object.start, entries);
            return;
        }
        self.out.truncate(self.out.len() - SEPARATOR.len());
        self.out.push(b'}');
        let first = self.entries.len();
        self.entries.extend_from_slice(entries);
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
    use super::{Draft, SMALL};
    use crate::canonical::{MAX_DEPTH, from_json, text};

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
    fn the_last_pass_copies_every_byte_once_however_deep_it_lies() {
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
        // Large unsorted objects side by side, each with others in it.
        let body = "x".repeat(SMALL);
        let one = format!(
            r#"{{"z": {{"a": 1, "b": 2}}, "y": [{{"a": 1}}, {{"d": 1, "c": "{body}"}}, {{"f": 1, "e": 2}}], "x": 3}}"#
        );
        let many = |count: usize| format!("[{}]", vec![one.as_str(); count].join(", "));
        let (pieces, ..) = work(&many(1));
        assert!(pieces > 10);
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
        let body = "x".repeat(SMALL);
        let (_, bytes, len) = work(&format!(r#"{{"a": {{"c": 1, "b": "{body}"}}, "a": 0}}"#));
        assert!(len > SMALL);
        assert_eq!(bytes, r#"{"a": 0}"#.len());
    }

    #[test]
    fn small_and_large_objects_in_each_other() {
        let text =
            r#"[{"b": "<1>", "a": {"d": {"f": "<2>", "e": [{"h": "<3>", "g": 0, "h": "<4>"}], "é": 0}, "c": 0}}, {}]"#;
        let expected =
            r#"[{"a": {"c": 0, "d": {"e": [{"g": 0, "h": "<4>"}], "f": "<2>", "\u00e9": 0}}, "b": "<1>"}, {}]"#;
        // Each string is short or long.
        for long in 0..1 << 4 {
            let fill = |template: &str| {
                (1..=4).fold(template.to_owned(), |filled, number| {
                    let body = "x".repeat(if long >> (number - 1) & 1 == 1 { SMALL } else { 1 });
                    filled.replace(&format!("<{number}>"), &body)
                })
            };
            let made = from_json(fill(text).as_bytes()).unwrap();
            assert_eq!(String::from_utf8(made).unwrap(), fill(expected), "{long:04b}");
        }
    }
}
