//! What is an event, and what becomes of its bytes.

use bytes::Bytes;
use idemp_receiver::Event;

use crate::support::{KEY, behind, by_default, counting, request, send};

/// Signed, and no event: what is signed is the raw bytes, so each of these is looked at as it is.
#[tokio::test]
async fn bodies_that_are_no_events() {
    let (app, _) = counting(by_default());
    for body in [
        &b""[..],
        b"null",
        b"[]",
        b"{}",
        br#"{"event": "tool_end"}"#,
        br#"{"data": {}}"#,
        br#"{"event": 7, "data": {}}"#,
        br#"{"event": "tool_end", "data": }"#,
        b"{\"event\": \"tool_end\", \"data\": \"\xff\"}",
        b"\x1f\x8b\x08\x00",
    ] {
        let answer = send(&app, request(KEY, Bytes::copy_from_slice(body))).await;
        answer.is(400, r#"{"detail":"body is not a JSON object with event and data"}"#);
    }
}

/// None of these survives being parsed and printed again. Were they not the same, the handler would fail: 500.
#[tokio::test]
async fn raw_bytes_are_verified_and_handed_over() {
    for data in [
        "1.0",
        r#""\u00e9""#,
        r#"{"a": 1, "a": 2}"#,
        "\"\u{1f600}\"",
        "1e2",
        r#""\/""#,
        "[ 1 ]",
    ] {
        let handler = async move |event: Event| {
            assert_eq!(event.data_bytes(), data.as_bytes());
        };
        let app = behind(by_default(), handler);
        let body = format!("{{\"event\":\"tool_end\",\"data\":{data}}}\n");
        send(&app, request(KEY, body)).await.is(200, r#"{"status":"ok"}"#);
    }
}

#[tokio::test]
async fn the_payload_is_not_printed() {
    let handler = async |event: Event| {
        let error = event.data::<u64>().unwrap_err();
        for printed in [format!("{event:?}"), format!("{error:?}"), error.to_string()] {
            assert!(!printed.contains("payload"), "{printed}");
        }
    };
    let app = behind(by_default(), handler);
    let body = r#"{"data": "payload", "event": "tool_end"}"#;
    send(&app, request("k1", body)).await.is(200, r#"{"status":"ok"}"#);
}
