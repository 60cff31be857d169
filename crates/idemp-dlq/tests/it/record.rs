//! The record as JSON.

use std::time::{Duration, SystemTime};

use idemp_core::{AttemptRecord, Cause, Class, Detail, IdempotencyKey, Message, Reason, Transport};
use idemp_dlq::{DeadLetter, Letterhead, RecordError};
use proptest::prelude::*;

use crate::letters::{at, attempt, letter, sink};

fn full() -> DeadLetter {
    DeadLetter {
        sink: sink("audit"),
        message: Message::new(IdempotencyKey::parse("req-42:tool_end:7").unwrap(), "4 °C").unwrap(),
        reason: Reason::RetryAfterExceedsBudget,
        class: Class::Exhausted,
        maybe_delivered: true,
        attempts: vec![
            AttemptRecord {
                detail: Detail::new("busy \"now\""),
                ..attempt(1, at(1), Cause::Status(503))
            },
            attempt(2, at(2) + Duration::from_nanos(5), Cause::Transport(Transport::Timeout)),
        ],
        accepted_at: at(0),
        dead_at: at(9),
        not_before: Some(at(60)),
        replay_count: 3,
    }
}

/// Written by hand; the hash is `printf '{"data": "4 \\u00b0C", "event": "tool_end"}' | sha256sum`.
const FULL: &str = concat!(
    r#"{"version":1,"key":"req-42:tool_end:7","sink":"audit","event_type":"tool_end","#,
    r#""reason":"retry_after_exceeds_budget","class":"exhausted","maybe_delivered":true,"#,
    r#""attempts":[{"n":1,"started":"2026-11-30T00:00:01Z","elapsed_ms":7,"status":503,"detail":"busy \"now\""},"#,
    r#"{"n":2,"started":"2026-11-30T00:00:02.000000005Z","elapsed_ms":7,"error":"timeout"}],"#,
    r#""accepted_at":"2026-11-30T00:00:00Z","dead_at":"2026-11-30T00:00:09Z","not_before":"2026-11-30T00:01:00Z","#,
    r#""replay_count":3,"body_len":42,"#,
    r#""body_sha256":"528f829dbde1f543c43f52b64f4339b3dec7a17f63c3ec6ed66e0415a8487d6d","#,
    r#""body":"{\"data\": \"4 \\u00b0C\", \"event\": \"tool_end\"}"}"#,
);

fn golden() -> String {
    FULL.to_owned()
}

#[test]
fn the_form_is_fixed() {
    assert_eq!(full().to_json(), golden());
    assert_eq!(DeadLetter::from_json(golden().as_bytes()).unwrap(), full());
}

#[test]
fn a_letterhead_reads_the_whole_record_too() {
    let head = full().letterhead();
    assert_eq!(Letterhead::from_json(golden().as_bytes()).unwrap(), head);
    assert_eq!(Letterhead::from_json(head.to_json().as_bytes()).unwrap(), head);
}

#[test]
fn what_is_unknown_is_ignored_and_what_is_missing_is_not() {
    let more = golden().replacen("\"sink\"", "\"colour\":\"blue\",\"sink\"", 1);
    assert_eq!(DeadLetter::from_json(more.as_bytes()).unwrap(), full());
    let less = golden().replacen("\"replay_count\":3,", "", 1);
    assert!(matches!(
        DeadLetter::from_json(less.as_bytes()),
        Err(RecordError::Torn { line: 1, .. })
    ));
}

#[test]
fn a_torn_record_is_an_error_wherever_it_is_torn() {
    let whole = golden();
    for end in 0..whole.len() {
        let torn = DeadLetter::from_json(&whole.as_bytes()[..end]);
        assert!(matches!(torn, Err(RecordError::Torn { .. })), "{end}");
    }
}

#[test]
fn another_version_is_named() {
    let later = golden().replacen("\"version\":1", "\"version\":2", 1);
    assert_eq!(
        DeadLetter::from_json(later.as_bytes()),
        Err(RecordError::Version { found: 2 })
    );
    assert_eq!(
        DeadLetter::from_json(br#"{"version":7,"letter":{}}"#),
        Err(RecordError::Version { found: 7 })
    );
    assert!(matches!(
        DeadLetter::from_json(br#"{"version":1,"letter":{}}"#),
        Err(RecordError::Torn { .. })
    ));
}

#[test]
fn what_no_letter_holds_is_an_error_that_tells_nothing_of_it() {
    type Expected = fn(&RecordError) -> bool;
    let cases: [(&str, &str, Expected); 11] = [
        ("req-42:tool_end:7", "s3cret", |error| {
            matches!(error, RecordError::Name(_))
        }),
        ("\"audit\"", "\"s3cret:\"", |error| {
            matches!(error, RecordError::Name(_))
        }),
        ("retry_after_exceeds_budget", "s3cret", |error| {
            *error == RecordError::Code { field: "reason" }
        }),
        ("\"exhausted\"", "\"s3cret\"", |error| {
            *error == RecordError::Code { field: "class" }
        }),
        ("\"timeout\"", "\"s3cret\"", |error| {
            *error == RecordError::Code { field: "error" }
        }),
        ("2026-11-30T00:01:00Z", "s3cret", |error| {
            *error == RecordError::Time { field: "not_before" }
        }),
        ("2026-11-30T00:00:09Z", "s3cret", |error| {
            *error == RecordError::Time { field: "dead_at" }
        }),
        ("true", "\"s3cret\"", |error| matches!(error, RecordError::Torn { .. })),
        ("u00b0", "u00b1", |error| *error == RecordError::Body),
        ("\"body\":", "\"s3cret\":", |error| *error == RecordError::Body),
        ("\"body_len\":42", "\"body_len\":41", |error| {
            *error == RecordError::Body
        }),
    ];
    for (from, to, expected) in cases {
        let damaged = golden().replacen(from, to, 1);
        assert_ne!(damaged, golden(), "{from}");
        let error = DeadLetter::from_json(damaged.as_bytes()).unwrap_err();
        assert!(expected(&error), "{from}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}

#[test]
fn a_time_beyond_the_calendar_is_written_as_a_real_one() {
    let far = DeadLetter {
        not_before: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 60)),
        ..full()
    };
    let read = DeadLetter::from_json(far.to_json().as_bytes()).unwrap();
    let not_before = read.not_before.unwrap();
    assert!(not_before > SystemTime::UNIX_EPOCH + Duration::from_secs(253_000_000_000));
    assert!(not_before < far.not_before.unwrap());
}

#[test]
fn every_way_to_fail_has_its_code() {
    let causes = Transport::ALL
        .map(Cause::Transport)
        .into_iter()
        .chain([Cause::Status(100), Cause::Status(999)]);
    for cause in causes {
        let letter = DeadLetter {
            attempts: vec![attempt(1, at(1), cause)],
            ..letter("r1:tool_end:1")
        };
        assert_eq!(DeadLetter::from_json(letter.to_json().as_bytes()).unwrap(), letter);
    }
}

#[test]
fn nothing_of_the_payload_is_in_debug() {
    let letter = DeadLetter {
        message: Message::new(IdempotencyKey::parse("r1:tool_end:1").unwrap(), "s3cret").unwrap(),
        attempts: vec![AttemptRecord {
            detail: Detail::new("s3cret"),
            ..attempt(1, at(1), Cause::Status(400))
        }],
        ..full()
    };
    assert!(!format!("{letter:?} {:?}", letter.letterhead()).contains("s3cret"));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        data in ".*",
        detail in ".*",
        status in any::<u16>(),
        seconds in 0_u64..200_000_000_000,
        nanos in 0_u32..1_000_000_000,
        elapsed in any::<u32>(),
        replay_count in any::<u32>(),
        reason in prop::sample::select(Reason::ALL),
        maybe_delivered in any::<bool>(),
    ) {
        let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        let letter = DeadLetter {
            message: Message::new(IdempotencyKey::parse("r1:tool_end:1").unwrap(), &data).unwrap(),
            attempts: vec![AttemptRecord {
                detail: Detail::new(&detail),
                elapsed: Duration::from_millis(elapsed.into()),
                ..attempt(1, time, Cause::Status(status))
            }],
            reason,
            class: reason.class(),
            maybe_delivered,
            accepted_at: time,
            dead_at: time,
            not_before: Some(time),
            replay_count,
            ..full()
        };
        prop_assert_eq!(DeadLetter::from_json(letter.to_json().as_bytes()), Ok(letter));
    }

    #[test]
    fn nonsense_is_no_letter(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(DeadLetter::from_json(&bytes).is_err());
    }
}
