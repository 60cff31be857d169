//! Strings in ASCII: what CPython's `json.dumps` writes with `ensure_ascii`.

use std::fmt::{self, Write as _};

/// Bytes looked at in one step; the compiler makes vector instructions of it.
const CHUNK: usize = 16;

/// Words without anything to escape after which looking at chunks is faster.
const PATIENCE: usize = 4;

/// A byte in each of the eight places of a word.
const fn repeat(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// What a character or code unit becomes: at most six bytes, the first lowest, and their number in the highest byte.
type Written = u64;

const fn written(bytes: &[u8]) -> Written {
    let mut word = [0; 8];
    let mut at = 0;
    while at < bytes.len() {
        word[at] = bytes[at];
        at += 1;
    }
    word[7] = bytes.len() as u8;
    u64::from_le_bytes(word)
}

/// What the characters become that have one or two bytes in UTF-8.
static SHORT: [Written; 0x800] = {
    let mut table = [0; 0x800];
    let mut code = 0;
    while code < 0x800 {
        table[code as usize] = match code as u8 {
            _ if code >= 0x80 => escape(code),
            b'"' => written(b"\\\""),
            b'\\' => written(b"\\\\"),
            b'\n' => written(b"\\n"),
            b'\r' => written(b"\\r"),
            b'\t' => written(b"\\t"),
            0x08 => written(b"\\b"),
            0x0c => written(b"\\f"),
            byte if is_plain(byte) => written(&[byte]),
            _ => escape(code),
        };
        code += 1;
    }
    table
};

/// `00`, `01`, ... `ff`, the first digit lower.
static HEX: [u16; 0x100] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [0; 0x100];
    let mut byte = 0;
    while byte < 0x100 {
        pairs[byte] = u16::from_le_bytes([digits[byte >> 4], digits[byte & 0xf]]);
        byte += 1;
    }
    pairs
};

/// `\u` and the four digits of a UTF-16 code unit.
const fn escape(unit: u32) -> Written {
    let [low, high, ..] = unit.to_le_bytes();
    written(b"\\u0000") & !(0xffff_ffff << 16) | (HEX[high as usize] as u64) << 16 | (HEX[low as usize] as u64) << 32
}

/// Appends `text` in quotes.
pub(super) fn write(out: &mut Vec<u8>, text: &str) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    write_inner(out, text);
    out.push(b'"');
}

/// Appends what `value` displays without quotes.
pub(super) fn write_display<T: fmt::Display + ?Sized>(out: &mut Vec<u8>, value: &T) -> fmt::Result {
    struct Inner<'o>(&'o mut Vec<u8>);

    impl fmt::Write for Inner<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            write_inner(self.0, text);
            Ok(())
        }
    }

    write!(Inner(out), "{value}")
}

/// Appends `text` without quotes.
#[inline]
pub(super) fn write_inner(out: &mut Vec<u8>, text: &str) {
    let text = text.as_bytes();
    let end = out.len() + text.len();
    // Short text is stored in words: that is faster than to copy a number of bytes which the compiler does not know.
    if text.len() <= 8 {
        let word = start_of(text);
        if plain_in_word(word) == text.len() {
            out.extend_from_slice(&word.to_le_bytes());
            out.truncate(end);
            return;
        }
    } else if text.len() <= 16
        && let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>())
    {
        if special(u64::from_le_bytes(*first)) | special(u64::from_le_bytes(*last)) == 0 {
            out.extend_from_slice(first);
            out.truncate(end - 8);
            out.extend_from_slice(last);
            return;
        }
    } else if all_plain(text) {
        return out.extend_from_slice(text);
    }
    write_escaped(out, text);
}

/// As [`write_inner`], for UTF-8 in which something is to be escaped.
#[inline(never)]
fn write_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let mut stage = Stage {
        out,
        bytes: &mut [0; STAGE],
        len: 0,
    };
    let mut rest = stage.copy(text);
    while !rest.is_empty() {
        rest = stage.escape(rest);
        rest = stage.plain(rest);
    }
    stage.flush();
}

/// Bytes gathered at once.
const STAGE: usize = 256;

/// Gathers short pieces before they go to the output. Each is stored as eight bytes, of which some count.
///
/// Its methods are inlined, and the bytes lie elsewhere, so that `len` stays in a register.
struct Stage<'o, 'b> {
    out: &'o mut Vec<u8>,
    bytes: &'b mut [u8; STAGE],
    len: usize,
}

impl Stage<'_, '_> {
    #[inline(always)]
    fn put(&mut self, word: u64, count: usize) {
        if self.len > STAGE - 8 {
            self.flush();
        }
        self.bytes[self.len..self.len + 8].copy_from_slice(&word.to_le_bytes());
        self.len += count;
    }

    #[inline(always)]
    fn flush(&mut self) {
        self.out.extend_from_slice(&self.bytes[..self.len]);
        self.len = 0;
    }

    /// Escapes characters up to the first that needs none and is not alone, and returns what follows it.
    #[inline(always)]
    fn escape<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        let trail = |byte: u8| u32::from(byte & 0x3f);
        let mut rest = text;
        loop {
            rest = match *rest {
                [first @ ..0x80, ref others @ ..] => {
                    let written = SHORT[usize::from(first)];
                    let count = (written >> 56) as usize;
                    self.put(written, count);
                    // A space between words of another script is no run of plain characters.
                    if count == 1 && others.first().is_none_or(|&next| next < 0x80) {
                        return others;
                    }
                    others
                }
                [first @ ..0xe0, second, ref others @ ..] => {
                    let code = u32::from(first & 0x1f) << 6 | trail(second);
                    self.put(SHORT[code as usize], 6);
                    others
                }
                [first @ ..0xf0, second, third, ref others @ ..] => {
                    let unit = u32::from(first & 0xf) << 12 | trail(second) << 6 | trail(third);
                    self.put(escape(unit), 6);
                    others
                }
                [first, second, third, fourth, ref others @ ..] => {
                    let code = u32::from(first & 0x7) << 18 | trail(second) << 12 | trail(third) << 6 | trail(fourth);
                    self.put(escape(0xd800 + (code.wrapping_sub(0x1_0000) >> 10)), 6);
                    self.put(escape(0xdc00 + (code & 0x3ff)), 6);
                    others
                }
                _ => return &[],
            };
        }
    }

    /// Copies characters up to the first that needs an escape, and returns what follows.
    #[inline(always)]
    fn plain<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        let mut rest = text;
        for _ in 0..PATIENCE {
            let word = start_of(rest);
            let plain = plain_in_word(word);
            self.put(word, plain);
            rest = &rest[plain..];
            if plain < 8 {
                return rest;
            }
        }
        self.copy(rest)
    }

    /// As [`plain`](Self::plain), for many.
    #[inline(always)]
    fn copy<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        let (plain, rest) = text.split_at(plain_len(text));
        self.flush();
        self.out.extend_from_slice(plain);
        rest
    }
}

/// Whether nothing in these bytes, which are not fewer than a chunk, needs an escape.
#[inline]
fn all_plain(bytes: &[u8]) -> bool {
    // A last chunk that overlaps the others is faster than a shorter one.
    bytes.as_chunks::<CHUNK>().0.iter().all(is_plain_chunk) && bytes.last_chunk().is_some_and(is_plain_chunk)
}

/// Length of the longest start of `bytes` that needs no escape.
#[inline(never)]
fn plain_len(bytes: &[u8]) -> usize {
    let chunks = bytes.as_chunks::<CHUNK>().0.iter();
    let plain = chunks.take_while(|chunk| is_plain_chunk(chunk)).count() * CHUNK;
    let rest = &bytes[plain..];
    let first = plain_in_word(start_of(rest));
    if first < 8 {
        plain + first
    } else {
        plain + 8 + plain_in_word(start_of(&rest[8..]))
    }
}

/// The first eight bytes, the first lowest. Where there are fewer, zeros follow, which are not plain.
pub(super) fn start_of(bytes: &[u8]) -> u64 {
    if let Some(word) = bytes.first_chunk() {
        return u64::from_le_bytes(*word);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let [first, last] = [first, last].map(|half| u64::from(u32::from_le_bytes(*half)));
        return first | last << (8 * (bytes.len() - 4));
    }
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// How many bytes of a word, from the lowest, need no escape.
const fn plain_in_word(word: u64) -> usize {
    (special(word).trailing_zeros() / 8) as usize
}

/// Marks the lowest byte of a word that needs an escape in its highest bit, and maybe others above it.
const fn special(word: u64) -> u64 {
    // Quote and space change places, so that the quote comes next to the control characters.
    let control_or_quote = (word ^ repeat(2)).wrapping_sub(repeat(b' ' + 1));
    let backslash = (word ^ repeat(b'\\')).wrapping_sub(repeat(1));
    let delete = word.wrapping_add(repeat(1));
    (control_or_quote | backslash | delete | word) & repeat(0x80)
}

#[inline]
fn is_plain_chunk(bytes: &[u8; CHUNK]) -> bool {
    bytes.iter().fold(0, |bad, &byte| bad | u8::from(!is_plain(byte))) == 0
}

const fn is_plain(byte: u8) -> bool {
    (byte.wrapping_sub(b' ') <= b'~' - b' ') & (byte != b'"') & (byte != b'\\')
}
