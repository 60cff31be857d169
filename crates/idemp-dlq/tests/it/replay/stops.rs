//! What ends a replay before its last letter: failures in a row, and being cancelled.

use std::sync::Arc;
use std::time::Duration;

use idemp_core::{ErrorClass, Failure, Outcome, Sink, SinkName, StatusPolicy, Transport};
use idemp_dlq::{DeadLetter, DeadLetterStore, Filter, LeaseToken, ReplayOptions, Stopped, Target};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::support::{Clock, DELIVERED, Peer, busy, filled, hold, replay_by_default, replay_until, replayer};
use crate::letters::{contents, ids, letters, sink};

#[tokio::test(start_paused = true)]
async fn ten_failures_in_a_row_stop_it_and_nine_do_not() {
    let clock = Clock::start();
    let store = filled(letters(30)).await;
    let nine = || vec![busy(); 9];
    let script = [nine(), vec![DELIVERED], nine(), vec![DELIVERED]].concat();
    let peer = Arc::new(Peer::new(clock, script, Failure::status(401).into()));
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!(
        (summary.replayed, summary.failed_retry, summary.failed_configuration),
        (2, 18, 10)
    );
    assert_eq!(
        (summary.left, summary.stopped),
        (0, None),
        "the tenth failure was the last entry"
    );

    let store = filled(letters(30)).await;
    let peer = Arc::new(Peer::new(clock, [], busy()));
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!(
        (summary.failed(), summary.left, summary.stopped),
        (10, 20, Some(Stopped::Failures))
    );
    let untouched = contents(&store).await.split_off(10);
    assert_eq!(untouched, letters(30).split_off(10));
}

#[tokio::test(start_paused = true)]
async fn rejections_of_single_events_neither_count_nor_reset() {
    let clock = Clock::start();
    let rejected = || Failure::status(422).into();
    let store = filled(letters(17)).await;
    let peer = Arc::new(Peer::new(clock, vec![rejected(); 12], DELIVERED));
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!(
        (summary.failed_event, summary.replayed, summary.left, summary.stopped),
        (12, 5, 0, None),
        "twelve bad letters do not keep the good ones behind them"
    );

    // Whatever else fails does count, and a rejection in between does not make up for it.
    let code = |class| Failure::code(class, "CODE").into();
    let counting: [Outcome; 5] = [
        busy(),
        Failure::transport(Transport::Connect).into(),
        Failure::status(403).into(),
        code(ErrorClass::PushBack),
        code(ErrorClass::Ambiguous),
    ];
    for failure in counting {
        let mut script = vec![failure.clone(); 5];
        script.extend(vec![rejected(); 3]);
        script.extend(vec![code(ErrorClass::RejectsEvent); 3]);
        let store = filled(letters(30)).await;
        let peer = Arc::new(Peer::new(clock, script, failure));
        let (summary, _) = replay_by_default(clock, &store, &peer).await;
        assert_eq!(
            (summary.failed_event, summary.failed(), summary.left, summary.stopped),
            (6, 16, 14, Some(Stopped::Failures))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_down_does_not_keep_letters_from_the_others() {
    let clock = Clock::start();
    let letters = letters(40).into_iter().enumerate().map(|(index, letter)| DeadLetter {
        // The dead one's are the oldest, and come in between.
        sink: sink(if index < 15 || index % 2 == 0 {
            "down"
        } else {
            "webhook"
        }),
        ..letter
    });
    let store = filled(letters).await;
    let (down, up) = (
        Arc::new(Peer::new(clock, [], busy())),
        Arc::new(Peer::new(clock, [], DELIVERED)),
    );
    let targets = |name: &SinkName| {
        let peer = if name.as_str() == "down" { &down } else { &up };
        Some(Target {
            sink: Arc::clone(peer) as Arc<dyn Sink>,
            policy: StatusPolicy::default(),
        })
    };
    let replayer = replayer(clock, ReplayOptions::default());
    let cancel = CancellationToken::new();
    let summary = replayer
        .run(&store, &Filter::default(), &targets, &mut |_| (), &cancel)
        .await
        .unwrap();
    assert_eq!((down.keys().len(), up.keys().len()), (10, 13));
    assert_eq!(
        (summary.selected, summary.replayed, summary.failed(), summary.left),
        (40, 13, 10, 17)
    );
    assert_eq!(summary.stopped, Some(Stopped::Failures));
}

async fn cancel_after_3_s(cancel: &CancellationToken) {
    sleep(Duration::from_secs(3)).await;
    cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn cancelling_finishes_the_attempt_in_flight() {
    let clock = Clock::start();
    let store = filled(letters(3)).await;
    let peer = Arc::new(Peer {
        takes: Duration::from_secs(2),
        ..Peer::new(clock, [], DELIVERED)
    });
    let cancel = CancellationToken::new();
    let replayer = replayer(clock, ReplayOptions::default());
    let ((summary, _), ()) = tokio::join!(
        replay_until(&replayer, &store, &peer, &cancel),
        cancel_after_3_s(&cancel)
    );
    assert_eq!(
        (summary.replayed, summary.left, summary.stopped),
        (2, 1, Some(Stopped::Cancelled))
    );
    assert_eq!(clock.0.elapsed(), Duration::from_secs(4));
    let id = ids(&store).await.remove(0);
    assert_eq!(
        store.load(&id).await.unwrap().unwrap().held_until,
        None,
        "nothing is held behind"
    );
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_a_wait_for_others() {
    let clock = Clock::start();
    let store = filled(letters(1)).await;
    let id = ids(&store).await.remove(0);
    hold(&store, &id, &LeaseToken::random(), Duration::from_secs(30), clock.now()).await;
    let peer = Peer::delivering(clock);
    let cancel = CancellationToken::new();
    let replayer = replayer(clock, ReplayOptions::default());
    let ((summary, _), ()) = tokio::join!(
        replay_until(&replayer, &store, &peer, &cancel),
        cancel_after_3_s(&cancel)
    );
    assert_eq!((summary.left, summary.stopped), (1, Some(Stopped::Cancelled)));
    assert_eq!(clock.0.elapsed(), Duration::from_secs(3));
}
