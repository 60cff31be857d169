//! Redis that is killed, full, or out of reach.

use std::time::{Duration, SystemTime};

use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, Filter, LeaseToken, Put, RedisStreamsConfig, RedisStreamsStore, StoreErrorKind,
};
use idemp_testkit::proxy::{Fault, Proxy};
use idemp_tests::{Redis, temp_dir};

use crate::letters::{dead_at, made, sink};
use crate::support::{Ledger, list, on_each_redis, options, replay};

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
