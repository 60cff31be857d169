//! Letters that are not sent: too early, forgotten by the receiver, never to be sent.

use std::sync::Arc;
use std::time::Duration;

use idemp_core::{Cause, Failure, Refusal, Transport};
use idemp_dlq::{DeadLetter, DeadLetterStore, Fate, Refused, ReplayOptions, Replayer};
use tokio::time::sleep;

use super::support::{Clock, DELIVERED, Peer, filled, replay, replay_by_default, replayer};
use crate::letters::{at, attempt, contents, ids, letter, letters};

/// A replayer that is told to send what it would refuse.
fn forced(clock: Clock, options: ReplayOptions) -> Replayer {
    replayer(clock, ReplayOptions { force: true, ..options })
}

#[tokio::test(start_paused = true)]
async fn what_comes_too_early_is_refused_without_force() {
    let clock = Clock::start();
    let early = DeadLetter {
        not_before: Some(at(60)),
        ..letter("r1:tool_end:1")
    };
    let store = filled([early.clone()]).await;
    let peer = Peer::delivering(clock);
    let (summary, fates) = replay_by_default(clock, &store, &peer).await;
    assert_eq!(
        (summary.refused_not_before, fates),
        (1, vec![Fate::Refused(Refused::NotBefore(at(60)))])
    );
    assert_eq!(contents(&store).await, std::slice::from_ref(&early));
    assert_eq!(peer.keys().len(), 0);
    let id = ids(&store).await.remove(0);
    assert_eq!(
        store.load(&id).await.unwrap().unwrap().held_until,
        None,
        "and let go of"
    );

    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        replay_by_default(clock, &store, &peer).await.0.replayed,
        1,
        "then it is time, and nobody holds it"
    );

    let store = filled([DeadLetter {
        not_before: Some(at(1_000)),
        ..early
    }])
    .await;
    let forced = forced(clock, ReplayOptions::default());
    assert_eq!(replay(&forced, &store, &peer).await.0.replayed, 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_receiver_has_forgotten_is_refused_when_its_turn_comes() {
    let clock = Clock::start();
    // The second letter's turn comes after 10 s, and by then the receiver has forgotten both.
    let maybe = |step: u32| DeadLetter {
        maybe_delivered: true,
        attempts: vec![attempt(1, at(0), Cause::Transport(Transport::Timeout))],
        ..letter(&format!("r1:tool_end:{step}"))
    };
    let surely_not = DeadLetter {
        attempts: vec![attempt(1, at(0), Cause::Transport(Transport::Connect))],
        ..letter("r1:tool_end:3")
    };
    let store = filled([maybe(1), maybe(2), surely_not]).await;
    let options = ReplayOptions {
        rate_per_second: 0.1,
        receiver_ttl: Duration::from_secs(10),
        ..ReplayOptions::default()
    };
    let peer = Peer::delivering(clock);
    let (summary, fates) = replay(&replayer(clock, options.clone()), &store, &peer).await;
    let forgotten = Fate::Refused(Refused::ReceiverForgot { since: at(0) });
    assert_eq!(fates, [Fate::Replayed, forgotten, Fate::Replayed]);
    assert_eq!(
        (summary.replayed, summary.refused_receiver_ttl, summary.refused()),
        (2, 1, 1)
    );
    assert_eq!(contents(&store).await, [maybe(2)]);

    let forced = forced(clock, options);
    assert_eq!(replay(&forced, &store, &peer).await.0.replayed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_later_attempt_does_not_make_the_receiver_remember_for_longer() {
    let clock = Clock::start();
    let timed_out = DeadLetter {
        maybe_delivered: true,
        attempts: vec![attempt(1, at(0), Cause::Transport(Transport::Timeout))],
        ..letter("r1:tool_end:1")
    };
    let store = filled([timed_out]).await;
    let answers = [
        Failure::transport(Transport::Connect).into(),
        Failure::transport(Transport::Timeout).into(),
    ];
    let peer = Arc::new(Peer::new(clock, answers, DELIVERED));
    let hours = |hours: u64| Duration::from_secs(hours * 60 * 60);
    for _ in 0..2 {
        sleep(hours(10)).await;
        assert_eq!(replay_by_default(clock, &store, &peer).await.0.failed_retry, 1);
    }
    sleep(hours(10)).await;
    assert_eq!(replay_by_default(clock, &store, &peer).await.0.refused_receiver_ttl, 1);
    assert_eq!(peer.keys().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_sink_can_never_send_is_refused_with_force_too() {
    let clock = Clock::start();
    let store = filled(letters(1)).await;
    let peer = Arc::new(Peer {
        refuses: Some("no dots"),
        ..Peer::new(clock, [], DELIVERED)
    });
    let forced = forced(clock, ReplayOptions::default());
    let (summary, fates) = replay(&forced, &store, &peer).await;
    assert_eq!(fates, [Fate::Refused(Refused::Unsendable(Refusal::new("no dots")))]);
    assert_eq!((summary.refused_unsendable, peer.keys().len()), (1, 0));
    assert_eq!(contents(&store).await, letters(1));
}
