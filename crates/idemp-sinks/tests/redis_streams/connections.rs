//! When the connection is kept, and when it is made anew. Each call is one attempt.

use std::sync::Arc;

use idemp_core::{Cause, ErrorClass, Failure, Transport};
use idemp_testkit::proxy::{Fault, Proxy};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::*;
use server::Reply;

fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        Outcome::Delivered { .. } => panic!("delivered"),
    }
}

#[tokio::test]
async fn one_attempt_is_one_command_whatever_comes_of_it() {
    for (reply, cause, maybe_delivered) in [
        (
            Reply::Line("-OOM command not allowed when used memory > 'maxmemory'."),
            Failure::code(ErrorClass::Transient, "OOM").cause,
            false,
        ),
        (
            Reply::Line("-READONLY You can't write against a read only replica."),
            Failure::code(ErrorClass::Transient, "READONLY").cause,
            false,
        ),
        (
            Reply::Line("-TRYAGAIN later"),
            Failure::code(ErrorClass::Transient, "TRYAGAIN").cause,
            false,
        ),
        (
            Reply::Line("-NEWCODE who knows"),
            Failure::code(ErrorClass::Ambiguous, "NEWCODE").cause,
            true,
        ),
        (Reply::Line(":7"), Cause::Transport(Transport::Cut), true),
        (Reply::Line("+OK"), Cause::Transport(Transport::Cut), true),
        (Reply::Line("+QUEUED"), Cause::Transport(Transport::Cut), true),
        (Reply::Line("$4\r\n-1-1"), Cause::Transport(Transport::Cut), true),
        (Reply::Line("$2\r\n1-"), Cause::Transport(Transport::Cut), true),
        (Reply::Close, Cause::Transport(Transport::Cut), true),
    ] {
        let server = Server::start(&[reply, Reply::Id]).await;
        let sink = sink(&server);
        let failure = failure(deliver(&sink, AMPLE).await);
        assert_eq!(
            (failure.cause, failure.maybe_delivered),
            (cause, maybe_delivered),
            "{reply:?}"
        );
        assert_eq!(server.commands().len(), 1, "{reply:?}");
        assert_eq!(deliver(&sink, AMPLE).await, DELIVERED, "{reply:?}");
        assert_eq!(server.commands().len(), 2, "{reply:?}");
    }
}

#[tokio::test]
async fn a_connection_lasts_until_it_is_of_no_use() {
    for (reply, connections) in [
        (Reply::Id, 1),
        (Reply::Line("-OOM no"), 1),
        (Reply::Line("-WRONGTYPE no"), 1),
        (Reply::Line("-READONLY no"), 2),
        (Reply::Line("-NOAUTH no"), 2),
        (Reply::Close, 2),
    ] {
        let server = Server::start(&[reply, Reply::Id]).await;
        let sink = sink(&server);
        deliver(&sink, AMPLE).await;
        assert_eq!(deliver(&sink, AMPLE).await, DELIVERED, "{reply:?}");
        assert_eq!(server.connections(), connections, "{reply:?}");
    }
}

#[tokio::test]
async fn two_time_outs_in_a_row_make_a_new_connection() {
    let server = Server::start(&[Reply::Silence, Reply::Silence, Reply::Id]).await;
    let sink = sink(&server);
    for connections in [1, 1] {
        let failure = failure(deliver(&sink, SHORT).await);
        assert_eq!(
            (failure.cause, failure.maybe_delivered),
            (Cause::Transport(Transport::Timeout), true)
        );
        assert_eq!(server.connections(), connections);
    }
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_link_that_is_dead_before_it_stands_delivers_nothing() {
    let server = Server::start(&[Reply::Id]).await;
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Fault::HalfOpen);
    let secret = Secret::new("s").unwrap();
    let sink = RedisStreamsSink::new(RedisStreamsConfig {
        connect_timeout: SHORT,
        ..RedisStreamsConfig::new(format!("redis://{}", proxy.addr()), "s", secret)
    })
    .unwrap();
    let failure = failure(deliver(&sink, AMPLE).await);
    assert_eq!(
        (failure.cause, failure.maybe_delivered),
        (Cause::Transport(Transport::Connect), false)
    );
    proxy.set(Fault::None);
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
}

#[tokio::test]
async fn the_time_to_connect_may_be_as_long_as_the_attempt() {
    let server = Server::start(&[Reply::Id]).await;
    let sink = RedisStreamsSink::new(RedisStreamsConfig {
        connect_timeout: Duration::MAX,
        ..RedisStreamsConfig::new(format!("redis://{}", server.address()), "s", Secret::new("s").unwrap())
    })
    .unwrap();
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
}

#[tokio::test]
async fn nobody_listens() {
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = RedisStreamsConfig::new(format!("redis://{free}"), "s", Secret::new("s").unwrap());
    let sink = RedisStreamsSink::new(config).unwrap();
    let failure = failure(deliver(&sink, AMPLE).await);
    assert_eq!(
        (failure.cause, failure.maybe_delivered),
        (Cause::Transport(Transport::Connect), false)
    );
    assert_eq!(failure.detail.as_str(), "connection refused");
}

#[tokio::test]
async fn a_login_without_rights_is_known_also_where_a_database_is_chosen() {
    for (line, code) in [
        ("-NOAUTH Authentication required.", "NOAUTH"),
        (
            "-NOPERM this user has no permissions to run the 'select' command",
            "NOPERM",
        ),
        (
            "-NOPERM User app has no permissions to run the 'select' command",
            "NOPERM",
        ),
    ] {
        // SELECT is the first command, and the client tells of its refusal without the code.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/2", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let answers = format!("{line}\r\n").repeat(8);
            stream.write_all(answers.as_bytes()).await.unwrap();
            stream
        });
        let secret = Secret::new("whsec_test_secret").unwrap();
        let sink = RedisStreamsSink::new(RedisStreamsConfig::new(url, "webhooks", secret)).unwrap();
        let failure = failure(deliver(&sink, AMPLE).await);
        assert_eq!(
            failure.cause,
            Failure::code(ErrorClass::RejectsConfiguration, code).cause,
            "{line}"
        );
        assert!(!failure.maybe_delivered, "{line}");
        drop(server.await.unwrap());
    }
}

#[tokio::test]
async fn a_cluster_that_does_not_accept_the_login_rejects_the_configuration() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let mut streams = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let answers = "-WRONGPASS invalid username-password pair or user is disabled.\r\n".repeat(8);
            stream.write_all(answers.as_bytes()).await.unwrap();
            streams.push(stream);
        }
    });
    let config = RedisStreamsConfig {
        cluster: true,
        password: Some("wrong".to_owned()),
        ..RedisStreamsConfig::new(url, "webhooks", Secret::new("whsec_test_secret").unwrap())
    };
    let sink = RedisStreamsSink::new(config).unwrap();
    let failure = failure(deliver(&sink, AMPLE).await);
    let expected = Failure::code(ErrorClass::RejectsConfiguration, "WRONGPASS").cause;
    assert_eq!((failure.cause, failure.maybe_delivered), (expected, false));
    server.abort();
}

#[tokio::test]
async fn an_attempt_that_is_over_sends_nothing() {
    let server = Server::start(&[Reply::Id]).await;
    let failure = failure(deliver(&sink(&server), Duration::ZERO).await);
    assert!(!failure.maybe_delivered);
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn many_that_wait_for_a_connection_share_one_try() {
    let server = Server::start(&[Reply::Id]).await;
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Fault::HalfOpen);
    let secret = Secret::new("s").unwrap();
    let sink = Arc::new(
        RedisStreamsSink::new(RedisStreamsConfig {
            connect_timeout: SHORT,
            ..RedisStreamsConfig::new(format!("redis://{}", proxy.addr()), "s", secret)
        })
        .unwrap(),
    );
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let sink = Arc::clone(&sink);
        tasks.spawn(async move { failure(deliver(&sink, AMPLE).await).maybe_delivered });
    }
    assert_eq!(tasks.join_all().await, vec![false; 50]);
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test]
async fn a_closed_sink_has_let_go_of_its_connection() {
    let server = Server::start(&[Reply::Id]).await;
    let sink = sink(&server);
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    sink.close().await;
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_connection_that_ended_while_nobody_used_it_costs_no_attempt() {
    let server = Server::start(&[Reply::Id]).await;
    let proxy = Proxy::start(server.address()).await;
    let secret = Secret::new("s").unwrap();
    let config = RedisStreamsConfig::new(format!("redis://{}", proxy.addr()), "s", secret);
    let sink = RedisStreamsSink::new(config).unwrap();
    for connections in 1..=3 {
        assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
        assert_eq!(proxy.connections(), connections);
        // It is closed, and what is asked for next comes after that.
        proxy.set(Fault::Close);
        idemp_testkit::until("the server saw the end", || server.ended() == connections).await;
        tokio::task::yield_now().await;
        proxy.set(Fault::None);
    }
}
