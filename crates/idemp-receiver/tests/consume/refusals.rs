//! What is refused without a look at the store, and what the constructor refuses.

use std::sync::atomic::Ordering::SeqCst;

use idemp_receiver::consume::{Arrived, ConsumeConfig, ConsumerErrorKind, Flow, Settled, Signatures};
use idemp_receiver::{MemoryStore, Receiver, ReceiverConfig};
use tokio_util::sync::CancellationToken;

use crate::support::*;

async fn settle(flow: &Flow, message: &Arrived) -> Settled {
    flow.settle(message, &CancellationToken::new()).await
}

#[tokio::test(start_paused = true)]
async fn malformed_messages_go_to_quarantine_with_their_bytes_and_the_flow_goes_on() {
    let good = sign(BODY.as_bytes());
    let no_event = r#"{"data": 1}"#;
    let no_event_signature = sign(no_event.as_bytes());
    let large = format!("{BODY}{}", " ".repeat(1 << 20));
    type Fields<'f> = &'f [(&'f str, &'f str)];
    let cases: &[(&str, Fields<'_>, &str)] = &[
        ("bad_signature", &[("key", KEY)], BODY),
        ("bad_signature", &[("key", KEY), ("signature", "sha256=00")], BODY),
        ("bad_signature", &[("key", KEY), ("signature", &good)], no_event),
        (
            "bad_signature",
            &[("key", KEY), ("signature", &good), ("signature", &good)],
            BODY,
        ),
        ("key_missing", &[("signature", &good)], BODY),
        (
            "key_repeated",
            &[("key", KEY), ("key", KEY), ("signature", &good)],
            BODY,
        ),
        ("key_malformed", &[("key", "a b"), ("signature", &good)], BODY),
        (
            "event_mismatch",
            &[("key", "req-42:chain_end:1"), ("signature", &good)],
            BODY,
        ),
        (
            "not_an_event",
            &[("key", KEY), ("signature", &no_event_signature)],
            no_event,
        ),
        ("too_large", &[("key", KEY), ("signature", &good)], &large),
    ];
    for (reason, fields, body) in cases {
        let (log, store) = (Log::new(), Store::new());
        let flow = log.flow(&store, ConsumeConfig::default(), |_| Ok(()));
        let bad = message("7-0", fields, body);
        assert_eq!(settle(&flow, &bad).await, Settled::Acknowledge, "{reason}");
        assert_eq!(store.asked.load(SeqCst), 0, "{reason}");
        assert_eq!(log.reasons(), [*reason]);
        let quarantined = log.quarantined.lock().unwrap()[0].clone();
        assert_eq!(quarantined.position.to_string(), "7-0");
        assert_eq!(quarantined.body.as_deref(), Some(body.as_bytes()));
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .collect();
        let kept: Vec<_> = quarantined
            .fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        assert_eq!(kept, fields);

        assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
        assert_eq!(log.keys(), [KEY]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_without_a_body_is_no_event() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, ConsumeConfig::default(), |_| Ok(()));
    let mut bad = signed(KEY, BODY);
    bad.body = None;
    assert_eq!(settle(&flow, &bad).await, Settled::Acknowledge);
    assert_eq!(log.reasons(), ["not_an_event"]);
}

#[tokio::test(start_paused = true)]
async fn another_body_under_a_key_that_is_done_is_a_conflict() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, ConsumeConfig::default(), |_| Ok(()));
    assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
    let other = signed(KEY, r#"{"data": 5, "event": "tool_end"}"#);
    assert_eq!(settle(&flow, &other).await, Settled::Acknowledge);
    assert_eq!((log.times(), log.reasons()), (vec![0], vec!["conflict"]));
}

#[tokio::test(start_paused = true)]
async fn where_signatures_are_optional_none_will_do_but_a_wrong_one_will_not() {
    let config = || ConsumeConfig {
        signatures: Signatures::Optional,
        ..ConsumeConfig::default()
    };
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, config(), |_| Ok(()));
    let wrong = message("1", &[("key", KEY), ("signature", "sha256=00")], BODY);
    assert_eq!(settle(&flow, &wrong).await, Settled::Acknowledge);
    assert_eq!(log.reasons(), ["bad_signature"]);
    assert_eq!(
        settle(&flow, &message("2", &[("key", KEY)], BODY)).await,
        Settled::Acknowledge
    );
    // A signed copy of it is the same event.
    assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
    assert_eq!((log.keys(), log.reasons().len()), (vec![KEY.to_owned()], 1));
    // Nothing but the signature is optional.
    assert_eq!(settle(&flow, &message("3", &[], BODY)).await, Settled::Acknowledge);
    assert_eq!(log.reasons(), ["bad_signature", "key_missing"]);
}

#[tokio::test]
async fn what_no_consumer_can_keep_is_refused() {
    let standard = ReceiverConfig {
        require_standard_webhooks: true,
        ..ReceiverConfig::default()
    };
    let key = idemp_core::Secret::new("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
    let standard = Receiver::new(MemoryStore::new(), &key.into(), standard).unwrap();
    let plain = receiver(MemoryStore::new());
    let refused = |receiver: &Receiver, config| {
        let flow = Flow::new(receiver, "test", config, |_| async { Ok(()) }, |_| async { Ok(()) });
        let error = flow.err().unwrap();
        assert_eq!(error.kind(), ConsumerErrorKind::Configuration);
        error.to_string()
    };
    assert_eq!(
        refused(&standard, ConsumeConfig::default()),
        "the receiver requires standard webhooks, whose headers come over HTTP only"
    );
    let zero = std::time::Duration::ZERO;
    let config = ConsumeConfig {
        handler_cap: zero,
        ..ConsumeConfig::default()
    };
    assert_eq!(refused(&plain, config), "the handler's cap is zero and must be more");
    let config = ConsumeConfig {
        recheck: zero,
        ..ConsumeConfig::default()
    };
    assert_eq!(refused(&plain, config), "recheck is zero and must be more");
    let config = ConsumeConfig {
        retries: vec![zero; 101],
        ..ConsumeConfig::default()
    };
    assert_eq!(refused(&plain, config), "there are more than 100 retries");
}
