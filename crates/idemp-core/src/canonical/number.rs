//! Numbers: integers digit for digit, floats as Python's `repr` spells them.

/// `00`, `01`, ... `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    pairs
};

/// A float at or beyond this power of ten is written with an exponent.
const FIRST_LARGE_POWER: i32 = 16;

/// A float below this power of ten is written with an exponent.
const LAST_SMALL_POWER: i32 = -4;

/// Bytes of the longest exponent, `e-324`.
const LONGEST_EXPONENT: usize = 5;

/// No double holds the number.
#[derive(Debug)]
pub(super) struct OutOfRange;

/// Appends a number of a JSON text, which must follow RFC 8259's grammar.
pub(super) fn write_text(out: &mut Vec<u8>, text: &str) -> Result<(), OutOfRange> {
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
        out.extend_from_slice(if text == "-0" { b"0" } else { text.as_bytes() });
        return Ok(());
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => {
            write_f64(out, value);
            Ok(())
        }
        _ => Err(OutOfRange),
    }
}

/// Appends a finite float.
pub(super) fn write_f64(out: &mut Vec<u8>, value: f64) {
    write_repr(out, zmij::Buffer::new().format_finite(value));
}

/// Appends a finite float with the shortest digits that read back the same `f32`.
pub(super) fn write_f32(out: &mut Vec<u8>, value: f32) {
    write_repr(out, zmij::Buffer::new().format_finite(value));
}

/// Appends a signed integer.
pub(super) fn write_i64(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    write_u64(out, value.unsigned_abs());
}

/// Appends an unsigned integer.
pub(super) fn write_u64(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value;
    while rest >= 100 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    let [tens, ones] = PAIRS[rest as usize];
    at -= 1;
    digits[at] = ones;
    if rest >= 10 {
        at -= 1;
        digits[at] = tens;
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a signed integer.
pub(super) fn write_i128(out: &mut Vec<u8>, value: i128) {
    out.extend_from_slice(value.to_string().as_bytes());
}

/// Appends an unsigned integer.
pub(super) fn write_u128(out: &mut Vec<u8>, value: u128) {
    out.extend_from_slice(value.to_string().as_bytes());
}

/// Spells the shortest digits of a float as Python does. `shortest` is `-`, digits, `.`, digits, `e` and an exponent, of
/// which sign, fraction and exponent may be missing.
fn write_repr(out: &mut Vec<u8>, shortest: &str) {
    if is_repr(shortest.as_bytes()) {
        out.extend_from_slice(shortest.as_bytes());
    } else {
        respell(out, shortest);
    }
}

/// Whether the number is already spelled as Python does: no exponent, a fraction, and of a size where Python has no
/// exponent either.
fn is_repr(text: &[u8]) -> bool {
    let magnitude = text.strip_prefix(b"-").unwrap_or(text);
    let point = magnitude.iter().position(|byte| !byte.is_ascii_digit());
    point.is_some_and(|point| point <= FIRST_LARGE_POWER as usize && magnitude[point] == b'.')
        && !magnitude.starts_with(b"0.0000")
        && !magnitude[magnitude.len().saturating_sub(LONGEST_EXPONENT)..].contains(&b'e')
}

#[cold]
fn respell(out: &mut Vec<u8>, shortest: &str) {
    let (sign, magnitude) = shortest
        .strip_prefix('-')
        .map_or(("", shortest), |magnitude| ("-", magnitude));
    let (mantissa, exponent) = magnitude.split_once('e').unwrap_or((magnitude, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent: i32 = exponent.parse().unwrap_or_default();

    let all = [whole, fraction].concat();
    let significant = all.trim_start_matches('0');
    // The number is 0.DIGITS times ten to the power of `point`.
    let point = whole.len() as i32 + exponent - (all.len() - significant.len()) as i32;
    let digits = significant.trim_end_matches('0');

    out.extend_from_slice(sign.as_bytes());
    if digits.is_empty() {
        out.extend_from_slice(b"0.0");
    } else if point > FIRST_LARGE_POWER || point <= LAST_SMALL_POWER {
        let (first, others) = digits.split_at(1);
        out.extend_from_slice(first.as_bytes());
        if !others.is_empty() {
            out.push(b'.');
            out.extend_from_slice(others.as_bytes());
        }
        let power = point - 1;
        out.extend_from_slice(if power < 0 { b"e-" } else { b"e+" });
        if power.abs() < 10 {
            out.push(b'0');
        }
        write_u64(out, u64::from(power.unsigned_abs()));
    } else if point <= 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', point.unsigned_abs() as usize));
        out.extend_from_slice(digits.as_bytes());
    } else if let Some((whole, fraction)) = digits
        .split_at_checked(point as usize)
        .filter(|(_, rest)| !rest.is_empty())
    {
        out.extend_from_slice(whole.as_bytes());
        out.push(b'.');
        out.extend_from_slice(fraction.as_bytes());
    } else {
        out.extend_from_slice(digits.as_bytes());
        out.extend(std::iter::repeat_n(b'0', point as usize - digits.len()));
        out.extend_from_slice(b".0");
    }
}
