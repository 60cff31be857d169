//! Certificates: which are accepted, and what the operator reads when one is not.

use std::net::SocketAddr;
use std::sync::Arc;

use idemp_core::Transport;
use idemp_sinks::webhook::{WebhookConfig, WebhookErrorKind, WebhookSink};
use idemp_testkit::peer::{Answer, Peer, Unread};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{AMPLE, CHILD_DONE, DELIVERED, assert_transport, config, deliver, in_child};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// A server with a certificate for this host.
    pub(crate) fn server(&self, host: &str) -> ServerConfig {
        self.server_with(CertificateParams::new([host.to_owned()]).unwrap())
    }

    fn server_with(&self, params: CertificateParams) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap()
    }
}

/// Takes TLS off and hands the rest to the peer.
async fn in_front_of(peer: &Peer, server: ServerConfig) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, upstream) = (listener.local_addr().unwrap(), peer.addr());
    let acceptor = TlsAcceptor::from(Arc::new(server));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let mut peer = TcpStream::connect(upstream).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut peer).await;
                }
            });
        }
    });
    addr
}

fn trusting(authority: &Authority, url: String) -> WebhookSink {
    WebhookSink::new(WebhookConfig {
        root_certificates: authority.pem(),
        ..config(url)
    })
    .unwrap()
}

#[tokio::test]
async fn a_private_authority_is_accepted_once_it_is_given() {
    let authority = Authority::new();
    let peer = Peer::always(Answer::status(200).body("ok")).await;
    let addr = in_front_of(&peer, authority.server("localhost")).await;
    let url = format!("https://localhost:{}/", addr.port());

    let unknown = WebhookSink::new(config(&url)).unwrap();
    let failure = assert_transport(deliver(&unknown, AMPLE).await, Transport::Tls, false);
    assert!(
        failure.detail.as_str().starts_with("unknown issuer: add the CA"),
        "{}",
        failure.detail.as_str()
    );
    let other = trusting(&Authority::new(), url.clone());
    assert_transport(deliver(&other, AMPLE).await, Transport::Tls, false);
    assert_eq!(peer.connections(), 0);

    // Given together with another one.
    let sink = WebhookSink::new(WebhookConfig {
        root_certificates: [Authority::new().pem(), authority.pem()].concat(),
        ..config(&url)
    })
    .unwrap();
    for _ in 0..3 {
        assert_eq!(deliver(&sink, AMPLE).await, DELIVERED);
    }
    assert_eq!((peer.requests().len(), peer.connections()), (3, 1));
}

#[tokio::test]
async fn a_bad_certificate_is_named() {
    let mut expired = CertificateParams::new(["localhost".to_owned()]).unwrap();
    (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let mut future = CertificateParams::new(["localhost".to_owned()]).unwrap();
    (future.not_before, future.not_after) = (date_time_ymd(3000, 1, 1), date_time_ymd(3001, 1, 1));
    let elsewhere = CertificateParams::new(["elsewhere.example".to_owned()]).unwrap();
    let cases = [
        (expired, "certificate expired: renew"),
        (future, "certificate not valid yet: set this machine's clock"),
        (elsewhere, "name mismatch:"),
    ];
    let authority = Authority::new();
    for (params, text) in cases {
        let peer = Peer::always(Answer::status(200)).await;
        let addr = in_front_of(&peer, authority.server_with(params)).await;
        let sink = trusting(&authority, format!("https://localhost:{}/", addr.port()));
        let failure = assert_transport(deliver(&sink, AMPLE).await, Transport::Tls, false);
        assert!(failure.detail.as_str().starts_with(text), "{}", failure.detail.as_str());
        assert_eq!(peer.connections(), 0);
    }
}

#[tokio::test]
async fn a_peer_without_tls_is_named() {
    let peers = [
        (
            Peer::unread(Unread::Close).await,
            "connection closed during the TLS handshake",
        ),
        (
            Peer::unread(Unread::Reset).await,
            "connection closed during the TLS handshake",
        ),
        (plain().await, "peer speaks no TLS"),
    ];
    for (peer, text) in peers {
        let sink = WebhookSink::new(config(peer.url("/").replace("http:", "https:"))).unwrap();
        let failure = assert_transport(deliver(&sink, AMPLE).await, Transport::Tls, false);
        assert!(failure.detail.as_str().starts_with(text), "{}", failure.detail.as_str());
    }
}

/// Answers in plain HTTP as soon as something comes.
async fn plain() -> Peer {
    Peer::unread(Unread::Say(b"HTTP/1.1 400 Bad Request\r\n\r\n")).await
}

#[tokio::test]
async fn plain_http_to_a_tls_port_is_a_cut() {
    let authority = Authority::new();
    let peer = Peer::always(Answer::status(200)).await;
    let addr = in_front_of(&peer, authority.server("localhost")).await;
    let outcome = deliver(&crate::sink(format!("http://{addr}/")), AMPLE).await;
    assert_transport(outcome, Transport::Cut, true);
    assert_eq!(peer.connections(), 0);
}

#[tokio::test]
async fn the_process_wide_provider_is_left_alone() {
    let _sink = WebhookSink::new(config("https://localhost/")).unwrap();
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

#[tokio::test]
async fn the_system_must_trust_somebody_for_https() {
    let nobody = [
        ("CHILD_TRUSTS", "nobody"),
        ("SSL_CERT_FILE", "/nonexistent"),
        ("SSL_CERT_DIR", ""),
    ];
    in_child("tls::trusts_nobody_in_a_child", &nobody).await;
}

/// Does its work in a child process of the test above, with the variables that it sets.
#[test]
fn trusts_nobody_in_a_child() {
    if std::env::var_os("CHILD_TRUSTS").is_none() {
        return;
    }
    let error = WebhookSink::new(config("https://localhost/")).unwrap_err();
    assert_eq!(error.kind(), WebhookErrorKind::RootCertificates);
    assert!(error.to_string().contains("the system trusts no authority"), "{error}");
    assert!(WebhookSink::new(config("http://localhost/")).is_ok());
    trusting(&Authority::new(), "https://localhost/".to_owned());
    println!("{CHILD_DONE}");
}
