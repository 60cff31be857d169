//! Who may send, and what is said about secrets.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use axum::body::Body;
use axum::http::Request;
use idemp_core::{Secret, Secrets};
use idemp_receiver::{Event, MemoryStore, Receiver, ReceiverConfig, ReceiverLayer};

use crate::support::{
    BODY, Counted, KEY, behind, counting, receiver, request, secret, send, sign, sign_with, with_lines,
};

/// Missing, repeated, malformed and wrong signatures are answered alike, and the store never hears of them.
#[tokio::test]
async fn bad_signatures_never_reach_the_store() {
    let store = Arc::new(Counted::default());
    let (app, runs) = counting(receiver(Arc::clone(&store), ReceiverConfig::default()));
    let good = sign(BODY.as_bytes());
    let stranger = sign_with(&Secret::new("stranger").unwrap(), BODY.as_bytes());
    let lines: &[&[&str]] = &[
        &[],
        &[""],
        &[&good, &good],
        &[&good, "sha256=00"],
        &[&good[7..]],
        &[&good[..70]],
        &[&format!("{good}0")],
        &[&format!("{good},{good}")],
        &[&good.replace("sha256=", "SHA256=")],
        &[&good.replace("sha256=", "sha1=")],
        &[&good.replace("sha256=", "sha256= ")],
        &[&format!("sha256={}", "z".repeat(64))],
        &[&format!("sha256={}", "0".repeat(64))],
        &[&stranger],
    ];
    for lines in lines {
        let request = with_lines(request(KEY, BODY), "x-signature-256", lines);
        send(&app, request).await.is(401, r#"{"detail":"bad signature"}"#);
    }
    // Signed, but another body came.
    let mut forged = request(KEY, BODY);
    *forged.body_mut() = Body::from(BODY.replace('4', "5"));
    send(&app, forged).await.is(401, r#"{"detail":"bad signature"}"#);
    // Malformed in every way: the signature is looked at first.
    let unsigned = Request::post("/")
        .header("idempotency-key", "{}")
        .body(Body::empty())
        .unwrap();
    send(&app, unsigned).await.is(401, r#"{"detail":"bad signature"}"#);

    assert_eq!((store.calls.load(SeqCst), runs.count()), (0, 0));
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    assert_eq!((store.calls.load(SeqCst), runs.count()), (2, 1));
}

/// While two secrets are valid, either is good, and the handler is told which it was.
#[tokio::test]
async fn secrets_rotate() {
    let old = Secret::labelled("old", "old secret").unwrap();
    let new = Secret::labelled("new", "new secret").unwrap();
    let secrets = Secrets::new(vec![old.clone(), new.clone()]).unwrap();
    let receiver = Receiver::new(MemoryStore::new(), &secrets, ReceiverConfig::default()).unwrap();
    let labels = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler = {
        let labels = Arc::clone(&labels);
        async move |event: Event| labels.lock().unwrap().push(event.secret_label().to_owned())
    };
    let app = behind(receiver, handler);
    for (key, secret) in [("k1", &old), ("k2", &new)] {
        let signature = sign_with(secret, BODY.as_bytes());
        let request = with_lines(request(key, BODY), "x-signature-256", &[&signature]);
        send(&app, request).await.is(200, r#"{"status":"ok"}"#);
    }
    // Signed with a secret that is none of the two.
    send(&app, request("k3", BODY))
        .await
        .is(401, r#"{"detail":"bad signature"}"#);
    assert_eq!(*labels.lock().unwrap(), ["old", "new"]);
}

#[test]
fn nothing_secret_is_printed() {
    let receiver = receiver(MemoryStore::new(), ReceiverConfig::default());
    let handler = {
        let secret = secret();
        async move |_: Event| {
            drop(secret);
            Ok(())
        }
    };
    let printed = format!(
        "{receiver:?} {:?} {:?} {:?}",
        receiver.service(handler),
        ReceiverLayer::new(receiver.clone()),
        secret()
    );
    assert!(!printed.contains("whsec_test_secret"), "{printed}");
}
