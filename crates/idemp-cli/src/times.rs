//! Durations such as `5s`, moments such as `2h` (ago) or RFC 3339, and how many times.

use std::fmt;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Reads a whole number with a unit: `ms`, `s`, `m`, `h` or `d`.
pub(crate) fn duration(text: &str) -> Result<Duration, TimeError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| TimeError::Duration)?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(TimeError::Duration),
    };
    number
        .checked_mul(milliseconds)
        .map(Duration::from_millis)
        .ok_or(TimeError::Duration)
}

/// Reads a whole number that is not 0.
pub(crate) fn at_least_one<N: std::str::FromStr + PartialOrd + From<u8>>(text: &str) -> Result<N, &'static str> {
    match text.parse() {
        Ok(number) if number >= N::from(1) => Ok(number),
        _ => Err("not a whole number from 1"),
    }
}

/// A moment: a time of day, or so long before now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    At(SystemTime),
    Ago(Duration),
}

impl Moment {
    /// Reads RFC 3339, or a duration for so long ago.
    pub(crate) fn parse(text: &str) -> Result<Self, TimeError> {
        if let Ok(ago) = duration(text) {
            return Ok(Self::Ago(ago));
        }
        let at: Timestamp = text.parse().map_err(|_| TimeError::Moment)?;
        at.try_into().map(Self::At).map_err(|_| TimeError::Moment)
    }

    /// The time of day it stands for.
    pub(crate) fn resolve(self, now: SystemTime) -> SystemTime {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

/// RFC 3339 in UTC, to the second.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    match Timestamp::try_from(at) {
        Ok(at) => format!("{at:.0}"),
        Err(_) => "out of range".to_owned(),
    }
}

/// A text that is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeError {
    Duration,
    Moment,
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Duration => "not a whole number with a unit of ms, s, m, h or d, such as 5s",
            Self::Moment => "neither RFC 3339, such as 2026-11-30T12:00:00Z, nor a time ago, such as 2h",
        })
    }
}

impl std::error::Error for TimeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("250ms", 250),
            ("5s", 5_000),
            ("30m", 1_800_000),
            ("2h", 7_200_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        for text in [
            "",
            "5",
            "s",
            "-5s",
            "+5s",
            "1.5s",
            "5 s",
            "5S",
            "5w",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert_eq!(duration(text), Err(TimeError::Duration), "{text}");
        }
    }

    #[test]
    fn moments() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_040_000);
        let resolved = |text| Moment::parse(text).map(|moment| rfc3339(moment.resolve(now)));
        assert_eq!(rfc3339(now), "2026-11-30T12:00:00Z");
        assert_eq!(resolved("2h").unwrap(), "2026-11-30T10:00:00Z");
        assert_eq!(resolved("2026-11-30T12:00:00+02:00").unwrap(), "2026-11-30T10:00:00Z");
        assert_eq!(resolved("2026-11-30T10:00:00.25Z").unwrap(), "2026-11-30T10:00:00Z");
        for text in [
            "",
            "yesterday",
            "2026-11-30",
            "2026-11-30T12:00:00",
            "12:00",
            "1796040000",
        ] {
            assert_eq!(resolved(text), Err(TimeError::Moment), "{text}");
        }
    }
}
