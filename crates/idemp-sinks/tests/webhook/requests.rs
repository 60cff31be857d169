//! What goes over the wire.

use std::fmt::Write as _;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use idemp_core::{EventType, Run, Secret, Sink};
use idemp_sinks::webhook::{WebhookConfig, WebhookSink};
use idemp_testkit::gate::Gate;
use idemp_testkit::peer::{Answer, Peer};
use idemp_testkit::vectors;
use serde::Deserialize;

use crate::{AMPLE, DELIVERED, attempt, config, deliver, message, sink};

#[derive(Deserialize)]
struct Vector {
    name: String,
    canonical_hex: String,
    hmac_sha256_hex: String,
}

#[tokio::test]
async fn the_request_is_as_the_spec_has_it() {
    let vectors: Vec<Vector> = vectors::load("canonical-json.jsonl");
    let vector = vectors
        .iter()
        .find(|vector| vector.name == "order/callback envelope")
        .unwrap();

    let peer = Peer::always(Answer::status(200)).await;
    assert_eq!(
        deliver(&sink(peer.url("/webhooks/langchain?tenant=a%20b")), AMPLE).await,
        DELIVERED
    );
    let requests = peer.requests();
    assert_eq!(requests.len(), 1);
    let request = &requests[0];
    assert_eq!(request.method, "POST");
    assert_eq!(request.target, "/webhooks/langchain?tenant=a%20b");
    assert_eq!(request.body, vectors::unhex(&vector.canonical_hex));
    assert_eq!(request.header("Idempotency-Key"), "req-42:tool_end:1");
    assert_eq!(request.header("X-Event-Type"), "tool_end");
    assert_eq!(
        request.header("X-Signature-256"),
        format!("sha256={}", vector.hmac_sha256_hex)
    );
    assert_eq!(request.header("Content-Type"), "application/json");
    assert_eq!(request.header("Content-Length"), "60");
    assert_eq!(request.header("Host"), peer.addr().to_string());
    assert_eq!(
        request.header("User-Agent"),
        format!("idemp/{}", env!("CARGO_PKG_VERSION"))
    );
    // Each of them once, and nothing else.
    let mut names: Vec<String> = request
        .headers
        .iter()
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "accept",
            "content-length",
            "content-type",
            "host",
            "idempotency-key",
            "user-agent",
            "x-event-type",
            "x-signature-256",
        ]
    );
}

#[tokio::test]
async fn standard_webhooks_headers_carry_the_time_of_the_attempt() {
    let peer = Peer::always(Answer::status(200)).await;
    let sink = WebhookSink::new(WebhookConfig {
        secret: Secret::new("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap(),
        standard_webhooks: true,
        ..config(peer.url("/"))
    })
    .unwrap();
    // The base64 of Python's hmac over `req-42:tool_end:1.{timestamp}.{body}`.
    let signed = [
        (1_796_040_000, "v1,5hDdE8Epx9AuCHw73u8zULsmdyI4nxi1AVxa5tGHSU8="),
        (1_796_040_031, "v1,WmnW8vaDadoiykCb4N5eqSQGgbGwpTlIw3lLeHCisus="),
    ];
    for (number, (timestamp, signature)) in (1..).zip(signed) {
        let mut attempt = attempt(AMPLE);
        attempt.now = std::time::UNIX_EPOCH + std::time::Duration::from_secs(timestamp);
        attempt.number = number;
        assert_eq!(sink.deliver(&message(), attempt).await, DELIVERED);
        let request = peer.requests().pop().unwrap();
        assert_eq!(request.header("webhook-id"), "req-42:tool_end:1");
        assert_eq!(request.header("webhook-timestamp"), timestamp.to_string());
        assert_eq!(request.header("webhook-signature"), signature);
        assert!(request.header("x-signature-256").starts_with("sha256="));
    }
}

#[tokio::test]
async fn a_key_with_a_dot_is_refused_with_standard_webhooks_alone() {
    let peer = Peer::always(Answer::status(200)).await;
    let with = |standard_webhooks| {
        let secret = Secret::new("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
        WebhookSink::new(WebhookConfig {
            secret,
            standard_webhooks,
            ..config(peer.url("/"))
        })
        .unwrap()
    };
    let run = Run::with_id("r.1".parse().unwrap());
    let dotted = run.event(EventType::TOOL_END, &1).unwrap();
    assert!(with(true).check(&dotted).unwrap_err().to_string().contains('.'));
    assert_eq!(with(true).check(&message()), Ok(()));
    assert_eq!(with(false).check(&dotted), Ok(()));

    // Whoever does not ask finds out in the attempt, and nothing is sent.
    let outcome = with(true).deliver(&dotted, attempt(AMPLE)).await;
    crate::assert_transport(outcome, idemp_core::Transport::Connect, false);
    assert_eq!(peer.connections(), 0);
    assert_eq!(with(false).deliver(&dotted, attempt(AMPLE)).await, DELIVERED);
}

#[tokio::test]
async fn further_headers_are_sent() {
    let peer = Peer::always(Answer::status(200)).await;
    let sink = WebhookSink::new(WebhookConfig {
        headers: vec![
            ("Authorization".into(), "Bearer abc".into()),
            ("x-tenant".into(), "a b".into()),
        ],
        user_agent: "acme-hooks/2".into(),
        ..config(peer.url("/"))
    })
    .unwrap();
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    let requests = peer.requests();
    assert_eq!(requests[0].header("authorization"), "Bearer abc");
    assert_eq!(requests[0].header("x-tenant"), "a b");
    assert_eq!(requests[0].header("user-agent"), "acme-hooks/2");
}

#[tokio::test]
async fn a_large_body_arrives_whole() {
    let peer = Peer::always(Answer::status(200)).await;
    let run = Run::with_id("req-42".parse().unwrap());
    let message = run.event(EventType::LLM_END, &"z".repeat(300_000)).unwrap();
    let sink = sink(peer.url("/"));
    assert_eq!(sink.deliver(&message, attempt(AMPLE)).await, DELIVERED);
    let expected = format!(r#"{{"data": "{}", "event": "llm_end"}}"#, "z".repeat(300_000));
    assert!(peer.requests()[0].body == expected.as_bytes());
}

#[tokio::test]
async fn deliveries_in_turn_share_a_connection() {
    for body in ["", r#"{"status":"ok"}"#] {
        let peer = Peer::always(Answer::status(200).body(body)).await;
        let sink = sink(peer.url("/"));
        for _ in 0..10 {
            assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
        }
        assert_eq!((peer.requests().len(), peer.connections()), (10, 1), "{body:?}");
    }
}

#[tokio::test]
async fn deliveries_at_once_do_not_mix_their_headers() {
    let gate = Gate::shut();
    let peer = Peer::always(Answer::status(200).behind(&gate)).await;
    let sink = Arc::new(sink(peer.url("/")));
    let run = Run::with_id("req-42".parse().unwrap());
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let sink = Arc::clone(&sink);
            let message = run.event(EventType::TOOL_END, &n).unwrap();
            tokio::spawn(async move { sink.deliver(&message, attempt(AMPLE)).await })
        })
        .collect();
    let requests = peer.received(64).await;
    gate.open();
    for task in tasks {
        assert_eq!(task.await.unwrap(), DELIVERED);
    }
    assert_eq!((peer.requests().len(), peer.connections()), (64, 64));
    for request in requests {
        // The payload is the key's step, less one.
        let body = String::from_utf8(request.body.clone()).unwrap();
        let n = body.strip_prefix(r#"{"data": "#).unwrap().split(',').next().unwrap();
        let step = n.parse::<u64>().unwrap() + 1;
        assert_eq!(request.header("idempotency-key"), format!("req-42:tool_end:{step}"));
        let mac = Hmac::<sha2::Sha256>::new_from_slice(b"whsec_test_secret")
            .unwrap()
            .chain_update(&body);
        let hex = mac.finalize().into_bytes().iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        assert_eq!(request.header("x-signature-256"), format!("sha256={hex}"));
    }
}
