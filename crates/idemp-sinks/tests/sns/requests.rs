//! What goes over the wire, and what never does.

use std::collections::BTreeMap;

use hmac::{Hmac, KeyInit, Mac};
use idemp_core::{EventType, IdempotencyKey, Message, Run, Sink};
use idemp_sinks::sns::{DEFAULT_MODE, SnsConfig, SnsSink};
use idemp_testkit::peer::Peer;
use sha2::{Digest, Sha256};

use crate::{AMPLE, DELIVERED, FIFO, TOPIC, attempt, client, config, failed, message, taken};

/// The fields of a form, as `application/x-www-form-urlencoded` writes them.
fn fields(body: &[u8]) -> BTreeMap<String, String> {
    let decoded = |text: &str| {
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'%' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                b'+' => b' ',
                byte => byte,
            });
        }
        String::from_utf8(bytes).unwrap()
    };
    let text = std::str::from_utf8(body).unwrap();
    text.split('&')
        .map(|field| {
            let (name, value) = field.split_once('=').unwrap();
            (decoded(name), decoded(value))
        })
        .collect()
}

/// Name and value of each attribute; all are strings.
fn attributes(fields: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    (1..)
        .map_while(|n| {
            let part = |part| fields.get(&format!("MessageAttributes.entry.{n}.{part}"));
            let name = part("Name")?;
            assert_eq!(part("Value.DataType").unwrap(), "String");
            Some((name.clone(), part("Value.StringValue").unwrap().clone()))
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn the_message_is_the_body_and_the_attributes_say_the_rest() {
    let peer = Peer::always(taken()).await;
    let sink = SnsSink::from_client(&client(&peer.url("/")), config(TOPIC)).unwrap();
    assert_eq!(sink.deliver(&message(), attempt(AMPLE)).await, DELIVERED);

    let requests = peer.received(1).await;
    let fields = fields(&requests[0].body);
    assert_eq!(fields["Action"], "Publish");
    assert_eq!(fields["TopicArn"], TOPIC);
    let body = r#"{"data": {"name": "t", "output": "ok"}, "event": "tool_end"}"#;
    assert_eq!(fields["Message"], body);
    assert!(!fields.contains_key("MessageGroupId") && !fields.contains_key("MessageDeduplicationId"));

    let mut mac = Hmac::<Sha256>::new_from_slice(b"whsec_test_secret").unwrap();
    mac.update(body.as_bytes());
    let signature = format!("sha256={}", hex(&mac.finalize().into_bytes()));
    let expected = [
        ("event-type", "tool_end"),
        ("idempotency-key", "req-42:tool_end:1"),
        ("x-signature-256", &signature),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(attributes(&fields), BTreeMap::from(expected));
    let authorization = requests[0].header("authorization");
    assert!(authorization.contains("/eu-west-1/sns/aws4_request"), "{authorization}");
}

#[tokio::test]
async fn a_fifo_topic_gets_the_run_as_group_and_the_key_as_id() {
    let peer = Peer::always(taken()).await;
    let sink = SnsSink::from_client(&client(&peer.url("/")), config(FIFO)).unwrap();
    let long = format!("{}:{}:1", "r".repeat(64), "t".repeat(64));
    let long_message = Message::new(IdempotencyKey::parse(&long).unwrap(), &1).unwrap();
    assert_eq!(sink.deliver(&message(), attempt(AMPLE)).await, DELIVERED);
    assert_eq!(sink.deliver(&long_message, attempt(AMPLE)).await, DELIVERED);

    let requests = peer.received(2).await;
    let first = fields(&requests[0].body);
    assert_eq!(first["MessageGroupId"], "req-42");
    assert_eq!(first["MessageDeduplicationId"], "req-42:tool_end:1");
    let second = fields(&requests[1].body);
    assert_eq!(second["MessageGroupId"], "r".repeat(64));
    assert_eq!(second["MessageDeduplicationId"], hex(&Sha256::digest(&long)));
    assert_eq!(attributes(&second)["idempotency-key"], long);
}

#[tokio::test]
async fn what_is_too_long_never_goes_out() {
    let peer = Peer::always(taken()).await;
    // Names, the type three times, and the values of the attributes of `r:t:1`; then the frame of the body.
    let of_attributes = "idempotency-key".len()
        + "event-type".len()
        + "x-signature-256".len()
        + 3 * "String".len()
        + "r:t:1".len()
        + "t".len()
        + "sha256=".len()
        + 64;
    let frame = r#"{"data": "", "event": "t"}"#.len();
    let limit = 2_000;
    let sink = SnsSink::from_client(
        &client(&peer.url("/")),
        SnsConfig {
            max_message_bytes: limit,
            ..config(TOPIC)
        },
    )
    .unwrap();
    let of_length = |length: usize| {
        let run = Run::with_id("r".parse().unwrap());
        let event_type: EventType = "t".parse().unwrap();
        let message = run
            .event(event_type, &"x".repeat(length - frame - of_attributes))
            .unwrap();
        assert_eq!(message.body().len() + of_attributes, length);
        message
    };
    let (fits, too_long) = (of_length(limit), of_length(limit + 1));
    assert_eq!(sink.check(&too_long), Ok(()), "other sinks may take it");

    let failure = failed(sink.deliver(&too_long, attempt(AMPLE)).await);
    assert!(!failure.maybe_delivered);
    assert!(
        failure.detail.as_str().contains("longer than the topic takes"),
        "{failure:?}"
    );
    assert_eq!(
        idemp_core::StatusPolicy::default().classify(&failure.into()),
        idemp_core::Verdict::RejectsEvent
    );
    assert_eq!(peer.requests().len(), 0);
    assert_eq!(sink.deliver(&fits, attempt(AMPLE)).await, DELIVERED);
    assert_eq!(peer.requests().len(), 1);
}

#[test]
fn a_lane_promises_at_most_once_unless_told_otherwise() {
    assert_eq!(DEFAULT_MODE, idemp_core::Mode::AtMostOnce);
}
