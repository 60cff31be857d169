//! Several operators over one store, living and dead.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use idemp_dlq::{DeadLetterStore, Fate, LeaseToken, ReplayOptions, Replayer, Settled};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::support::{Clock, DELIVERED, Peer, filled, hold, replay, replay_by_default};
use crate::letters::{at, contents, ids, letter, letters};

#[tokio::test(start_paused = true)]
async fn two_operators_share_the_work() {
    let clock = Clock::start();
    let store = filled(letters(40)).await;
    let peer = Arc::new(Peer {
        takes: Duration::from_millis(130),
        ..Peer::new(clock, [], DELIVERED)
    });
    let (one, other) = tokio::join!(
        replay_by_default(clock, &store, &peer),
        replay_by_default(clock, &store, &peer)
    );
    let (one, other) = (one.0, other.0);
    let keys = peer.keys();
    assert_eq!(keys.len(), 40);
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 40, "nothing went out twice");
    assert_eq!(one.replayed + other.replayed, 40);
    assert!(one.replayed >= 10 && other.replayed >= 10, "{one:?} {other:?}");
    assert_eq!((one.replayed + one.gone, other.replayed + other.gone), (40, 40));
}

#[tokio::test(start_paused = true)]
async fn a_killed_replay_is_finished_by_the_next() {
    let clock = Clock::start();
    let store = filled(letters(5)).await;
    let peer = Arc::new(Peer {
        permits: Semaphore::new(2),
        ..Peer::new(clock, [], DELIVERED)
    });
    let killed = tokio::time::timeout(Duration::from_secs(1), replay_by_default(clock, &store, &peer)).await;
    assert!(killed.is_err());
    assert_eq!(peer.keys().len(), 3, "two were delivered and the third hangs");

    peer.permits.add_permits(100);
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!((summary.selected, summary.replayed, summary.held), (3, 3, 0));
    assert_eq!(peer.keys()[3..], ["r1:tool_end:4", "r1:tool_end:5", "r1:tool_end:3"]);
    assert_eq!(peer.times()[5], 30_200, "the dead run claimed it at 0.2 s, for 30 s");
    assert_eq!(contents(&store).await, []);
}

#[tokio::test(start_paused = true)]
async fn what_a_living_operator_keeps_is_held() {
    let clock = Clock::start();
    let store = filled(letters(3)).await;
    let (token, lease) = (LeaseToken::random(), Duration::from_secs(30));
    let (second, third) = (ids(&store).await[1].clone(), ids(&store).await[2].clone());
    for id in [&second, &third] {
        hold(&store, id, &token, lease, clock.now()).await;
    }
    let peer = Peer::delivering(clock);
    let prolong = async {
        sleep(Duration::from_secs(20)).await;
        hold(&store, &second, &token, lease, clock.now()).await;
    };
    let ((summary, fates), ()) = tokio::join!(replay_by_default(clock, &store, &peer), prolong);
    assert_eq!((summary.replayed, summary.held), (2, 1));
    assert_eq!(
        fates,
        [Fate::Replayed, Fate::Held, Fate::Replayed],
        "the one that was let go of is waited out"
    );
    assert_eq!(contents(&store).await, [letter("r1:tool_end:2")]);
}

#[tokio::test(start_paused = true)]
async fn what_a_living_operator_finishes_is_not_waited_for() {
    let clock = Clock::start();
    let store = filled(letters(3)).await;
    let (token, lease) = (LeaseToken::random(), Duration::from_secs(30));
    let (first, second) = (ids(&store).await[0].clone(), ids(&store).await[1].clone());
    for id in [&first, &second] {
        hold(&store, id, &token, lease, clock.now()).await;
    }
    let peer = Peer::delivering(clock);
    let other = async {
        sleep(Duration::from_secs(4)).await;
        let marked = store.mark_replayed(&first, &token, clock.now()).await;
        assert_eq!(marked.unwrap(), Settled::Done);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(store.release(&second, &token).await.unwrap(), Settled::Done);
    };
    let ((summary, fates), ()) = tokio::join!(replay_by_default(clock, &store, &peer), other);
    assert_eq!(fates, [Fate::Replayed, Fate::Gone, Fate::Replayed]);
    assert_eq!((summary.selected, summary.replayed, summary.gone), (3, 2, 1));
    assert!(
        clock.0.elapsed() <= Duration::from_secs(10),
        "their leases last for 30 s: {:?}",
        clock.0.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_stands_still_does_not_hang_it() {
    let clock = Clock::start();
    let store = filled(letters(1)).await;
    let id = ids(&store).await.remove(0);
    hold(&store, &id, &LeaseToken::random(), Duration::from_secs(30), at(0)).await;
    let peer = Peer::delivering(clock);
    let standing = Replayer::new(ReplayOptions::default()).unwrap().with_clock(|| at(0));
    let (summary, _) = replay(&standing, &store, &peer).await;
    assert_eq!((summary.held, summary.replayed), (1, 0));
}
