//! No status came: what is known of the request then, and that it went out once at most.

use std::time::Duration;

use idemp_core::{Sink, Transport};
use idemp_sinks::webhook::{WebhookConfig, WebhookSink};
use idemp_testkit::gate::Gate;
use idemp_testkit::peer::{Answer, Peer, Unread};
use idemp_testkit::proxy::{Fault, Proxy};

use crate::{AMPLE, DELIVERED, SHORT, assert_transport, attempt, config, deliver, message, sink};

#[tokio::test]
async fn a_refused_connection_delivers_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let outcome = deliver(&sink(format!("http://{addr}/")), AMPLE).await;
    let failure = assert_transport(outcome, Transport::Connect, false);
    assert_eq!(failure.detail.as_str(), "connection refused");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_delivers_nothing() {
    // RFC 6761 keeps .invalid from ever resolving; how long that takes is the resolver's matter.
    let sink = WebhookSink::new(WebhookConfig {
        connect_timeout: AMPLE,
        ..config("http://receiver.invalid/")
    });
    let outcome = deliver(&sink.unwrap(), 2 * AMPLE).await;
    assert_transport(outcome, Transport::Dns, false);
}

#[tokio::test]
async fn a_connection_that_is_not_up_in_time_delivers_nothing() {
    // It is accepted, and then no handshake comes back.
    let peer = Peer::unread(Unread::Hold).await;
    let sink = WebhookSink::new(WebhookConfig {
        connect_timeout: SHORT,
        ..config(peer.url("/").replace("http:", "https:"))
    });
    let outcome = deliver(&sink.unwrap(), AMPLE).await;
    let failure = assert_transport(outcome, Transport::Connect, false);
    assert_eq!(failure.detail.as_str(), "no connection within connect_timeout");
}

#[tokio::test]
async fn an_attempt_that_is_over_before_it_begins_delivers_nothing() {
    let peer = Peer::always(Answer::status(200)).await;
    assert_transport(
        deliver(&sink(peer.url("/")), Duration::ZERO).await,
        Transport::Connect,
        false,
    );
    assert_eq!(peer.connections(), 0);
}

#[tokio::test]
async fn silence_after_the_request_is_a_timeout_and_maybe_delivered() {
    // In the headers, too, a stall is a stall.
    for answer in [Answer::hold(), Answer::raw("HTTP/1.1 200 O").then_hold()] {
        let peer = Peer::always(answer).await;
        assert_transport(deliver(&sink(peer.url("/")), SHORT).await, Transport::Timeout, true);
        assert_eq!(peer.requests().len(), 1);
        // Nothing goes on behind the attempt.
        peer.closed(1).await;
    }
}

#[tokio::test]
async fn a_late_answer_is_not_taken_for_the_next_one() {
    let gate = Gate::shut();
    let (first, later) = (Answer::status(200).behind(&gate), Answer::status(404));
    let peer = Peer::start(move |request| {
        if request.index == 0 {
            first.clone()
        } else {
            later.clone()
        }
    })
    .await;
    let sink = sink(peer.url("/"));
    assert_transport(deliver(&sink, SHORT).await, Transport::Timeout, true);
    gate.open();
    let failure = crate::failed(deliver(&sink, AMPLE).await);
    assert_eq!(failure.cause, idemp_core::Cause::Status(404));
    assert_eq!((peer.requests().len(), peer.connections()), (2, 2));
}

#[tokio::test]
async fn a_cut_after_the_request_is_maybe_delivered_and_not_repeated() {
    let cuts = [
        Answer::close(),
        Answer::reset(),
        Answer::raw("junk\r\n\r\n"),
        Answer::raw("HTTP/1.1 2000 OK\r\n\r\n"),
        Answer::raw("HTTP/1.1 099 Low\r\n\r\n"),
        Answer::raw("HTTP/1.1 200 OK\r\nContent-Le"),
        Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        Answer::raw("SSH-2.0-OpenSSH_9.9\r\n"),
        Answer::raw(vec![0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x16]),
    ];
    for answer in cuts {
        let peer = Peer::always(answer.clone()).await;
        assert_transport(deliver(&sink(peer.url("/")), AMPLE).await, Transport::Cut, true);
        assert_eq!((peer.requests().len(), peer.connections()), (1, 1), "{answer:?}");
    }
}

#[tokio::test]
async fn a_cut_of_a_connection_that_nobody_reads_is_maybe_delivered() {
    // From here it looks the same as a cut after reading.
    for unread in [Unread::Close, Unread::Reset] {
        let peer = Peer::unread(unread).await;
        assert_transport(deliver(&sink(peer.url("/")), AMPLE).await, Transport::Cut, true);
        assert_eq!(peer.connections(), 1);
    }
}

#[tokio::test]
async fn a_reply_lost_on_a_kept_connection_is_not_fetched_by_a_second_request() {
    let peer = Peer::always(Answer::status(200)).await;
    let proxy = Proxy::start(peer.addr()).await;
    let sink = sink(format!("http://{}/", proxy.addr()));
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    proxy.set(Fault::SwallowReply);
    assert_transport(deliver(&sink, AMPLE).await, Transport::Cut, true);
    assert_eq!(peer.requests().len(), 2);
    proxy.set(Fault::None);
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    assert_eq!((peer.requests().len(), proxy.connections()), (3, 2));
}

#[tokio::test]
async fn a_kept_connection_that_the_server_has_closed_is_replaced() {
    let peer = Peer::always(Answer::status(200).then_close()).await;
    let sink = sink(peer.url("/"));
    for count in 1..=20 {
        assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
        assert_eq!((peer.requests().len(), peer.connections()), (count, count));
        peer.closed(count).await;
    }
}

#[tokio::test]
async fn a_link_that_goes_dead_costs_one_attempt() {
    let peer = Peer::always(Answer::status(200)).await;
    let proxy = Proxy::start(peer.addr()).await;
    let sink = sink(format!("http://{}/", proxy.addr()));
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    proxy.set(Fault::HalfOpen);
    assert_transport(deliver(&sink, SHORT).await, Transport::Timeout, true);
    proxy.set(Fault::None);
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn a_dropped_delivery_lets_go_of_its_connection() {
    let peer = Peer::always(Answer::hold()).await;
    let sink = sink(peer.url("/"));
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
