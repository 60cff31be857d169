//! Redis Streams: every test runs on each server program that is there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use idemp_receiver::consume::{ConsumeConfig, ConsumerError, RedisStreamsConsumer, RedisStreamsConsumerConfig, Start};
use idemp_receiver::{
    Claim, ClaimKey, ClaimStore, Claimant, Event, HandlerError, MemoryStore, RedisConfig, RedisStore, Scope,
};
use idemp_testkit::gate::Gate;
use idemp_tests::{Process, Redis, RedisReply, Suite, redis_programs, selected};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{Effects, LIMIT, body, key, once_each, receiver, sign, until};

const STREAM: &str = "webhooks";
const GROUP: &str = "idemp";
const URL: &str = "IDEMP_TEST_CHILD_REDIS";

/// Runs the test on each server program.
fn on_each(test: impl AsyncFn(PathBuf)) {
    if !selected(Suite::Consumers) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for program in redis_programs() {
        println!("on {}", program.display());
        runtime.block_on(test(program));
    }
}

/// An entry as the sink writes it.
fn add(redis: &Redis, step: usize) -> String {
    let payload = step.to_string();
    let (key, signature) = (key(step), sign(&body(step)));
    add_raw(
        redis,
        &[
            "idempotency_key",
            &key,
            "event_type",
            "tool_end",
            "payload",
            &payload,
            "signature",
            &signature,
        ],
    )
}

fn add_raw(redis: &Redis, fields: &[&str]) -> String {
    let words = [&["XADD", STREAM, "*"], fields].concat();
    match redis.client().call(&words) {
        RedisReply::Text(id) => id,
        other => panic!("{other:?}"),
    }
}

/// How many entries are pending in the group; `None` without a group.
fn pending(redis: &Redis) -> Option<i64> {
    match redis.client().try_call(&["XPENDING", STREAM, GROUP]).ok()? {
        RedisReply::Array(parts) => match parts[0] {
            RedisReply::Integer(count) => Some(count),
            _ => None,
        },
        _ => None,
    }
}

/// How many entries the group has not read yet.
fn lag(redis: &Redis) -> i64 {
    let RedisReply::Array(groups) = redis.client().call(&["XINFO", "GROUPS", STREAM]) else {
        panic!("no groups");
    };
    let Some(RedisReply::Array(group)) = groups.into_iter().next() else {
        return i64::MAX;
    };
    let at = group
        .iter()
        .position(|word| *word == RedisReply::Text("lag".to_owned()));
    match group[at.unwrap() + 1] {
        RedisReply::Integer(lag) => lag,
        _ => i64::MAX,
    }
}

async fn all_done(redis: &Redis) {
    until("all is read and acknowledged", || {
        pending(redis) == Some(0) && lag(redis) == 0
    })
    .await;
}

fn config(url: &str) -> RedisStreamsConsumerConfig {
    RedisStreamsConsumerConfig {
        block: Duration::from_millis(100),
        reclaim_every: Duration::from_millis(100),
        // Above the longest handling of `consume`.
        min_idle: Duration::from_millis(2_500),
        ..RedisStreamsConsumerConfig::new(url, STREAM, GROUP)
    }
}

fn consume() -> ConsumeConfig {
    ConsumeConfig {
        retries: Vec::new(),
        handler_cap: Duration::from_secs(2),
        recheck: Duration::from_millis(50),
        ..ConsumeConfig::default()
    }
}

struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), ConsumerError>>,
}

impl Running {
    fn start<F>(
        config: RedisStreamsConsumerConfig,
        consume: ConsumeConfig,
        store: impl ClaimStore,
        effects: &Effects,
        handler: impl Fn(Event) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let consumer = RedisStreamsConsumer::new(&receiver(store), consume, config).unwrap();
        let (stop, quarantine) = (CancellationToken::new(), effects.quarantine());
        let task = {
            let stop = stop.clone();
            tokio::spawn(async move { consumer.run(handler, quarantine, &stop).await })
        };
        Self { stop, task }
    }

    fn plain(redis: &Redis, store: impl ClaimStore, effects: &Effects) -> Self {
        Self::start(config(&redis.url()), consume(), store, effects, effects.handler())
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(LIMIT, self.task)
            .await
            .expect("it stops")
            .unwrap()
            .unwrap();
    }
}

fn claims(redis: &Redis) -> RedisStore {
    RedisStore::new(RedisConfig::new(redis.url())).unwrap()
}

/// Part of the test below: takes entries and never ends with one.
#[tokio::test]
async fn the_child_takes_entries() {
    let Ok(url) = std::env::var(URL) else { return };
    let store = RedisStore::new(RedisConfig::new(url.as_str())).unwrap();
    let config = RedisStreamsConsumerConfig {
        concurrency: 500,
        min_idle: Duration::from_secs(7_200),
        ..config(&url)
    };
    let consume = ConsumeConfig {
        handler_cap: Duration::from_secs(3_600),
        ..consume()
    };
    let effects = Effects::default();
    let running = Running::start(config, consume, store, &effects, |_| std::future::pending());
    running.task.await.unwrap().unwrap();
}

#[test]
fn another_consumer_finishes_the_150_entries_of_one_that_was_killed() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        for step in 1..=150 {
            add(&redis, step);
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "redis::the_child_takes_entries"])
            .env(URL, redis.url());
        let mut child = Process::start("child", &mut command);
        child.wait_until("it has taken all", LIMIT, |_| {
            (pending(&redis) == Some(150)).then_some(())
        });
        child.kill();

        let effects = Effects::default();
        let config = RedisStreamsConsumerConfig {
            concurrency: 16,
            ..config(&redis.url())
        };
        let running = Running::start(config, consume(), claims(&redis), &effects, effects.handler());
        until("all have run", || effects.distinct() == 150).await;
        all_done(&redis).await;
        running.stop().await;
        assert_eq!(effects.runs(), once_each(1..=150));
        assert_eq!(effects.quarantined(), []);
    });
}

/// Entries of a dead consumer behind others of it that cannot be settled: a look for them that began anew each time would
/// find the first ones again and again.
#[test]
fn a_look_for_left_entries_reaches_the_tail() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let store = Arc::new(MemoryStore::new());
        let mut holders = Vec::new();
        for step in 1..=60 {
            add(&redis, step);
            if step <= 24 {
                let claimant = Claimant::new(
                    ClaimKey::new(&Scope::default(), &key(step)).unwrap(),
                    body(step).as_bytes(),
                );
                let claim = store.claim(&claimant, Duration::from_secs(600)).await.unwrap();
                assert_eq!(claim, Claim::Claimed);
                holders.push(claimant);
            }
        }
        let mut client = redis.client();
        client.call(&["XGROUP", "CREATE", STREAM, GROUP, "0"]);
        client.call(&[
            "XREADGROUP",
            "GROUP",
            GROUP,
            "dead",
            "COUNT",
            "60",
            "STREAMS",
            STREAM,
            ">",
        ]);

        let effects = Effects::default();
        // 24 of them wait, so that there are 2 free places for the rest.
        let config = RedisStreamsConsumerConfig {
            concurrency: 26,
            ..config(&redis.url())
        };
        let running = Running::start(config, consume(), Arc::clone(&store), &effects, effects.handler());
        until("the tail has run", || effects.distinct() == 36).await;
        until("the head is what is pending", || pending(&redis) == Some(24)).await;
        for holder in holders {
            store.release(&holder).await.unwrap();
        }
        all_done(&redis).await;
        running.stop().await;
        assert_eq!(effects.runs(), once_each(1..=60));
    });
}

#[test]
fn a_group_that_is_gone_is_made_again_from_where_it_began() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let effects = Effects::default();
        // Claims are elsewhere: the server loses everything.
        let running = Running::plain(&redis, MemoryStore::new(), &effects);
        (1..=10).for_each(|step| drop(add(&redis, step)));
        until("the first have run", || effects.distinct() == 10).await;
        all_done(&redis).await;

        redis.client().call(&["XGROUP", "DESTROY", STREAM, GROUP]);
        (11..=20).for_each(|step| drop(add(&redis, step)));
        until("those without a group have run", || effects.distinct() == 20).await;
        all_done(&redis).await;

        redis.client().call(&["FLUSHALL"]);
        (21..=30).for_each(|step| drop(add(&redis, step)));
        until("those after the loss have run", || effects.distinct() == 30).await;
        all_done(&redis).await;
        running.stop().await;
        assert_eq!(effects.runs(), once_each(1..=30));
    });
}

#[test]
fn a_group_may_begin_with_what_comes_and_keeps_that_beginning() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        (1..=5).for_each(|step| drop(add(&redis, step)));
        let effects = Effects::default();
        let config = RedisStreamsConsumerConfig {
            start: Start::Latest,
            ..config(&redis.url())
        };
        let running = Running::start(config, consume(), MemoryStore::new(), &effects, effects.handler());
        until("there is a group", || pending(&redis).is_some()).await;
        (6..=8).for_each(|step| drop(add(&redis, step)));
        until("the new ones have run", || effects.distinct() == 3).await;
        redis.client().call(&["XGROUP", "DESTROY", STREAM, GROUP]);
        add(&redis, 9);
        until("the next one has run", || effects.distinct() == 4).await;
        all_done(&redis).await;
        running.stop().await;
        assert_eq!(effects.runs(), once_each(6..=9));
    });
}

#[test]
fn a_server_that_is_killed_and_started_again_is_no_end() {
    on_each(async |program| {
        let mut redis = Redis::start(&program, &["--appendfsync", "always"]);
        let effects = Effects::default();
        let running = Running::plain(&redis, claims(&redis), &effects);
        (1..=100).for_each(|step| drop(add(&redis, step)));
        until("some have run", || effects.distinct() >= 20).await;
        redis.kill();
        redis.start_again();
        (101..=200).for_each(|step| drop(add(&redis, step)));
        until("all have run", || effects.distinct() == 200).await;
        all_done(&redis).await;
        running.stop().await;
        assert_eq!(effects.quarantined(), []);
        // What ran when the server was killed may not have been marked.
        let again: usize = effects.runs().values().map(|runs| runs - 1).sum();
        assert!(again <= 64, "{again}");
    });
}

#[test]
fn what_is_malformed_or_fails_for_good_goes_to_quarantine_and_the_rest_goes_on() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let good = sign(&body(1));
        let bad = [
            (
                add_raw(
                    &redis,
                    &[
                        "idempotency_key",
                        "r1:tool_end:1",
                        "event_type",
                        "tool_end",
                        "payload",
                        "1",
                    ],
                ),
                "bad_signature",
            ),
            (
                add_raw(&redis, &["event_type", "tool_end", "payload", "1", "signature", &good]),
                "key_missing",
            ),
            (
                add_raw(
                    &redis,
                    &[
                        "idempotency_key",
                        "r1:chain_end:1",
                        "event_type",
                        "tool_end",
                        "payload",
                        "1",
                        "signature",
                        &good,
                    ],
                ),
                "event_mismatch",
            ),
            (
                add_raw(&redis, &["idempotency_key", "r1:tool_end:1", "signature", &good]),
                "not_an_event",
            ),
            (add(&redis, 2), "failed"),
        ];
        (3..=20).for_each(|step| drop(add(&redis, step)));
        let effects = Effects::default();
        let consume = ConsumeConfig {
            retries: [10, 50, 300].map(Duration::from_millis).to_vec(),
            handler_cap: Duration::from_millis(500),
            ..consume()
        };
        let script = effects.clone();
        let running = Running::start(config(&redis.url()), consume, claims(&redis), &effects, move |event| {
            script.run(&event);
            let fails = event.key() == key(2);
            async move { if fails { Err(HandlerError::Failed) } else { Ok(()) } }
        });
        until("the rest has run", || effects.distinct() == 19).await;
        all_done(&redis).await;
        running.stop().await;
        let mut expected: BTreeMap<_, _> = once_each(3..=20);
        expected.insert(key(2), 4);
        assert_eq!(effects.runs(), expected);
        let mut quarantined = effects.quarantined();
        quarantined.sort();
        let mut bad: Vec<_> = bad.map(|(id, reason)| (format!("{STREAM}/{id}"), reason)).into();
        bad.sort();
        assert_eq!(quarantined, bad);
    });
}

/// The fields stand in for what the address has.
#[test]
fn a_login_of_its_own_takes_entries() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let rights = "ACL SETUSER app on >secret ~webhooks +@all";
        redis.client().call(&rights.split(' ').collect::<Vec<_>>());
        (1..=5).for_each(|step| drop(add(&redis, step)));
        let effects = Effects::default();
        let config = RedisStreamsConsumerConfig {
            username: Some("app".to_owned()),
            password: Some("secret".to_owned()),
            ..config(&format!("redis://other:wrong@{}", redis.address()))
        };
        let running = Running::start(config, consume(), MemoryStore::new(), &effects, effects.handler());
        until("all have run", || effects.distinct() == 5).await;
        all_done(&redis).await;
        running.stop().await;
        assert_eq!((effects.runs(), effects.quarantined()), (once_each(1..=5), vec![]));
    });
}

/// Another program's value under the name of a claim, between good ones.
#[test]
fn a_record_that_the_store_cannot_read_goes_to_quarantine_and_the_rest_goes_on() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        redis
            .client()
            .call(&["HSET", &format!("idemp:{}", key(2)), "field", "value"]);
        add(&redis, 1);
        let bad = add(&redis, 2);
        (3..=20).for_each(|step| drop(add(&redis, step)));
        let effects = Effects::default();
        let consume = ConsumeConfig {
            retries: [10, 50].map(Duration::from_millis).to_vec(),
            handler_cap: Duration::from_millis(500),
            ..consume()
        };
        let config = RedisStreamsConsumerConfig {
            concurrency: 1,
            ..config(&redis.url())
        };
        let running = Running::start(config, consume, claims(&redis), &effects, effects.handler());
        until("the rest has run", || effects.distinct() == 19).await;
        all_done(&redis).await;
        running.stop().await;
        let mut expected = once_each(1..=20);
        expected.remove(&key(2));
        assert_eq!(effects.runs(), expected);
        let position = format!("{STREAM}/{bad}");
        assert_eq!(effects.quarantined(), [(position, "foreign_record")]);
    });
}

#[test]
fn nothing_is_acknowledged_while_the_store_is_down() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let mut of_claims = Redis::start(&program, &["--appendfsync", "always"]);
        let effects = Effects::default();
        let store = claims(&of_claims);
        of_claims.kill();
        (1..=100).for_each(|step| drop(add(&redis, step)));
        let running = Running::plain(&redis, store, &effects);
        // As many as fit in are held, and none of them is let go of.
        until("all places are taken", || pending(&redis) == Some(64)).await;
        assert_eq!(effects.distinct(), 0);
        of_claims.start_again();
        until("all have run", || effects.distinct() == 100).await;
        all_done(&redis).await;
        running.stop().await;
        assert_eq!((effects.runs(), effects.quarantined()), (once_each(1..=100), vec![]));
    });
}

#[test]
fn a_stop_finishes_what_runs_and_takes_its_name_out_of_the_group() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        (1..=5).for_each(|step| drop(add(&redis, step)));
        let (effects, gate) = (Effects::default(), Gate::shut());
        let done = Arc::new(AtomicBool::new(false));
        let running = {
            let (gate, done, script) = (gate.clone(), Arc::clone(&done), effects.clone());
            Running::start(
                config(&redis.url()),
                consume(),
                claims(&redis),
                &effects,
                move |event| {
                    let (gate, done, script) = (gate.clone(), Arc::clone(&done), script.clone());
                    async move {
                        gate.pass().await;
                        script.run(&event);
                        done.store(true, SeqCst);
                        Ok(())
                    }
                },
            )
        };
        gate.arrived(5).await;
        assert!(!done.load(SeqCst));
        running.stop.cancel();
        gate.open();
        running.stop().await;
        assert_eq!(effects.runs(), once_each(1..=5));
        assert_eq!(pending(&redis), Some(0));
        let consumers = redis.client().call(&["XINFO", "CONSUMERS", STREAM, GROUP]);
        assert_eq!(consumers, RedisReply::Array(Vec::new()));
    });
}

#[test]
fn entries_that_are_trimmed_while_they_are_pending_are_let_go_of() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        (1..=5).for_each(|step| drop(add(&redis, step)));
        let mut client = redis.client();
        client.call(&["XGROUP", "CREATE", STREAM, GROUP, "0"]);
        // Two of a dead consumer and three of this one, whose answer was lost.
        client.call(&[
            "XREADGROUP",
            "GROUP",
            GROUP,
            "dead",
            "COUNT",
            "2",
            "STREAMS",
            STREAM,
            ">",
        ]);
        client.call(&[
            "XREADGROUP",
            "GROUP",
            GROUP,
            "ours",
            "COUNT",
            "3",
            "STREAMS",
            STREAM,
            ">",
        ]);
        client.call(&["XTRIM", STREAM, "MAXLEN", "1"]);
        let effects = Effects::default();
        let config = RedisStreamsConsumerConfig {
            consumer: "ours".to_owned(),
            ..config(&redis.url())
        };
        let running = Running::start(config, consume(), claims(&redis), &effects, effects.handler());
        until("nothing is pending", || pending(&redis) == Some(0)).await;
        running.stop().await;
        assert_eq!(effects.runs(), once_each([5]));
    });
}
