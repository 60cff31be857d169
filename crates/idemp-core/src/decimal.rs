//! Decimal digits in header values.

/// The number that `text` writes in ASCII digits and nothing else; `u64::MAX` if it is larger than that.
pub(crate) fn parse_saturating(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0_u64, |number, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    }))
}
