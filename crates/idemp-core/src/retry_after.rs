//! `Retry-After` (RFC 9110, section 10.2.3): a number of seconds, or a date in one of three forms (section 5.6.7).
//!
//! Anything else is no `Retry-After` at all. Section 5.6.7 invites leniency with dates, but a date that is taken for
//! another moment than its sender meant is worse than one that is ignored: the schedule has its own waits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::decimal;

/// When the receiver wants to be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    /// After this time, counted from the response. Up to `u64::MAX` seconds: add to it only with checked or saturating
    /// arithmetic.
    Delay(Duration),
    /// At this moment, in whole seconds, possibly in the past, up to the end of the year 9999.
    At(SystemTime),
}

impl RetryAfter {
    /// Reads the value of the header.
    ///
    /// * One or more ASCII digits are seconds; a number beyond `u64::MAX` counts as `u64::MAX`. Signs, decimals and
    ///   units are not allowed.
    /// * The dates are `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` and
    ///   `Sun Nov  6 08:49:37 1994`, case-sensitive and always GMT. The weekday must be the date's (RFC 5322, section
    ///   3.3, to which section 5.6.7 refers). `23:59:60` exists and is the following midnight.
    /// * Spaces and tabs around the value are not part of it (section 5.5); any other blank is an error.
    /// * The header is no list: two values joined by a comma are none.
    ///
    /// `now` serves the two-digit year alone: it is the latest one that lies at most 50 years ahead.
    ///
    /// `None` stands for a value that the RFC does not allow, which is to be ignored.
    #[must_use]
    pub fn parse(value: &[u8], now: SystemTime) -> Option<Self> {
        let value = trim_blanks(value);
        if let Some(seconds) = decimal::parse_saturating(value) {
            return Some(Self::Delay(Duration::from_secs(seconds)));
        }
        let unix = imf_fixdate(value)
            .or_else(|| rfc850_date(value, now))
            .or_else(|| asctime_date(value))?;
        let distance = Duration::from_secs(unix.unsigned_abs());
        let at = if unix < 0 {
            UNIX_EPOCH.checked_sub(distance)
        } else {
            UNIX_EPOCH.checked_add(distance)
        };
        at.map(Self::At)
    }

    /// How long to wait from `now` on, so as never to come earlier than asked: zero if the moment has passed, and up
    /// to `u64::MAX` seconds.
    ///
    /// A [`RetryAfter::Delay`] is the same for every `now`: ask when the response has arrived.
    #[must_use]
    pub fn delay(self, now: SystemTime) -> Duration {
        match self {
            Self::Delay(delay) => delay,
            Self::At(at) => at.duration_since(now).unwrap_or_default(),
        }
    }
}

fn trim_blanks(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

// The three forms, in Unix seconds.

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn imf_fixdate(text: &[u8]) -> Option<i64> {
    let mut rest = Rest(text);
    let weekday = rest.one_of(&SHORT_WEEKDAYS)?;
    rest.literal(b", ")?;
    let day = rest.digits(2)?;
    rest.literal(b" ")?;
    let month = rest.month()?;
    rest.literal(b" ")?;
    let year = rest.digits(4)?;
    rest.literal(b" ")?;
    let time = rest.time()?;
    rest.literal(b" GMT")?;
    rest.end()?;
    Civil { year, month, day, time }.unix_seconds(weekday)
}

/// `Sunday, 06-Nov-94 08:49:37 GMT`
fn rfc850_date(text: &[u8], now: SystemTime) -> Option<i64> {
    let mut rest = Rest(text);
    let weekday = rest.one_of(&WEEKDAYS)?;
    rest.literal(b", ")?;
    let day = rest.digits(2)?;
    rest.literal(b"-")?;
    let month = rest.month()?;
    rest.literal(b"-")?;
    let last_two = rest.digits(2)?;
    rest.literal(b" ")?;
    let time = rest.time()?;
    rest.literal(b" GMT")?;
    rest.end()?;

    let now = Civil::from_unix_seconds(unix_floor(now)?);
    let latest = Civil {
        year: now.year + 50,
        ..now
    };
    let this_century = now.year - now.year.rem_euclid(100);
    let date = [100, 0, -100]
        .into_iter()
        .map(|shift| Civil {
            year: this_century + shift + last_two,
            month,
            day,
            time,
        })
        .find(|date| *date <= latest)?;
    date.unix_seconds(weekday)
}

/// `Sun Nov  6 08:49:37 1994`
fn asctime_date(text: &[u8]) -> Option<i64> {
    let mut rest = Rest(text);
    let weekday = rest.one_of(&SHORT_WEEKDAYS)?;
    rest.literal(b" ")?;
    let month = rest.month()?;
    rest.literal(b" ")?;
    let day = if rest.literal(b" ").is_some() {
        rest.digits(1)?
    } else {
        rest.digits(2)?
    };
    rest.literal(b" ")?;
    let time = rest.time()?;
    rest.literal(b" ")?;
    let year = rest.digits(4)?;
    rest.end()?;
    Civil { year, month, day, time }.unix_seconds(weekday)
}

const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const SHORT_WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn literal(&mut self, text: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// A number of exactly `count` digits.
    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        i64::try_from(decimal::parse_saturating(digits)?).ok()
    }

    /// Index, from 0, of the name that stands here. No name may begin with another.
    fn one_of(&mut self, names: &[&str]) -> Option<i64> {
        let (index, rest) = (0..)
            .zip(names)
            .find_map(|(index, name)| Some((index, self.0.strip_prefix(name.as_bytes())?)))?;
        self.0 = rest;
        Some(index)
    }

    /// Number of the month, from 1.
    fn month(&mut self) -> Option<i64> {
        Some(self.one_of(&MONTHS)? + 1)
    }

    fn time(&mut self) -> Option<Time> {
        let hour = self.digits(2)?;
        self.literal(b":")?;
        let minute = self.digits(2)?;
        self.literal(b":")?;
        let second = self.digits(2)?;
        let leap_second = (hour, minute, second) == (23, 59, 60);
        ((hour < 24 && minute < 60 && second < 60) || leap_second).then_some(Time { hour, minute, second })
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Time of day; the order of the fields is that of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Time {
    hour: i64,
    minute: i64,
    second: i64,
}

/// Date and time in the proleptic Gregorian calendar, not necessarily one that exists; the order of the fields is
/// that of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    time: Time,
}

const DAY: i64 = 86_400;
/// Days of 400 years, after which the calendar repeats itself.
const ERA: i64 = 146_097;
/// Days from the 1st of March of the year 0 to the 1st of January 1970.
const EPOCH: i64 = 719_468;

impl Civil {
    /// `None` if there is no such day, or if it is another day of the week (Monday is 0).
    fn unix_seconds(self, weekday: i64) -> Option<i64> {
        let days = self.days();
        let midnight = days.checked_mul(DAY)?;
        let real = Self::from_unix_seconds(midnight);
        let exists = (real.year, real.month, real.day) == (self.year, self.month, self.day);
        // The 1st of January 1970 was a Thursday.
        let named_right = (days + 3).rem_euclid(7) == weekday;
        let Time { hour, minute, second } = self.time;
        if exists && named_right {
            midnight.checked_add(hour * 3600 + minute * 60 + second)
        } else {
            None
        }
    }

    /// Days since the 1st of January 1970; a day beyond the month's end counts on into the next month.
    fn days(self) -> i64 {
        // Years that begin in March end with the leap day.
        let (year, months) = if self.month > 2 {
            (self.year, self.month - 3)
        } else {
            (self.year - 1, self.month + 9)
        };
        let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
        let day_of_year = (153 * months + 2) / 5 + self.day - 1;
        era * ERA + year * 365 + year / 4 - year / 100 + day_of_year - EPOCH
    }

    fn from_unix_seconds(unix: i64) -> Self {
        let days = unix.div_euclid(DAY) + EPOCH;
        let second = unix.rem_euclid(DAY);
        let time = Time {
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        };

        let (era, day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (year * 365 + year / 4 - year / 100);
        let months = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * months + 2) / 5 + 1;
        let (month, carry) = if months < 10 { (months + 3, 0) } else { (months - 9, 1) };
        Self {
            year: era * 400 + year + carry,
            month,
            day,
            time,
        }
    }
}

/// Whole Unix seconds, rounded down.
fn unix_floor(time: SystemTime) -> Option<i64> {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).ok(),
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).ok()?;
            Some(-seconds - i64::from(before.subsec_nanos() > 0))
        }
    }
}
