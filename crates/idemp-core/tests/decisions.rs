//! The status table, the schedule, the TTL rule, and the codes that records and metrics have for them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::time::Duration;

use idemp_core::{
    Cadence, Class, Code, Detail, ErrorClass, Failure, Next, Outcome, Reason, Refusal, RetrySchedule, StatusPolicy,
    Transport, Ttl, UnknownCode, Verdict,
};
use proptest::prelude::*;

/// The table once more, written from the spec's side: lists rather than ranges.
fn expected(status: u16) -> (Verdict, bool) {
    let retried: Vec<u16> = [408, 429].into_iter().chain(500..600).collect();
    let configuration = [401, 402, 403, 404, 407, 410, 451];
    let maybe_delivered = status == 408 || status / 100 == 5;
    let verdict = if status / 100 == 2 {
        Verdict::Delivered
    } else if retried.contains(&status) {
        Verdict::Retry
    } else if status / 100 == 4 && !configuration.contains(&status) {
        Verdict::RejectsEvent
    } else {
        Verdict::RejectsConfiguration
    };
    (verdict, maybe_delivered)
}

#[test]
fn every_status_has_its_verdict() {
    let policy = StatusPolicy::default();
    for status in 100..=999 {
        let failure = Failure::status(status);
        let (verdict, maybe_delivered) = expected(status);
        assert_eq!(policy.status(status), verdict, "{status}");
        assert_eq!(failure.maybe_delivered, maybe_delivered, "{status}");
        assert_eq!(policy.classify(&failure.into()), verdict, "{status}");
        assert_eq!(
            policy.classify(&Outcome::Delivered { status: Some(status) }),
            verdict,
            "{status}"
        );
    }
}

#[test]
fn a_failure_without_a_status_is_retried() {
    for (transport, maybe_delivered) in [
        (Transport::Connect, false),
        (Transport::Dns, false),
        (Transport::Tls, false),
        (Transport::Timeout, true),
        (Transport::Cut, true),
    ] {
        let failure = Failure::transport(transport);
        assert_eq!(failure.maybe_delivered, maybe_delivered, "{transport:?}");
        assert_eq!(StatusPolicy::default().classify(&failure.into()), Verdict::Retry);
    }
}

#[test]
fn a_sink_may_differ_from_the_table() {
    let policy = StatusPolicy::default()
        .with(409, Verdict::Delivered)
        .with(404, Verdict::Retry);
    assert_eq!(policy.status(409), Verdict::Delivered);
    assert_eq!(policy.status(404), Verdict::Retry);
    assert_eq!(policy.status(410), Verdict::RejectsConfiguration);
}

/// The line of a page that has `start`.
fn line(page: &'static str, start: &str) -> &'static str {
    page.lines().find(|line| line.contains(start)).unwrap()
}

#[test]
fn the_codes_of_verdicts_are_stable_and_documented() {
    let codes = [
        (Verdict::Delivered, "delivered"),
        (Verdict::Retry, "retry"),
        (Verdict::RejectsEvent, "rejects_event"),
        (Verdict::RejectsConfiguration, "rejects_configuration"),
        (Verdict::PushBack, "push_back"),
    ];
    assert_eq!(codes.map(|(verdict, _)| verdict), Verdict::ALL);
    let row = line(include_str!("../../../docs/metrics.md"), "`idemp_attempts_total`");
    for (verdict, code) in codes {
        assert_eq!(verdict.code(), code);
        assert!(row.contains(&format!("`{code}`")), "{code}");
    }
}

#[test]
fn the_codes_of_failed_attempts_are_stable_and_documented() {
    let transports = [
        (Transport::Connect, "connect"),
        (Transport::Dns, "dns"),
        (Transport::Tls, "tls"),
        (Transport::Timeout, "timeout"),
        (Transport::Cut, "cut"),
    ];
    let classes = [
        (ErrorClass::Transient, "transient"),
        (ErrorClass::Ambiguous, "ambiguous"),
        (ErrorClass::RejectsEvent, "rejects_event"),
        (ErrorClass::RejectsConfiguration, "rejects_configuration"),
        (ErrorClass::PushBack, "push_back"),
    ];
    assert_eq!(transports.map(|(transport, _)| transport), Transport::ALL);
    assert_eq!(classes.map(|(class, _)| class), ErrorClass::ALL);
    let row = line(include_str!("../../../docs/dlq.md"), "| `attempts` |");
    for (found, code) in (transports.map(|(transport, code)| (transport.code(), code)).into_iter())
        .chain(classes.map(|(class, code)| (class.code(), code)))
    {
        assert_eq!(found, code);
        assert!(row.contains(&format!("`{code}`")), "{code}");
    }
}

/// That each stands in docs/reasons.md, with its class, is checked where the records are.
#[test]
fn the_codes_of_dead_letters_are_stable_and_read_back() {
    let reasons = [
        (Reason::RetriesExhausted, "retries_exhausted", "exhausted"),
        (Reason::EventRejected, "event_rejected", "event"),
        (Reason::ConfigurationRejected, "configuration_rejected", "configuration"),
        (
            Reason::RetryAfterExceedsBudget,
            "retry_after_exceeds_budget",
            "exhausted",
        ),
        (Reason::CircuitOpen, "circuit_open", "withheld"),
        (Reason::LaneFull, "lane_full", "withheld"),
        (Reason::Shutdown, "shutdown", "withheld"),
        (Reason::KeyConflict, "key_conflict", "event"),
    ];
    assert_eq!(reasons.map(|(reason, ..)| reason), Reason::ALL);
    for (reason, code, class) in reasons {
        assert_eq!((reason.code(), reason.class().code()), (code, class));
        assert_eq!((reason.to_string().as_str(), code.parse()), (code, Ok(reason)));
        assert_eq!(class.parse(), Ok(reason.class()));
    }
    for unknown in ["", "Shutdown", "shutdown ", "exhausted"] {
        assert_eq!(unknown.parse::<Reason>(), Err(UnknownCode), "{unknown:?}");
    }
    assert_eq!("retries_exhausted".parse::<Class>(), Err(UnknownCode));
    assert_eq!(UnknownCode.to_string(), "unknown code");
}

#[test]
fn the_schedule_of_the_spec() {
    let schedule = RetrySchedule::default();
    assert_eq!(schedule.waits(), [1, 5, 30].map(Duration::from_secs));
    assert_eq!((schedule.attempts(), schedule.budget()), (4, Duration::from_secs(36)));
    assert_eq!(RetrySchedule::new(schedule.waits().to_vec()).unwrap(), schedule);
    let fifth = schedule.scaled(0.2).unwrap();
    assert_eq!(fifth.waits(), [200, 1_000, 6_000].map(Duration::from_millis));
    assert_eq!(
        RetrySchedule::new(Vec::new()).unwrap().next(1, Duration::ZERO, None),
        Next::Exhausted
    );
}

/// docs/retry.md: a `Retry-After` that does not fit into what is left ends it, and so does less than 1 s.
#[test]
fn the_budget_is_used_to_its_end() {
    let schedule = RetrySchedule::default();
    let (second, instant) = (Duration::from_secs(1), Duration::from_nanos(1));
    assert_eq!(
        schedule.next(1, Duration::ZERO, Some(36 * second)),
        Next::Wait(36 * second)
    );
    assert_eq!(
        schedule.next(1, Duration::ZERO, Some(36 * second + instant)),
        Next::RetryAfterExceedsBudget
    );
    assert_eq!(schedule.next(3, 35 * second, None), Next::Wait(second));
    assert_eq!(schedule.next(3, 35 * second + instant, None), Next::Exhausted);
    assert_eq!(schedule.next(4, Duration::ZERO, None), Next::Exhausted, "four attempts");
    assert_eq!(schedule.next(0, Duration::ZERO, None), Next::Exhausted);
}

#[test]
fn a_schedule_that_makes_no_sense_is_refused() {
    let refused = |waits: &[u64]| RetrySchedule::new(waits.iter().copied().map(Duration::from_secs).collect());
    assert_eq!(
        refused(&[1, 0]).unwrap_err().to_string(),
        "wait 2 of the retry schedule is zero"
    );
    for over_a_day in [&[1, 86_400], &[u64::MAX, u64::MAX]] {
        assert_eq!(
            refused(over_a_day).unwrap_err().to_string(),
            "the waits of the retry schedule are longer than a day together"
        );
    }
    assert!(refused(&[1, 86_399]).is_ok());
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
        assert!(RetrySchedule::default().scaled(factor).is_err(), "{factor}");
    }
}

#[test]
fn the_time_to_remember_is_checked_against_the_budget() {
    let (budget, second) = (Duration::from_secs(36), Duration::from_secs(1));
    assert_eq!(Ttl::new(72 * second, budget).unwrap().as_duration(), 72 * second);
    assert_eq!(
        Ttl::new(Duration::from_millis(72_001), budget).unwrap().as_duration(),
        73 * second
    );
    let error = Ttl::new(71 * second, budget).unwrap_err().to_string();
    assert!(error.contains("71s") && error.contains("72s"), "{error}");
    let days = |cadence: Cadence| cadence.ttl().as_secs() / 86_400;
    assert_eq!(
        [Cadence::SubMinute, Cadence::SubHour, Cadence::Daily].map(days),
        [1, 7, 30]
    );
}

#[test]
fn a_detail_is_short_and_has_no_control_characters() {
    assert_eq!(Detail::new("a\n\tb\u{7f}\u{85}c").as_str(), "abc");
    assert_eq!(Detail::new(&"é".repeat(300)).as_str(), "é".repeat(256));
    assert_eq!(Detail::from_bytes(b"\xffok").as_str(), "\u{fffd}ok");
    let behind_blank_lines = ["\r\n".repeat(500), "x".repeat(600)].concat();
    assert_eq!(
        Detail::from_bytes(behind_blank_lines.as_bytes()).as_str(),
        "x".repeat(512)
    );
    assert!(Detail::default().is_empty() && Detail::new("\n").is_empty());
    assert!(!Detail::new("x").is_empty());
    assert_eq!(format!("{:?}", Detail::new("secret")), "Detail(6 bytes)");
}

#[test]
fn a_transports_own_code_prints_as_it_came() {
    let code = Code::new("MessageTimedOut");
    assert_eq!(code.to_string(), "MessageTimedOut");
    assert_eq!(format!("{code:?}"), "Code(MessageTimedOut)");
}

#[test]
fn a_sinks_refusal_says_what_the_sink_says() {
    assert_eq!(Refusal::new("it is too long").to_string(), "it is too long");
}

proptest! {
    /// Total waiting never passes the budget, no wait is shorter than asked, and it ends.
    #[test]
    fn waiting_stays_within_the_budget(asked in prop::collection::vec(prop::option::of(0u64..60_000), 1..8)) {
        let schedule = RetrySchedule::default();
        let mut waited = Duration::ZERO;
        for (failed, asked) in asked.iter().enumerate() {
            let asked = asked.map(Duration::from_millis);
            match schedule.next(failed + 1, waited, asked) {
                Next::Wait(wait) => {
                    prop_assert!(failed < 3);
                    prop_assert!(wait >= asked.unwrap_or_default());
                    prop_assert!(wait > Duration::ZERO);
                    waited += wait;
                    prop_assert!(waited <= Duration::from_secs(36));
                }
                Next::RetryAfterExceedsBudget => {
                    prop_assert!(waited + asked.unwrap() > Duration::from_secs(36));
                    return Ok(());
                }
                Next::Exhausted => {
                    prop_assert!(failed == 3 || Duration::from_secs(36) - waited < Duration::from_secs(1));
                    return Ok(());
                }
            }
        }
    }
}
