//! What becomes of an attempt: delivered, failed, cut, or never begun.

use std::sync::Arc;
use std::time::Duration;

use idemp_core::{Cause, Class, Failure, Reason, RetryAfter, Transport};
use idemp_dlq::{DeadLetter, Fate, Filter, ReplayOptions};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::support::{Clock, DELIVERED, Peer, filled, replay_by_default, replayer, targets};
use crate::letters::{at, contents, letter, letters, sink, with_other_bytes};

#[tokio::test(start_paused = true)]
async fn letters_go_out_as_they_were_ten_a_second() {
    let clock = Clock::start();
    let letters = letters(12);
    let store = filled(letters.iter().cloned().rev()).await;
    let peer = Peer::delivering(clock);
    let (summary, fates) = replay_by_default(clock, &store, &peer).await;

    let sent: Vec<_> = peer
        .seen
        .lock()
        .unwrap()
        .iter()
        .map(|(_, message, _)| message.clone())
        .collect();
    let put: Vec<_> = letters.into_iter().map(|letter| letter.message).collect();
    assert_eq!(sent, put, "original keys and bytes, in the order of the steps");
    assert_eq!(peer.times(), (0..12).map(|number| number * 100).collect::<Vec<_>>());
    let (_, _, attempt) = peer.seen.lock().unwrap()[2].clone();
    assert_eq!((attempt.number, attempt.now), (2, at(0) + Duration::from_millis(200)));
    let began = clock.0 + Duration::from_millis(200);
    assert_eq!(attempt.deadline, (began + Duration::from_secs(5)).into_std());

    assert_eq!(
        (summary.selected, summary.replayed, summary.left, summary.stopped),
        (12, 12, 0, None)
    );
    assert_eq!(fates, vec![Fate::Replayed; 12]);
    assert_eq!(contents(&store).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_failure_stays_in_its_entry_and_the_rest_goes_on() {
    let clock = Clock::start();
    let store = filled(letters(5)).await;
    let asked = RetryAfter::parse(b"60", at(0));
    let answers = [
        Failure::status(503).with_retry_after(asked).into(),
        Failure::transport(Transport::Connect).into(),
        Failure::status(422).into(),
        Failure::status(410).into(),
    ];
    let peer = Arc::new(Peer::new(clock, answers, DELIVERED));
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!((summary.selected, summary.replayed, summary.failed()), (5, 1, 4));
    assert_eq!(
        (summary.failed_retry, summary.failed_event, summary.failed_configuration),
        (2, 1, 1)
    );

    let left = contents(&store).await;
    let told: Vec<_> = left
        .iter()
        .map(|letter| (letter.reason, letter.class, letter.maybe_delivered, letter.not_before))
        .collect();
    let (exhausted, waited) = (Reason::RetriesExhausted, at(60));
    assert_eq!(
        told,
        [
            (exhausted, Class::Exhausted, true, Some(waited)),
            (exhausted, Class::Exhausted, false, None),
            (Reason::EventRejected, Class::Event, false, None),
            (Reason::ConfigurationRejected, Class::Configuration, false, None),
        ]
    );
    for (letter, before) in left.iter().zip(letters(5)) {
        assert_eq!((letter.replay_count, letter.attempts.len()), (1, 2));
        assert_eq!(letter.attempts[0], before.attempts[0]);
        assert_eq!(letter.attempts[1].number, 2);
    }
    assert_eq!(left[1].attempts[1].started, at(0) + Duration::from_millis(100));
    assert_eq!(left[1].attempts[1].cause, Some(Cause::Transport(Transport::Connect)));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_is_cut_and_counts_as_maybe_delivered() {
    let clock = Clock::start();
    let store = filled(letters(1)).await;
    let peer = Arc::new(Peer {
        permits: Semaphore::new(0),
        ..Peer::new(clock, [], DELIVERED)
    });
    let (summary, fates) = replay_by_default(clock, &store, &peer).await;
    let cause = Cause::Transport(Transport::Timeout);
    assert_eq!(summary.failed_retry, 1);
    assert!(matches!(&fates[..], [Fate::Failed { cause: Some(told), .. }] if *told == cause));
    let letter = contents(&store).await.remove(0);
    assert!(letter.maybe_delivered);
    assert_eq!(letter.attempts[1].cause, Some(cause));
    assert_eq!(
        letter.attempts[1].elapsed,
        Duration::from_secs(6),
        "5 s and 1 s of grace"
    );
}

#[tokio::test(start_paused = true)]
async fn a_sink_without_a_target_is_left_alone() {
    let clock = Clock::start();
    let other = DeadLetter {
        sink: sink("audit"),
        ..letter("r1:tool_end:1")
    };
    let store = filled([other.clone(), letter("r1:tool_end:2")]).await;
    let peer = Peer::delivering(clock);
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!((summary.no_target, summary.replayed), (1, 1));
    assert_eq!(contents(&store).await, [other]);
}

#[tokio::test(start_paused = true)]
async fn a_conflicting_letter_is_replayed_on_its_own() {
    let clock = Clock::start();
    let first = letter("r1:tool_end:1");
    let other = with_other_bytes(first.clone());
    let store = filled([first.clone(), other.clone()]).await;
    let conflicts = Filter {
        reason: Some(Reason::KeyConflict),
        ..Filter::default()
    };
    let peer = Peer::delivering(clock);
    let replayer = replayer(clock, ReplayOptions::default());
    let summary = replayer
        .run(
            &store,
            &conflicts,
            &targets(&peer),
            &mut |_| (),
            &CancellationToken::new(),
        )
        .await
        .unwrap();
    assert_eq!(summary.replayed, 1);
    assert_eq!(peer.seen.lock().unwrap()[0].1, other.message);
    assert_eq!(contents(&store).await, [first]);
}
