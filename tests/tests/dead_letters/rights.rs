//! Logins that lack a right: what is refused changes nothing, however often it is tried.

use std::time::{Duration, SystemTime};

use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, Filter, LeaseToken, Put, RedisStreamsConfig, RedisStreamsStore, Settled,
    StoreError, StoreErrorKind,
};
use idemp_tests::{Redis, RedisReply};

use crate::letters::{dead_at, key, made};
use crate::support::{list, on_each_redis};

/// What changes anything.
const WRITES: [&str; 4] = ["xadd", "xdel", "hset", "hdel"];
const READS: [&str; 5] = ["eval", "evalsha", "xrange", "hget", "type"];

const STREAM: &str = "webhooks:dlq";
const INDEX: &str = "{webhooks:dlq}:index";

fn grant(redis: &Redis, but: Option<&str>) {
    let mut words = ["ACL", "SETUSER", "letters", "reset", "on", ">secret", "~*"]
        .map(str::to_owned)
        .to_vec();
    let rights = READS.iter().chain(&WRITES).filter(|right| Some(**right) != but);
    words.extend(rights.map(|right| format!("+{right}")));
    redis
        .client()
        .call(&words.iter().map(String::as_str).collect::<Vec<_>>());
}

async fn login(redis: &Redis) -> RedisStreamsStore {
    let config = RedisStreamsConfig {
        username: Some("letters".to_owned()),
        password: Some("secret".to_owned()),
        ..RedisStreamsConfig::new(redis.url())
    };
    // Whoever may read may look on.
    RedisStreamsStore::open(&config).await.unwrap()
}

/// All that lies in both keys.
fn contents(redis: &Redis) -> [RedisReply; 2] {
    let mut client = redis.client();
    [
        client.call(&["XRANGE", STREAM, "-", "+"]),
        client.call(&["HGETALL", INDEX]),
    ]
}

#[track_caller]
fn refused<T>(done: Result<T, StoreError>) {
    let error = done.err().expect("it is refused");
    assert_eq!(error.kind(), StoreErrorKind::CannotOpen, "{error:?}");
}

/// The same event, dead once more: its letter is written anew.
fn again(n: u64) -> DeadLetter {
    DeadLetter {
        dead_at: dead_at(n + 100),
        ..made(n)
    }
}

#[test]
fn a_letter_that_is_refused_leaves_nothing_behind() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &[]);
        for missing in WRITES {
            redis.client().call(&["FLUSHALL"]);
            grant(&redis, Some(missing));
            let store = login(&redis).await;
            for _ in 0..3 {
                refused(store.put(made(1)).await);
            }
            assert!(list(&store, &Filter::default()).await.is_empty(), "without {missing}");
            assert_eq!(contents(&redis)[0], RedisReply::Array(vec![]), "without {missing}");

            grant(&redis, None);
            assert_eq!(store.put(made(1)).await.unwrap(), Put::Added);
            let keys: Vec<_> = list(&store, &Filter::default())
                .await
                .into_iter()
                .map(|(_, key)| key)
                .collect();
            assert_eq!(keys, [key(1)], "without {missing}");
        }
    });
}

#[test]
fn a_letter_that_lies_there_stays_as_it_is() {
    on_each_redis(async |program| {
        let redis = Redis::start(&program, &[]);
        for missing in WRITES {
            redis.client().call(&["FLUSHALL"]);
            grant(&redis, None);
            let store = login(&redis).await;
            for n in 1..=3 {
                assert_eq!(store.put(made(n)).await.unwrap(), Put::Added);
            }
            let listed = list(&store, &Filter::default()).await;
            let ids = [1, 2, 3].map(|n| listed.iter().find(|(_, of)| *of == key(n)).unwrap().0.clone());
            let (token, lease, now) = (LeaseToken::random(), Duration::from_secs(60), SystemTime::now());
            let claimed = store.claim(&ids[0], &token, lease, now).await.unwrap();
            assert!(matches!(claimed, Claim::Claimed(_)));
            // The third one is out of the index, as after a loss of it.
            redis.client().call(&["HDEL", INDEX, &format!("i:{}", ids[2].as_str())]);

            grant(&redis, Some(missing));
            let before = contents(&redis);
            refused(store.put(again(2)).await);
            if missing != "xadd" {
                for id in &ids[1..] {
                    refused(store.claim(id, &LeaseToken::random(), lease, now).await);
                }
                refused(store.mark_replayed(&ids[0], &token, now).await);
                refused(store.purge(&Filter::default()).await);
            }
            assert_eq!(contents(&redis), before, "without {missing}");

            grant(&redis, None);
            assert_eq!(store.put(again(2)).await.unwrap(), Put::Updated);
            let claimed = store.claim(&ids[2], &token, lease, now).await.unwrap();
            assert!(matches!(claimed, Claim::Claimed(_)));
            assert_eq!(store.mark_replayed(&ids[0], &token, now).await.unwrap(), Settled::Done);
            assert_eq!(list(&store, &Filter::default()).await.len(), 2, "without {missing}");
            assert_eq!(store.purge(&Filter::default()).await.unwrap(), 2, "without {missing}");
        }
    });
}
