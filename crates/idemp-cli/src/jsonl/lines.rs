//! Lines of a stream, one at a time, in bounded memory.

use std::io::{self, BufRead, BufReader, Read};

/// Longest line, in bytes without its end.
pub(crate) const MAX_LINE: usize = 16 << 20;

/// How much is read at once, in bytes.
const READ: usize = 256 << 10;

/// Splits a stream at `\n`. A line that is too long is skipped and never held in memory.
pub(crate) struct Lines<R> {
    input: BufReader<R>,
    max: usize,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line, without its end.
    Whole,
    /// A line of more than the allowed length.
    TooLong,
    /// The end of the stream.
    End,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self::with_max(input, MAX_LINE)
    }

    fn with_max(input: R, max: usize) -> Self {
        Self {
            input: BufReader::with_capacity(READ, input),
            max,
        }
    }

    /// Reads the next line into `line`, without its `\n` or `\r\n`. Returns how many bytes it took from the stream.
    ///
    /// # Errors
    /// If the stream cannot be read.
    pub(crate) fn next(&mut self, line: &mut Vec<u8>) -> io::Result<(Line, u64)> {
        line.clear();
        let mut taken = 0;
        // One more than allowed, for a `\r`.
        let room = self.max + 1;
        let mut fits = true;
        loop {
            let buffer = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            if buffer.is_empty() && taken == 0 {
                return Ok((Line::End, 0));
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            fits = fits && line.len() + part.len() <= room;
            if fits {
                line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            let is_last = end.is_some() || buffer.is_empty();
            self.input.consume(used);
            taken += used as u64;
            if is_last {
                break;
            }
        }
        if fits && line.last() == Some(&b'\r') {
            line.pop();
        }
        let whole = fits && line.len() <= self.max;
        Ok((if whole { Line::Whole } else { Line::TooLong }, taken))
    }

    /// Whether the next line can be had without another read, which may take its time.
    pub(crate) fn has_line_ready(&self) -> bool {
        self.input.buffer().contains(&b'\n')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the text out in pieces of this many bytes.
    struct Pieces<'t>(&'t [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(into.len()).min(self.0.len());
            let (now, later) = self.0.split_at(count);
            into[..count].copy_from_slice(now);
            self.0 = later;
            Ok(count)
        }
    }

    fn check(text: &str, expected: &[Option<&str>]) {
        for piece in 1..=text.len().max(1) {
            let mut lines = Lines::with_max(Pieces(text.as_bytes(), piece), 4);
            let (mut found, mut line, mut total) = (Vec::new(), Vec::new(), 0);
            loop {
                let (read, taken) = lines.next(&mut line).unwrap();
                total += taken;
                match read {
                    Line::End => break,
                    Line::TooLong => found.push(None),
                    Line::Whole => found.push(Some(String::from_utf8(line.clone()).unwrap())),
                }
            }
            let expected: Vec<_> = expected.iter().map(|line| line.map(str::to_owned)).collect();
            assert_eq!(found, expected, "{text:?} in pieces of {piece}");
            assert_eq!(total, text.len() as u64, "{text:?} in pieces of {piece}");
        }
    }

    #[test]
    fn lines_end_at_line_feeds() {
        check("", &[]);
        check("\n", &[Some("")]);
        check("a\nbc\n", &[Some("a"), Some("bc")]);
        check("a\nbc", &[Some("a"), Some("bc")]);
        check("a\r\n\r\nb\r", &[Some("a"), Some(""), Some("b")]);
        check("a\rb\n", &[Some("a\rb")]);
        check("\u{85}\n", &[Some("\u{85}")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped() {
        check("1234\n", &[Some("1234")]);
        check("1234\r\n", &[Some("1234")]);
        check("12345\n", &[None]);
        check("123456789\nab\n", &[None, Some("ab")]);
        check("ab\n12345", &[Some("ab"), None]);
        check("12345\r\n1\n", &[None, Some("1")]);
    }

    #[test]
    fn a_long_line_is_not_held() {
        let mut lines = Lines::with_max(io::repeat(b'x').take(10 << 20), 100);
        let mut line = Vec::new();
        assert_eq!(lines.next(&mut line).unwrap(), (Line::TooLong, 10 << 20));
        assert!(line.capacity() < 1000, "{}", line.capacity());
    }
}
