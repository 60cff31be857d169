//! Dead letters in a bucket of a server that speaks S3.
//!
//! `cargo xtask e2e dead-letters` brings up what this needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use idemp_core::{IdempotencyKey, Message, Reason, RunId, Secret, SinkName};
use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Listed, ObjectStoreDlq, Put, RecordError,
    ReplayOptions, ReplaySummary, Replayer, S3Config, Settled, StoreErrorKind, Target, conformance,
};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_testkit::peer::{Answer, Peer, Request};
use idemp_testkit::until;
use idemp_tests::{Process, Server, Suite, aws_script, forward, ministack, selected};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Only a guard against hanging for ever.
const LIMIT: Duration = Duration::from_secs(300);
const BUCKET: &str = "dead-letters";
/// The server takes some 200 requests a second, and a letter that is put, listed and replayed costs about fifteen.
const LETTERS: u64 = 1_000;
/// Says to a child of this program where to replay to.
const CHILD: &str = "IDEMP_TEST_REPLAY_TO";
const CHILD_STORE: &str = "IDEMP_TEST_REPLAY_FROM";

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_on_a_server() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let place = Place::new();
    let number = AtomicU32::new(0);
    conformance::all(async || {
        let number = number.fetch_add(1, Ordering::Relaxed);
        Arc::new(place.store(&format!("store-{number}")).await) as _
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replay_is_finished_by_the_next() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let place = Place::new();
    let store = Arc::new(place.store("killed").await);
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for number in (task..LETTERS).step_by(16) {
                assert_eq!(store.put(letter(number)).await.unwrap(), Put::Added);
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(place.count("killed"), json!({"dlq": LETTERS, "replayed": 0, "both": 0}));
    lists_by_every_filter(&*store).await;

    let receiver = Peer::always(Answer::status(200)).await;
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "the_child_replays", "--nocapture"])
        .env(CHILD, receiver.url("/"))
        .env(CHILD_STORE, place.url());
    let mut child = Process::start("a replay", &mut child);
    let sent = || receiver.requests().len() as u64;
    until("a third has been sent", || sent() >= LETTERS / 3).await;
    child.kill();
    let before = sent();
    assert!(before < LETTERS, "the kill came too late");

    let summary = replay(&*store, &receiver).await;
    assert_eq!(summary.stopped, None);
    assert_eq!(summary.replayed, summary.selected - summary.gone, "{summary:?}");
    assert_eq!(place.count("killed"), json!({"dlq": 0, "replayed": LETTERS, "both": 0}));

    let mut times: HashMap<String, u64> = HashMap::new();
    for request in receiver.requests() {
        *times.entry(request.header("idempotency-key").to_owned()).or_default() += 1;
    }
    assert_eq!(times.len() as u64, LETTERS, "none was skipped");
    let twice = times.values().filter(|count| **count > 1).count();
    assert!(
        twice <= 1,
        "only the letter at work when it was killed may go out twice: {twice}"
    );
}

/// The part of a child: see above.
#[tokio::test]
async fn the_child_replays() {
    let (Ok(to), Ok(from)) = (std::env::var(CHILD), std::env::var(CHILD_STORE)) else {
        return;
    };
    let store = ObjectStoreDlq::s3(config(&from, "killed")).await.unwrap();
    replay_to(&store, to, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_do_not_collide() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let place = Place::new();
    let store = place.store("two").await;
    for number in 0..100 {
        store.put(letter(number)).await.unwrap();
    }
    let receiver = Peer::always(Answer::status(200)).await;
    let other = place.store("two").await;
    let (one, two) = tokio::join!(replay(&store, &receiver), replay(&other, &receiver));
    assert_eq!(one.replayed + two.replayed, 100, "{one:?} {two:?}");
    assert_eq!((one.unmarked, two.unmarked), (0, 0));
    assert_eq!(receiver.requests().len(), 100, "each letter went out once");
    assert_eq!(place.count("two"), json!({"dlq": 0, "replayed": 100, "both": 0}));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_early_or_too_late_wants_force() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let place = Place::new();
    let store = place.store("force").await;
    let now = SystemTime::now();
    let too_early = DeadLetter {
        not_before: Some(now + Duration::from_secs(3_600)),
        ..letter(0)
    };
    let too_late = DeadLetter {
        maybe_delivered: true,
        accepted_at: now - Duration::from_secs(25 * 3_600),
        ..letter(1)
    };
    for letter in [too_early, too_late, letter(2)] {
        store.put(letter).await.unwrap();
    }
    let receiver = Peer::always(Answer::status(200)).await;
    let summary = replay(&store, &receiver).await;
    assert_eq!((summary.replayed, summary.refused()), (1, 2), "{summary:?}");
    assert_eq!(place.count("force"), json!({"dlq": 2, "replayed": 1, "both": 0}));
    let summary = replay_to(&store, receiver.url("/"), true).await;
    assert_eq!((summary.replayed, summary.refused()), (2, 0), "{summary:?}");
    assert_eq!(place.count("force"), json!({"dlq": 0, "replayed": 3, "both": 0}));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_loses_nothing() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let place = Place::new();
    let denied = |method: &'static str, word: &'static str, answer: Answer| {
        let server = place.address();
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

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_opened_says_why() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let place = Place::new();
    let nowhere = S3Config {
        bucket: "no-such-bucket".to_owned(),
        ..config(&place.url(), "")
    };
    let closed = format!("http://{}", idemp_tests::free_address());
    let unsafe_http = S3Config {
        allow_http: false,
        ..config(&place.url(), "")
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
    child.args(["--exact", "the_child_has_no_credentials", "--nocapture"]);
    child
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env(CHILD_STORE, place.url());
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

/// A server with a bucket.
struct Place {
    server: Option<Server>,
    external: String,
}

impl Place {
    fn new() -> Self {
        let external = std::env::var("IDEMP_E2E_S3").unwrap_or_default();
        let place = Self {
            server: external.is_empty().then(ministack),
            external,
        };
        place.script("make", "", &[]);
        place
    }

    fn url(&self) -> String {
        match &self.server {
            Some(server) => format!("http://{}", server.address()),
            None => self.external.clone(),
        }
    }

    fn address(&self) -> SocketAddr {
        let url = self.url();
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        address
            .parse()
            .expect("a proxy needs IDEMP_E2E_S3 as http://ADDRESS:PORT")
    }

    async fn store(&self, prefix: &str) -> ObjectStoreDlq {
        ObjectStoreDlq::s3(config(&self.url(), prefix)).await.unwrap()
    }

    /// How many objects lie where, as somebody else sees it.
    fn count(&self, prefix: &str) -> Value {
        self.script("count", prefix, &[])
    }

    fn script(&self, command: &str, prefix: &str, options: &[&str]) -> Value {
        let mut script = aws_script("s3_bucket.py");
        script.args([
            command,
            "--endpoint",
            &self.url(),
            "--bucket",
            BUCKET,
            "--prefix",
            prefix,
        ]);
        let finished = Process::run("s3_bucket.py", script.args(options), LIMIT);
        assert!(finished.status.success(), "{}", finished.stderr);
        serde_json::from_str(&finished.stdout).unwrap()
    }
}

fn config(url: &str, prefix: &str) -> S3Config {
    S3Config {
        prefix: prefix.to_owned(),
        endpoint: Some(url.to_owned()),
        allow_http: true,
        ..S3Config::new(BUCKET)
    }
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

/// 2026-11-30T00:00:00Z and so many seconds.
fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_996_800 + seconds)
}

/// Letters of ten runs, two sinks, two event types and two reasons.
fn letter(number: u64) -> DeadLetter {
    let sink = if number.is_multiple_of(3) { "one" } else { "two" };
    let sink = if number < 30 { "one" } else { sink };
    let event = if number.is_multiple_of(2) {
        "tool_end"
    } else {
        "chain_end"
    };
    let reason = if number.is_multiple_of(4) {
        Reason::EventRejected
    } else {
        Reason::RetriesExhausted
    };
    let key = format!("run-{}:{event}:{}", number % 10, number + 1);
    DeadLetter {
        sink: SinkName::parse(sink).unwrap(),
        message: Message::new(IdempotencyKey::parse(&key).unwrap(), &number).unwrap(),
        reason,
        class: reason.class(),
        maybe_delivered: false,
        attempts: Vec::new(),
        accepted_at: at(0),
        dead_at: at(number),
        not_before: None,
        replay_count: 0,
    }
}

async fn lists_by_every_filter(store: &dyn DeadLetterStore) {
    let all = Filter::default;
    type IsMeant = Box<dyn Fn(u64) -> bool>;
    let cases: [(Filter, IsMeant); 7] = [
        (all(), Box::new(|_| true)),
        (
            Filter {
                sink: Some(SinkName::parse("one").unwrap()),
                ..all()
            },
            Box::new(|number| number < 30 || number % 3 == 0),
        ),
        (
            Filter {
                event_type: Some("tool_end".parse().unwrap()),
                ..all()
            },
            Box::new(|number| number % 2 == 0),
        ),
        (
            Filter {
                reason: Some(Reason::EventRejected),
                ..all()
            },
            Box::new(|number| number % 4 == 0),
        ),
        (
            Filter {
                run_id: Some(RunId::parse("run-7").unwrap()),
                ..all()
            },
            Box::new(|number| number % 10 == 7),
        ),
        (
            Filter {
                key: Some(letter(123).message.key().clone()),
                ..all()
            },
            Box::new(|number| number == 123),
        ),
        (
            Filter {
                since: Some(at(200)),
                until: Some(at(300)),
                ..all()
            },
            Box::new(|number| (200..300).contains(&number)),
        ),
    ];
    for (filter, is_meant) in cases {
        let mut expected: Vec<u64> = (0..LETTERS).filter(|number| is_meant(*number)).collect();
        let mut listed = Vec::new();
        let mut selection = store.select(&filter).await.unwrap();
        while let Some(page) = selection.next_page().await.unwrap() {
            listed.extend(page.into_iter().map(|listed| listed.letterhead.unwrap()));
        }
        let in_order = |head: &idemp_dlq::Letterhead| (head.key.run_id().to_owned(), head.key.step_index());
        assert!(listed.is_sorted_by_key(in_order), "{filter:?}");
        let mut numbers: Vec<u64> = listed.iter().map(|head| head.key.step_index().as_u64() - 1).collect();
        numbers.sort_unstable();
        expected.sort_unstable();
        assert_eq!(numbers, expected, "{filter:?}");
    }
    let limited = Filter {
        limit: Some(7),
        ..all()
    };
    assert_eq!(store.stats(&limited).await.unwrap().depth, 7);
    let stats = store.stats(&all()).await.unwrap();
    assert_eq!(stats.depth, LETTERS);
    assert_eq!(stats.by_reason[&Reason::EventRejected], LETTERS / 4);
    assert_eq!(stats.oldest, Some(at(0)));
}

async fn ids(store: &dyn DeadLetterStore) -> Vec<EntryId> {
    let mut selection = store.select(&Filter::default()).await.unwrap();
    let mut ids = Vec::new();
    while let Some(page) = selection.next_page().await.unwrap() {
        ids.extend(page.into_iter().map(|listed| listed.id));
    }
    ids
}

async fn replay(store: &dyn DeadLetterStore, receiver: &Peer) -> ReplaySummary {
    replay_to(store, receiver.url("/"), false).await
}

/// Replays everything as fast as it goes, in real time, with leases that a killed replay leaves for 8 s.
async fn replay_to(store: &dyn DeadLetterStore, url: String, force: bool) -> ReplaySummary {
    let sink = WebhookSink::new(WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(url, Secret::new("of the test").unwrap())
    });
    let sink = Arc::new(sink.unwrap());
    let replayer = Replayer::new(ReplayOptions {
        rate_per_second: 10_000.0,
        lease: Duration::from_secs(8),
        force,
        ..ReplayOptions::default()
    });
    let target = move |_: &SinkName| {
        Some(Target {
            sink: Arc::clone(&sink) as _,
            policy: Default::default(),
        })
    };
    let replayer = replayer.unwrap();
    replayer
        .run(store, &Filter::default(), &target, &mut |_| (), &Default::default())
        .await
        .unwrap()
}
