//! `idemp classify`: what an HTTP status means, and what follows when a first attempt gets it.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use idemp_core::{Delivery, Failure as AttemptFailure, Outcome, RetryAfter, RetrySchedule, StatusPolicy, Step};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::io::{print_json, print_line};
use crate::times::{Moment, rfc3339};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The HTTP status, 100 to 999
    #[arg(value_parser = status)]
    status: u16,

    /// The value of the Retry-After header that came with it
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    retry_after: Option<OsString>,

    /// When it came: RFC 3339, or so long ago as 2h (default: now)
    #[arg(long, value_name = "T", value_parser = Moment::parse)]
    now: Option<Moment>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is printed; `null` where something does not apply.
#[derive(Debug, Serialize)]
struct Classified {
    status: u16,
    verdict: &'static str,
    maybe_delivered: bool,
    /// Whole seconds that the header asks for, rounded up; `null` if it is missing or to be ignored.
    retry_after_seconds: Option<u64>,
    /// Seconds before the second attempt.
    wait_seconds: Option<f64>,
    /// Why the event is dead-lettered after the first attempt.
    reason: Option<&'static str>,
    class: Option<&'static str>,
    not_before: Option<String>,
}

fn status(text: &str) -> Result<u16, &'static str> {
    let number = text.parse().ok().filter(|number| (100..=999).contains(number));
    number.ok_or("not a status from 100 to 999")
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let clock = SystemTime::now();
    let now = args.now.map_or(clock, |moment| moment.resolve(clock));
    let classified = classify(args.status, args.retry_after.as_ref().map(|text| text.as_bytes()), now);
    if args.json {
        print_json(&classified)?;
    } else {
        print_line(human(&classified, args.retry_after.is_some()))?;
    }
    Ok(Exit::Done)
}

fn classify(status: u16, retry_after: Option<&[u8]>, now: SystemTime) -> Classified {
    let policy = StatusPolicy::default();
    let asked = retry_after.and_then(|value| RetryAfter::parse(value, now));
    let (outcome, maybe_delivered): (Outcome, bool) = if (200..=299).contains(&status) {
        (Outcome::Delivered { status: Some(status) }, false)
    } else {
        let failure = AttemptFailure::status(status).with_retry_after(asked);
        let maybe_delivered = failure.maybe_delivered;
        (failure.into(), maybe_delivered)
    };
    let verdict = policy.classify(&outcome);
    let schedule = RetrySchedule::default();
    let mut delivery = Delivery::default();
    let step = delivery.settle(&outcome, verdict, &schedule, now, Duration::ZERO, now);
    let mut classified = Classified {
        status,
        verdict: verdict.code(),
        maybe_delivered,
        retry_after_seconds: asked.map(|asked| whole_seconds(asked.delay(now))),
        wait_seconds: None,
        reason: None,
        class: None,
        not_before: None,
    };
    match step {
        Step::Delivered => {}
        Step::Wait(wait) => classified.wait_seconds = Some(wait.as_secs_f64()),
        Step::DeadLetter(reason) => {
            classified.reason = Some(reason.code());
            classified.class = Some(reason.class().code());
            classified.not_before = delivery.not_before().map(rfc3339);
        }
    }
    classified
}

fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

fn human(classified: &Classified, header_given: bool) -> String {
    let mut text = format!("{}: {}", classified.status, classified.verdict);
    // Writing to a String cannot fail.
    if let Some(wait) = classified.wait_seconds {
        let _ = write!(text, ", next attempt after {wait} s");
    }
    if let (Some(reason), Some(class)) = (classified.reason, classified.class) {
        let _ = write!(text, ", dead letter: {reason} (class {class})");
    }
    if let Some(not_before) = &classified.not_before {
        let _ = write!(text, ", not before {not_before}");
    }
    if classified.maybe_delivered {
        text.push_str(", maybe delivered");
    }
    if header_given && classified.retry_after_seconds.is_none() {
        text.push_str(", Retry-After is not valid and ignored");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, retry_after: Option<&str>, expected: &str) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_040_000);
        let classified = classify(status, retry_after.map(str::as_bytes), now);
        assert_eq!(human(&classified, retry_after.is_some()), expected);
    }

    #[test]
    fn what_follows_a_first_attempt() {
        check(204, None, "204: delivered");
        check(503, None, "503: retry, next attempt after 1 s, maybe delivered");
        check(429, Some("7"), "429: retry, next attempt after 7 s");
        check(
            429,
            Some("Mon, 30 Nov 2026 12:00:20 GMT"),
            "429: retry, next attempt after 20 s",
        );
        check(
            429,
            Some("40"),
            "429: retry, dead letter: retry_after_exceeds_budget (class exhausted), not before 2026-11-30T12:00:40Z",
        );
        check(
            429,
            Some("7.5"),
            "429: retry, next attempt after 1 s, Retry-After is not valid and ignored",
        );
        check(
            404,
            None,
            "404: rejects_configuration, dead letter: configuration_rejected (class configuration)",
        );
        check(
            422,
            None,
            "422: rejects_event, dead letter: event_rejected (class event)",
        );
        check(
            302,
            None,
            "302: rejects_configuration, dead letter: configuration_rejected (class configuration)",
        );
    }
}
