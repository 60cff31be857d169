//! Every dead-letter store on something real: files, servers of both kinds, clusters.
//!
//! `cargo xtask e2e dead-letters` brings up what this needs. What holds for every store runs on each of [`places`]; what
//! only one kind of store can meet has tests of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails loudly"
)]

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_core::{
    Attempt, AttemptRecord, Cause, Detail, EventType, IdempotencyKey, Message, Outcome, Reason, RunId, Sink, SinkName,
    StepIndex, Transport,
};
use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Put, RecordError, RedisStreamsConfig,
    RedisStreamsStore, ReplayOptions, ReplaySummary, Replayer, SqliteStore, StoreErrorKind, Target, conformance,
};
use idemp_testkit::proxy::{Fault, Proxy};
use idemp_tests::{Process, Redis, RedisReply, Suite, redis_programs, selected, temp_dir};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(240);

/// Letters of the long test.
const MANY: u64 = 10_000;
const TASKS: u64 = 16;

/// 2026-11-30T00:00:00Z.
const MIDNIGHT: Duration = Duration::from_secs(1_795_996_800);
const DAY: u64 = 24 * 60 * 60;

/// A kind of store on something real, empty.
struct Place {
    /// What [`open`] opens, also in another process.
    address: String,
    /// What stays for as long as the store does.
    _keep: Box<dyn Any + Send + Sync>,
}

impl Place {
    async fn open(&self) -> Arc<dyn DeadLetterStore> {
        open(&self.address).await
    }
}

/// One place of each kind.
fn places() -> Vec<Place> {
    let dir = temp_dir();
    let sqlite = Place {
        address: format!("sqlite:{}", dir.path().join("dlq.db").display()),
        _keep: Box::new(dir),
    };
    let redis = redis_programs().into_iter().map(|program| {
        let redis = Redis::start(&program, &[]);
        Place {
            address: redis.url(),
            _keep: Box::new(redis),
        }
    });
    std::iter::once(sqlite).chain(redis).collect()
}

/// Opens `sqlite:PATH` or `redis://HOST:PORT`.
async fn open(address: &str) -> Arc<dyn DeadLetterStore> {
    match address.split_once(':') {
        Some(("sqlite", path)) => Arc::new(SqliteStore::open(path).unwrap()),
        Some(("redis", _)) => Arc::new(
            RedisStreamsStore::open(&RedisStreamsConfig::new(address))
                .await
                .unwrap(),
        ),
        _ => panic!("no store: {address}"),
    }
}

/// Runs the test on each kind of store, all at once: most of the time is spent on waiting for one of them.
fn on_each_place(test: impl AsyncFn(Place) + Sync) {
    if selected(Suite::DeadLetters) {
        on_each(places(), |place: &Place| place.address.clone(), test);
    }
}

/// Runs the test on each server program, all at once.
fn on_each_redis(test: impl AsyncFn(PathBuf) + Sync) {
    if selected(Suite::DeadLetters) {
        on_each(
            redis_programs(),
            |program: &PathBuf| program.display().to_string(),
            test,
        );
    }
}

fn on_each<T: Send>(all: Vec<T>, name: impl Fn(&T) -> String, test: impl AsyncFn(T) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        let started: Vec<_> = all
            .into_iter()
            .map(|one| (name(&one), scope.spawn(move || runtime().block_on(test(one)))))
            .collect();
        for (name, thread) in started {
            assert!(thread.join().is_ok(), "failed on {name}");
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

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

#[test]
fn redis_keeps_the_contract_also_on_a_cluster() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &[]);
        let nodes = Redis::cluster(&program);
        let number = AtomicU32::new(0);
        let fresh = async |config: RedisStreamsConfig| {
            let stream = format!("dlq-{}", number.fetch_add(1, Ordering::Relaxed));
            let config = RedisStreamsConfig { stream, ..config };
            Arc::new(RedisStreamsStore::open(&config).await.unwrap()) as Arc<dyn DeadLetterStore>
        };
        conformance::all(async || fresh(RedisStreamsConfig::new(redis.url())).await).await;
        conformance::all(async || {
            let config = RedisStreamsConfig {
                cluster: true,
                ..RedisStreamsConfig::new(nodes[0].url())
            };
            fresh(config).await
        })
        .await;
    });
}

#[test]
fn redis_has_after_a_kill_what_it_acknowledged() {
    on_each_redis(async |program| {
        let mut redis = Redis::start(&program, &["--appendfsync", "always"]);
        let store = RedisStreamsStore::open(&RedisStreamsConfig::new(redis.url()))
            .await
            .unwrap();
        for n in 0..300 {
            store.put(made(n)).await.unwrap();
        }
        store
            .put(DeadLetter {
                dead_at: dead_at(1_000),
                ..made(7)
            })
            .await
            .unwrap();
        let before = list(&store, &Filter::default()).await;
        let (id, token) = (before[0].0.clone(), LeaseToken::random());
        let now = SystemTime::now();
        let lease = Duration::from_secs(3600);
        assert!(matches!(
            store.claim(&id, &token, lease, now).await.unwrap(),
            Claim::Claimed(_)
        ));
        redis.kill();
        let error = store.put(made(301)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        redis.start_again();
        assert_eq!(list(&store, &Filter::default()).await, before);
        let claim = store.claim(&id, &LeaseToken::random(), lease, now).await.unwrap();
        assert_eq!(claim, Claim::Held { until: now + lease });
        // Of the scripts the server knows none any more.
        redis.client().call(&["SCRIPT", "FLUSH"]);
        assert_eq!(store.put(made(302)).await.unwrap(), Put::Added);
        // And a connection that was killed is made anew without a word.
        redis
            .client()
            .call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert_eq!(store.put(made(303)).await.unwrap(), Put::Added);
        assert_eq!(store.stats(&Filter::default()).await.unwrap().depth, 302);
    });
}

#[test]
fn redis_lists_what_it_cannot_read_and_disturbs_nothing() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &[]);
        let store = RedisStreamsStore::open(&RedisStreamsConfig::new(redis.url()))
            .await
            .unwrap();
        store.put(made(1)).await.unwrap();
        let mut client = redis.client();
        let mut add = |key: &str, record: Option<&str>| {
            let mut words = vec![
                "XADD",
                "webhooks:dlq",
                "*",
                "idempotency_key",
                key,
                "event_type",
                "tool_end",
            ];
            words.extend(["payload", "{}"]);
            words.extend(record.into_iter().flat_map(|record| ["record", record]));
            match client.call(&words) {
                RedisReply::Text(id) => id,
                other => panic!("{other:?}"),
            }
        };
        let whole = made(2).to_json();
        let mut future: Value = serde_json::from_str(&whole).unwrap();
        future["version"] = json!(2);
        future["reason"] = json!("a_new_one");
        let future = add("run-x:tool_end:2", Some(&future.to_string()));
        let torn = add("run-x:tool_end:3", Some(&whole[..whole.len() / 2]));
        let damaged = add("run-x:tool_end:4", Some(&whole.replace("\\\"n\\\": 2", "\\\"n\\\": 3")));
        // As programs after the companion pages write.
        let foreign = add("run-x:tool_end:5", None);

        let mut listed = BTreeMap::new();
        let mut selection = store.select(&Filter::default()).await.unwrap();
        while let Some(page) = selection.next_page().await.unwrap() {
            listed.extend(
                page.into_iter()
                    .map(|entry| (entry.id.as_str().to_owned(), entry.letterhead)),
            );
        }
        assert_eq!(listed.len(), 5);
        assert_eq!(listed[&future], Err(RecordError::Version { found: 2 }));
        for unreadable in [&torn, &foreign] {
            assert!(
                matches!(listed[unreadable], Err(RecordError::Torn { .. })),
                "{:?}",
                listed[unreadable]
            );
        }
        for id in [&future, &torn, &damaged, &foreign] {
            let id = EntryId::new(id.as_str());
            let claim = store
                .claim(&id, &LeaseToken::random(), Duration::from_secs(9), SystemTime::now())
                .await;
            assert_eq!(claim.unwrap_err().kind(), StoreErrorKind::Record);
            assert_eq!(store.load(&id).await.unwrap_err().kind(), StoreErrorKind::Record);
        }
        let dir = temp_dir();
        let summary = replay(&store, &Ledger::open(&dir.path().join("ledger")), options()).await;
        assert_eq!(
            (summary.selected, summary.replayed, summary.unreadable),
            (5, 1, 4),
            "{summary:?}"
        );

        // A filter means what can be known: the sink of two of them, the key of all.
        let of = |filter: Filter| {
            let store = &store;
            async move { store.stats(&filter).await.unwrap().depth }
        };
        assert_eq!(of(Filter::default()).await, 4);
        assert_eq!(
            of(Filter {
                sink: Some(sink(2)),
                ..Filter::default()
            })
            .await,
            2
        );
        assert_eq!(
            of(Filter {
                reason: Some(made(2).reason),
                ..Filter::default()
            })
            .await,
            1
        );
        let key = IdempotencyKey::parse("run-x:tool_end:5").unwrap();
        assert_eq!(
            store
                .purge(&Filter {
                    key: Some(key),
                    ..Filter::default()
                })
                .await
                .unwrap(),
            1
        );
        assert_eq!(store.purge(&Filter::default()).await.unwrap(), 3);
        assert_eq!(of(Filter::default()).await, 0);
    });
}

#[test]
fn redis_does_without_its_index() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &[]);
        let store = RedisStreamsStore::open(&RedisStreamsConfig::new(redis.url()))
            .await
            .unwrap();
        for n in 0..20 {
            store.put(made(n)).await.unwrap();
        }
        store
            .put(DeadLetter {
                dead_at: dead_at(100),
                ..made(5)
            })
            .await
            .unwrap();
        redis.client().call(&["DEL", "{webhooks:dlq}:index"]);
        let dir = temp_dir();
        let summary = replay(&store, &Ledger::open(&dir.path().join("ledger")), options()).await;
        assert_eq!((summary.selected, summary.replayed), (20, 20), "{summary:?}");
        assert_eq!(
            lines(&dir.path().join("ledger")).iter().collect::<BTreeSet<_>>().len(),
            20
        );
        let mut client = redis.client();
        assert_eq!(client.call(&["XLEN", "webhooks:dlq"]), RedisReply::Integer(0));
        // Nothing is left but the version.
        assert_eq!(client.call(&["HGETALL", "{webhooks:dlq}:index"]).texts(), ["v", "1"]);
    });
}

#[test]
fn a_full_redis_refuses_letters_and_lets_them_be_replayed() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &["--maxmemory-policy", "noeviction"]);
        let store = RedisStreamsStore::open(&RedisStreamsConfig::new(redis.url()))
            .await
            .unwrap();
        for n in 0..50 {
            store.put(made(n)).await.unwrap();
        }
        redis.client().call(&["CONFIG", "SET", "maxmemory", "1"]);
        assert_eq!(store.put(made(50)).await.unwrap_err().kind(), StoreErrorKind::Full);
        assert_eq!(store.stats(&Filter::default()).await.unwrap().depth, 50);
        let dir = temp_dir();
        let of_one = Filter {
            sink: Some(sink(1)),
            ..Filter::default()
        };
        assert_eq!(store.purge(&of_one).await.unwrap(), 13);
        let summary = replay(&store, &Ledger::open(&dir.path().join("ledger")), options()).await;
        assert_eq!((summary.selected, summary.replayed), (37, 37), "{summary:?}");
        redis.client().call(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(store.put(made(50)).await.unwrap(), Put::Added);
    });
}

#[test]
fn a_redis_that_stops_answering_is_connected_to_anew() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &[]);
        let proxy = Proxy::start(redis.address()).await;
        let config = RedisStreamsConfig {
            response_timeout: Duration::from_millis(300),
            ..RedisStreamsConfig::new(format!("redis://{}", proxy.addr()))
        };
        let store = RedisStreamsStore::open(&config).await.unwrap();
        store.put(made(1)).await.unwrap();
        proxy.set(Fault::HalfOpen);
        for _ in 0..2 {
            assert_eq!(
                store.put(made(2)).await.unwrap_err().kind(),
                StoreErrorKind::Unavailable
            );
            assert_eq!(proxy.connections(), 1);
        }
        assert_eq!(
            store.put(made(2)).await.unwrap_err().kind(),
            StoreErrorKind::Unavailable
        );
        assert_eq!(proxy.connections(), 2);
        proxy.set(Fault::None);
        store.put(made(2)).await.unwrap();
        // A reply that is lost leaves one letter, whoever wrote it.
        proxy.set(Fault::SwallowReply);
        assert_eq!(
            store.put(made(3)).await.unwrap_err().kind(),
            StoreErrorKind::Unavailable
        );
        proxy.set(Fault::None);
        assert_eq!(store.put(made(3)).await.unwrap(), Put::Updated);
        assert_eq!(list(&store, &Filter::default()).await.len(), 3);
    });
}

#[test]
fn redis_needs_no_more_rights_than_the_docs_say() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &[]);
        let mut rights = vec![
            "ACL",
            "SETUSER",
            "letters",
            "on",
            ">secret",
            "~webhooks:dlq",
            "~{webhooks:dlq}:index",
        ];
        rights.extend([
            "+eval", "+evalsha", "+xadd", "+xdel", "+xrange", "+hget", "+hset", "+hsetnx", "+hdel", "+type",
        ]);
        redis.client().call(&rights);
        let config = |username: &str| RedisStreamsConfig {
            username: Some(username.to_owned()),
            password: Some("secret".to_owned()),
            ..RedisStreamsConfig::new(redis.url())
        };
        let store = RedisStreamsStore::open(&config("letters")).await.unwrap();
        for n in 0..10 {
            store.put(made(n)).await.unwrap();
        }
        store
            .put(DeadLetter {
                dead_at: dead_at(100),
                ..made(5)
            })
            .await
            .unwrap();
        assert_eq!(
            store
                .purge(&Filter {
                    key: Some(key(3)),
                    ..Filter::default()
                })
                .await
                .unwrap(),
            1
        );
        let dir = temp_dir();
        let summary = replay(&store, &Ledger::open(&dir.path().join("ledger")), at_full_speed()).await;
        assert_eq!((summary.selected, summary.replayed), (9, 9), "{summary:?}");
        redis.client().call(&["ACL", "SETUSER", "letters", "-xadd"]);
        assert_eq!(store.put(made(1)).await.unwrap_err().kind(), StoreErrorKind::CannotOpen);
    });
}

#[test]
fn redis_that_is_no_store_is_told_by_kind() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &[]);
        let open = async |config: RedisStreamsConfig| RedisStreamsStore::open(&config).await.unwrap_err().kind();
        let plain = || RedisStreamsConfig::new(redis.url());
        let mut client = redis.client();
        client.call(&["SET", "webhooks:dlq", "something else"]);
        assert_eq!(open(plain()).await, StoreErrorKind::Corrupt);
        client.call(&["DEL", "webhooks:dlq"]);
        client.call(&["HSET", "{webhooks:dlq}:index", "v", "2"]);
        assert_eq!(open(plain()).await, StoreErrorKind::Version);
        let stream = "a{b".to_owned();
        assert_eq!(
            open(RedisStreamsConfig { stream, ..plain() }).await,
            StoreErrorKind::CannotOpen
        );
        let nobody = RedisStreamsConfig {
            password: Some("wrong".to_owned()),
            ..plain()
        };
        assert_eq!(open(nobody).await, StoreErrorKind::CannotOpen);
        client.call(&["CONFIG", "SET", "requirepass", "right"]);
        assert_eq!(open(plain()).await, StoreErrorKind::CannotOpen);
        let free = idemp_tests::free_address();
        assert_eq!(
            open(RedisStreamsConfig::new(format!("redis://{free}"))).await,
            StoreErrorKind::Unavailable
        );

        client.call(&["DEL", "{webhooks:dlq}:index"]);
        let password = Some("right".to_owned());
        let store = RedisStreamsStore::open(&RedisStreamsConfig { password, ..plain() })
            .await
            .unwrap();
        client.call(&["REPLICAOF", "127.0.0.1", "1"]);
        assert_eq!(
            store.put(made(1)).await.unwrap_err().kind(),
            StoreErrorKind::Unavailable
        );
        client.call(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(store.put(made(1)).await.unwrap(), Put::Added);
        store.close().await;
        assert_eq!(store.put(made(1)).await.unwrap_err().kind(), StoreErrorKind::Closed);
    });
}

/// Leases are short, so that what a killed replay held is free again soon.
fn options() -> ReplayOptions {
    ReplayOptions {
        rate_per_second: 1_000.0,
        lease: Duration::from_secs(3),
        attempt_timeout: Duration::from_millis(500),
        ..ReplayOptions::default()
    }
}

fn at_full_speed() -> ReplayOptions {
    ReplayOptions {
        rate_per_second: 100_000.0,
        ..options()
    }
}

async fn replay(store: &dyn DeadLetterStore, ledger: &Ledger, options: ReplayOptions) -> ReplaySummary {
    let target = Target {
        sink: Arc::new(ledger.clone()),
        policy: Default::default(),
    };
    let replayer = Replayer::new(options).unwrap();
    let targets = move |_: &SinkName| Some(target.clone());
    let cancel = Default::default();
    replayer
        .run(store, &Filter::default(), &targets, &mut |_| (), &cancel)
        .await
        .unwrap()
}

const CHILD_STORE: &str = "IDEMP_TEST_CHILD_STORE";
const CHILD_LEDGER: &str = "IDEMP_TEST_CHILD_LEDGER";

/// This program once more, as a process that can be killed.
fn child_that_replays(address: &str, ledger: &Path) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "the_child_replays", "--nocapture"]);
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

/// A sink that delivers by a line in a file, which holds the key: other processes see it at once.
#[derive(Clone)]
struct Ledger(Arc<File>);

impl Ledger {
    fn open(path: &Path) -> Self {
        Self(Arc::new(
            OpenOptions::new().create(true).append(true).open(path).unwrap(),
        ))
    }
}

#[async_trait]
impl Sink for Ledger {
    async fn deliver(&self, message: &Message, _attempt: Attempt) -> Outcome {
        (&*self.0)
            .write_all(format!("{}\n", message.key().as_str()).as_bytes())
            .unwrap();
        Outcome::Delivered { status: None }
    }
}

fn lines(ledger: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The entries that are meant, with their keys.
async fn list(store: &dyn DeadLetterStore, filter: &Filter) -> Vec<(EntryId, IdempotencyKey)> {
    let mut listed = Vec::new();
    let mut selection = store.select(filter).await.unwrap();
    while let Some(page) = selection.next_page().await.unwrap() {
        listed.extend(page.into_iter().map(|entry| (entry.id, entry.letterhead.unwrap().key)));
    }
    listed
}

fn sink(n: u64) -> SinkName {
    SinkName::parse(&format!("sink-{}", n % 4)).unwrap()
}

fn event(n: u64) -> EventType {
    EventType::parse(["tool_end", "chain_end", "llm_end"][n as usize % 3]).unwrap()
}

fn reason(n: u64) -> Reason {
    [
        Reason::RetriesExhausted,
        Reason::CircuitOpen,
        Reason::EventRejected,
        Reason::ConfigurationRejected,
        Reason::Shutdown,
    ][n as usize % 5]
}

fn run(n: u64) -> RunId {
    RunId::parse(&format!("run-{}", n % 50)).unwrap()
}

fn key(n: u64) -> IdempotencyKey {
    IdempotencyKey::new(&run(n), &event(n), StepIndex::new(n / 50 + 1).unwrap())
}

fn number_of(key: &IdempotencyKey) -> u64 {
    let run: u64 = key.run_id().strip_prefix("run-").unwrap().parse().unwrap();
    (key.step_index().as_u64() - 1) * 50 + run
}

fn dead_at(n: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + MIDNIGHT + Duration::from_secs(4 * DAY + n)
}

/// The letter of a number, below [`MANY`]: no two are alike in what filters look at.
fn made(n: u64) -> DeadLetter {
    DeadLetter {
        sink: sink(n),
        message: Message::new(key(n), &json!({"n": n, "text": "x".repeat(n as usize % 500)})).unwrap(),
        reason: reason(n),
        class: reason(n).class(),
        maybe_delivered: false,
        attempts: Vec::new(),
        accepted_at: SystemTime::UNIX_EPOCH + MIDNIGHT + Duration::from_secs(n % 3 * DAY),
        dead_at: dead_at(n),
        not_before: None,
        replay_count: 0,
    }
}
