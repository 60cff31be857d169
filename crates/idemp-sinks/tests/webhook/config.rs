//! What a configuration may hold, and what is never printed of it.

use std::error::Error as _;
use std::time::Duration;

use idemp_core::Secret;
use idemp_sinks::webhook::{WebhookConfig, WebhookErrorKind as Kind, WebhookProxy, WebhookSink};

use crate::config;

const URL: &str = "https://hooks.example.com/services/hunter2";

fn with_header(name: &str, value: &str) -> WebhookConfig {
    WebhookConfig {
        headers: vec![(name.to_owned(), value.to_owned())],
        ..config(URL)
    }
}

#[track_caller]
fn refused(config: WebhookConfig, kind: Kind, text: &str) {
    let error = WebhookSink::new(config).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(error.to_string(), text);
    let source = error.source().map(ToString::to_string);
    let printed = format!("{error:?} {source:?}");
    assert!(!printed.contains("hunter2"), "{printed}");
}

#[test]
fn urls_are_http_or_https_without_a_user_name() {
    refused(config("/hunter2"), Kind::Url, "webhook url: is no URL");
    refused(config(""), Kind::Url, "webhook url: is no URL");
    refused(config("http://"), Kind::Url, "webhook url: is no URL");
    let scheme = "webhook url: must begin with http:// or https://";
    refused(config("ftp://hunter2.example.com/"), Kind::Url, scheme);
    refused(config("localhost:8000/hunter2"), Kind::Url, scheme);
    let user = "webhook url: must not hold a user name or password: they belong into a header";
    refused(config("https://hunter2@example.com/"), Kind::Url, user);
    refused(config("https://:hunter2@example.com/"), Kind::Url, user);
}

#[test]
fn reserved_and_malformed_headers_are_refused() {
    for name in [
        "Idempotency-Key",
        "X-Signature-256",
        "x-event-type",
        "Content-Type",
        "content-length",
        "Content-Encoding",
        "Host",
        "user-agent",
        "Transfer-Encoding",
        "Connection",
        "Expect",
        "Upgrade",
        "webhook-id",
        "Webhook-Anything",
        "Proxy-Authorization",
    ] {
        let text = format!("webhook headers: `{name}` is not free to be set");
        refused(with_header(name, "hunter2"), Kind::Headers, &text);
    }
    for name in ["", "two words", "colon:", "ümlaut"] {
        let text = format!("webhook headers: `{name}` is no header name");
        refused(with_header(name, "hunter2"), Kind::Headers, &text);
    }
    let injected = with_header("X-A", "hunter2\r\nIdempotency-Key: k");
    refused(
        injected,
        Kind::Headers,
        "webhook headers: `X-A` has a value with characters not allowed",
    );
    let mut twice = with_header("X-A", "1");
    twice.headers.push(("x-a".into(), "2".into()));
    refused(twice, Kind::Headers, "webhook headers: `x-a` is given twice");
}

#[test]
fn the_other_fields_are_checked() {
    let proxy = |url: &str| WebhookConfig {
        proxy: WebhookProxy::Url(url.to_owned()),
        ..config(URL)
    };
    refused(proxy("hunter2"), Kind::Proxy, "webhook proxy: is no URL");
    let scheme = "webhook proxy: must begin with http:// or https://";
    refused(proxy("socks5://hunter2:1"), Kind::Proxy, scheme);

    let pem = |text: &str| WebhookConfig {
        root_certificates: text.into(),
        ..config(URL)
    };
    let none = "webhook root_certificates: holds no certificate";
    refused(pem("hunter2"), Kind::RootCertificates, none);
    let no_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let text = "webhook root_certificates: holds a certificate that is none";
    refused(pem(no_certificate), Kind::RootCertificates, text);
    let cut = "-----BEGIN CERTIFICATE-----\nAAAA\n";
    refused(
        pem(cut),
        Kind::RootCertificates,
        "webhook root_certificates: not readable as PEM",
    );

    let agent = WebhookConfig {
        user_agent: "hunter2\n".into(),
        ..config(URL)
    };
    refused(
        agent,
        Kind::UserAgent,
        "webhook user_agent: has characters not allowed in a header",
    );
    let instant = WebhookConfig {
        connect_timeout: Duration::ZERO,
        ..config(URL)
    };
    refused(
        instant,
        Kind::ConnectTimeout,
        "webhook connect_timeout: must be above zero",
    );
    let no_base64 = WebhookConfig {
        secret: Secret::new("hunter2!").unwrap(),
        standard_webhooks: true,
        ..config(URL)
    };
    refused(
        no_base64,
        Kind::Secret,
        "webhook secret: not suited for Standard Webhooks",
    );
}

#[test]
fn nothing_secret_is_printed() {
    let config = WebhookConfig {
        secret: Secret::new("hunter2").unwrap(),
        headers: vec![("Authorization".into(), "Bearer hunter2".into())],
        proxy: WebhookProxy::Url("http://user:hunter2@proxy.example.com:3128".into()),
        ..config("https://hooks.example.com/services/hunter2?token=hunter2")
    };
    let printed = format!("{config:?}");
    assert!(printed.contains("https://hooks.example.com"), "{printed}");
    assert!(printed.contains("Authorization"), "{printed}");
    assert!(!printed.contains("hunter2"), "{printed}");
    let printed = format!("{:?}", WebhookSink::new(config).unwrap());
    assert!(printed.contains("https://hooks.example.com"), "{printed}");
    assert!(!printed.contains("hunter2"), "{printed}");

    let printed = format!("{:?}", crate::config("hunter2:hunter2@hunter2"));
    assert!(!printed.contains("hunter2"), "{printed}");
}
