//! HTTP/2, which a receiver may choose over TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use h2::Reason;
use idemp_core::Transport;
use idemp_sinks::webhook::{WebhookConfig, WebhookSink};
use idemp_testkit::proxy::{Fault, Proxy};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::tls::Authority;
use crate::{AMPLE, DELIVERED, assert_transport, config, deliver};

/// An HTTP/2 server that answers 200, or resets every stream with this reason.
struct Server {
    addr: SocketAddr,
    authority: Authority,
    requests: Arc<AtomicUsize>,
}

impl Server {
    async fn start(refuse: Option<Reason>) -> Self {
        let authority = Authority::new();
        let mut tls = authority.server("localhost");
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let stream = acceptor.accept(stream).await.unwrap();
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        count.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(request.headers()["idempotency-key"], "req-42:tool_end:1");
                        match refuse {
                            Some(reason) => respond.send_reset(reason),
                            None => {
                                respond.send_response(http::Response::new(()), true).unwrap();
                            }
                        }
                    }
                });
            }
        });
        Self {
            addr,
            authority,
            requests,
        }
    }

    fn sink(&self, port: u16) -> WebhookSink {
        WebhookSink::new(WebhookConfig {
            root_certificates: self.authority.pem(),
            ..config(format!("https://localhost:{port}/"))
        })
        .unwrap()
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn deliveries_share_a_connection() {
    let server = Server::start(None).await;
    let proxy = Proxy::start(server.addr).await;
    let sink = server.sink(proxy.addr().port());
    for _ in 0..3 {
        assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    }
    assert_eq!((server.requests(), proxy.connections()), (3, 1));
}

#[tokio::test]
async fn a_stream_that_is_refused_is_not_sent_again() {
    for reason in [Reason::REFUSED_STREAM, Reason::INTERNAL_ERROR] {
        let server = Server::start(Some(reason)).await;
        let outcome = deliver(&server.sink(server.addr.port()), AMPLE).await;
        assert_transport(outcome, Transport::Cut, true);
        assert_eq!(server.requests(), 1);
    }
}

#[tokio::test]
async fn a_link_that_goes_dead_is_given_up_within_an_attempt() {
    let server = Server::start(None).await;
    let proxy = Proxy::start(server.addr).await;
    let sink = server.sink(proxy.addr().port());
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    proxy.set(Fault::HalfOpen);
    let failure = assert_transport(deliver(&sink, AMPLE).await, Transport::Timeout, true);
    // Not by the end of the attempt.
    assert_eq!(failure.detail.as_str(), "no sign of life on the connection");
    proxy.set(Fault::None);
    assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    assert_eq!(proxy.connections(), 2);
}
