//! A replay of so many attempts.

use std::sync::Arc;
use std::time::Duration;

use idemp_dlq::{DeadLetter, Filter, LeaseToken, ReplayOptions, Replayer, Stopped};
use tokio_util::sync::CancellationToken;

use super::support::{Clock, DELIVERED, Peer, busy, filled, hold, replay, replayer, targets};
use crate::letters::{at, ids, letter, letters};

/// A replayer that stops after so many attempts.
fn limited(clock: Clock, limit: u64) -> Replayer {
    let options = ReplayOptions {
        limit: Some(limit),
        ..ReplayOptions::default()
    };
    replayer(clock, options)
}

#[tokio::test(start_paused = true)]
async fn a_limit_counts_attempts_and_not_what_is_refused_or_held() {
    let clock = Clock::start();
    let early = |step: u64| DeadLetter {
        not_before: Some(at(1_000)),
        ..letter(&format!("r1:tool_end:{step}"))
    };
    let first = filled((1..=6).map(early).chain(letters(9).split_off(6))).await;
    let seventh = ids(&first).await[6].clone();
    let token = LeaseToken::random();
    hold(&first, &seventh, &token, Duration::from_secs(30), clock.now()).await;
    let second = filled(letters(20).split_off(9)).await;
    let peer = Arc::new(Peer::new(clock, [busy(), DELIVERED, busy()], DELIVERED));
    let summary = limited(clock, 4)
        .run_over(
            &[&first, &second],
            &Filter::default(),
            &targets(&peer),
            &mut |_| (),
            &CancellationToken::new(),
        )
        .await
        .unwrap();
    let sent: Vec<_> = (8..=11).map(|step| format!("r1:tool_end:{step}")).collect();
    assert_eq!(peer.keys(), sent, "over both stores");
    assert_eq!(
        (summary.replayed, summary.failed_retry, summary.refused_not_before),
        (2, 2, 6)
    );
    assert_eq!(
        (summary.selected, summary.left, summary.stopped),
        (10, 0, None),
        "what lies behind the limit is not of this run, and nothing is waited for"
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_not_used_up_by_a_page_of_entries_that_somebody_holds() {
    let clock = Clock::start();
    let store = filled(letters(1_001)).await;
    let (token, lease) = (LeaseToken::random(), Duration::from_secs(600));
    // Two pages of the store, and a limit that one page would fill.
    for id in &ids(&store).await[..1_000] {
        hold(&store, id, &token, lease, clock.now()).await;
    }
    let peer = Peer::delivering(clock);
    let (summary, _) = replay(&limited(clock, 1), &store, &peer).await;
    assert_eq!(peer.keys(), ["r1:tool_end:1001"]);
    assert_eq!((summary.selected, summary.replayed), (1, 1));
    assert_eq!(clock.0.elapsed(), Duration::ZERO, "and nothing was waited for");
}

#[tokio::test(start_paused = true)]
async fn what_a_limited_replay_leaves_when_it_stops_is_counted_up_to_the_limit() {
    let clock = Clock::start();
    for (limit, left) in [(10, 0), (15, 5), (1_000, 20)] {
        let store = filled(letters(30)).await;
        let peer = Arc::new(Peer::new(clock, [], busy()));
        let (summary, _) = replay(&limited(clock, limit), &store, &peer).await;
        let stopped = (left > 0).then_some(Stopped::Failures);
        assert_eq!(
            (summary.failed(), summary.left, summary.stopped),
            (10, left, stopped),
            "{limit}"
        );
        assert_eq!(summary.selected, 10 + left);
    }
    let store = filled(letters(3)).await;
    let peer = Peer::delivering(clock);
    let (summary, _) = replay(&limited(clock, 0), &store, &peer).await;
    assert_eq!((summary.selected, peer.keys().len()), (0, 0));
}
