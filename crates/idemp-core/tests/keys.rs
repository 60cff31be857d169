//! Keys: what parses, what does not, and how steps are numbered.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;

use idemp_core::{EventType, IdempotencyKey, Run, RunId, SinkName, StepIndex, StepRange};
use proptest::prelude::*;

#[test]
fn the_form_is_run_id_event_type_step_index() {
    let key = IdempotencyKey::new(&RunId::parse("r1").unwrap(), &EventType::TOOL_END, StepIndex::FIRST);
    assert_eq!(key.as_str(), "r1:tool_end:1");
    assert_eq!(
        (key.run_id(), key.event_type(), key.step_index().as_u64()),
        ("r1", "tool_end", 1)
    );
}

#[test]
fn the_longest_key_has_149_bytes() {
    let (run_id, event_type) = (
        RunId::parse(&"r".repeat(64)).unwrap(),
        EventType::parse(&"e".repeat(64)).unwrap(),
    );
    let key = IdempotencyKey::new(&run_id, &event_type, StepIndex::LAST);
    assert_eq!(key.as_str().len(), 149);
    assert_eq!(IdempotencyKey::MAX_LEN, 149);
    assert_eq!(key.event_type(), "e".repeat(64));
    assert_eq!(IdempotencyKey::parse(key.as_str()).unwrap(), key);
}

/// Maps of keys are asked with the text of a header, without a key of one's own.
#[test]
fn a_key_is_equal_hashed_and_borrowed_as_its_text() {
    let key = |text| IdempotencyKey::parse(text).unwrap();
    assert_eq!(key("r1:tool_end:1"), key("r1:tool_end:1"));
    for other in ["r2:tool_end:1", "r1:llm_end:1", "r1:tool_end:2"] {
        assert_ne!(key("r1:tool_end:1"), key(other));
    }
    let seen = HashMap::from([(key("r1:tool_end:1"), "one"), (key("r1:tool_end:2"), "two")]);
    assert_eq!(seen.get("r1:tool_end:1"), Some(&"one"));
    assert_eq!(seen.get("r1:tool_end:2"), Some(&"two"));
    assert_eq!(seen.get("r1:tool_end:3"), None);
    assert_eq!(seen.get(&key("r1:tool_end:2")), Some(&"two"));
}

#[test]
fn event_types_are_equal_and_hashed_by_name() {
    let parse = |name| EventType::parse(name).unwrap();
    let known = [
        (EventType::TOOL_END, "tool_end"),
        (EventType::CHAIN_END, "chain_end"),
        (EventType::LLM_END, "llm_end"),
        (EventType::TOOL_ERROR, "tool_error"),
    ];
    for (event_type, name) in &known {
        assert_eq!((event_type.as_str(), event_type), (*name, &parse(name)));
    }
    assert_eq!(parse("my_own"), parse("my_own"));
    for other in ["My_own", "my_own2", "tool_end"] {
        assert_ne!(parse("my_own"), parse(other));
    }
    let names = known.iter().map(|(_, name)| *name).chain(["my_own"]);
    let twice: HashSet<_> = names.clone().chain(names).map(parse).collect();
    assert_eq!(twice.len(), 5);
    assert!(known.iter().all(|(event_type, _)| twice.contains(event_type)));
}

#[test]
fn a_step_is_the_same_number_in_sql() {
    for (step, sql) in [
        (1, 1),
        (7, 7),
        (9_223_372_036_854_775_807, 9_223_372_036_854_775_807_i64),
    ] {
        assert_eq!(StepIndex::new(step).unwrap().as_i64(), sql);
    }
    assert_eq!((StepIndex::FIRST.as_i64(), StepIndex::LAST.as_i64()), (1, i64::MAX));
    assert_eq!(format!("{0} {0:?}", StepIndex::FIRST), "1 StepIndex(1)");
}

#[test]
fn what_is_no_key_is_refused_with_its_place() {
    let long = "x".repeat(65);
    for (text, says) in [
        ("", "key has 1 parts, not the three of run_id:event_type:step_index"),
        ("a:b", "key has 2 parts, not the three of run_id:event_type:step_index"),
        (
            "a:b:1:2",
            "key has 4 parts, not the three of run_id:event_type:step_index",
        ),
        (":tool_end:1", "run id is empty"),
        ("r1::1", "event type is empty"),
        ("r1:tool_end:", "step index is empty"),
        ("-r:tool_end:1", "run id does not begin with a letter or digit"),
        (
            "r 1:tool_end:1",
            "run id has a character at byte 1 that is not one of A-Z a-z 0-9 _ . -",
        ),
        (
            "r{1}:tool_end:1",
            "run id has a character at byte 1 that is not one of A-Z a-z 0-9 _ . -",
        ),
        ("r1:1tool:1", "event type does not begin with a letter"),
        (
            "r1:tööl:1",
            "event type has a character at byte 1 that is not one of A-Z a-z 0-9 _ . -",
        ),
        ("r1:tool_end:0", "step index is not between 1 and 9223372036854775807"),
        ("r1:tool_end:01", "step index has leading zeros"),
        (
            "r1:tool_end:+1",
            "step index has a character at byte 0 that is not a digit",
        ),
        (
            "r1:tool_end:1\n",
            "step index has a character at byte 1 that is not a digit",
        ),
        (
            "r1:tool_end:١",
            "step index has a character at byte 0 that is not a digit",
        ),
        (
            "r1:tool_end:9223372036854775808",
            "step index is not between 1 and 9223372036854775807",
        ),
        (
            "r1:tool_end:99999999999999999999999",
            "step index is not between 1 and 9223372036854775807",
        ),
        (
            &format!("{long}:tool_end:1"),
            "run id has 65 bytes, at most 64 are allowed",
        ),
        (
            &format!("r1:{long}:1"),
            "event type has 65 bytes, at most 64 are allowed",
        ),
    ] {
        assert_eq!(IdempotencyKey::parse(text).unwrap_err().to_string(), says, "{text:?}");
    }
    assert_eq!(
        SinkName::parse("_a").unwrap_err().to_string(),
        "sink name does not begin with a letter or digit"
    );
}

#[test]
fn a_sinks_name_is_kept_as_it_is() {
    let name = SinkName::parse("crm-2").unwrap();
    assert_eq!(name.as_str(), "crm-2");
    assert_eq!(format!("{name} {name:?}"), "crm-2 SinkName(crm-2)");
}

#[test]
fn a_run_of_our_own_is_a_version_4_uuid_in_lower_case() {
    let (one, two) = (RunId::random(), RunId::random());
    assert_ne!(one, two);
    let bytes = one.as_str().as_bytes();
    assert_eq!(bytes.len(), 36);
    for (at, byte) in bytes.iter().enumerate() {
        match at {
            8 | 13 | 18 | 23 => assert_eq!(*byte, b'-'),
            14 => assert_eq!(*byte, b'4'),
            19 => assert!(b"89ab".contains(byte)),
            _ => assert!(byte.is_ascii_digit() || (b'a'..=b'f').contains(byte)),
        }
    }
    assert_eq!(RunId::parse(one.as_str()).unwrap(), one);
}

#[test]
fn clones_in_many_threads_share_one_counter_over_all_event_types() {
    let run = Run::with_id(RunId::parse("r1").unwrap());
    let keys: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let run = run.clone();
                let event_type = if thread % 2 == 0 {
                    EventType::TOOL_END
                } else {
                    EventType::LLM_END
                };
                scope.spawn(move || {
                    (0..1_000)
                        .map(|_| run.next_key(&event_type).unwrap())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let steps: HashSet<_> = keys.iter().map(|key| key.step_index().as_u64()).collect();
    assert_eq!(steps, (1..=8_000).collect());
}

#[test]
fn a_refused_payload_takes_no_step() {
    let run = Run::with_id(RunId::parse("r1").unwrap());
    assert!(run.event(EventType::TOOL_END, &f64::NAN).is_err());
    assert!(run.event_from_json(EventType::TOOL_END, b"{").is_err());
    assert_eq!(
        run.event(EventType::TOOL_END, &1).unwrap().key().as_str(),
        "r1:tool_end:1"
    );
}

#[test]
fn a_range_set_aside_is_nobody_elses() {
    let run = Run::with_id(RunId::parse("r1").unwrap());
    run.next_key(&EventType::TOOL_END).unwrap();
    let range = run.reserve(NonZeroU64::new(3).unwrap()).unwrap();
    assert_eq!((range.first().as_u64(), range.last().as_u64()), (2, 4));
    assert_eq!(run.next_key(&EventType::TOOL_END).unwrap().as_str(), "r1:tool_end:5");

    let range = StepRange::new(range.first(), range.last()).unwrap();
    let other = Run::over(run.id().clone(), range);
    let steps: Vec<_> = (0..3)
        .map(|_| other.next_key(&EventType::LLM_END).unwrap().step_index().as_u64())
        .collect();
    assert_eq!(steps, [2, 3, 4]);
    assert_eq!(
        other.next_key(&EventType::LLM_END).unwrap_err().to_string(),
        "the steps of this run are used up"
    );
}

#[test]
fn counting_past_the_last_step_is_an_error_and_stays_one() {
    let range = StepRange::new(StepIndex::LAST, StepIndex::LAST).unwrap();
    let run = Run::over(RunId::parse("r1").unwrap(), range);
    assert!(run.reserve(NonZeroU64::MAX).is_err());
    assert_eq!(
        run.next_key(&EventType::TOOL_END).unwrap().as_str(),
        "r1:tool_end:9223372036854775807"
    );
    assert!(run.next_key(&EventType::TOOL_END).is_err());
    assert!(run.next_key(&EventType::TOOL_END).is_err());
}

proptest! {
    #[test]
    fn printing_and_parsing_are_each_others_inverse(
        run_id in "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
        event_type in "[A-Za-z][A-Za-z0-9_.-]{0,63}",
        step in 1..=i64::MAX as u64,
    ) {
        let text = format!("{run_id}:{event_type}:{step}");
        let key = IdempotencyKey::new(
            &RunId::parse(&run_id).unwrap(),
            &EventType::parse(&event_type).unwrap(),
            StepIndex::new(step).unwrap(),
        );
        prop_assert_eq!(key.as_str(), &text);
        let parsed = IdempotencyKey::parse(&text).unwrap();
        prop_assert_eq!(&parsed, &key);
        prop_assert_eq!(parsed.run_id(), run_id);
        prop_assert_eq!(parsed.event_type(), event_type);
        prop_assert_eq!(parsed.step_index().as_u64(), step);
    }

    /// Only one text per key: whatever parses prints as itself.
    #[test]
    fn whatever_parses_is_canonical(text in "[ -~]{0,24}|[a-c0-2+_. :-]{1,12}|\\PC{0,12}") {
        if let Ok(key) = IdempotencyKey::parse(&text) {
            let again = IdempotencyKey::new(
                &RunId::parse(key.run_id()).unwrap(),
                &EventType::parse(key.event_type()).unwrap(),
                key.step_index(),
            );
            prop_assert_eq!(again.as_str(), text);
        }
    }
}
