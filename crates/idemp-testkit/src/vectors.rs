//! The test data under `tests/data`, one JSON object per line.

use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// Path of a file under `tests/data`.
#[must_use]
pub fn path(file: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(file)
}

/// Raw text of every line, split on `\n` only: the data holds other characters that some functions take for line ends.
///
/// # Panics
/// If the file cannot be read, is not UTF-8 or has no line: a test without data must not pass.
#[must_use]
pub fn lines(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("tests/data/{file}: {error}"));
    let lines: Vec<String> = text
        .split('\n')
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    assert!(!lines.is_empty(), "tests/data/{file} is empty");
    lines
}

/// Every line, parsed.
///
/// # Panics
/// As [`lines`], and if a line is not a `T`.
#[must_use]
pub fn load<T: DeserializeOwned>(file: &str) -> Vec<T> {
    lines(file)
        .iter()
        .enumerate()
        .map(|(index, line)| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("tests/data/{file}:{}: {error}", index + 1))
        })
        .collect()
}

/// Bytes of a string of hex digits.
///
/// # Panics
/// If the text is not an even number of hex digits.
#[must_use]
pub fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd number of hex digits");
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits"))
        .collect()
}
