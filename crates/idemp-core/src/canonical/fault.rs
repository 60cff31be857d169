//! What is wrong with a JSON text, and at which byte. Only looked at when something is wrong.
//!
//! jiter gives some errors of strings at another byte than the one to blame (after an escape it counts decoded bytes), so
//! the string is looked through once more.

use jiter::{JiterError, JiterErrorType, JsonErrorType};

use super::error::{CanonicalError, Problem};

/// The error for `problem` at `offset`, unless something explains it better.
pub(super) fn at(text: &[u8], offset: usize, problem: Problem) -> CanonicalError {
    // What comes first counts, and all before the place that jiter could not read was UTF-8.
    if let Some(valid) = str::from_utf8(text).err().map(|error| error.valid_up_to())
        && (valid <= offset || problem == Problem::InvalidUtf8)
    {
        return CanonicalError::in_text(Problem::InvalidUtf8, text, valid);
    }
    let problem = match problem {
        Problem::ExpectedValue if is_not_finite(&text[offset..]) => Problem::NotFinite,
        Problem::ExpectedValue if offset == 0 && text.starts_with("\u{feff}".as_bytes()) => Problem::ByteOrderMark,
        problem => problem,
    };
    CanonicalError::in_text(problem, text, offset)
}

/// The error for one of jiter's. `base` is where in the text jiter began, `index` where it stands.
pub(super) fn of_jiter(text: &[u8], error: &JiterError, base: usize, index: usize) -> CanonicalError {
    let offset = base + error.index;
    let JiterErrorType::JsonError(error_type) = &error.error_type else {
        return at(text, offset, Problem::ExpectedValue);
    };
    match error_type {
        JsonErrorType::EofWhileParsingString
        | JsonErrorType::ControlCharacterWhileParsingString
        | JsonErrorType::InvalidEscape
        | JsonErrorType::LoneLeadingSurrogateInHexEscape
        | JsonErrorType::UnexpectedEndOfHexEscape
        | JsonErrorType::InvalidUnicodeCodePoint => {
            let (problem, offset) = in_string(text, index);
            at(text, offset, problem)
        }
        JsonErrorType::InvalidNumber | JsonErrorType::ExpectedSomeValue if is_not_finite(&text[index..]) => {
            at(text, index, Problem::NotFinite)
        }
        other => at(text, offset, in_grammar(other)),
    }
}

const fn in_grammar(error: &JsonErrorType) -> Problem {
    match error {
        JsonErrorType::EofWhileParsingList
        | JsonErrorType::EofWhileParsingObject
        | JsonErrorType::EofWhileParsingString
        | JsonErrorType::EofWhileParsingValue => Problem::UnexpectedEnd,
        JsonErrorType::ExpectedColon => Problem::ExpectedColon,
        JsonErrorType::ExpectedListCommaOrEnd => Problem::ExpectedListEnd,
        JsonErrorType::ExpectedObjectCommaOrEnd => Problem::ExpectedObjectEnd,
        JsonErrorType::ExpectedSomeIdent => Problem::ExpectedLiteral,
        JsonErrorType::InvalidNumber => Problem::InvalidNumber,
        JsonErrorType::KeyMustBeAString => Problem::ExpectedKey,
        JsonErrorType::TrailingComma => Problem::TrailingComma,
        JsonErrorType::TrailingCharacters => Problem::TrailingText,
        _ => Problem::ExpectedValue,
    }
}

/// What CPython and JavaScript print for floats that JSON does not have.
fn is_not_finite(rest: &[u8]) -> bool {
    [b"NaN".as_slice(), b"Infinity", b"-Infinity"]
        .iter()
        .any(|name| rest.starts_with(name))
}

/// The first thing that is wrong with the string whose opening quote is at `quote`.
fn in_string(text: &[u8], quote: usize) -> (Problem, usize) {
    let mut at = quote + 1;
    loop {
        match text.get(at) {
            None => return (Problem::UnexpectedEnd, text.len()),
            // Nothing but its UTF-8 is left to be wrong.
            Some(b'"') => return (Problem::InvalidUtf8, at),
            Some(b'\\') => match escape_len(&text[at..]) {
                Ok(len) => at += len,
                Err(Problem::UnexpectedEnd) => return (Problem::UnexpectedEnd, text.len()),
                Err(problem) => return (problem, at),
            },
            Some(0..=0x1f) => return (Problem::ControlCharacter, at),
            Some(_) => at += 1,
        }
    }
}

/// Length of the escape at the beginning of `rest`, or of two that are a surrogate pair.
fn escape_len(rest: &[u8]) -> Result<usize, Problem> {
    let unit = match rest.get(1) {
        None => return Err(Problem::UnexpectedEnd),
        Some(b'u') => code_unit(&rest[2..])?,
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => return Ok(2),
        Some(_) => return Err(Problem::InvalidEscape),
    };
    match (unit, &rest[6..]) {
        (0xd800..=0xdbff, [b'\\', b'u', low @ ..]) => match code_unit(low) {
            Ok(0xdc00..=0xdfff) => Ok(12),
            Ok(_) => Err(Problem::LoneSurrogate),
            // Not this escape is wrong but the next.
            Err(_) => Ok(6),
        },
        (0xd800..=0xdbff, [] | [b'\\']) => Ok(6),
        (0xd800..=0xdfff, _) => Err(Problem::LoneSurrogate),
        _ => Ok(6),
    }
}

/// Four hex digits.
fn code_unit(rest: &[u8]) -> Result<u32, Problem> {
    let mut unit = 0;
    for at in 0..4 {
        let byte = rest.get(at).ok_or(Problem::UnexpectedEnd)?;
        let digit = char::from(*byte).to_digit(16).ok_or(Problem::InvalidEscape)?;
        unit = unit << 4 | digit;
    }
    Ok(unit)
}
