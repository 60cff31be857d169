//! A server that is killed, and connections that break.

use std::sync::Arc;
use std::time::Duration;

use idemp_core::{Cause, Reason, Transport};
use idemp_sinks::redis_streams::RedisStreamsSink;
use idemp_testkit::proxy::{Fault, Proxy};
use idemp_testkit::until;
use idemp_tests::{EVENTS, Redis, RedisReply, corpus};

use crate::consumer::consumer;
use crate::support::{
    DELIVERED, Lane, STREAM, assert_ran_out, behind, config, deliver, event, failure, keys_in, on_each,
};

#[test]
fn nothing_is_lost_when_the_server_is_killed_in_mid_run() {
    on_each(async |program| {
        let mut redis = Redis::start(&program, &["--appendfsync", "always"]);
        let lane = Lane::to(config(&redis));
        let mut messages = corpus();
        let (last, middle) = (messages.split_off(400), messages.split_off(200));

        lane.submit(messages).await;
        until("some are delivered", || lane.stats().delivered >= 20).await;
        redis.kill();
        lane.submit(middle).await;
        until("some are given up", || lane.stats().dead_lettered >= 100).await;
        redis.start_again();
        until("it goes on by itself", || lane.stats().unsettled() == 0).await;
        lane.submit(last).await;
        let stats = lane.at_rest().await;
        assert_eq!(stats.delivered + stats.dead_lettered, EVENTS);
        assert!(stats.delivered >= 185 && stats.dead_lettered >= 100, "{stats:?}");

        let letters = lane.letters().await;
        assert_eq!(letters.len() as u64, stats.dead_lettered);
        assert!(letters.iter().all(|letter| letter.reason == Reason::RetriesExhausted));
        assert_eq!(lane.replay().await, stats.dead_lettered);
        assert_eq!(lane.letters().await, []);

        // What the server wrote and could not acknowledge any more is there twice.
        let entries = keys_in(&redis);
        let copies = entries.values().sum::<u64>() - EVENTS;
        println!("{} dead letters, {copies} copies", stats.dead_lettered);
        assert_eq!(entries.len() as u64, EVENTS);
        let maybe = letters.iter().filter(|letter| letter.maybe_delivered).count() as u64;
        assert!(
            copies <= maybe + 64,
            "{copies} copies, {maybe} letters that may have arrived"
        );
        consumer(&redis.url(), &[]).has_all(EVENTS + copies);
    });
}

#[test]
fn a_link_that_goes_dead_is_replaced() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let proxy = Proxy::start(redis.address()).await;
        let lane = Lane::with(behind(&proxy), |lane| lane.attempt_timeout = Duration::from_millis(400));
        assert!(lane.one(event()).await.is_delivered());
        assert_eq!(proxy.connections(), 1);
        proxy.set(Fault::HalfOpen);
        let settlement = lane.one(event()).await;
        assert_ran_out(&settlement);
        // Two time-outs on the old connection, then new ones, of which nothing came either.
        let causes: Vec<_> = lane.letters().await[0]
            .attempts
            .iter()
            .map(|attempt| attempt.cause)
            .collect();
        let (timeout, connect) = (
            Cause::Transport(Transport::Timeout),
            Cause::Transport(Transport::Connect),
        );
        assert_eq!(causes, [Some(timeout), Some(timeout), Some(connect), Some(connect)]);
        assert!(proxy.connections() >= 2);
        proxy.set(Fault::None);
        assert_eq!(lane.replay().await, 1);
        assert!(lane.one(event()).await.is_delivered());
    });
}

#[test]
fn killed_connections_lose_nothing() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let lane = Arc::new(Lane::to(config(&redis)));
        let sending = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move {
                for message in corpus() {
                    drop(lane.dispatcher.submit(message).await.unwrap());
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut killed = 0;
        let mut admin = redis.client();
        while !sending.is_finished() || lane.stats().unsettled() > 0 {
            match admin.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]) {
                RedisReply::Integer(count) => killed += count,
                other => panic!("{other:?}"),
            }
            let seen = lane.stats().delivered;
            until("something happens", || {
                lane.stats().delivered > seen || lane.stats().unsettled() == 0
            })
            .await;
        }
        let stats = lane.at_rest().await;
        assert_eq!(stats.delivered + stats.dead_lettered, EVENTS);
        lane.replay().await;
        assert!(killed > 0);
        assert!(stats.attempts > EVENTS, "no attempt met a killed connection: {stats:?}");
        let entries = keys_in(&redis);
        println!(
            "{killed} connections killed, {} copies",
            entries.values().sum::<u64>() - EVENTS
        );
        assert_eq!(entries.len() as u64, EVENTS);
    });
}

#[test]
fn a_reply_that_is_lost_makes_a_copy_under_the_same_key() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let proxy = Proxy::start(redis.address()).await;
        let sink = RedisStreamsSink::new(behind(&proxy)).unwrap();
        assert_eq!(deliver(&sink, &event()).await, DELIVERED);
        proxy.set(Fault::SwallowReply);
        let message = event();
        let failure = failure(deliver(&sink, &message).await);
        assert_eq!(
            (failure.cause, failure.maybe_delivered),
            (Cause::Transport(Transport::Cut), true)
        );
        proxy.set(Fault::None);
        assert_eq!(deliver(&sink, &message).await, DELIVERED);
        let entries = redis.client().entries(STREAM);
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[1].1, entries[2].1);
        assert_eq!(entries[1].1[0].1, message.key().as_str());
    });
}
