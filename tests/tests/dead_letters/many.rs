//! Ten thousand letters.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use idemp_core::SinkName;
use idemp_dlq::{DeadLetterStore, Filter, Put};
use idemp_tests::{Process, temp_dir};

use crate::letters::{dead_at, event, key, made, number_of, reason, run, sink};
use crate::support::{Ledger, at_full_speed, lines, list, on_each_place, open, options, replay, runtime};

const LIMIT: Duration = Duration::from_secs(240);

/// Letters of the long test.
const MANY: u64 = 10_000;
const TASKS: u64 = 16;

#[test]
fn ten_thousand_letters_are_listed_and_replayed_over_a_kill() {
    on_each_place(async |place| {
        let store = place.open().await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                for n in (task..MANY).step_by(TASKS as usize) {
                    assert_eq!(store.put(made(n)).await.unwrap(), Put::Added);
                }
            });
        }
        tasks.join_all().await;
        lists_by_every_filter(&*store).await;
        store.close().await;

        let dir = temp_dir();
        let ledger = dir.path().join("ledger");
        let mut child = child_that_replays(&place.address, &ledger);
        child.wait_until("a quarter is replayed", LIMIT, |_| {
            (lines(&ledger).len() >= 2_500).then_some(())
        });
        child.kill();
        let before = lines(&ledger).len();
        assert!(before < MANY as usize, "the child was to be killed in the middle");

        let store = place.open().await;
        let summary = replay(&*store, &Ledger::open(&ledger), at_full_speed()).await;
        let lines = lines(&ledger);
        println!("{before} before the kill, {} after it", lines.len() - before);
        assert_eq!(summary.replayed, summary.selected, "{summary:?}");
        assert_eq!(store.stats(&Filter::default()).await.unwrap().depth, 0);
        let keys: BTreeSet<&str> = lines.iter().map(String::as_str).collect();
        let expected: BTreeSet<String> = (0..MANY).map(|n| key(n).as_str().to_owned()).collect();
        assert!(keys.into_iter().eq(expected.iter().map(String::as_str)));
        // One letter was on its way when the child was killed.
        assert!(lines.len() as u64 <= MANY + 1, "{} deliveries", lines.len());
    });
}

/// Letters differ in everything that a filter looks at. What is expected is counted by the numbers, not by the filter.
async fn lists_by_every_filter(store: &dyn DeadLetterStore) {
    type Expected = fn(u64) -> bool;
    let all = Filter::default;
    let cases: [(Filter, Expected); 10] = [
        (all(), |_| true),
        (
            Filter {
                sink: Some(sink(2)),
                ..all()
            },
            |n| n % 4 == 2,
        ),
        (
            Filter {
                event_type: Some(event(1)),
                ..all()
            },
            |n| n % 3 == 1,
        ),
        (
            Filter {
                reason: Some(reason(3)),
                ..all()
            },
            |n| n % 5 == 3,
        ),
        (
            Filter {
                run_id: Some(run(7)),
                ..all()
            },
            |n| n % 50 == 7,
        ),
        (
            Filter {
                key: Some(key(4_321)),
                ..all()
            },
            |n| n == 4_321,
        ),
        (
            Filter {
                since: Some(dead_at(9_000)),
                ..all()
            },
            |n| n >= 9_000,
        ),
        (
            Filter {
                until: Some(dead_at(1_000)),
                ..all()
            },
            |n| n < 1_000,
        ),
        (
            Filter {
                since: Some(dead_at(100)),
                until: Some(dead_at(200)),
                sink: Some(sink(0)),
                ..all()
            },
            |n| (100..200).contains(&n) && n % 4 == 0,
        ),
        (
            Filter {
                sink: Some(SinkName::parse("none").unwrap()),
                ..all()
            },
            |_| false,
        ),
    ];
    for (filter, expected) in cases {
        let listed = list(store, &filter).await;
        let keys: BTreeSet<String> = listed.iter().map(|(_, key)| key.as_str().to_owned()).collect();
        let expected: BTreeSet<String> = (0..MANY)
            .filter(|n| expected(*n))
            .map(|n| key(n).as_str().to_owned())
            .collect();
        assert_eq!(keys.len(), listed.len(), "an entry came twice: {filter:?}");
        assert!(
            keys == expected,
            "{filter:?}: {} listed, {} expected",
            keys.len(),
            expected.len()
        );
        assert_eq!(
            store.stats(&filter).await.unwrap().depth,
            expected.len() as u64,
            "{filter:?}"
        );
    }
    let first = list(
        store,
        &Filter {
            limit: Some(123),
            ..all()
        },
    )
    .await;
    assert_eq!(first, list(store, &all()).await[..123]);
    let days: Vec<u64> = list(store, &all())
        .await
        .iter()
        .map(|(_, key)| number_of(key) % 3)
        .collect();
    assert!(days.is_sorted(), "the oldest day comes first");
}

const CHILD_STORE: &str = "IDEMP_TEST_CHILD_STORE";
const CHILD_LEDGER: &str = "IDEMP_TEST_CHILD_LEDGER";

/// This program once more, as a process that can be killed.
fn child_that_replays(address: &str, ledger: &Path) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "many::the_child_replays", "--nocapture"]);
    child.env(CHILD_STORE, address).env(CHILD_LEDGER, ledger);
    Process::start("the replaying child", &mut child)
}

/// Not a test by itself: what [`child_that_replays`] runs. Without its two variables there is nothing to do.
#[test]
fn the_child_replays() {
    let (Ok(address), Ok(ledger)) = (std::env::var(CHILD_STORE), std::env::var(CHILD_LEDGER)) else {
        return;
    };
    runtime().block_on(async {
        let store = open(&address).await;
        replay(&*store, &Ledger::open(ledger.as_ref()), options()).await;
    });
}
