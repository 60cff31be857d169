//! A server that says no.

use idemp_core::{Class, ErrorClass, Failure, Reason, RetrySchedule};
use idemp_dispatch::Settlement;
use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};
use idemp_testkit::proxy::Proxy;
use idemp_testkit::until;
use idemp_tests::Redis;

use crate::support::{
    DELIVERED, Lane, STREAM, assert_ran_out, behind, config, deliver, event, failure, keys_in, on_each,
};

#[test]
fn a_server_that_is_full_is_tried_again_until_it_has_room() {
    on_each(async |program| {
        let redis = Redis::start(&program, &["--maxmemory-policy", "noeviction"]);
        let lane = Lane::to(config(&redis));
        redis.client().call(&["CONFIG", "SET", "maxmemory", "1"]);
        let settlement = lane.one(event()).await;
        assert_ran_out(&settlement);
        let letter = lane.letters().await.remove(0);
        assert!(!letter.maybe_delivered);
        let codes: Vec<_> = letter.attempts.iter().map(|attempt| attempt.cause).collect();
        assert_eq!(codes, [Some(Failure::code(ErrorClass::Transient, "OOM").cause); 4]);

        // Room comes while an event waits for its next attempt.
        let lane = Lane::with(config(&redis), |lane| lane.schedule = RetrySchedule::default());
        let waiting = lane.dispatcher.submit(event()).await.unwrap();
        until("one attempt failed", || lane.stats().attempts == 1).await;
        redis.client().call(&["CONFIG", "SET", "maxmemory", "0"]);
        let report = waiting.settled().await;
        assert!(report.all_delivered(), "{report:?}");
    });
}

#[test]
fn a_demoted_server_costs_attempts_and_no_restart() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let proxy = Proxy::start(redis.address()).await;
        let sink = RedisStreamsSink::new(behind(&proxy)).unwrap();
        assert_eq!(deliver(&sink, &event()).await, DELIVERED);
        // Another server took over: this one follows it, and keeps its connections.
        let other = Redis::start(&program, &[]);
        redis
            .client()
            .call(&["REPLICAOF", "127.0.0.1", &other.address().port().to_string()]);
        let message = event();
        for connections in 1..=3 {
            let failure = failure(deliver(&sink, &message).await);
            assert_eq!(failure.cause, Failure::code(ErrorClass::Transient, "READONLY").cause);
            assert!(!failure.maybe_delivered);
            assert_eq!(proxy.connections(), connections);
        }
        redis.client().call(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(deliver(&sink, &message).await, DELIVERED);
        assert_eq!(proxy.connections(), 4);
    });
}

#[test]
fn a_key_that_is_no_stream_rejects_the_configuration() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        redis.client().call(&["SET", STREAM, "something else"]);
        let lane = Lane::to(config(&redis));
        let settlement = lane.one(event()).await;
        assert!(
            matches!(
                settlement,
                Settlement::DeadLettered {
                    reason: Reason::ConfigurationRejected,
                    attempts: 1,
                    ..
                }
            ),
            "{settlement:?}"
        );
        let letter = lane.letters().await.remove(0);
        assert_eq!((letter.class, letter.maybe_delivered), (Class::Configuration, false));
        redis.client().call(&["DEL", STREAM]);
        assert_eq!(lane.replay().await, 1);
        assert_eq!(keys_in(&redis).len(), 1);
    });
}

#[test]
fn logins_are_asked_for_refused_and_taken() {
    on_each(async |program| {
        let redis = Redis::start(&program, &["--requirepass", "of the default user"]);
        let mut admin = redis.client();
        admin.call(&["AUTH", "of the default user"]);
        // No more than the sink needs.
        admin.call(&["ACL", "SETUSER", "sender", "on", ">p@ss:word", "~webhooks", "+xadd"]);
        let with = |username: Option<&str>, password: Option<&str>| RedisStreamsConfig {
            username: username.map(str::to_owned),
            password: password.map(str::to_owned),
            ..config(&redis)
        };
        let elsewhere = RedisStreamsConfig {
            stream: "others".to_owned(),
            ..with(Some("sender"), Some("p@ss:word"))
        };
        for (config, code) in [
            (with(None, None), "NOAUTH"),
            (with(None, Some("wrong")), "WRONGPASS"),
            (with(Some("nobody"), Some("p@ss:word")), "WRONGPASS"),
            (elsewhere, "NOPERM"),
        ] {
            let failure = failure(deliver(&RedisStreamsSink::new(config).unwrap(), &event()).await);
            assert_eq!(
                failure.cause,
                Failure::code(ErrorClass::RejectsConfiguration, code).cause
            );
            assert!(!failure.maybe_delivered);
        }
        let in_url = RedisStreamsConfig {
            url: format!("redis://sender:p%40ss%3Aword@{}", redis.address()),
            ..config(&redis)
        };
        for config in [
            with(None, Some("of the default user")),
            with(Some("sender"), Some("p@ss:word")),
            in_url,
        ] {
            assert_eq!(
                deliver(&RedisStreamsSink::new(config).unwrap(), &event()).await,
                DELIVERED
            );
        }
    });
}
