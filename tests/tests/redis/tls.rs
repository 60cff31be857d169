//! TLS, with an authority of the test's own.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use idemp_core::{Cause, Transport};
use idemp_dlq::{RedisStreamsStore, StoreErrorKind};
use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};
use idemp_tests::{Process, Redis, temp_dir};

use crate::support::{DELIVERED, LIMIT, STREAM, deliver, event, failure, keys_in, on_each, secret};

#[test]
fn tls_is_checked() {
    on_each(async |program| {
        let dir = temp_dir();
        let authority = Authority::new();
        let (certificate, key) = authority.certificate("localhost");
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (certificate, key) = (file("server.crt", &certificate), file("server.key", &key));
        let trusted = file("ca.crt", &authority.pem);
        let port = idemp_tests::free_address().port();
        let tls = [
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &trusted,
            "--tls-auth-clients",
            "no",
        ];
        if !starts_with(&program, &tls) {
            println!("{} was built without TLS", program.display());
            return;
        }
        let redis = Redis::start(&program, &tls);
        let over = |url: String, root_certificates: &str| {
            RedisStreamsSink::new(RedisStreamsConfig {
                root_certificates: root_certificates.into(),
                ..RedisStreamsConfig::new(url, STREAM, secret())
            })
            .unwrap()
        };
        let url = format!("rediss://localhost:{port}");
        assert_eq!(deliver(&over(url.clone(), &authority.pem), &event()).await, DELIVERED);
        for sink in [
            over(url, &Authority::new().pem),
            over(format!("rediss://127.0.0.1:{port}"), &authority.pem),
            over(format!("rediss://localhost:{}", redis.address().port()), &authority.pem),
        ] {
            let failure = failure(deliver(&sink, &event()).await);
            assert!(!failure.maybe_delivered, "{failure:?}");
            assert!(
                matches!(failure.cause, Cause::Transport(Transport::Tls | Transport::Connect)),
                "{failure:?}"
            );
        }
        assert_eq!(keys_in(&redis).len(), 1);

        let store = |root_certificates: &str| idemp_dlq::RedisStreamsConfig {
            root_certificates: root_certificates.into(),
            ..idemp_dlq::RedisStreamsConfig::new(format!("rediss://localhost:{port}"))
        };
        RedisStreamsStore::open(&store(&authority.pem)).await.unwrap();
        let error = RedisStreamsStore::open(&store(&Authority::new().pem))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    });
}

/// Whether the program knows these options.
fn starts_with(program: &Path, options: &[&str]) -> bool {
    let process = Process::start("redis", Command::new(program).args(["--port", "0"]).args(options));
    let end = Instant::now() + LIMIT;
    loop {
        let said = process.stdout();
        if said.contains("Ready to accept connections") || said.contains("Failed") || said.contains("FATAL") {
            return said.contains("Ready to accept connections");
        }
        assert!(Instant::now() < end, "neither ready nor refused: {said}");
        std::thread::yield_now();
    }
}

/// An authority of the test's own.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: rcgen::Issuer::new(params, key),
            pem,
        }
    }

    /// A certificate for a host name, and its key, as PEM.
    fn certificate(&self, host: &str) -> (String, String) {
        let params = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}
