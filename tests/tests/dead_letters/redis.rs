//! What only a store in Redis meets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use idemp_core::IdempotencyKey;
use idemp_dlq::{
    DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Put, RecordError, RedisStreamsConfig, RedisStreamsStore,
    StoreErrorKind, conformance,
};
use idemp_tests::{Redis, RedisReply, temp_dir};
use serde_json::{Value, json};

use crate::letters::{dead_at, key, made, sink};
use crate::support::{Ledger, at_full_speed, lines, on_each_redis, options, replay};

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
fn redis_tells_an_empty_store_from_one_that_never_was() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &[]);
        let config = |stream: &str| RedisStreamsConfig {
            stream: stream.to_owned(),
            ..RedisStreamsConfig::new(redis.url())
        };
        let existing = async |stream: &str| RedisStreamsStore::open_existing(&config(stream)).await;
        let missing = existing("letters").await.unwrap_err();
        assert_eq!(missing.kind(), StoreErrorKind::CannotOpen);
        assert!(missing.to_string().ends_with("letters"), "{missing}");
        assert_eq!(
            redis.client().call(&["DBSIZE"]),
            RedisReply::Integer(0),
            "nothing is made"
        );

        // A sender has opened it and had no letter.
        RedisStreamsStore::open(&config("letters")).await.unwrap();
        let store = existing("letters").await.unwrap();
        assert_eq!(store.stats(&Filter::default()).await.unwrap().depth, 0);
        // It had one, which is gone.
        store.put(made(1)).await.unwrap();
        assert_eq!(store.purge(&Filter::default()).await.unwrap(), 1);
        assert!(existing("letters").await.is_ok());
        assert!(existing("letter").await.is_err());

        // Other programs write the stream alone. A server that lets nobody write does not keep it from being opened.
        let mut client = redis.client();
        client.call(&["XADD", "theirs", "1-1", "payload", "{}"]);
        client.call(&["XDEL", "theirs", "1-1"]);
        assert!(existing("theirs").await.is_ok());
        client.call(&["REPLICAOF", "127.0.0.1", "1"]);
        assert!(RedisStreamsStore::open(&config("new")).await.is_ok());
        assert!(existing("new").await.is_err());
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
            "+eval", "+evalsha", "+xadd", "+xdel", "+xrange", "+hget", "+hset", "+hdel", "+type",
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
