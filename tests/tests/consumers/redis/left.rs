//! Entries that a consumer has left behind: taken over, looked for to the tail, trimmed meanwhile.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use idemp_receiver::consume::{ConsumeConfig, RedisStreamsConsumerConfig};
use idemp_receiver::{Claim, ClaimKey, ClaimStore, Claimant, MemoryStore, RedisConfig, RedisStore, Scope};
use idemp_tests::{Process, Redis};

use super::{GROUP, Running, STREAM, add, all_done, claims, config, consume, on_each, pending, read_as};
use crate::{Effects, LIMIT, body, key, once_each, until};

const URL: &str = "IDEMP_TEST_CHILD_REDIS";

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
            .args(["--exact", "redis::left::the_child_takes_entries"])
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
        read_as(&mut client, "dead", 60);

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
fn entries_that_are_trimmed_while_they_are_pending_are_let_go_of() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        (1..=5).for_each(|step| drop(add(&redis, step)));
        let mut client = redis.client();
        client.call(&["XGROUP", "CREATE", STREAM, GROUP, "0"]);
        // Two of a dead consumer and three of this one, whose answer was lost.
        read_as(&mut client, "dead", 2);
        read_as(&mut client, "ours", 3);
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
