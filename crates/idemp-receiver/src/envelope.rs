//! Finds `event` and `data` in a body without making values of it.
//!
//! One pass checks that the body is JSON (RFC 8259) and notes where the two members lie. Other members are passed
//! over; of equal names the last counts, as in the canonical form (docs/signing.md). No recursion: nesting costs a bit.

use std::ops::Range;

use bytes::Bytes;

/// How deep arrays and objects may lie in each other. A sender of ours stops at 257 with the body itself.
const MAX_DEPTH: usize = 512;

/// A body that is an `{event, data}` object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    body: Bytes,
    event: Text,
    /// Where the value of `data` lies in the body.
    data: Range<usize>,
}

/// What a JSON string says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Text {
    /// What stands here in the body.
    Borrowed(Range<usize>),
    /// Something else, since there are escapes in it.
    Unescaped(Box<str>),
}

impl Envelope {
    pub(crate) const fn body(&self) -> &Bytes {
        &self.body
    }

    /// The value of `event`.
    pub(crate) fn event(&self) -> &str {
        match &self.event {
            // The whole body is UTF-8, and the range lies between two quotes.
            Text::Borrowed(place) => std::str::from_utf8(&self.body[place.clone()]).unwrap_or_default(),
            Text::Unescaped(text) => text,
        }
    }

    /// The JSON text of `data`.
    pub(crate) fn data(&self) -> &[u8] {
        &self.body[self.data.clone()]
    }
}

/// `None` if the body is not UTF-8, not JSON, too deep, or no object with a string `event` and a `data`.
pub(crate) fn read(body: Bytes) -> Option<Envelope> {
    let mut scan = Scan {
        text: std::str::from_utf8(&body).ok()?,
        at: 0,
    };
    let (mut event, mut data) = (None, None);
    scan.white();
    scan.expect(b'{')?;
    scan.white();
    if !scan.eat(b'}') {
        loop {
            let name = scan.name()?;
            let value = scan.value()?;
            match scan.text[name.clone()].as_bytes() {
                br#""event""# => event = Some(value),
                br#""data""# => data = Some(value),
                other if other.contains(&b'\\') => match unescape(&scan.text[name])?.as_ref() {
                    "event" => event = Some(value),
                    "data" => data = Some(value),
                    _ => {}
                },
                _ => {}
            }
            scan.white();
            if scan.eat(b'}') {
                break;
            }
            scan.expect(b',')?;
            scan.white();
        }
    }
    scan.white();
    if scan.at != body.len() {
        return None;
    }
    let (event, data) = (event?, data?);
    let token = &scan.text[event.clone()];
    // Values that are no strings go the same way, and are refused.
    let event = match token.strip_prefix('"') {
        Some(rest) if !rest.contains('\\') => Text::Borrowed(event.start + 1..event.end - 1),
        _ => Text::Unescaped(unescape(token)?),
    };
    Some(Envelope { body, event, data })
}

/// The text of a JSON string that has been scanned; `None` for other values, and for lone surrogates.
fn unescape(token: &str) -> Option<Box<str>> {
    serde_json::from_str(token).ok()
}

struct Scan<'b> {
    text: &'b str,
    at: usize,
}

impl Scan<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn eat(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.eat(byte).then_some(())
    }

    fn white(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// A member's name with the colon after it, up to the value.
    fn name(&mut self) -> Option<Range<usize>> {
        let from = self.at;
        self.expect(b'"')?;
        self.string()?;
        let name = from..self.at;
        self.white();
        self.expect(b':')?;
        self.white();
        Some(name)
    }

    /// A whole value.
    fn value(&mut self) -> Option<Range<usize>> {
        let from = self.at;
        let mut open = Open::default();
        loop {
            match self.next()? {
                b'{' => {
                    self.white();
                    if !self.eat(b'}') {
                        self.name()?;
                        open.push(Level::Object)?;
                        continue;
                    }
                }
                b'[' => {
                    self.white();
                    if !self.eat(b']') {
                        open.push(Level::Array)?;
                        continue;
                    }
                }
                b'"' => self.string()?,
                b't' => self.word("rue")?,
                b'f' => self.word("alse")?,
                b'n' => self.word("ull")?,
                first => self.number(first)?,
            }
            // One value has ended; so may have those around it.
            loop {
                let Some(level) = open.last() else {
                    return Some(from..self.at);
                };
                self.white();
                match (self.next()?, level) {
                    (b',', Level::Object) => {
                        self.white();
                        self.name()?;
                        break;
                    }
                    (b',', Level::Array) => {
                        self.white();
                        break;
                    }
                    (b'}', Level::Object) | (b']', Level::Array) => open.pop(),
                    _ => return None,
                }
            }
        }
    }

    /// The rest of a string whose opening quote is behind us.
    fn string(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        let mut at = self.at;
        loop {
            at = plain(bytes, at);
            match *bytes.get(at)? {
                b'"' => {
                    self.at = at + 1;
                    return Some(());
                }
                b'\\' => at = escapes(bytes, at)?,
                control if control < b' ' => return None,
                _ => at += 1,
            }
        }
    }

    fn word(&mut self, rest: &str) -> Option<()> {
        let end = self.at + rest.len();
        (self.text.as_bytes().get(self.at..end)? == rest.as_bytes()).then(|| self.at = end)
    }

    /// The rest of a number whose first byte is behind us.
    fn number(&mut self, first: u8) -> Option<()> {
        let digit = if first == b'-' { self.next()? } else { first };
        match digit {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            _ => return None,
        }
        if self.eat(b'.') {
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Some(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Option<()> {
        let from = self.at;
        self.digits();
        (self.at > from).then_some(())
    }
}

/// Passes over eight bytes at a time while none of them ends a string, escapes or is a control character; then up to
/// the first that does, unless fewer than eight are left.
fn plain(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    while let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let eight = u64::from_le_bytes(*eight);
        let (quote, escape) = (eight ^ (ONES * 0x22), eight ^ (ONES * 0x5c));
        // The high bit of a byte is set where it is zero, zero and below 0x20; after the first, it may be so wrongly.
        let found = (quote.wrapping_sub(ONES) & !quote)
            | (escape.wrapping_sub(ONES) & !escape)
            | (eight.wrapping_sub(ONES * 0x20) & !eight);
        let found = found & HIGH;
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    at
}

/// Passes over the escapes that begin at `at`.
fn escapes(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        // Text outside of ASCII comes as one after another of these.
        while let Some([b'\\', b'u', digits @ ..]) = bytes.get(at..)?.first_chunk::<6>() {
            if !digits
                .iter()
                .fold(true, |all, &digit| all & HEX_DIGIT[usize::from(digit)])
            {
                return None;
            }
            at += 6;
        }
        match bytes.get(at..)? {
            [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => at += 2,
            [b'\\', ..] => return None,
            _ => return Some(at),
        }
    }
}

const HEX_DIGIT: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_hexdigit();
        byte += 1;
    }
    table
};

#[derive(Clone, Copy)]
enum Level {
    Array,
    Object,
}

/// The arrays and objects around a place, one bit each.
#[derive(Default)]
struct Open {
    objects: [u64; MAX_DEPTH / 64],
    depth: usize,
}

impl Open {
    fn push(&mut self, level: Level) -> Option<()> {
        let (word, bit) = (self.depth / 64, 1 << (self.depth % 64));
        let word = self.objects.get_mut(word)?;
        match level {
            Level::Object => *word |= bit,
            Level::Array => *word &= !bit,
        }
        self.depth += 1;
        Some(())
    }

    fn last(&self) -> Option<Level> {
        let top = self.depth.checked_sub(1)?;
        let object = self.objects[top / 64] >> (top % 64) & 1 == 1;
        Some(if object { Level::Object } else { Level::Array })
    }

    fn pop(&mut self) {
        self.depth -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(body: &str, expected: Option<(&str, &str)>) {
        let envelope = read(Bytes::copy_from_slice(body.as_bytes()));
        let found = envelope
            .as_ref()
            .map(|found| (found.event(), std::str::from_utf8(found.data()).unwrap()));
        assert_eq!(found, expected, "{body}");
    }

    #[test]
    fn finds_event_and_data() {
        check(
            r#"{"data": {"x": 1}, "event": "tool_end"}"#,
            Some(("tool_end", r#"{"x": 1}"#)),
        );
        check(r#"{"event":"t","data":null}"#, Some(("t", "null")));
        check(" \t\r\n{ \"event\" : \"t\" ,\n\"data\" : [ ] } \n", Some(("t", "[ ]")));
        check(r#"{"data":"a\"}b\\","event":"t"}"#, Some(("t", r#""a\"}b\\""#)));
        check(r#"{"data":-0.5e+7,"event":"t"}"#, Some(("t", "-0.5e+7")));
        check(
            r#"{"v":[1,{"event":"no"}],"data":1,"event":"t","w":true}"#,
            Some(("t", "1")),
        );
        check(r#"{"data":"é €","event":"tö"}"#, Some(("tö", r#""é €""#)));
    }

    #[test]
    fn the_last_of_equal_names_counts() {
        check(r#"{"data":1,"event":"a","event":"b","data":2}"#, Some(("b", "2")));
        check(
            r#"{"data":1,"event":"a","\u0065vent":"b","d\u0061ta":2}"#,
            Some(("b", "2")),
        );
        check(r#"{"data":1,"event":"tool\u005fend"}"#, Some(("tool_end", "1")));
        check(r#"{"data":1,"event":"a","event":2}"#, None);
    }

    #[test]
    fn refuses_what_is_no_envelope() {
        for body in [
            "",
            " ",
            "null",
            "[]",
            "{}",
            r#""event data""#,
            r#"{"event":"t"}"#,
            r#"{"data":1}"#,
            r#"{"data":1,"event":null}"#,
            r#"{"data":1,"event":"t"}x"#,
            r#"{"data":1,"event":"t"}{}"#,
            r#"{"data":1,"event":"t",}"#,
            r#"{"data":1,"event":"t""#,
            r#"{"data":1 "event":"t"}"#,
            r#"{"data":,"event":"t"}"#,
            r#"{"data":NaN,"event":"t"}"#,
            r#"{"data":"\ud8","event":"t"}"#,
            r#"{"data":1,"event":"\ud800"}"#,
            "\u{feff}{\"data\":1,\"event\":\"t\"}",
        ] {
            check(body, None);
        }
        assert_eq!(read(Bytes::from_static(b"{\"data\":\"\xff\",\"event\":\"t\"}")), None);
        assert_eq!(read(Bytes::from_static(b"{\"data\":\"\x01\",\"event\":\"t\"}")), None);
    }

    #[test]
    fn refuses_what_is_cut_off() {
        let body =
            r#"{"event":"t","data":[{"a":"1234567890 \\ \" \ud83d\ude00","b":[-1.5e+7,true,null,{}]},[]],"v":"\n"}"#;
        assert!(read(Bytes::copy_from_slice(body.as_bytes())).is_some());
        for end in 0..body.len() {
            check(&body[..end], None);
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |levels: usize| format!(r#"{{"data":{}{},"event":"t"}}"#, "[".repeat(levels), "]".repeat(levels));
        // The innermost array is empty and opens nothing.
        assert!(read(nested(MAX_DEPTH + 1).into()).is_some());
        assert!(read(nested(MAX_DEPTH + 2).into()).is_none());
        assert!(read(nested(400_000).into()).is_none());
        let mixed = format!(
            r#"{{"data":{}1{},"event":"t"}}"#,
            r#"[{"a":"#.repeat(200),
            "}]".repeat(200)
        );
        assert!(read(mixed.clone().into()).is_some());
        assert!(read(mixed.replacen("}]", "]}", 1).into()).is_none());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((".*", inner), 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn takes_what_another_reader_takes(data in any_json(), event in ".*", pretty: bool) {
            let body = json!({"data": data, "event": event});
            let text = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) }.unwrap();
            let found = read(text.clone().into()).unwrap();
            prop_assert_eq!(found.event(), &*event);
            let slice: Value = serde_json::from_slice(found.data()).unwrap();
            // Through text once, so that both sides have seen the reader's rounding of floats.
            let again: Value = serde_json::from_str(&serde_json::to_string(&data).unwrap()).unwrap();
            prop_assert_eq!(slice, again);
        }

        /// One byte of a good text changed at random: both readers still agree on whether it is JSON.
        #[test]
        fn refuses_what_another_reader_refuses(data in any_json(), at: prop::sample::Index, byte: u8) {
            let mut data = serde_json::to_vec(&data).unwrap();
            let at = at.index(data.len());
            data[at] = byte;
            let body = [b"{\"event\":\"t\",\"data\":[", &data[..], b"]}"].concat();
            let whole = [b"[", &data[..], b"]"].concat();
            // It may become several values, or a lone surrogate, which is JSON all the same.
            let by_serde = std::str::from_utf8(&whole)
                .is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok());
            prop_assert_eq!(read(body.clone().into()).is_some(), by_serde, "{}", String::from_utf8_lossy(&body));
        }
    }
}
