//! Servers that go away and come back, of the stream and of the claims.

use idemp_tests::Redis;

use super::{Running, add, all_done, claims, on_each, pending};
use crate::{Effects, once_each, until};

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
