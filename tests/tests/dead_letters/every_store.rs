//! What holds for every store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use idemp_core::{AttemptRecord, Cause, Detail, Message, Reason, Transport};
use idemp_dlq::{DeadLetter, Filter, Put, ReplayOptions};
use idemp_tests::temp_dir;

use crate::letters::{DAY, dead_at, key, made};
use crate::support::{Ledger, lines, list, on_each_place, options, replay};

#[test]
fn two_operators_do_not_collide() {
    on_each_place(async |place| {
        let store = place.open().await;
        for n in 0..500 {
            store.put(made(n)).await.unwrap();
        }
        let dir = temp_dir();
        let ledger = Ledger::open(&dir.path().join("ledger"));
        let other = place.open().await;
        let (one, two) = tokio::join!(replay(&*store, &ledger, options()), replay(&*other, &ledger, options()),);
        assert_eq!(one.replayed + two.replayed, 500, "{one:?} {two:?}");
        let lines = lines(&dir.path().join("ledger"));
        assert_eq!(lines.len(), 500);
        assert_eq!(lines.iter().collect::<BTreeSet<_>>().len(), 500);
        assert_eq!(store.stats(&Filter::default()).await.unwrap().depth, 0);
    });
}

#[test]
fn what_is_too_early_or_forgotten_wants_force() {
    on_each_place(async |place| {
        let store = place.open().await;
        let later = SystemTime::now() + Duration::from_secs(3600);
        let long_ago = SystemTime::now() - Duration::from_secs(2 * DAY);
        store
            .put(DeadLetter {
                not_before: Some(later),
                ..made(1)
            })
            .await
            .unwrap();
        let attempts = vec![AttemptRecord {
            number: 1,
            started: long_ago,
            elapsed: Duration::from_secs(5),
            cause: Some(Cause::Transport(Transport::Timeout)),
            detail: Detail::new("no answer"),
        }];
        store
            .put(DeadLetter {
                maybe_delivered: true,
                attempts,
                ..made(2)
            })
            .await
            .unwrap();
        let dir = temp_dir();
        let ledger = Ledger::open(&dir.path().join("ledger"));
        let summary = replay(&*store, &ledger, options()).await;
        assert_eq!(
            (
                summary.selected,
                summary.refused_not_before,
                summary.refused_receiver_ttl
            ),
            (2, 1, 1),
            "{summary:?}"
        );
        let summary = replay(
            &*store,
            &ledger,
            ReplayOptions {
                force: true,
                ..options()
            },
        )
        .await;
        assert_eq!((summary.selected, summary.replayed), (2, 2), "{summary:?}");
    });
}

#[test]
fn a_letter_updates_its_entry_and_other_bytes_are_a_second_one() {
    on_each_place(async |place| {
        let store = place.open().await;
        assert_eq!(store.put(made(1)).await.unwrap(), Put::Added);
        let id = list(&*store, &Filter::default()).await.remove(0).0;
        for n in 2..=40 {
            assert_eq!(
                store
                    .put(DeadLetter {
                        dead_at: dead_at(n),
                        ..made(1)
                    })
                    .await
                    .unwrap(),
                Put::Updated
            );
        }
        assert_eq!(list(&*store, &Filter::default()).await, [(id.clone(), key(1))]);
        assert_eq!(
            store.load(&id).await.unwrap().unwrap().letter,
            DeadLetter {
                dead_at: dead_at(40),
                ..made(1)
            }
        );
        let other = DeadLetter {
            message: Message::new(key(1), "other bytes").unwrap(),
            ..made(1)
        };
        assert_eq!(store.put(other.clone()).await.unwrap(), Put::Conflict);
        assert_eq!(store.put(other).await.unwrap(), Put::Updated);
        let reasons: BTreeMap<Reason, u64> = store.stats(&Filter::default()).await.unwrap().by_reason;
        assert_eq!(reasons, BTreeMap::from([(made(1).reason, 1), (Reason::KeyConflict, 1)]));
    });
}

/// Each of them reads the entry, adds its attempt and writes the entry: none may write over what another one added.
#[test]
fn letters_that_come_at_once_are_put_together() {
    on_each_place(async |place| {
        let store = place.open().await;
        for n in 0..10 {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 1..=8 {
                let store = Arc::clone(&store);
                let attempts = vec![AttemptRecord {
                    number,
                    started: dead_at(u64::from(number)),
                    elapsed: Duration::from_secs(1),
                    cause: Some(Cause::Status(503)),
                    detail: Detail::default(),
                }];
                tasks.spawn(async move { store.put(DeadLetter { attempts, ..made(n) }).await.unwrap() });
            }
            tasks.join_all().await;
            let filter = Filter {
                key: Some(key(n)),
                ..Filter::default()
            };
            let id = list(&*store, &filter).await.remove(0).0;
            let letter = store.load(&id).await.unwrap().unwrap().letter;
            let numbers: BTreeSet<u32> = letter.attempts.iter().map(|attempt| attempt.number).collect();
            assert!(numbers.into_iter().eq(1..=8), "{letter:?}");
        }
    });
}
