//! Good entries and such as go to quarantine.

use std::collections::BTreeMap;
use std::time::Duration;

use idemp_receiver::consume::{ConsumeConfig, RedisStreamsConsumerConfig};
use idemp_receiver::{HandlerError, MemoryStore};
use idemp_tests::Redis;

use super::{Running, STREAM, add, add_raw, all_done, claims, config, consume, on_each};
use crate::{Effects, body, key, once_each, sign, until};

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
