//! The contract, and letters that are listed and replayed.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use idemp_core::{Reason, RunId, SinkName};
use idemp_dlq::{DeadLetter, DeadLetterStore, Filter, ObjectStoreDlq, Put, conformance};
use idemp_testkit::peer::{Answer, Peer};
use idemp_testkit::until;
use idemp_tests::{Process, Suite, selected};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{CHILD_STORE, Place, at, config, letter, replay, replay_to};

/// The server takes some 200 requests a second, and a letter that is put, listed and replayed costs about fifteen.
const LETTERS: u64 = 1_000;

/// Says to a child of this program where to replay to.
const CHILD: &str = "IDEMP_TEST_REPLAY_TO";

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
        .args(["--exact", "replays::the_child_replays", "--nocapture"])
        .env(CHILD, receiver.url("/"))
        .env(CHILD_STORE, place.server.url());
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
