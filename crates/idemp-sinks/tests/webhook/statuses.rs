//! What a status line means, and what stands beside it.

use std::time::Duration;

use idemp_core::{Cause, Outcome, RetryAfter};
use idemp_sinks::webhook::{WebhookConfig, WebhookSink};
use idemp_testkit::peer::{Answer, Peer};
use tokio::time::timeout;

use crate::{AMPLE, DELIVERED, config, deliver, failed, sink};

#[tokio::test]
async fn every_status_comes_through_as_it_is() {
    let peer = Peer::start(|request| Answer::status(200 + request.index as u16)).await;
    let sink = sink(peer.url("/"));
    for status in 200..=999 {
        let outcome = deliver(&sink, AMPLE).await;
        if status < 300 {
            assert_eq!(outcome, Outcome::Delivered { status: Some(status) });
        } else {
            let failure = failed(outcome);
            assert_eq!(failure.cause, Cause::Status(status));
            // docs/spec.md: 408 and 5xx, and no other status.
            let maybe = status == 408 || (500..600).contains(&status);
            assert_eq!(failure.maybe_delivered, maybe, "{status}");
        }
    }
    assert_eq!(peer.requests().len(), 800);
}

#[tokio::test]
async fn interim_responses_are_passed_over_except_a_switch_of_protocols() {
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let peer = Peer::always(Answer::raw(early)).await;
    assert_eq!(deliver(&sink(peer.url("/")), AMPLE).await, DELIVERED);

    let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: tea\r\n\r\n";
    let peer = Peer::always(Answer::raw(switching)).await;
    let failure = failed(deliver(&sink(peer.url("/")), AMPLE).await);
    assert_eq!((failure.cause, failure.maybe_delivered), (Cause::Status(101), false));
    assert_eq!(peer.requests().len(), 1);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Peer::always(Answer::status(200)).await;
    for status in [301, 302, 303, 307, 308] {
        let here = Peer::always(Answer::status(status).header("Location", elsewhere.url("/login"))).await;
        let failure = failed(deliver(&sink(here.url("/hook")), AMPLE).await);
        assert_eq!((failure.cause, failure.maybe_delivered), (Cause::Status(status), false));
        assert!(
            failure.detail.as_str().contains(&elsewhere.url("/login")),
            "{}",
            failure.detail.as_str()
        );
        assert_eq!(here.requests().len(), 1);
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn retry_after_counts_once_and_if_valid() {
    let seconds = |n| Some(RetryAfter::Delay(Duration::from_secs(n)));
    // 1994-11-06T08:49:37Z is 784,111,777 (RFC 9110, section 5.6.7, has the three forms).
    let date = Some(RetryAfter::At(
        std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777),
    ));
    let cases: [(&[&str], Option<RetryAfter>); 12] = [
        (&[], None),
        (&["7"], seconds(7)),
        (&["0"], seconds(0)),
        (&["Sun, 06 Nov 1994 08:49:37 GMT"], date),
        (&["Sunday, 06-Nov-94 08:49:37 GMT"], date),
        (&["Sun Nov  6 08:49:37 1994"], date),
        (&["7", "7"], None),
        (&["7", "20"], None),
        (&["7, 20"], None),
        (&["soon"], None),
        (&["-5"], None),
        (&[""], None),
    ];
    for status in [429, 503, 301] {
        for (lines, expected) in cases {
            let answer = lines.iter().fold(Answer::status(status), |answer, line| {
                answer.header("Retry-After", line)
            });
            let peer = Peer::always(answer).await;
            let failure = failed(deliver(&sink(peer.url("/")), AMPLE).await);
            assert_eq!(failure.cause, Cause::Status(status));
            assert_eq!(failure.retry_after, expected, "{lines:?}");
        }
    }
}

#[tokio::test]
async fn the_head_of_an_error_body_is_kept_as_detail() {
    let long = "y".repeat(100_000);
    let cases = [
        ("the database is down\n", "the database is down"),
        ("", ""),
        (long.as_str(), &long[..512]),
    ];
    for (body, detail) in cases {
        let peer = Peer::always(Answer::status(500).body(body)).await;
        let failure = failed(deliver(&sink(peer.url("/")), AMPLE).await);
        assert_eq!(failure.detail.as_str(), detail);
    }
}

#[tokio::test]
async fn a_body_is_not_decompressed() {
    let peer = Peer::always(Answer::status(500).header("Content-Encoding", "gzip").body("plain")).await;
    let failure = failed(deliver(&sink(peer.url("/")), AMPLE).await);
    assert_eq!(failure.detail.as_str(), "plain");
    assert!(peer.requests()[0].values("accept-encoding").is_empty());
}

#[tokio::test]
async fn a_success_stays_one_whatever_becomes_of_its_body() {
    let bodies = [
        Answer::status(200).body("half of it").truncated(4),
        Answer::status(200).body("half of it").stalled(4),
        Answer::status(200).body("nothing of it").stalled(0),
        Answer::status(200).endless(),
        // Longer than what is read.
        Answer::status(200).body(vec![b'x'; 4_000_000]),
        Answer::status(200)
            .header("Content-Encoding", "gzip")
            .body("no gzip")
            .then_close(),
        Answer::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n"),
        Answer::raw("HTTP/1.1 200 OK\r\n\r\nuntil the end"),
    ];
    for (case, answer) in bodies.into_iter().enumerate() {
        let peer = Peer::always(answer.clone()).await;
        let sink = keeping(&peer);
        assert_eq!(deliver_early(&sink).await, DELIVERED, "case {case}");
        assert_eq!(peer.requests().len(), 1);
        // A body that is not read to its end costs the connection, and nothing lingers.
        let closed = timeout(AMPLE, peer.closed(1)).await;
        closed.unwrap_or_else(|_| panic!("case {case} keeps its connection"));
    }
}

#[tokio::test]
async fn a_failure_keeps_its_status_whatever_becomes_of_its_body() {
    let bodies = [
        (Answer::status(500).body("half of it").truncated(4), "half"),
        (Answer::status(500).body("half of it").stalled(4), "half"),
        (Answer::status(500).endless(), &"x".repeat(512)),
    ];
    for (answer, detail) in bodies {
        let peer = Peer::always(answer.clone()).await;
        let sink = keeping(&peer);
        let failure = failed(deliver_early(&sink).await);
        assert_eq!((failure.cause, failure.maybe_delivered), (Cause::Status(500), true));
        assert_eq!(failure.detail.as_str(), detail);
        assert_eq!(peer.requests().len(), 1, "{answer:?}");
        timeout(AMPLE, peer.closed(1)).await.expect("the connection is let go");
    }
}

/// A sink that does not let go of a connection only because nothing uses it.
fn keeping(peer: &Peer) -> WebhookSink {
    WebhookSink::new(WebhookConfig {
        idle_timeout: 10 * AMPLE,
        ..config(peer.url("/"))
    })
    .unwrap()
}

/// An attempt that has far more time than it may use.
async fn deliver_early(sink: &WebhookSink) -> Outcome {
    let early = timeout(AMPLE, deliver(sink, 10 * AMPLE)).await;
    early.expect("a body is not waited for until the deadline")
}
