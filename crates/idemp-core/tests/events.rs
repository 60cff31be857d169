//! Events as they travel: the exact bytes, the payload within them, bodies that come back from a store, and what is shown.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::collections::BTreeMap;
use std::error::Error;

use bytes::Bytes;
use idemp_core::{
    EnvelopeError, EventError, EventType, IdempotencyKey, Message, Run, RunId, Secret, Signer, StepIndex, StepRange,
    StepsExhausted,
};
use serde_json::{Value, json};

/// The body in docs/signing.md.
const BODY: &str = r#"{"data": {"output": "ok"}, "event": "tool_end"}"#;

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::parse(text).unwrap()
}

fn run() -> Run {
    Run::with_id(RunId::parse("r1").unwrap())
}

fn text(body: &[u8]) -> &str {
    std::str::from_utf8(body).unwrap()
}

/// The payload, its event type, and the body that Python's `json.dumps({"event": …, "data": …}, sort_keys=True)` makes.
fn bodies() -> [(Value, &'static str, &'static str); 6] {
    [
        (json!({"output": "ok"}), "tool_end", BODY),
        (
            json!({"tokens": 12, "output": "4 °C 😀"}),
            "llm_end",
            r#"{"data": {"output": "4 \u00b0C \ud83d\ude00", "tokens": 12}, "event": "llm_end"}"#,
        ),
        (
            json!([null, true, 1.0, {}, []]),
            "chain_end",
            r#"{"data": [null, true, 1.0, {}, []], "event": "chain_end"}"#,
        ),
        (
            json!("boom"),
            "tool_error",
            r#"{"data": "boom", "event": "tool_error"}"#,
        ),
        (json!(null), "x", r#"{"data": null, "event": "x"}"#),
        (
            json!(r#"", "event": "x"}"#),
            "my.own_type-2",
            r#"{"data": "\", \"event\": \"x\"}", "event": "my.own_type-2"}"#,
        ),
    ]
}

#[test]
fn a_runs_events_have_the_next_keys_and_the_canonical_bodies() {
    let run = run();
    for (step, (payload, event_type, body)) in (1..).zip(bodies()) {
        let event_type = EventType::parse(event_type).unwrap();
        let event = run.event(event_type.clone(), &payload).unwrap();
        assert_eq!(text(event.body()), body);
        assert_eq!(event.key().as_str(), format!("r1:{event_type}:{step}"));
    }
    let event = run
        .event_from_json(EventType::TOOL_END, b" {\"output\":\"ok\"}\n")
        .unwrap();
    assert_eq!((event.key().as_str(), text(event.body())), ("r1:tool_end:7", BODY));
}

#[test]
fn a_message_under_a_known_key_has_the_same_bytes() {
    for (payload, event_type, body) in bodies() {
        let key = key(&format!("r1:{event_type}:7"));
        let json = payload.to_string();
        for message in [
            Message::new(key.clone(), &payload).unwrap(),
            Message::from_json(key.clone(), json.as_bytes()).unwrap(),
            Message::from_stored(key.clone(), Bytes::from(body)).unwrap(),
        ] {
            assert_eq!((message.key(), text(message.body())), (&key, body));
        }
    }
    assert!(Message::new(key("r1:tool_end:1"), &f64::NAN).is_err());
    assert!(Message::from_json(key("r1:tool_end:1"), b"{").is_err());
}

#[test]
fn the_data_of_a_message_is_its_payload_alone() {
    for (payload, event_type, body) in bodies() {
        let message = Message::from_stored(key(&format!("r1:{event_type}:1")), Bytes::from(body)).unwrap();
        let data = message.data();
        assert_eq!(serde_json::from_slice::<Value>(&data).unwrap(), payload);
        assert_eq!(
            format!(r#"{{"data": {}, "event": "{event_type}"}}"#, text(&data)),
            body,
            "body and data fit together"
        );
    }
    let event = run().event(EventType::TOOL_END, &json!({"output": "ok"})).unwrap();
    assert_eq!(text(&event.data()), r#"{"output": "ok"}"#);
}

#[test]
fn a_stored_body_is_taken_as_it_is() {
    // Our canonical form has a blank behind the colon, but what was signed once is sent again as it was signed.
    for body in [
        BODY,
        r#"{"data": {"output":"ok"}, "event": "tool_end"}"#,
        r#"{"data": not JSON, "event": "tool_end"}"#,
    ] {
        let message = Message::from_stored(key("r1:tool_end:1"), Bytes::from(body)).unwrap();
        assert_eq!(text(message.body()), body);
    }
}

#[test]
fn a_stored_body_that_is_no_frame_of_its_keys_event_type_is_refused() {
    for body in [
        "",
        "{}",
        r#"{"data": , "event": "tool_end"}"#,
        r#"{"data": "é", "event": "tool_end"}"#,
        r#"{"data": 1, "event": "llm_end"}"#,
        r#"{"data": 1, "event": "my_tool_end"}"#,
        r#"{"data": 1, "event": ""}"#,
        r#"{"data": 1}"#,
        r#"{"data":1,"event":"tool_end"}"#,
        r#"{"event": "tool_end", "data": 1}"#,
        r#" {"data": 1, "event": "tool_end"}"#,
        "{\"data\": 1, \"event\": \"tool_end\"}\n",
        r#"{"data": 1, "event": "tool_end"#,
        r#"{"data": "event": "tool_end"}"#,
    ] {
        assert_eq!(
            Message::from_stored(key("r1:tool_end:1"), Bytes::from(body)),
            Err(EnvelopeError),
            "{body:?}"
        );
    }
    assert_eq!(
        Message::from_stored(
            key("r1:tool_end:1"),
            Bytes::from_static(b"{\"data\": \xff, \"event\": \"tool_end\"}")
        ),
        Err(EnvelopeError)
    );
    assert_eq!(
        EnvelopeError.to_string(),
        "the bytes are not an event body of the key's event type"
    );
}

/// The header that docs/signing.md gives for its own example.
#[test]
fn the_bytes_of_an_event_are_the_bytes_that_are_signed() {
    let event = run()
        .event(EventType::TOOL_END, &BTreeMap::from([("output", "ok")]))
        .unwrap();
    let signer = Signer::new(&Secret::new("whsec_test_secret").unwrap());
    assert_eq!(
        signer.header(event.body()).as_str(),
        "sha256=a3faeb2e9cf722b2e73bdf4abb1fe32cc86428a33dac3b8f2eae083755b2834f"
    );
}

#[test]
fn messages_are_equal_by_key_and_bytes() {
    let message = |text: &str, payload: i32| Message::new(key(text), &payload).unwrap();
    assert_eq!(message("r1:tool_end:1", 1), message("r1:tool_end:1", 1));
    assert_ne!(message("r1:tool_end:1", 1), message("r1:tool_end:1", 2));
    assert_ne!(message("r1:tool_end:1", 1), message("r1:tool_end:2", 1));
}

#[test]
fn a_message_is_shown_without_its_payload() {
    let message = Message::from_stored(key("r1:tool_end:1"), Bytes::from(BODY)).unwrap();
    assert_eq!(
        format!("{message:?}"),
        "Message { key: IdempotencyKey(r1:tool_end:1), body_len: 47 }"
    );
}

#[test]
fn an_event_that_cannot_be_made_says_why_and_leaves_the_payload_out() {
    let error = run()
        .event_from_json(EventType::TOOL_END, br#"{"pin": 4711, oops}"#)
        .unwrap_err();
    assert!(matches!(error, EventError::Payload(_)));
    assert_eq!(error.to_string(), "the payload has no canonical form");
    let source = error.source().unwrap().to_string();
    for shown in [source, format!("{error:?}")] {
        assert!(!shown.is_empty() && !shown.contains("4711"), "{shown}");
    }

    let range = StepRange::new(StepIndex::LAST, StepIndex::LAST).unwrap();
    let run = Run::over(RunId::parse("r1").unwrap(), range);
    assert!(run.event(EventType::TOOL_END, &1).is_ok());
    let error = run.event(EventType::TOOL_END, &1).unwrap_err();
    assert_eq!(error, EventError::Steps(StepsExhausted));
    assert_eq!(error.to_string(), "the event cannot be numbered");
    assert_eq!(error.source().unwrap().to_string(), "the steps of this run are used up");
}
