//! A JSON value as a tree, written as text in many ways, and its canonical form by a second, plain implementation.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;

/// A JSON value. Numbers and strings are spelled when it is made.
#[derive(Clone, Debug)]
pub(crate) enum Json {
    /// `null`, `true` or `false`.
    Literal(&'static str),
    /// Digits, as they are.
    Integer(String),
    /// A finite float.
    Float(f64),
    /// Characters, each with a number that chooses how it is written.
    String(Vec<(char, u8)>),
    /// Elements.
    Array(Vec<Json>),
    /// Entries in the order of the text; keys may be equal.
    Object(Vec<(Vec<(char, u8)>, Json)>),
}

impl Json {
    /// The text, with `space` wherever white space may stand.
    pub(crate) fn text(&self, space: &str) -> String {
        let mut out = String::new();
        self.write(&mut out, space);
        out
    }

    fn write(&self, out: &mut String, space: &str) {
        out.push_str(space);
        match self {
            Self::Literal(literal) => out.push_str(literal),
            Self::Integer(digits) => out.push_str(digits),
            Self::Float(value) => write!(out, "{value:?}").unwrap(),
            Self::String(chars) => write_string(out, chars),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    item.write(out, space);
                }
                out.push_str(if items.is_empty() { space } else { "" });
                out.push(']');
            }
            Self::Object(entries) => {
                out.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    out.push_str(space);
                    write_string(out, key);
                    out.push_str(space);
                    out.push(':');
                    value.write(out, space);
                }
                out.push_str(space);
                out.push('}');
            }
        }
        out.push_str(space);
    }

    /// The canonical form, made in the plainest way.
    pub(crate) fn canonical(&self) -> String {
        match self {
            Self::Literal(literal) => (*literal).to_owned(),
            Self::Integer(digits) if digits == "-0" => "0".to_owned(),
            Self::Integer(digits) => digits.clone(),
            Self::Float(value) => python_repr(*value),
            Self::String(chars) => python_string(chars),
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(Self::canonical).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Object(entries) => {
                // Later entries replace earlier ones; `char`s compare by code point.
                let sorted: BTreeMap<Vec<char>, String> = entries
                    .iter()
                    .map(|(key, value)| {
                        let chars = key.iter().map(|(char, _)| *char).collect();
                        (chars, format!("{}: {}", python_string(key), value.canonical()))
                    })
                    .collect();
                format!("{{{}}}", sorted.into_values().collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The same value with each object's entries in reverse; equal keys must not be in it.
    pub(crate) fn reversed(&self) -> Self {
        match self {
            Self::Array(items) => Self::Array(items.iter().map(Self::reversed).collect()),
            Self::Object(entries) => Self::Object(
                entries
                    .iter()
                    .rev()
                    .map(|(key, value)| (key.clone(), value.reversed()))
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    /// The same value where only the last of equal keys is left.
    pub(crate) fn without_replaced(&self) -> Self {
        match self {
            Self::Array(items) => Self::Array(items.iter().map(Self::without_replaced).collect()),
            Self::Object(entries) => {
                let name = |key: &[(char, u8)]| key.iter().map(|(char, _)| *char).collect::<String>();
                let last = entries.iter().enumerate().filter(|(index, (key, _))| {
                    !entries[index + 1..].iter().any(|(later, _)| name(later) == name(key))
                });
                Self::Object(
                    last.map(|(_, (key, value))| (key.clone(), value.without_replaced()))
                        .collect(),
                )
            }
            other => other.clone(),
        }
    }
}

fn write_string(out: &mut String, chars: &[(char, u8)]) {
    out.push('"');
    for &(char, style) in chars {
        let short = match char {
            '"' | '\\' | '/' => Some(char),
            '\u{8}' => Some('b'),
            '\u{c}' => Some('f'),
            '\n' => Some('n'),
            '\r' => Some('r'),
            '\t' => Some('t'),
            _ => None,
        };
        match (style % 4, short) {
            (0, _) if char >= ' ' && char != '"' && char != '\\' => out.push(char),
            (1 | 3, Some(short)) => out.extend(['\\', short]),
            (style, _) => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    if style == 2 {
                        write!(out, "\\u{unit:04X}").unwrap();
                    } else {
                        write!(out, "\\u{unit:04x}").unwrap();
                    }
                }
            }
        }
    }
    out.push('"');
}

/// What `json.dumps` prints for a string.
fn python_string(chars: &[(char, u8)]) -> String {
    let mut out = String::from('"');
    for &(char, _) in chars {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(char),
            _ => char
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| write!(out, "\\u{unit:04x}").unwrap()),
        }
    }
    out.push('"');
    out
}

/// What Python's `repr` prints for a finite float: the shortest digits that read back the same, of these the nearest, of
/// two as near the even one. The standard library finds how many digits these are; it takes the upper one of two.
fn python_repr(value: f64) -> String {
    let shortest = format!("{value:e}");
    let places = shortest.find('e').unwrap()
        - shortest
            .find('.')
            .map_or(shortest.find('e').unwrap(), |point| point + 1);
    let nearest = format!("{value:.places$e}");
    let scientific = if nearest.parse() == Ok(value) {
        nearest
    } else {
        shortest
    };

    let (mantissa, exponent) = scientific.split_once('e').unwrap();
    let exponent: i32 = exponent.parse().unwrap();
    if value != 0.0 && !(-4..16).contains(&exponent) {
        return format!(
            "{mantissa}e{}{:02}",
            if exponent < 0 { '-' } else { '+' },
            exponent.abs()
        );
    }
    let (sign, mantissa) = mantissa
        .strip_prefix('-')
        .map_or(("", mantissa), |mantissa| ("-", mantissa));
    let digits = mantissa.replace('.', "");
    let (whole, fraction) = if exponent < 0 {
        (
            "0".to_owned(),
            "0".repeat(exponent.unsigned_abs() as usize - 1) + &digits,
        )
    } else {
        let padded = format!("{digits:0<17}");
        let (whole, fraction) = padded.split_at(exponent as usize + 1);
        (whole.to_owned(), fraction.to_owned())
    };
    let fraction = fraction.trim_end_matches('0');
    format!("{sign}{whole}.{}", if fraction.is_empty() { "0" } else { fraction })
}

/// Characters of all kinds, many of them next to the edges of something.
fn character() -> impl Strategy<Value = char> {
    prop_oneof![
        6 => proptest::char::range(' ', '~'),
        2 => proptest::char::range('\0', '\u{a0}'),
        1 => proptest::sample::select(vec![
            '"', '\\', '/', '\n', '\r', '\t', '\u{8}', '\u{c}', '\0', '\u{1f}', ' ', '~', '\u{7f}', '\u{80}', '\u{7ff}',
            '\u{800}', '\u{d7ff}', '\u{e000}', '\u{ffff}', '\u{10000}', '\u{10ffff}', '\u{2028}', '\u{feff}',
        ]),
        2 => proptest::char::range('\u{80}', '\u{7ff}'),
        2 => proptest::char::range('\u{800}', '\u{ffff}'),
        1 => any::<char>(),
    ]
}

fn string(len: usize) -> impl Strategy<Value = Vec<(char, u8)>> {
    prop::collection::vec((character(), any::<u8>()), 0..len)
}

/// Few keys, so that some are equal, some begin alike and some sort otherwise by UTF-16.
fn key() -> impl Strategy<Value = Vec<(char, u8)>> {
    let short = prop::collection::vec(
        (
            proptest::sample::select(vec![
                'a', 'b', 'B', '"', '\\', '\n', 'é', '\u{7f}', '\u{e000}', '\u{ffff}', '😀',
            ]),
            any::<u8>(),
        ),
        0..3,
    );
    let long = (0..4_usize, 0..20_usize).prop_map(|(last, len)| {
        let mut chars = vec![('k', 0); len];
        chars.push((['a', 'b', 'é', '😀'][last], 0));
        chars
    });
    prop_oneof![3 => short, 2 => long, 1 => string(20)]
}

/// Values of all kinds.
pub(crate) fn json() -> impl Strategy<Value = Json> {
    let float = any::<u64>()
        .prop_map(f64::from_bits)
        .prop_filter("finite", |value| value.is_finite());
    let leaf = prop_oneof![
        proptest::sample::select(vec!["null", "true", "false"]).prop_map(Json::Literal),
        "-?(0|[1-9][0-9]{0,40})".prop_map(Json::Integer),
        float.prop_map(Json::Float),
        (-1e20..1e20).prop_map(Json::Float),
        (any::<i32>(), 0..12).prop_map(|(digits, places)| Json::Float(f64::from(digits) / 10_f64.powi(places))),
        string(40).prop_map(Json::String),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::Array),
            prop::collection::vec((key(), inner), 0..8).prop_map(Json::Object),
        ]
    })
}
