//! No answer came: what is known of the request then, and that it went out once at most.

use std::time::Duration;

use idemp_core::{Cause, ErrorClass, Failure, Outcome, Sink, Transport};
use idemp_sinks::sns::SnsSink;
use idemp_testkit::peer::{Answer, Peer, Unread};
use idemp_testkit::proxy::{Fault, Proxy};

use crate::{AMPLE, DELIVERED, FIFO, SHORT, TOPIC, attempt, client, config, deliver, failed, message, sink, taken};

#[track_caller]
fn assert_transport(outcome: Outcome, transport: Transport, maybe_delivered: bool) {
    let failure = failed(outcome);
    assert_eq!(
        failure.cause,
        Cause::Transport(transport),
        "{}",
        failure.detail.as_str()
    );
    assert_eq!(failure.maybe_delivered, maybe_delivered);
    assert!(!failure.detail.is_empty());
}

#[track_caller]
fn assert_ambiguous(outcome: Outcome) -> Failure {
    let failure = failed(outcome);
    let is_ambiguous = matches!(
        failure.cause,
        Cause::Code {
            class: ErrorClass::Ambiguous,
            ..
        }
    );
    assert!(is_ambiguous, "{:?}", failure.cause);
    assert!(failure.maybe_delivered);
    failure
}

#[tokio::test]
async fn a_refused_connection_delivers_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let outcome = deliver(&sink(&format!("http://{address}/")), AMPLE).await;
    assert_transport(outcome, Transport::Connect, false);
}

#[tokio::test]
async fn an_attempt_that_is_over_before_it_begins_delivers_nothing() {
    let peer = Peer::always(taken()).await;
    assert_transport(
        deliver(&sink(&peer.url("/")), Duration::ZERO).await,
        Transport::Connect,
        false,
    );
    assert_eq!(peer.connections(), 0);
}

#[tokio::test]
async fn silence_is_a_timeout_and_maybe_delivered() {
    // Within the headers and within the body, too, a stall is a stall.
    for answer in [
        Answer::hold(),
        Answer::raw("HTTP/1.1 200 O").then_hold(),
        taken().stalled(10),
    ] {
        let peer = Peer::always(answer).await;
        assert_transport(deliver(&sink(&peer.url("/")), SHORT).await, Transport::Timeout, true);
        assert_eq!(peer.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_cut_after_the_request_is_ambiguous_and_not_repeated() {
    let cuts = [
        Answer::close(),
        Answer::reset(),
        Answer::raw("junk\r\n\r\n"),
        Answer::raw("HTTP/1.1 200 OK\r\nContent-Le"),
        taken().truncated(10),
    ];
    for answer in cuts {
        let peer = Peer::always(answer.clone()).await;
        assert_ambiguous(deliver(&sink(&peer.url("/")), AMPLE).await);
        assert_eq!((peer.requests().len(), peer.connections()), (1, 1), "{answer:?}");
    }
}

#[tokio::test]
async fn a_connection_that_nobody_reads_is_ambiguous() {
    for unread in [Unread::Close, Unread::Reset] {
        let peer = Peer::unread(unread).await;
        assert_ambiguous(deliver(&sink(&peer.url("/")), AMPLE).await);
        assert_eq!(peer.connections(), 1);
    }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_not_told_from_a_broken_connection() {
    // RFC 6761 keeps .invalid from ever resolving.
    let sink = SnsSink::from_client(
        &client("http://sns.invalid/"),
        idemp_sinks::sns::SnsConfig {
            connect_timeout: AMPLE,
            ..config(TOPIC)
        },
    );
    let failure = assert_ambiguous(deliver(&sink.unwrap(), 2 * AMPLE).await);
    assert!(failure.detail.as_str().contains("name"));
}

#[tokio::test]
async fn a_lost_reply_is_not_fetched_by_a_second_request() {
    let peer = Peer::always(taken()).await;
    let proxy = Proxy::start(peer.addr()).await;
    let sink = sink(&format!("http://{}/", proxy.addr()));
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    proxy.set(Fault::SwallowReply);
    assert_ambiguous(deliver(&sink, AMPLE).await);
    assert_eq!(peer.requests().len(), 2);
    proxy.set(Fault::None);
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    assert_eq!(peer.requests().len(), 3);
}

#[tokio::test]
async fn the_same_holds_for_a_fifo_topic() {
    let peer = Peer::always(Answer::close()).await;
    let sink = SnsSink::from_client(&client(&peer.url("/")), config(FIFO)).unwrap();
    assert_ambiguous(sink.deliver(&message(), attempt(AMPLE)).await);
    assert_eq!(peer.requests().len(), 1);
}

#[tokio::test]
async fn a_dropped_delivery_lets_go_of_its_connection() {
    let peer = Peer::always(Answer::hold()).await;
    let sink = sink(&peer.url("/"));
    let message = message();
    let mut delivery = Box::pin(sink.deliver(&message, attempt(AMPLE)));
    tokio::select! {
        outcome = &mut delivery => panic!("{outcome:?}"),
        _ = peer.received(1) => {}
    }
    drop(delivery);
    peer.closed(1).await;
    assert_eq!(peer.requests().len(), 1);
}
