//! A bucket that cannot be opened.

use std::process::Command;

use idemp_dlq::{ObjectStoreDlq, S3Config, StoreErrorKind};
use idemp_tests::{Process, Suite, selected};

use crate::support::{CHILD_STORE, LIMIT, Place, config};

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_opened_says_why() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let place = Place::new();
    let nowhere = S3Config {
        bucket: "no-such-bucket".to_owned(),
        ..config(&place.server.url(), "")
    };
    let closed = format!("http://{}", idemp_tests::free_address());
    let unsafe_http = S3Config {
        allow_http: false,
        ..config(&place.server.url(), "")
    };
    for (config, words) in [
        (nowhere, "there is no such bucket"),
        (config(&closed, ""), "cannot be reached"),
        (unsafe_http, "http is not allowed"),
    ] {
        let error = ObjectStoreDlq::s3(config).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::CannotOpen);
        assert!(error.to_string().contains(words), "{error}");
    }

    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "opening::the_child_has_no_credentials", "--nocapture"]);
    child
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env(CHILD_STORE, place.server.url());
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"] {
        child.env_remove(name);
    }
    let ended = Process::run("a child without credentials", &mut child, LIMIT);
    assert!(ended.status.success(), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("1 passed"), "{}", ended.stdout);
}

/// The part of a child: see above.
#[tokio::test]
async fn the_child_has_no_credentials() {
    let Ok(url) = std::env::var(CHILD_STORE) else { return };
    if std::env::var_os("AWS_ACCESS_KEY_ID").is_some() {
        return;
    }
    let error = ObjectStoreDlq::s3(config(&url, "")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CannotOpen);
    assert!(error.to_string().contains("AWS_ACCESS_KEY_ID"), "{error}");
}
