use std::time::{Duration, UNIX_EPOCH};

use idemp_core::RetryAfter;
use jiff::Timestamp;

/// A Thursday in 2026.
const NOW: Duration = Duration::from_secs(1_775_088_000);

/// Values of `Retry-After`: seconds are told from dates, and a date is the one that its usual form says.
pub fn retry_after(value: &[u8]) {
    let now = UNIX_EPOCH + NOW;
    let inner = trimmed(value);
    let parsed = RetryAfter::parse(value, now);
    if !inner.is_empty() && inner.iter().all(u8::is_ascii_digit) {
        let seconds = std::str::from_utf8(inner).expect("digits").parse().unwrap_or(u64::MAX);
        assert_eq!(parsed, Some(RetryAfter::Delay(Duration::from_secs(seconds))));
    }
    let Some(RetryAfter::At(at)) = parsed else { return };
    let timestamp = Timestamp::try_from(at).expect("no later than the year 9999");
    assert_eq!(timestamp.subsec_nanosecond(), 0);
    let usual = timestamp.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    assert_eq!(RetryAfter::parse(usual.as_bytes(), now), parsed, "{usual}");
    // A leap second is the only one that is written otherwise.
    let written = inner.ends_with(b" GMT") && inner.len() == usual.len() && !inner.windows(3).any(|at| at == b":60");
    assert!(!written || inner == usual.as_bytes(), "{usual}");
}

fn trimmed(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let to = value
        .iter()
        .rposition(|byte| !blank(byte))
        .map_or(from, |last| last + 1);
    &value[from..to]
}
