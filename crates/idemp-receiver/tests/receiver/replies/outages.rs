//! A store of claims that fails.

use std::time::Duration;

use idemp_receiver::{ReceiverConfig, Reply, Unavailable};

use crate::support::{BODY, Fault, Faulty, KEY, Signed, counting, receiver, request, send};

/// Down, or not answering within its second: nothing runs, and the sender is put off.
#[tokio::test(start_paused = true)]
async fn the_store_is_down() {
    for fault in [Fault::Down, Fault::AnswerLost, Fault::AnswerHangs] {
        let store = Faulty {
            claim: fault,
            ..Faulty::default()
        };
        let (app, runs) = counting(receiver(store, ReceiverConfig::default()));
        let started = tokio::time::Instant::now();
        let answer = send(&app, request(KEY, BODY)).await;
        answer.is(503, r#"{"detail":"claim store is not available"}"#);
        assert_eq!(answer.retry_after(), Some("5"));
        assert!(
            started.elapsed() <= Duration::from_millis(1_001),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(runs.count(), 0);
    }
}

/// The sender is told the same of both, the operator is not.
#[tokio::test]
async fn what_is_down_is_told_from_what_is_foreign() {
    let signed = Signed::new(KEY, BODY);
    for (claim, reason) in [
        (Fault::Down, Unavailable::Store),
        (Fault::Foreign, Unavailable::Foreign),
    ] {
        let store = Faulty {
            claim,
            ..Faulty::default()
        };
        let receiver = receiver(store, ReceiverConfig::default());
        let reply = receiver.receive(signed.incoming(), async |_| Ok(()));
        assert_eq!(reply.await, Reply::Unavailable(reason));
    }
}

/// With `fail_open`, an event is handled even when nobody can say whether it is new.
#[tokio::test]
async fn failing_open_is_a_choice() {
    let config = ReceiverConfig {
        fail_open: true,
        ..ReceiverConfig::default()
    };
    let store = Faulty {
        claim: Fault::Down,
        ..Faulty::default()
    };
    let (app, runs) = counting(receiver(store, config));
    send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
    assert_eq!(runs.count(), 1);
}

/// The handler has succeeded, so the sender is told so.
#[tokio::test(start_paused = true)]
async fn the_mark_cannot_be_written() {
    for (fault, seconds) in [(Fault::Down, 0), (Fault::AnswerLost, 0), (Fault::AnswerHangs, 1)] {
        let store = Faulty {
            complete: fault,
            ..Faulty::default()
        };
        let (app, runs) = counting(receiver(store, ReceiverConfig::default()));
        let started = tokio::time::Instant::now();
        send(&app, request(KEY, BODY)).await.is(200, r#"{"status":"ok"}"#);
        assert_eq!((runs.count(), started.elapsed().as_secs()), (1, seconds));
    }
}
