//! Selections, counts and purges.

use std::collections::BTreeMap;
use std::sync::Arc;

use idemp_core::{Class, Reason};
use tokio::task::JoinSet;

use super::{at, claims, event, key, keys, letter, list, load, numbered, only, run, sink};
use crate::{Claim, DeadLetter, DeadLetterStore, Filter, LeaseToken, Put, Settled};

const DAY: u64 = 24 * 60 * 60;

/// Oldest day first, within a day one run after the other, within a run by step as a number, over all event types.
pub async fn selections_are_in_replay_order(store: Arc<dyn DeadLetterStore>) {
    let accepted = |seconds, text| DeadLetter {
        accepted_at: at(seconds),
        ..letter(text, &())
    };
    for letter in [
        accepted(DAY, "r0:tool_end:1"),
        accepted(50, "r2:tool_end:1"),
        accepted(40, "r1.a:tool_end:1"),
        accepted(30, "r1:tool_end:10"),
        accepted(20, "r1:tool_end:9"),
        accepted(90, "r1:chain_end:2"),
        accepted(DAY - 1, "r1:zeta:1"),
    ] {
        store.put(letter).await.unwrap();
    }
    let listed = keys(&*store, &Filter::default()).await;
    assert_eq!(listed.len(), 7);
    assert_eq!(listed[6], "r0:tool_end:1", "the second day comes last");
    let mut runs: Vec<_> = listed.iter().filter_map(|key| key.split(':').next()).collect();
    runs.dedup();
    assert_eq!(runs.len(), 4, "one run after the other, in whatever order: {listed:?}");
    let of_r1: Vec<_> = listed.iter().filter(|key| key.starts_with("r1:")).collect();
    assert_eq!(
        of_r1,
        ["r1:zeta:1", "r1:chain_end:2", "r1:tool_end:9", "r1:tool_end:10"]
    );

    let filter = Filter {
        limit: Some(2),
        ..Filter::default()
    };
    assert_eq!(keys(&*store, &filter).await, listed[..2]);
}

/// A long selection comes in several pages, whole and in order.
pub async fn many_entries_come_by_pages(store: Arc<dyn DeadLetterStore>) {
    let steps = 1..=1_201_u64;
    let mut tasks = JoinSet::new();
    for step in steps.clone().rev() {
        let store = Arc::clone(&store);
        tasks.spawn(async move { store.put(numbered(step)).await.unwrap() });
    }
    tasks.join_all().await;
    let mut selection = store.select(&Filter::default()).await.unwrap();
    let (mut pages, mut listed) = (0, Vec::new());
    while let Some(page) = selection.next_page().await.unwrap() {
        pages += 1;
        listed.extend(
            page.into_iter()
                .map(|entry| entry.letterhead.unwrap().key.step_index().as_u64()),
        );
    }
    assert!(listed.into_iter().eq(steps));
    assert!(pages > 1);
    assert_eq!(
        selection.next_page().await.unwrap(),
        None,
        "after the last page there is none"
    );
}

/// What is put after the selection is not in it, and what is gone since is left out.
pub async fn a_selection_is_frozen(store: Arc<dyn DeadLetterStore>) {
    for step in [1, 3] {
        store.put(numbered(step)).await.unwrap();
    }
    let mut selection = store.select(&Filter::default()).await.unwrap();
    store.put(numbered(2)).await.unwrap();
    store
        .purge(&Filter {
            key: Some(key("r1:tool_end:1")),
            ..Filter::default()
        })
        .await
        .unwrap();
    let mut listed = Vec::new();
    while let Some(page) = selection.next_page().await.unwrap() {
        listed.extend(page.into_iter().map(|entry| entry.letterhead.unwrap().key));
    }
    assert_eq!(listed, [key("r1:tool_end:3")]);
}

/// Letters that differ in everything that a filter looks at.
async fn varied(store: &dyn DeadLetterStore) {
    let rejected = |letter| DeadLetter {
        reason: Reason::EventRejected,
        class: Class::Event,
        ..letter
    };
    for letter in [
        letter("r1:tool_end:1", &()),
        DeadLetter {
            dead_at: at(50),
            ..letter("r1:chain_end:2", &())
        },
        rejected(DeadLetter {
            dead_at: at(60),
            ..letter("r2:tool_end:3", &())
        }),
        rejected(DeadLetter {
            sink: sink("audit"),
            dead_at: at(70),
            ..letter("r10:tool_end:4", &())
        }),
    ] {
        store.put(letter).await.unwrap();
    }
}

/// Each filter alone, and two together.
pub async fn filters_mean_what_they_say(store: Arc<dyn DeadLetterStore>) {
    varied(&*store).await;
    let all = Filter::default;
    let (one, two, three, four) = ("r1:tool_end:1", "r1:chain_end:2", "r2:tool_end:3", "r10:tool_end:4");
    let cases: [(Filter, &[&str]); 15] = [
        (all(), &[one, two, four, three]),
        (
            Filter {
                sink: Some(sink("webhook")),
                ..all()
            },
            &[one, two, three],
        ),
        (
            Filter {
                sink: Some(sink("none")),
                ..all()
            },
            &[],
        ),
        (
            Filter {
                event_type: Some(event("tool_end")),
                ..all()
            },
            &[one, four, three],
        ),
        (
            Filter {
                reason: Some(Reason::EventRejected),
                ..all()
            },
            &[four, three],
        ),
        (
            Filter {
                run_id: Some(run("r1")),
                ..all()
            },
            &[one, two],
        ),
        (
            Filter {
                key: Some(key(two)),
                ..all()
            },
            &[two],
        ),
        (
            Filter {
                since: Some(at(50)),
                ..all()
            },
            &[two, four, three],
        ),
        (
            Filter {
                until: Some(at(50)),
                ..all()
            },
            &[one],
        ),
        (
            Filter {
                since: Some(at(50)),
                until: Some(at(70)),
                ..all()
            },
            &[two, three],
        ),
        (
            Filter {
                since: Some(at(71)),
                ..all()
            },
            &[],
        ),
        (
            Filter {
                run_id: Some(run("r1")),
                event_type: Some(event("tool_end")),
                ..all()
            },
            &[one],
        ),
        (
            Filter {
                limit: Some(0),
                ..all()
            },
            &[],
        ),
        (
            Filter {
                run_id: Some(run("r1")),
                limit: Some(1),
                ..all()
            },
            &[one],
        ),
        (
            Filter {
                limit: Some(u64::MAX),
                ..all()
            },
            &[one, two, four, three],
        ),
    ];
    for (filter, expected) in cases {
        let mut listed = keys(&*store, &filter).await;
        let mut expected = expected.to_vec();
        listed.sort();
        expected.sort_unstable();
        assert_eq!(listed, expected, "{filter:?}");
    }
}

/// Counts by sink and reason, and the oldest, of what the filter means.
pub async fn stats_count_what_is_meant(store: Arc<dyn DeadLetterStore>) {
    let empty = store.stats(&Filter::default()).await.unwrap();
    assert_eq!((empty.depth, empty.oldest), (0, None));
    varied(&*store).await;
    let stats = store.stats(&Filter::default()).await.unwrap();
    assert_eq!((stats.depth, stats.oldest), (4, Some(at(40))));
    assert_eq!(
        stats.by_sink,
        BTreeMap::from([(sink("audit"), 1), (sink("webhook"), 3)])
    );
    let by_reason = BTreeMap::from([(Reason::RetriesExhausted, 2), (Reason::EventRejected, 2)]);
    assert_eq!(stats.by_reason, by_reason);

    let rejected = Filter {
        reason: Some(Reason::EventRejected),
        ..Filter::default()
    };
    let stats = store.stats(&rejected).await.unwrap();
    assert_eq!((stats.depth, stats.oldest), (2, Some(at(60))));
    assert_eq!(stats.by_reason, BTreeMap::from([(Reason::EventRejected, 2)]));
    let stats = store
        .stats(&Filter {
            limit: Some(1),
            ..rejected
        })
        .await
        .unwrap();
    assert_eq!(stats.depth, 1);
}

/// A purge deletes what its filter means, held or not, says how much that was, and leaves the rest.
pub async fn a_purge_deletes_what_is_meant(store: Arc<dyn DeadLetterStore>) {
    varied(&*store).await;
    let of_run = Filter {
        run_id: Some(run("r1")),
        ..Filter::default()
    };
    let held = list(&*store, &of_run).await.remove(0).0;
    let token = LeaseToken::random();
    assert!(claims(&*store, &held, &token, at(100)).await);

    assert_eq!(
        store
            .purge(&Filter {
                limit: Some(1),
                ..of_run.clone()
            })
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        keys(&*store, &of_run).await,
        ["r1:chain_end:2"],
        "the first in replay order is gone"
    );
    assert_eq!(
        store.mark_replayed(&held, &token, at(101)).await.unwrap(),
        Settled::Lost
    );
    assert_eq!(store.purge(&of_run).await.unwrap(), 1);
    assert_eq!(store.purge(&of_run).await.unwrap(), 0);
    assert_eq!(store.stats(&Filter::default()).await.unwrap().depth, 2);
    assert_eq!(store.purge(&Filter::default()).await.unwrap(), 2);
    assert_eq!(store.stats(&Filter::default()).await.unwrap().depth, 0);
}

/// An id that was frozen means its entry, and never one that came later.
pub async fn ids_are_not_used_again(store: Arc<dyn DeadLetterStore>) {
    let first = only(&*store, numbered(1)).await;
    store.purge(&Filter::default()).await.unwrap();
    assert_eq!(store.put(numbered(2)).await.unwrap(), Put::Added);
    let token = LeaseToken::random();
    assert_eq!(store.load(&first).await.unwrap(), None);
    assert_eq!(
        store.claim(&first, &token, super::LEASE, at(100)).await.unwrap(),
        Claim::Gone
    );
    let (second, _) = list(&*store, &Filter::default()).await.remove(0);
    assert_ne!(first, second);
    assert_eq!(load(&*store, &second).await, numbered(2));
}
