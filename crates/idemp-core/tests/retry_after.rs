//! `Retry-After` against the recorded vectors, an independent calendar, and whatever bytes there are.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails loudly")]

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idemp_core::RetryAfter;
use idemp_testkit::vectors;
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Vector {
    value: String,
    now: String,
    seconds: Option<u64>,
    group: String,
}

/// Every group of the file and how many lines it has: all of them hold, the contested ones too. They say that the
/// weekday must be the date's, that 23:59:60 exists, and that a list is no `Retry-After`.
const GROUPS: [(&str, usize); 19] = [
    ("asctime-date", 45),
    ("contested/joined", 5),
    ("contested/leap-second", 3),
    ("contested/wrong-weekday", 4),
    ("delay-seconds", 22),
    ("delay-seconds-large", 13),
    ("empty", 3),
    ("garbage", 24),
    ("imf-fixdate", 46),
    ("no-such-moment", 20),
    ("not-delay-seconds", 56),
    ("not-http-date", 81),
    ("now-with-offset", 2),
    ("past-date", 20),
    ("rfc-example", 3),
    ("rfc850-date", 33),
    ("two-digit-year", 15),
    ("whitespace-around", 9),
    ("whitespace-wrong", 15),
];

#[test]
fn vectors() {
    let all: Vec<Vector> = vectors::load("retry-after.jsonl");
    let mut groups = BTreeMap::new();
    for (line, vector) in (1..).zip(&all) {
        let now = time(&vector.now);
        let delay = RetryAfter::parse(vector.value.as_bytes(), now).map(|after| after.delay(now));
        let expected = vector.seconds.map(Duration::from_secs);
        assert_eq!(
            delay, expected,
            "line {line}, {}: {:?} at {}",
            vector.group, vector.value, vector.now
        );
        *groups.entry(vector.group.as_str()).or_insert(0) += 1;
    }
    assert_eq!(groups, BTreeMap::from(GROUPS));
    assert_eq!(all.len(), 419);
}

fn time(text: &str) -> SystemTime {
    system(text.parse().unwrap())
}

fn system(moment: Timestamp) -> SystemTime {
    moment.try_into().unwrap()
}

fn check(value: &str, now: &str, expected: Option<RetryAfter>) {
    assert_eq!(
        RetryAfter::parse(value.as_bytes(), time(now)),
        expected,
        "{value:?} at {now}"
    );
}

#[test]
fn digits_are_a_delay_and_dates_a_moment() {
    check(
        "7",
        "2026-11-30T12:00:00Z",
        Some(RetryAfter::Delay(Duration::from_secs(7))),
    );
    let moment = Some(RetryAfter::At(time("1994-11-06T08:49:37Z")));
    check("Sun, 06 Nov 1994 08:49:37 GMT", "2026-11-30T12:00:00Z", moment);
    check("Sunday, 06-Nov-94 08:49:37 GMT", "2026-11-30T12:00:00Z", moment);
    check("Sun Nov  6 08:49:37 1994", "2026-11-30T12:00:00Z", moment);
}

#[test]
fn a_wait_never_ends_early() {
    let after = RetryAfter::At(time("2026-11-30T12:00:10Z"));
    assert_eq!(
        after.delay(time("2026-11-30T12:00:00.25Z")),
        Duration::from_millis(9_750)
    );
    assert_eq!(
        after.delay(time("2026-11-30T12:00:09.999999999Z")),
        Duration::from_nanos(1)
    );
    assert_eq!(after.delay(time("2026-11-30T12:00:10Z")), Duration::ZERO);
    assert_eq!(after.delay(time("2026-11-30T12:00:11Z")), Duration::ZERO);
    let after = RetryAfter::Delay(Duration::from_secs(10));
    assert_eq!(after.delay(time("2026-11-30T12:00:00.25Z")), Duration::from_secs(10));
}

/// The two digits are looked for around `now`, also where a century ends within the 50 years.
#[test]
fn two_digit_years_cross_centuries() {
    for (value, now, expected) in [
        (
            "Saturday, 01-Jan-00 00:00:00 GMT",
            "1999-12-31T23:59:00Z",
            Some("2000-01-01T00:00:00Z"),
        ),
        (
            "Wednesday, 04-Mar-05 00:00:00 GMT",
            "2095-01-01T00:00:00Z",
            Some("2105-03-04T00:00:00Z"),
        ),
        (
            "Friday, 04-Mar-95 00:00:00 GMT",
            "2105-01-01T00:00:00Z",
            Some("2095-03-04T00:00:00Z"),
        ),
        (
            "Friday, 31-Dec-49 23:59:59 GMT",
            "1999-12-31T23:59:59Z",
            Some("2049-12-31T23:59:59Z"),
        ),
        (
            "Saturday, 31-Dec-49 23:59:59 GMT",
            "1999-12-31T23:59:58Z",
            Some("1949-12-31T23:59:59Z"),
        ),
        // At the limit and half a second before it, on a clock before 1970.
        (
            "Friday, 31-Dec-99 23:59:59 GMT",
            "1949-12-31T23:59:59Z",
            Some("1999-12-31T23:59:59Z"),
        ),
        ("Friday, 31-Dec-99 23:59:59 GMT", "1949-12-31T23:59:58.5Z", None),
        // 2100 has no leap day, and is the year that is meant.
        ("Tuesday, 29-Feb-00 00:00:00 GMT", "2095-01-01T00:00:00Z", None),
        (
            "Tuesday, 29-Feb-00 00:00:00 GMT",
            "2026-01-01T00:00:00Z",
            Some("2000-02-29T00:00:00Z"),
        ),
        // 50 years after a leap day there is none.
        (
            "Monday, 28-Feb-78 12:00:00 GMT",
            "2028-02-29T12:00:00Z",
            Some("2078-02-28T12:00:00Z"),
        ),
    ] {
        check(value, now, expected.map(|moment| RetryAfter::At(time(moment))));
    }
}

/// RFC 9110, section 5.6.7: what appears to be *more* than 50 years ahead is past. Each field of the time decides once.
#[test]
fn fifty_years_are_counted_to_the_second() {
    for (time_of_day, ahead) in [
        ("12:34:56", true),
        ("12:34:57", false),
        ("12:33:59", true),
        ("12:35:00", false),
        ("11:59:59", true),
        ("13:00:00", false),
    ] {
        // The weekdays of 2076 and of 1976.
        for (weekday, year, is_meant) in [("Monday", 2076, ahead), ("Tuesday", 1976, !ahead)] {
            let moment = RetryAfter::At(time(&format!("{year}-11-30T{time_of_day}Z")));
            check(
                &format!("{weekday}, 30-Nov-76 {time_of_day} GMT"),
                "2026-11-30T12:34:56Z",
                is_meant.then_some(moment),
            );
        }
    }
}

#[test]
fn the_ends_of_the_calendar() {
    let now = "2026-11-30T12:00:00Z";
    let last = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    check("Fri, 31 Dec 9999 23:59:59 GMT", now, Some(RetryAfter::At(last)));
    check(
        "Fri, 31 Dec 9999 23:59:60 GMT",
        now,
        Some(RetryAfter::At(last + Duration::from_secs(1))),
    );
    check("Fri Dec 31 23:59:59 9999", now, Some(RetryAfter::At(last)));
    assert!(
        RetryAfter::parse(b"Sat, 01 Jan 0000 00:00:00 GMT", time(now)).is_none_or(|at| at.delay(time(now)).is_zero())
    );
    check("Sun, 31 Dec 10000 23:59:59 GMT", now, None);
}

#[test]
fn clocks_at_the_ends_of_time_do_not_panic() {
    let far = Duration::from_secs(i64::MAX.unsigned_abs());
    for now in [
        UNIX_EPOCH.checked_add(far),
        UNIX_EPOCH.checked_sub(far),
        Some(UNIX_EPOCH),
    ]
    .into_iter()
    .flatten()
    {
        for weekday in [
            "Monday",
            "Tuesday",
            "Wednesday",
            "Thursday",
            "Friday",
            "Saturday",
            "Sunday",
        ] {
            // The last moment that the clock can show lies on a 4th of December.
            for year in 0..100 {
                let value = format!("{weekday}, 04-Dec-{year:02} 23:59:60 GMT");
                if let Some(after) = RetryAfter::parse(value.as_bytes(), now) {
                    let _ = after.delay(now);
                }
            }
        }
    }
    let forever = RetryAfter::parse(b"18446744073709551616", UNIX_EPOCH).unwrap();
    assert_eq!(forever.delay(UNIX_EPOCH), Duration::from_secs(u64::MAX));
}

/// Seconds from the start of 1900 to two days before the end of 9999, where the other calendar ends.
const SECONDS: std::ops::Range<i64> = -2_208_988_800..253_402_207_200;

proptest! {
    #[test]
    fn any_bytes_are_read_or_ignored(
        value in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "[ \t]{0,2}(Sun, 0?[0-9] Nov [0-9]{2,4}|Sunday, [0-9]{2}-Nov-[0-9]{2}|Sun Nov [ 0-9][0-9]) [0-9:]{5,9}( GMT| [0-9]{4})?"
                .prop_map(String::into_bytes),
        ],
        now: i64,
    ) {
        let distance = Duration::from_secs(now.unsigned_abs());
        let now = if now < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
        let now = now.unwrap_or(UNIX_EPOCH);
        if let Some(after) = RetryAfter::parse(&value, now) {
            let _ = after.delay(now);
        }
    }

    #[test]
    fn four_digit_years_agree_with_another_calendar(unix in SECONDS) {
        let moment = Timestamp::from_second(unix).unwrap();
        for form in ["%a, %d %b %Y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"] {
            let text = moment.strftime(form).to_string();
            prop_assert_eq!(RetryAfter::parse(text.as_bytes(), UNIX_EPOCH), Some(RetryAfter::At(system(moment))), "{}", text);
        }
    }

    #[test]
    fn two_digit_years_agree_with_another_calendar(now in SECONDS, ahead in -50 * 365 * 86_400_i64..=50 * 365 * 86_400) {
        let now = Timestamp::from_second(now).unwrap();
        let Ok(moment) = Timestamp::from_second(now.as_second() + ahead) else { return Ok(()) };
        let text = moment.strftime("%A, %d-%b-%y %H:%M:%S GMT").to_string();
        prop_assert_eq!(RetryAfter::parse(text.as_bytes(), system(now)), Some(RetryAfter::At(system(moment))), "{}", text);
    }

    /// The other side of the limit: a moment more than 50 years ahead is never taken for itself.
    #[test]
    fn two_digit_years_are_never_more_than_50_years_ahead(now in SECONDS, years in 51..100_i64) {
        let now = Timestamp::from_second(now).unwrap();
        let Ok(moment) = now.to_zoned_datetime(TimeZone::UTC).checked_add(years.years()) else { return Ok(()) };
        let text = moment.strftime("%A, %d-%b-%y %H:%M:%S GMT").to_string();
        let read = RetryAfter::parse(text.as_bytes(), system(now)).map(|after| after.delay(system(now)));
        prop_assert!(read.is_none_or(|delay| delay.is_zero()), "{}", text);
    }
}
