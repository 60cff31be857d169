//! Refusals, and objects that somebody else deletes or damages.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use idemp_dlq::{Claim, DeadLetterStore, Filter, LeaseToken, Listed, ObjectStoreDlq, RecordError, Settled};
use idemp_testkit::peer::{Answer, Peer, Request};
use idemp_tests::{Suite, forward, selected};
use serde_json::json;

use crate::support::{Place, config, ids, letter, replay};

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_loses_nothing() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let place = Place::new();
    let denied = |method: &'static str, word: &'static str, answer: Answer| {
        let server = place.server.address();
        Peer::start(move |request| {
            if request.method == method && request.target.contains(word) {
                answer.clone()
            } else {
                Answer::raw(pass(server, request))
            }
        })
    };
    let refusal = Answer::status(403).body("<Error><Code>AccessDenied</Code><Message>no</Message></Error>");
    let error_in_a_success = Answer::status(200)
        .header("ETag", "\"0\"")
        .body("<Error><Code>InternalError</Code><Message>no</Message></Error>");
    let cases = [
        (
            "delete",
            "DELETE",
            "/dlq/",
            refusal.clone(),
            json!({"dlq": 1, "replayed": 1, "both": 1}),
        ),
        (
            "copy",
            "PUT",
            "/replayed/",
            refusal,
            json!({"dlq": 1, "replayed": 0, "both": 0}),
        ),
        (
            "error-in-200",
            "PUT",
            "/replayed/",
            error_in_a_success,
            json!({"dlq": 1, "replayed": 0, "both": 0}),
        ),
    ];
    for (name, method, word, answer, meanwhile) in cases {
        let proxy = denied(method, word, answer).await;
        let store = ObjectStoreDlq::s3(config(&proxy.url(""), name)).await.unwrap();
        store.put(letter(0)).await.unwrap();
        let (id, token) = (ids(&store).await.remove(0), LeaseToken::random());
        let now = SystemTime::now();
        let claim = store.claim(&id, &token, Duration::from_secs(30), now).await.unwrap();
        assert!(matches!(claim, Claim::Claimed(_)), "{name}");
        let error = store.mark_replayed(&id, &token, now).await.unwrap_err();
        assert_eq!(place.count(name), meanwhile, "{name}: {error}");
        assert_eq!(store.load(&id).await.unwrap().unwrap().letter, letter(0), "{name}");

        // The same again once the server is well.
        let store = place.store(name).await;
        assert_eq!(
            store.mark_replayed(&id, &token, now).await.unwrap(),
            Settled::Done,
            "{name}"
        );
        assert_eq!(place.count(name), json!({"dlq": 0, "replayed": 1, "both": 0}), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_or_damaged_under_the_list_is_told() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let place = Place::new();
    let store = place.store("changed").await;
    for number in 0..3 {
        store.put(letter(10 * number)).await.unwrap();
    }
    let mut selection = store.select(&Filter::default()).await.unwrap();
    let path = |step: u64| format!("dlq/one/2026/11/30/run-0/run-0:tool_end:{step}.json");
    place.script("delete", "changed", &["--path", &path(11)]);
    place.script("put", "changed", &["--path", &path(21), "--text", "{\"version\":1,"]);
    let page: Vec<Listed> = selection.next_page().await.unwrap().unwrap();
    assert_eq!(page.len(), 2, "one is gone");
    assert_eq!(page[0].letterhead, Ok(letter(0).letterhead()));
    assert!(matches!(page[1].letterhead, Err(RecordError::Torn { .. })));

    place.script("put", "changed", &["--path", &path(31), "--text", "{\"version\":9}"]);
    let receiver = Peer::always(Answer::status(200)).await;
    let summary = replay(&store, &receiver).await;
    assert_eq!((summary.replayed, summary.unreadable), (1, 2), "{summary:?}");
    assert_eq!(place.count("changed"), json!({"dlq": 2, "replayed": 1, "both": 0}));
}

fn pass(server: SocketAddr, request: &Request) -> Vec<u8> {
    let Request {
        method,
        target,
        headers,
        body,
        ..
    } = request;
    tokio::task::block_in_place(|| forward(server, method, target, headers, body)).unwrap()
}
