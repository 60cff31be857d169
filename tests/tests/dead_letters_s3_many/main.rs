//! Many dead letters in a bucket, and the contract, on a server that is quicker than the one of
//! `dead_letters_s3/` and looks at signatures.
//!
//! `cargo xtask e2e dead-letters` runs this with the others of its suite.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails loudly"
)]

mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use idemp_core::{IdempotencyKey, Message, Reason, RunId, SinkName};
use idemp_dlq::{DeadLetter, DeadLetterStore, Filter, ObjectStoreDlq, Put, S3Config, conformance};
use idemp_testkit::peer::{Answer, Peer};
use idemp_tests::{Process, Suite, idemp, selected, temp_dir};
use serde_json::Value;
use tokio::task::JoinSet;

use server::{BUCKET, S3Server};

/// Only a guard against hanging for ever.
const LIMIT: Duration = Duration::from_secs(600);
/// How many letters: ten thousand take several minutes of two cores, and run where this says so.
const NUMBER: &str = "IDEMP_E2E_DEAD_LETTERS";
static LETTERS: LazyLock<u64> = LazyLock::new(|| match std::env::var(NUMBER) {
    Ok(number) => number.parse().expect("a number of letters"),
    Err(_) => 2_000,
});
const TASKS: u64 = 16;
const SINKS: [&str; 2] = ["audit", "mirror"];
const EVENTS: [&str; 3] = ["tool_end", "chain_end", "llm_end"];
const REASONS: [Reason; 2] = [Reason::EventRejected, Reason::RetriesExhausted];
/// 2026-11-30T00:00:00Z.
const MIDNIGHT: Duration = Duration::from_secs(1_795_996_800);
const RUNS: u64 = 50;

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let server = S3Server::start().await;
    let number = AtomicU32::new(0);
    conformance::all(async || {
        let number = number.fetch_add(1, Ordering::Relaxed);
        Arc::new(store(&server, &format!("store-{number}")).await) as _
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_signs_with_another_secret_is_denied() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let server = S3Server::start().await;
    let mut command = idemp();
    command
        .args(["dlq", "stats", "--dlq", &address(&server)])
        .env("AWS_SECRET_ACCESS_KEY", "of-somebody-else");
    let ended = Process::run("idemp dlq stats", &mut command, LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert!(ended.stderr.contains("denies it"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_letters_are_listed_and_replayed_over_a_kill() {
    if !selected(Suite::DeadLetters) {
        return;
    }
    let mut clock = Instant::now();
    let mut done = |what: &str| {
        println!("{what}: {:.1} s", clock.elapsed().as_secs_f64());
        clock = Instant::now();
    };
    let server = S3Server::start().await;
    let store = Arc::new(store(&server, "many").await);
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for number in (task..*LETTERS).step_by(TASKS as usize) {
                assert_eq!(store.put(letter(number)).await.unwrap(), Put::Added);
            }
        });
    }
    tasks.join_all().await;
    let paths: BTreeSet<String> = (0..*LETTERS).map(path).collect();
    assert!(server.objects("many/dlq") == paths);
    done("put");

    lists_by_every_filter(&*store).await;
    done("listed");

    let dir = temp_dir();
    let sent: [Arc<AtomicU64>; 2] = Default::default();
    let receivers = [receiver(&sent[0]).await, receiver(&sent[1]).await];
    let mut config = String::new();
    for (sink, receiver) in SINKS.iter().zip(&receivers) {
        config += &format!(
            "[sinks.{sink}]\nto = \"{}\"\nsecret_env = \"SECRET\"\n",
            receiver.url("/")
        );
    }
    fs::write(dir.path().join("idemp.toml"), config).unwrap();

    // Two operators at once, each with the letters of one sink.
    let mut first = SINKS.map(|sink| Process::start("a first replay", &mut replay(sink, dir.path(), &server)));
    for (replay, sent) in first.iter_mut().zip(&sent) {
        replay.wait_until("a third has been sent", LIMIT, |_| {
            (sent.load(Ordering::SeqCst) >= *LETTERS / 6).then_some(())
        });
    }
    first.iter_mut().for_each(Process::kill);
    let before = sent.each_ref().map(|sent| sent.load(Ordering::SeqCst));
    assert!(
        before.iter().all(|before| *before < *LETTERS / 2),
        "the kill came too late"
    );
    // What a killed one had asked of the server may still be under way, one letter's worth.
    let left = SINKS.map(|sink| server.objects(&format!("many/dlq/{sink}")).len() as u64);
    for (left, before) in left.iter().zip(&before) {
        let unsent = *LETTERS / 2 - before;
        assert!((unsent..=unsent + 1).contains(left), "{left} left, {unsent} unsent");
    }
    done(&format!("{} sent before the kill", before.iter().sum::<u64>()));

    let second = SINKS.map(|sink| Process::start("a second replay", &mut replay(sink, dir.path(), &server)));
    for (replay, left) in second.into_iter().zip(left) {
        let ended = replay.finish(LIMIT);
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let summary: Value = serde_json::from_str(&ended.stdout).unwrap();
        let count = |name: &str| summary[name].as_u64().unwrap();
        assert_eq!(count("replayed") + count("gone"), count("selected"), "{summary}");
        assert!(count("selected") <= left, "{summary}");
    }
    let after = sent.iter().map(|sent| sent.load(Ordering::SeqCst)).sum::<u64>() - before.iter().sum::<u64>();
    done(&format!("{after} sent by the second runs"));

    // None is left, none lies in both places, and every one has come to lie in its own.
    assert_eq!(server.objects("many/dlq"), BTreeSet::new());
    assert!(server.objects("many/replayed") == paths);
    for (sink, receiver) in receivers.iter().enumerate() {
        let mut bodies: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
        for request in receiver.requests() {
            let key = request.header("idempotency-key").to_owned();
            bodies.entry(key).or_default().push(request.body);
        }
        let own = (0..*LETTERS).filter(|number| number % 2 == sink as u64);
        let keys: BTreeSet<String> = own.clone().map(key).collect();
        assert!(bodies.keys().eq(keys.iter()), "none is skipped, and none goes astray");
        let mut twice = 0;
        for number in own {
            let bodies = &bodies[&key(number)];
            let event = EVENTS[(number % 3) as usize];
            let expected = format!("{{\"data\": {number}, \"event\": \"{event}\"}}");
            assert!(bodies.iter().all(|body| *body == expected.as_bytes()));
            twice += bodies.len() - 1;
        }
        assert!(twice <= 1, "only the letter at work when it was killed: {twice}");
    }
}

/// Answers 200 and counts.
async fn receiver(sent: &Arc<AtomicU64>) -> Peer {
    let sent = Arc::clone(sent);
    Peer::start(move |_| {
        sent.fetch_add(1, Ordering::SeqCst);
        Answer::status(200)
    })
    .await
}

/// A replay of a sink's letters by the command, as fast as it goes, with leases that a killed one leaves for 8 s.
fn replay(sink: &str, dir: &Path, server: &S3Server) -> Command {
    let mut command = idemp();
    command
        .args(["replay", "--config", "idemp.toml", "--dlq", &address(server)])
        .args(["--sink", sink, "--rate", "5000", "--lease", "8s", "--json"])
        .env("SECRET", "of the test")
        .current_dir(dir);
    command
}

fn address(server: &S3Server) -> String {
    format!("s3://{BUCKET}/many?endpoint={}&allow_http=true", server.url())
}

async fn store(server: &S3Server, prefix: &str) -> ObjectStoreDlq {
    let config = S3Config {
        prefix: prefix.to_owned(),
        endpoint: Some(server.url()),
        allow_http: true,
        ..S3Config::new(BUCKET)
    };
    ObjectStoreDlq::s3(config).await.unwrap()
}

/// A letter's place in each cycle tells its sink, event type and reason; no two cycles go together.
fn letter(number: u64) -> DeadLetter {
    let reason = REASONS[(number / 2 % 2) as usize];
    DeadLetter {
        sink: SinkName::parse(SINKS[(number % 2) as usize]).unwrap(),
        message: Message::new(IdempotencyKey::parse(&key(number)).unwrap(), &number).unwrap(),
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

fn key(number: u64) -> String {
    format!("run-{}:{}:{}", number % RUNS, EVENTS[(number % 3) as usize], number + 1)
}

/// Where a letter lies below `dlq` or `replayed`, by docs/dlq.md.
fn path(number: u64) -> String {
    let sink = SINKS[(number % 2) as usize];
    format!("{sink}/2026/11/30/run-{}/{}.json", number % RUNS, key(number))
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + MIDNIGHT + Duration::from_secs(seconds)
}

/// What is expected is counted by the numbers, not by the filter; within a run
/// the order is that of the steps (docs/cli.md).
async fn lists_by_every_filter(store: &dyn DeadLetterStore) {
    type IsMeant = fn(u64) -> bool;
    let all = Filter::default;
    let cases: [(Filter, IsMeant); 7] = [
        (all(), |_| true),
        (
            Filter {
                sink: Some(SinkName::parse(SINKS[1]).unwrap()),
                ..all()
            },
            |number| number % 2 == 1,
        ),
        (
            Filter {
                event_type: Some(EVENTS[2].parse().unwrap()),
                ..all()
            },
            |number| number % 3 == 2,
        ),
        (
            Filter {
                reason: Some(REASONS[0]),
                ..all()
            },
            |number| number / 2 % 2 == 0,
        ),
        (
            Filter {
                run_id: Some(RunId::parse("run-7").unwrap()),
                ..all()
            },
            |number| number % RUNS == 7,
        ),
        (
            Filter {
                key: Some(IdempotencyKey::parse("run-21:tool_end:322").unwrap()),
                ..all()
            },
            |number| number == 321,
        ),
        (
            Filter {
                since: Some(at(100)),
                until: Some(at(200)),
                ..all()
            },
            |number| (100..200).contains(&number),
        ),
    ];
    let mut everything = Vec::new();
    for (filter, is_meant) in cases {
        let mut numbers = listed(store, &filter).await;
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for number in &numbers {
            let before = last.insert(number % RUNS, *number);
            assert!(before.is_none_or(|before| before < *number), "{filter:?}");
        }
        if filter == all() {
            everything.clone_from(&numbers);
        }
        let meant: Vec<u64> = (0..*LETTERS).filter(|number| is_meant(*number)).collect();
        numbers.sort_unstable();
        assert!(
            numbers == meant,
            "{filter:?}: {} listed, {} meant",
            numbers.len(),
            meant.len()
        );
    }

    let limited = Filter {
        limit: Some(123),
        ..all()
    };
    assert_eq!(listed(store, &limited).await, everything[..123]);
}

/// The numbers of the letters, in the order of the list.
async fn listed(store: &dyn DeadLetterStore, filter: &Filter) -> Vec<u64> {
    let mut selection = store.select(filter).await.unwrap();
    let mut numbers = Vec::new();
    while let Some(page) = selection.next_page().await.unwrap() {
        for listed in page {
            let head = listed.letterhead.unwrap();
            let number = head.key.step_index().as_u64() - 1;
            assert_eq!(head.key.as_str(), key(number));
            numbers.push(number);
        }
    }
    numbers
}
