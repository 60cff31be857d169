//! Which way requests take.

use idemp_core::Transport;
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_testkit::peer::{Answer, Peer};

use crate::{AMPLE, CHILD_DONE, DELIVERED, assert_transport, config, deliver, in_child};

fn over(proxy: impl Into<String>, url: impl Into<String>) -> WebhookSink {
    WebhookSink::new(WebhookConfig {
        proxy: WebhookProxy::Url(proxy.into()),
        ..config(url)
    })
    .unwrap()
}

#[tokio::test]
async fn a_given_proxy_is_used_with_its_password() {
    let proxy = Peer::always(Answer::status(200)).await;
    let address = format!("http://user:pa%3Ass@{}", proxy.addr());
    assert_eq!(
        deliver(&over(address, "http://receiver.invalid/hook"), AMPLE).await,
        DELIVERED
    );
    let requests = proxy.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].target, "http://receiver.invalid/hook");
    assert_eq!(requests[0].header("host"), "receiver.invalid");
    assert_eq!(requests[0].header("idempotency-key"), "req-42:tool_end:1");
    // `user:pa:ss` in base64.
    assert_eq!(requests[0].header("proxy-authorization"), "Basic dXNlcjpwYTpzcw==");
}

#[tokio::test]
async fn a_refused_tunnel_delivers_nothing_and_shows_the_proxy_nothing() {
    for status in [403, 407, 502] {
        let proxy = Peer::always(Answer::status(status)).await;
        let sink = over(format!("http://{}", proxy.addr()), "https://receiver.invalid/hook");
        assert_transport(deliver(&sink, AMPLE).await, Transport::Connect, false);
        let requests = proxy.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(
            (requests[0].method.as_str(), requests[0].target.as_str()),
            ("CONNECT", "receiver.invalid:443")
        );
        assert_eq!(
            requests[0].header("user-agent"),
            format!("idemp/{}", env!("CARGO_PKG_VERSION"))
        );
        assert!(requests[0].values("x-signature-256").is_empty());
        assert!(requests[0].values("idempotency-key").is_empty());
    }
}

#[tokio::test]
async fn a_proxy_that_is_down_delivers_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for url in ["http://receiver.invalid/", "https://receiver.invalid/"] {
        assert_transport(deliver(&over(&address, url), AMPLE).await, Transport::Connect, false);
    }
}

/// Runs [`delivers_from_a_child`] with these variables.
async fn child(url: &str, proxy: &str, variables: &[(&str, &str)]) {
    let variables = [&[("CHILD_URL", url), ("CHILD_PROXY", proxy)], variables].concat();
    in_child("proxies::delivers_from_a_child", &variables).await;
}

/// Does its work in a child process of other tests, with the variables that they set.
#[tokio::test]
async fn delivers_from_a_child() {
    let Ok(url) = std::env::var("CHILD_URL") else { return };
    let proxy = match std::env::var("CHILD_PROXY").unwrap().as_str() {
        "environment" => WebhookProxy::Environment,
        _ => WebhookProxy::None,
    };
    let sink = WebhookSink::new(WebhookConfig { proxy, ..config(url) });
    assert_eq!(deliver(&sink.unwrap(), AMPLE).await, DELIVERED);
    println!("{CHILD_DONE}");
}

#[tokio::test]
async fn the_environment_names_a_proxy() {
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        let proxy = Peer::always(Answer::status(200)).await;
        child("http://receiver.invalid/hook", "environment", &[(name, &proxy.url(""))]).await;
        assert_eq!(proxy.requests().len(), 1, "{name}");
        assert_eq!(proxy.requests()[0].target, "http://receiver.invalid/hook");
    }
}

#[tokio::test]
async fn the_environment_does_not_count_where_it_is_told_so() {
    let proxy = Peer::always(Answer::status(200)).await;
    let receiver = Peer::always(Answer::status(200)).await;
    let address = proxy.url("");
    child(
        &receiver.url("/"),
        "none",
        &[("HTTP_PROXY", &address), ("ALL_PROXY", &address)],
    )
    .await;
    child(
        &receiver.url("/"),
        "environment",
        &[("HTTP_PROXY", &address), ("NO_PROXY", "127.0.0.1")],
    )
    .await;
    assert_eq!((receiver.requests().len(), proxy.connections()), (2, 0));
}
