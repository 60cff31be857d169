//! One line becomes one message.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use idemp_core::canonical::CanonicalError;
use idemp_core::{EventType, IdempotencyKey, KeyError, Message, RunId, StepIndex};

use super::fields::{Broken, Field, Fields};
use super::lines::MAX_LINE;

const NAMES: [&str; 4] = ["run_id", "event", "step_index", "data"];

/// Reads a line. `None` for a blank one.
///
/// All four fields are needed, each once, and no others: what is not sent should not be taken for sent.
///
/// # Errors
/// Says what is wrong and where, without any of the line's content.
pub(crate) fn message(line: &[u8]) -> Result<Option<Message>, LineError> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    if let Err(error) = str::from_utf8(line) {
        return Err(LineError::at("not UTF-8", line, error.valid_up_to()));
    }
    if line.starts_with("\u{feff}".as_bytes()) {
        return Err(LineError::at("byte order mark", line, 0));
    }
    let [run_id, event, step_index, data] = envelope(line)?;
    let run_id = RunId::parse(&string(line, "run_id", run_id)?)?;
    let event = EventType::parse(&string(line, "event", event)?)?;
    let step_index = StepIndex::parse(&String::from_utf8_lossy(&line[step_index]))?;
    let key = IdempotencyKey::new(&run_id, &event, step_index);
    let message = Message::from_json(key, &line[data.clone()]);
    Ok(Some(
        message.map_err(|error| LineError::in_data(&error, line, data.start))?,
    ))
}

/// Where the values of the four fields are.
fn envelope(line: &[u8]) -> Result<[Range<usize>; 4], LineError> {
    let mut found: [Option<Range<usize>>; 4] = [None, None, None, None];
    let mut fields = Fields::new(line);
    while let Some(Field { name, value }) = fields.next().map_err(|broken| LineError::broken(broken, line))? {
        let at = name.start;
        let name = string(line, "a key", name)?;
        let index = NAMES.iter().position(|known| *known == name);
        let place = index
            .and_then(|index| found.get_mut(index))
            .ok_or_else(|| LineError::at("a field that is none of run_id, event, step_index and data", line, at))?;
        if place.replace(value).is_some() {
            return Err(LineError::at(format_args!("a second {name}"), line, at));
        }
    }
    let mut whole = [const { 0..0 }; 4];
    for ((place, name), value) in whole.iter_mut().zip(NAMES).zip(found) {
        *place = value.ok_or_else(|| LineError::of(format_args!("no {name}")))?;
    }
    Ok(whole)
}

/// The string that a value's text stands for.
fn string<'l>(line: &'l [u8], what: &str, value: Range<usize>) -> Result<Cow<'l, str>, LineError> {
    let text = &line[value.clone()];
    let plain = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
    match plain.map(str::from_utf8) {
        Some(Ok(plain)) if !plain.contains(|character: char| character == '\\' || character < ' ') => {
            Ok(Cow::Borrowed(plain))
        }
        _ => serde_json::from_slice(text)
            .map(Cow::Owned)
            .map_err(|_| LineError::at(format_args!("{what} is not a string"), line, value.start)),
    }
}

/// Why a line is no event. It holds nothing of the line's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineError {
    text: String,
    is_no_object: bool,
}

impl LineError {
    /// A line that was not read because of its length.
    pub(crate) fn too_long() -> Self {
        Self::of(format_args!("longer than {} MiB", MAX_LINE >> 20))
    }

    /// A line that is good by itself, but not after those before it.
    pub(crate) fn of(what: impl fmt::Display) -> Self {
        Self {
            text: what.to_string(),
            is_no_object: false,
        }
    }

    /// Whether the line is no JSON object, as a line of CSV or the first one of a JSON array is not.
    pub(crate) const fn is_no_object(&self) -> bool {
        self.is_no_object
    }

    fn at(what: impl fmt::Display, line: &[u8], at: usize) -> Self {
        let column = 1 + String::from_utf8_lossy(&line[..at]).chars().count();
        Self::of(format_args!("{what} at column {column}"))
    }

    fn broken(broken: Broken, line: &[u8]) -> Self {
        Self {
            is_no_object: true,
            ..Self::at(broken.what, line, broken.at)
        }
    }

    /// The place in the data becomes the place in the line.
    fn in_data(error: &CanonicalError, line: &[u8], start: usize) -> Self {
        let text = error.to_string();
        let Some(position) = error.position() else {
            return Self::of(text);
        };
        let what = text.strip_suffix(&format!(" at {position}")).unwrap_or(&text);
        Self::at(format_args!("data: {what}"), line, start + position.offset)
    }
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LineError {}

impl From<KeyError> for LineError {
    fn from(error: KeyError) -> Self {
        Self::of(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(line: &str) -> String {
        let message = message(line.as_bytes()).unwrap().unwrap();
        format!("{} {}", message.key(), str::from_utf8(message.body()).unwrap())
    }

    fn error(line: &[u8]) -> String {
        message(line).unwrap_err().to_string()
    }

    #[test]
    fn a_line_becomes_a_message() {
        assert_eq!(
            body(r#"{"run_id":"r1","event":"tool_end","step_index":7,"data":{"b":1.0,"a":1e2}}"#),
            r#"r1:tool_end:7 {"data": {"a": 100.0, "b": 1.0}, "event": "tool_end"}"#,
        );
        assert_eq!(
            body(
                r#" { "data" : null , "step_index":9223372036854775807, "event":"my.own", "run_\u0069d":"r\u0031" } "#
            ),
            r#"r1:my.own:9223372036854775807 {"data": null, "event": "my.own"}"#,
        );
    }

    #[test]
    fn numbers_keep_their_digits() {
        let line = r#"{"run_id":"r","event":"e","step_index":1,"data":123456789012345678901234567890.5e-1}"#;
        assert_eq!(body(line), r#"r:e:1 {"data": 1.2345678901234568e+28, "event": "e"}"#);
        let line = r#"{"run_id":"r","event":"e","step_index":1,"data":[123456789012345678901234567890]}"#;
        assert_eq!(
            body(line),
            r#"r:e:1 {"data": [123456789012345678901234567890], "event": "e"}"#
        );
    }

    #[test]
    fn data_may_nest_as_deep_as_canonical_json() {
        let line = |levels| {
            let (open, close) = ("[".repeat(levels), "]".repeat(levels));
            format!(r#"{{"run_id":"r","event":"e","step_index":1,"data":{open}{close}}}"#)
        };
        assert!(message(line(256).as_bytes()).is_ok());
        assert_eq!(
            error(line(257).as_bytes()),
            "data: more than 256 levels of nesting at column 305"
        );
    }

    #[test]
    fn blank_lines_are_none() {
        for line in ["", " ", "\t \r"] {
            assert_eq!(message(line.as_bytes()), Ok(None), "{line:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let with = |run_id: &str, event: &str, step: &str, data: &str| {
            format!(r#"{{"run_id":{run_id},"event":{event},"step_index":{step},"data":{data}}}"#)
        };
        for (line, expected) in [
            ("{".to_owned(), "expected a string as key at column 2"),
            ("null".to_owned(), "expected a JSON object at column 1"),
            ("\u{feff}{}".to_owned(), "byte order mark at column 1"),
            (r#"{"run_id":"r","event":"e","step_index":1}"#.to_owned(), "no data"),
            (r#"{"event":"e","step_index":1,"data":1}"#.to_owned(), "no run_id"),
            (
                with(r#""r""#, r#""e""#, "1", "1").replace("run_id", "x"),
                "a field that is none of run_id, event, step_index and data at column 2",
            ),
            (
                with(r#""r""#, r#""e""#, "1", "1").replace("step_index", "event"),
                "a second event at column 27",
            ),
            (with("7", r#""e""#, "1", "1"), "run_id is not a string at column 11"),
            (with(r#""r""#, "null", "1", "1"), "event is not a string at column 23"),
            (with(r#""""#, r#""e""#, "1", "1"), "run id is empty"),
            (
                with(r#""r""#, r#""a:b""#, "1", "1"),
                "event type has a character at byte 1 that is not one of A-Z a-z 0-9 _ . -",
            ),
            (
                with(r#""r""#, r#""e""#, "0", "1"),
                "step index is not between 1 and 9223372036854775807",
            ),
            (
                with(r#""r""#, r#""e""#, "1.0", "1"),
                "step index has a character at byte 1 that is not a digit",
            ),
            (
                with(r#""r""#, r#""e""#, r#""1""#, "1"),
                "step index has a character at byte 0 that is not a digit",
            ),
            (with(r#""r""#, r#""e""#, "01", "1"), "step index has leading zeros"),
            (
                with(r#""r""#, r#""e""#, "-1", "1"),
                "step index has a character at byte 0 that is not a digit",
            ),
            (
                with(r#""r""#, r#""e""#, "9223372036854775808", "1"),
                "step index is not between 1 and 9223372036854775807",
            ),
            (
                with(r#""r""#, r#""e""#, "1", "NaN"),
                "data: NaN and infinities have no JSON form at column 49",
            ),
            (
                with(r#""r""#, r#""e""#, "1", r#"{"é": tru}"#),
                "data: expected null, true or false at column 58",
            ),
            (
                with(r#""r""#, r#""e""#, "1", ""),
                "data: the JSON text ends too early at column 49",
            ),
        ] {
            assert_eq!(error(line.as_bytes()), expected, "{line}");
        }
        assert_eq!(error(b"{\"run_id\":\"\xff\"}"), "not UTF-8 at column 12");
    }
}
