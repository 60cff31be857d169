//! The whole sender, dispatcher and webhook sink, against real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use idemp_core::{
    BreakerState, Cause, EventType, Message, Reason, RetrySchedule, Run, RunId, Secret, SinkName, Transport,
};
use idemp_dispatch::{Dispatcher, LaneConfig, Settlement};
use idemp_dlq::{DeadLetterStore, Filter, MemoryStore};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_testkit::gate::Gate;
use idemp_testkit::peer::{Answer, Peer, Request};
use idemp_testkit::until;
use sha2::Sha256;

const SECRET: &str = "of the test";

fn messages(count: usize) -> Vec<Message> {
    let run = Run::with_id(RunId::parse("r1").unwrap());
    (0..count)
        .map(|number| run.event(EventType::TOOL_END, &number).unwrap())
        .collect()
}

/// A lane to the peer, with waits of 10, 50 and 300 ms.
fn lane(name: &str, peer: &Peer) -> LaneConfig {
    let config = WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(peer.url("/hook"), Secret::new(SECRET).unwrap())
    };
    let sink = Arc::new(WebhookSink::new(config).unwrap());
    let mut lane = LaneConfig::new(SinkName::parse(name).unwrap(), sink, Arc::new(MemoryStore::new()));
    lane.schedule = RetrySchedule::default().scaled(0.01).unwrap();
    lane.attempt_timeout = Duration::from_secs(60);
    lane
}

/// Checks a request by the rules of the base document, without any code of ours.
fn assert_signed(request: &Request) {
    assert_eq!(request.method, "POST");
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(&request.body);
    let digest: String = mac
        .finalize()
        .into_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(request.header("x-signature-256"), format!("sha256={digest}"));
    assert_eq!(request.header("x-event-type"), "tool_end");
    assert_eq!(request.header("content-type"), "application/json");
}

#[tokio::test]
async fn an_event_that_always_fails_makes_four_requests_each_signed_and_no_more() {
    for answer in [Answer::status(503), Answer::close(), Answer::reset()] {
        let peer = Peer::start(move |_| answer.clone()).await;
        let dispatcher = Dispatcher::new(vec![lane("webhook", &peer)]).unwrap();
        let report = dispatcher.dispatch(messages(1).remove(0)).await.unwrap();
        assert!(matches!(
            report.settlements()[0].1,
            Settlement::DeadLettered {
                reason: Reason::RetriesExhausted,
                attempts: 4,
                ..
            }
        ));
        let requests = peer.requests();
        assert_eq!(requests.len(), 4);
        for request in &requests {
            assert_signed(request);
            assert_eq!(request.header("idempotency-key"), "r1:tool_end:1");
            assert_eq!(request.body, br#"{"data": 0, "event": "tool_end"}"#);
        }
    }
}

#[tokio::test]
async fn half_open_with_a_hundred_waiting_sends_makes_one_post() {
    let gate = Gate::shut();
    let held = Answer::status(200).behind(&gate);
    let peer = Peer::start(move |request| {
        if request.index < 40 {
            Answer::status(503)
        } else {
            held.clone()
        }
    })
    .await;
    let mut lane = lane("webhook", &peer);
    lane.breaker.open_for = Duration::from_millis(200);
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    let mut messages = messages(110);
    let waiting = messages.split_off(10);
    let handles: Vec<_> = messages
        .into_iter()
        .map(|message| dispatcher.try_submit(message).unwrap())
        .collect();
    for handle in handles {
        handle.settled().await;
    }
    assert_eq!(dispatcher.stats().lanes[0].breaker, BreakerState::Open);
    assert_eq!(peer.requests().len(), 40);

    tokio::time::sleep(Duration::from_millis(250)).await;
    let handles: Vec<_> = waiting
        .into_iter()
        .map(|message| dispatcher.try_submit(message).unwrap())
        .collect();
    peer.received(41).await;
    until("all but the probe are settled", || {
        dispatcher.stats().lanes[0].unsettled() == 1
    })
    .await;
    gate.open();
    let mut delivered = 0;
    for handle in handles {
        delivered += usize::from(handle.settled().await.all_delivered());
    }
    assert_eq!((delivered, peer.requests().len()), (1, 41));
    assert_eq!(dispatcher.stats().lanes[0].breaker, BreakerState::Closed);
}

#[tokio::test]
async fn a_peer_that_holds_its_replies_delays_no_other_sink() {
    let gate = Gate::shut();
    let held = Answer::status(200).behind(&gate);
    let slow = Peer::start(move |_| held.clone()).await;
    let quick = Peer::start(|_| Answer::status(200)).await;
    let refusing = Peer::start(|_| Answer::status(400)).await;
    let lanes = vec![lane("slow", &slow), lane("quick", &quick), lane("refusing", &refusing)];
    let dispatcher = Dispatcher::new(lanes).unwrap();
    let handles: Vec<_> = messages(50)
        .into_iter()
        .map(|message| dispatcher.try_submit(message).unwrap())
        .collect();
    until("the others have finished", || {
        let stats = dispatcher.stats().lanes;
        stats[1].delivered == 50 && stats[2].dead_lettered == 50
    })
    .await;
    assert_eq!(dispatcher.stats().lanes[0].delivered, 0, "the slow one is still held");
    gate.open();
    for handle in handles {
        assert!(handle.settled().await.settlements()[0].1.is_delivered());
    }
}

#[tokio::test]
async fn each_sink_signs_with_its_own_secret() {
    let (one, two) = (
        Peer::start(|_| Answer::status(200)).await,
        Peer::start(|_| Answer::status(200)).await,
    );
    let other = WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(two.url("/hook"), Secret::new("another").unwrap())
    };
    let mut lanes = vec![lane("one", &one), lane("two", &two)];
    lanes[1].sink = Arc::new(WebhookSink::new(other).unwrap());
    let dispatcher = Dispatcher::new(lanes).unwrap();
    assert!(
        dispatcher
            .dispatch(messages(1).remove(0))
            .await
            .unwrap()
            .all_delivered()
    );
    assert_signed(&one.requests()[0]);
    let (one, two) = (&one.requests()[0], &two.requests()[0]);
    assert_eq!(one.body, two.body);
    assert_eq!(one.header("idempotency-key"), two.header("idempotency-key"));
    assert_ne!(one.header("x-signature-256"), two.header("x-signature-256"));
}

#[tokio::test]
async fn a_refused_connection_is_tried_again_and_surely_not_delivered() {
    // An address where nobody listens any more.
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("http://{address}/hook");
    let config = WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(url, Secret::new(SECRET).unwrap())
    };
    let store = Arc::new(MemoryStore::new());
    let sink = Arc::new(WebhookSink::new(config).unwrap());
    let mut lane = LaneConfig::new(SinkName::parse("webhook").unwrap(), sink, Arc::clone(&store) as _);
    lane.schedule = RetrySchedule::default().scaled(0.01).unwrap();
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    let report = dispatcher.dispatch(messages(1).remove(0)).await.unwrap();
    assert!(matches!(
        report.settlements()[0].1,
        Settlement::DeadLettered {
            reason: Reason::RetriesExhausted,
            attempts: 4,
            ..
        }
    ));
    let mut selection = store.select(&Filter::default()).await.unwrap();
    let page = selection.next_page().await.unwrap().unwrap();
    let letter = page[0].letterhead.as_ref().unwrap();
    assert!(!letter.maybe_delivered);
    assert!(
        letter
            .attempts
            .iter()
            .all(|attempt| attempt.cause == Some(Cause::Transport(Transport::Connect)))
    );
}
