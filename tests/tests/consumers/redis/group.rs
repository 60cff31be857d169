//! The consumer group: where it begins, that it is made again, and how a consumer leaves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use idemp_receiver::MemoryStore;
use idemp_receiver::consume::{RedisStreamsConsumerConfig, Start};
use idemp_testkit::gate::Gate;
use idemp_tests::{Redis, RedisReply};

use super::{GROUP, Running, STREAM, add, all_done, claims, config, consume, on_each, pending};
use crate::{Effects, once_each, until};

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
