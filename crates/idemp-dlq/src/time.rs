//! Times of day as records and stores keep them.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

const DAY: i128 = 24 * 60 * 60 * 1_000_000_000;

/// RFC 3339 in UTC, to the nanosecond; what lies outside the calendar is moved to its edge.
pub(crate) fn to_text(time: SystemTime) -> String {
    Timestamp::try_from(time)
        .unwrap_or(if time < SystemTime::UNIX_EPOCH {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        })
        .to_string()
}

/// Reads RFC 3339.
pub(crate) fn from_text(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>()
        .ok()
        .and_then(|time| SystemTime::try_from(time).ok())
}

/// `time` and `length` later, or the end of all that is counted.
pub(crate) fn after(time: SystemTime, length: Duration) -> SystemTime {
    // Half of the seconds that fit: far beyond the calendar, and still to be calculated with.
    time.checked_add(length)
        .unwrap_or(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 62))
}

/// Nanoseconds since 1970, before it negative.
fn nanos_wide(time: SystemTime) -> i128 {
    let wide = |length: Duration| i128::try_from(length.as_nanos()).unwrap_or(i128::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => wide(after),
        Err(before) => -wide(before.duration()),
    }
}

/// Nanoseconds since 1970 as SQL keeps them: what lies before 1677 or after 2262 is moved to that edge.
#[cfg(any(feature = "redis-streams", feature = "sqlite"))]
pub(crate) fn nanos(time: SystemTime) -> i64 {
    let wide = nanos_wide(time);
    i64::try_from(wide).unwrap_or(if wide < 0 { i64::MIN } else { i64::MAX })
}

/// The other way.
#[cfg(any(feature = "redis-streams", feature = "sqlite"))]
pub(crate) fn from_nanos(nanos: i64) -> SystemTime {
    let length = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 {
        SystemTime::UNIX_EPOCH - length
    } else {
        SystemTime::UNIX_EPOCH + length
    }
}

/// The day in UTC, counted from 1970-01-01.
pub(crate) fn day(time: SystemTime) -> i64 {
    // A SystemTime holds less than 2^64 seconds, so the number of days fits.
    nanos_wide(time).div_euclid(DAY) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_rfc_3339_and_exact() {
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_796_004_000, 123_456_789);
        assert_eq!(to_text(time), "2026-11-30T02:00:00.123456789Z");
        assert_eq!(from_text("2026-11-30T02:00:00.123456789Z"), Some(time));
        assert_eq!(from_text("2026-11-30T03:00:00.123456789+01:00"), Some(time));
        for nonsense in ["", "2026-11-30", "2026-13-01T00:00:00Z", "2026-11-30T02:00:00"] {
            assert_eq!(from_text(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_time_beyond_the_calendar_becomes_its_last_moment() {
        let beyond = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 60);
        let text = to_text(beyond);
        assert!(text.starts_with("9999-12-30T"), "{text}");
        assert!(from_text(&text).is_some());
    }

    #[test]
    fn days_are_counted_in_utc() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(day(at(0)), 0);
        assert_eq!(day(at(86_399)), 0);
        assert_eq!(day(at(86_400)), 1);
        assert_eq!(day(SystemTime::UNIX_EPOCH - Duration::from_nanos(1)), -1);
    }

    #[cfg(any(feature = "redis-streams", feature = "sqlite"))]
    #[test]
    fn nanoseconds_round_trip_and_stop_at_the_edge() {
        for time in [
            SystemTime::UNIX_EPOCH - Duration::from_nanos(1),
            SystemTime::UNIX_EPOCH,
            SystemTime::UNIX_EPOCH + Duration::new(1_796_004_000, 1),
        ] {
            assert_eq!(from_nanos(nanos(time)), time);
        }
        assert_eq!(nanos(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 60)), i64::MAX);
    }
}
