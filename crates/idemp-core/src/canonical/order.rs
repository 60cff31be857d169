//! The order of keys, and the last pass that brings objects into it.
//!
//! Keys are compared as they stand in the output, in ASCII with escapes, so that nothing has to be kept or decoded.

use std::cmp::Ordering;
use std::ops::Range;

use super::string;

/// What stands between two entries or elements.
pub(super) const SEPARATOR: &[u8] = b", ";

/// A key with its value, as one piece of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The key's [`prefix`].
    pub(super) prefix: u64,
    /// Where the key starts, with its quotes.
    pub(super) start: usize,
    /// Where it ends.
    pub(super) key_end: usize,
    /// Where the separator behind the value ends. Only known when the object has ended.
    pub(super) end: usize,
}

/// An object whose keys stand in the output in another order than they should, or twice.
#[derive(Debug)]
pub(super) struct Unsorted {
    /// Where it stands in the output, with its braces.
    pub(super) place: Range<usize>,
    /// Its entries in their right order, in the list of all such entries.
    pub(super) entries: Range<usize>,
    /// How many unsorted objects lie within it.
    pub(super) within: usize,
}

/// Compares the keys of two entries of `out` by code point.
#[inline]
pub(super) fn compare(out: &[u8], left: &Entry, right: &Entry) -> Ordering {
    if left.prefix == right.prefix {
        compare_rest(out, left, right)
    } else {
        left.prefix.cmp(&right.prefix)
    }
}

/// As [`compare`], for keys that their prefixes do not tell apart.
#[inline(never)]
fn compare_rest(out: &[u8], left: &Entry, right: &Entry) -> Ordering {
    let [left, right] = [left, right].map(|entry| &out[entry.start + 1..entry.key_end - 1]);
    if left.contains(&b'\\') || right.contains(&b'\\') {
        code_points(left).cmp(code_points(right))
    } else {
        left.cmp(right)
    }
}

/// The first eight bytes of a key, so that most keys are told apart by one comparison of numbers: UTF-8 has the order of
/// code points.
pub(super) fn prefix(key: &[u8]) -> u64 {
    string::start_of(key).swap_bytes()
}

/// The [`prefix`] of a key that was written.
pub(super) fn prefix_of_written(key: &[u8]) -> u64 {
    let start: String = code_points(key).filter_map(char::from_u32).take(8).collect();
    prefix(start.as_bytes())
}

/// Sorts the entries of one object by key, and gives those that stay: the last of equal keys.
pub(super) fn sort<'e>(out: &[u8], entries: &'e mut [Entry]) -> &'e [Entry] {
    let mut unique = true;
    entries.sort_unstable_by(|a, b| {
        let by_key = compare(out, a, b);
        unique &= by_key.is_ne();
        by_key.then(a.start.cmp(&b.start))
    });
    // Keys that lie side by side in their order were compared, whatever way they were sorted.
    if unique {
        entries
    } else {
        without_replaced(out, entries)
    }
}

fn without_replaced<'e>(out: &[u8], entries: &'e mut [Entry]) -> &'e [Entry] {
    let mut kept = 0;
    for at in 0..entries.len() {
        let replaced = entries
            .get(at + 1)
            .is_some_and(|next| compare(out, &entries[at], next).is_eq());
        if !replaced {
            entries[kept] = entries[at];
            kept += 1;
        }
    }
    &entries[..kept]
}

/// Writes the object that stands from `start` to the end of `out` anew, with these entries. A separator stands behind
/// each, even the last.
pub(super) fn rewrite(out: &mut Vec<u8>, start: usize, entries: &[Entry]) {
    let end = out.len();
    out.reserve(end - start);
    for entry in entries {
        out.extend_from_within(entry.start..entry.end);
    }
    let last = out.len() - SEPARATOR.len();
    out[last] = b'}';
    out.copy_within(end..=last, start + 1);
    out.truncate(start + 1 + (last + 1 - end));
}

/// Gives the draft to `put`, piece by piece, with all objects sorted.
///
/// `unsorted` must be ordered by where the objects start. Every byte is given at most once, whatever the nesting, and there
/// is no recursion.
pub(super) fn emit<'d>(draft: &'d [u8], unsorted: &[Unsorted], entries: &[Entry], mut put: impl FnMut(&'d [u8])) {
    let mut stack = vec![Level::Text {
        place: 0..draft.len(),
        unsorted: 0..unsorted.len(),
    }];
    while let Some(level) = stack.last_mut() {
        match level {
            Level::Text {
                place,
                unsorted: within,
            } => {
                if within.start < within.end {
                    let object = &unsorted[within.start];
                    put(&draft[place.start..=object.place.start]);
                    // Its closing brace comes with what follows it.
                    place.start = object.place.end - 1;
                    let first = within.start + 1;
                    let end = first + object.within;
                    within.start = end;
                    stack.push(Level::Object {
                        entries: object.entries.clone(),
                        unsorted: first..end,
                        begun: false,
                    });
                } else {
                    put(&draft[place.clone()]);
                    stack.pop();
                }
            }
            Level::Object {
                entries: left,
                unsorted: within,
                begun,
            } => {
                let Some(entry) = left.next().map(|index| entries[index]) else {
                    stack.pop();
                    continue;
                };
                if *begun {
                    put(SEPARATOR);
                }
                *begun = true;
                let objects = &unsorted[within.clone()];
                let before = objects.partition_point(|object| object.place.start < entry.start);
                let end = entry.end - SEPARATOR.len();
                let inside = objects[before..].partition_point(|object| object.place.start < end);
                let first = within.start + before;
                stack.push(Level::Text {
                    place: entry.start..end,
                    unsorted: first..first + inside,
                });
            }
        }
    }
}

/// What [`emit`] is in the middle of.
enum Level {
    /// A part of the draft that is to be given as it is, apart from the unsorted objects in it.
    Text {
        place: Range<usize>,
        unsorted: Range<usize>,
    },
    /// The entries of an unsorted object that are still to be given, and the unsorted objects within it.
    Object {
        entries: Range<usize>,
        unsorted: Range<usize>,
        begun: bool,
    },
}

/// Code points of the inside of a string that was written by [`string::write`](super::string::write).
fn code_points(text: &[u8]) -> impl Iterator<Item = u32> {
    let mut rest = text.iter();
    std::iter::from_fn(move || {
        let unit = code_unit(&mut rest)?;
        if !(0xd800..0xdc00).contains(&unit) {
            return Some(unit);
        }
        // A surrogate always comes with its other half.
        let low = code_unit(&mut rest)?;
        Some(0x1_0000 + ((unit & 0x3ff) << 10) + (low & 0x3ff))
    })
}

fn code_unit(rest: &mut std::slice::Iter<'_, u8>) -> Option<u32> {
    let byte = *rest.next()?;
    if byte != b'\\' {
        return Some(byte.into());
    }
    Some(match *rest.next()? {
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => 0x0a,
        b'r' => 0x0d,
        b't' => 0x09,
        b'u' => rest.by_ref().take(4).fold(0, |unit, &digit| {
            let value = if digit.is_ascii_digit() {
                digit - b'0'
            } else {
                digit - b'a' + 10
            };
            unit << 4 | u32::from(value)
        }),
        same => same.into(),
    })
}
