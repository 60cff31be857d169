//! Runs, waits, claims and marks of one message, on a clock that jumps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use idemp_core::Ttl;
use idemp_receiver::consume::{Arrived, ConsumeConfig, Flow, Settled};
use idemp_receiver::{Claim, ClaimStore, Event, HandlerError, MemoryStore, StoreErrorKind};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::*;

const FAILED: Result<(), HandlerError> = Err(HandlerError::Failed);

fn by_default() -> ConsumeConfig {
    ConsumeConfig::default()
}

async fn settle(flow: &Flow, message: &Arrived) -> Settled {
    let stop = CancellationToken::new();
    let settled = flow.settle(message, &stop);
    // On this clock what waits for ever fails at once.
    timeout(Duration::from_secs(3_600), settled).await.expect("it ends")
}

fn in_background(flow: &Flow, stop: &CancellationToken) -> JoinHandle<Settled> {
    let (flow, stop) = (flow.clone(), stop.clone());
    tokio::spawn(async move { flow.settle(&signed(KEY, BODY), &stop).await })
}

/// Far longer than any test's clock runs.
fn ttl() -> Ttl {
    Ttl::new(Duration::from_secs(86_400), Duration::from_secs(36)).unwrap()
}

fn until(millis: u64) -> impl Future<Output = ()> {
    sleep(Duration::from_millis(millis))
}

#[tokio::test(start_paused = true)]
async fn a_new_event_runs_and_a_copy_does_not() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, by_default(), |_| Ok(()));
    assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
    assert_eq!(store.look().await, Claim::Duplicate);
    assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
    assert_eq!(log.keys(), [KEY]);
    assert!(log.reasons().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failing_handler_runs_after_1_5_and_30_s_with_its_claim_kept_and_then_goes_to_quarantine() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, by_default(), |_| FAILED);
    let settled = in_background(&flow, &CancellationToken::new());
    // In the longest wait, five times its lease after the claim.
    until(35_500).await;
    assert!(matches!(store.look().await, Claim::InProgress { .. }));
    assert_eq!(settled.await.unwrap(), Settled::Acknowledge);
    assert_eq!(log.times(), [0, 1_000, 6_000, 36_000]);
    assert_eq!((log.now(), log.reasons()), (36_000, vec!["failed"]));
    assert_eq!(
        store.look().await,
        Claim::Claimed,
        "released, so that it can come again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_succeeds_at_last_is_done() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, by_default(), |run| if run < 3 { FAILED } else { Ok(()) });
    assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
    assert_eq!(log.times(), [0, 1_000, 6_000]);
    assert_eq!((log.reasons(), store.look().await), (vec![], Claim::Duplicate));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_event_goes_to_quarantine_at_once() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, by_default(), |_| Err(HandlerError::Rejected));
    assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
    assert_eq!((log.times(), log.reasons()), (vec![0], vec!["rejected"]));
    assert_eq!(store.look().await, Claim::Claimed);
}

#[tokio::test(start_paused = true)]
async fn panics_and_runs_over_the_cap_are_failures() {
    let (log, store) = (Log::new(), Store::new());
    let noted = log.clone();
    let handler = move |event: Event| {
        let run = noted.run(&event);
        assert_ne!(run, 1, "a panic of the call");
        async move {
            assert_ne!(run, 2, "a panic of the future");
            std::future::pending().await
        }
    };
    let quarantined = Arc::clone(&log.quarantined);
    let flow = Flow::new(
        &receiver(Arc::clone(&store)),
        "test",
        by_default(),
        handler,
        move |message| {
            quarantined.lock().unwrap().push(message);
            async { Ok(()) }
        },
    )
    .unwrap();
    assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
    // The cap is 30 s.
    assert_eq!(log.times(), [0, 1_000, 6_000, 66_000]);
    assert_eq!((log.now(), log.reasons()), (96_000, vec!["over_cap"]));
}

#[tokio::test(start_paused = true)]
async fn a_copy_at_work_elsewhere_is_waited_for() {
    for completes in [true, false] {
        let (log, store) = (Log::new(), Store::new());
        let flow = log.flow(&store, by_default(), |_| Ok(()));
        let other = other_owner();
        let lease = Duration::from_secs(600);
        assert_eq!(store.inner.claim(&other, lease).await.unwrap(), Claim::Claimed);
        let settled = in_background(&flow, &CancellationToken::new());
        until(120_500).await;
        assert!(!settled.is_finished() && log.times().is_empty());
        if completes {
            store.inner.complete(&other, ttl()).await.unwrap();
        } else {
            store.inner.release(&other).await.unwrap();
        }
        assert_eq!(settled.await.unwrap(), Settled::Acknowledge);
        assert_eq!(log.times().len(), usize::from(!completes));
        assert!(log.now() <= 121_500);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_waited_for() {
    // One that lacks its tables is down for every key.
    for outage in [StoreErrorKind::Unavailable, StoreErrorKind::NotSetUp] {
        let (log, store) = (Log::new(), Store::failing_with(outage));
        let flow = log.flow(&store, by_default(), |_| Ok(()));
        store.down.store(true, SeqCst);
        let settled = in_background(&flow, &CancellationToken::new());
        until(600_500).await;
        assert!(!settled.is_finished() && log.times().is_empty());
        store.down.store(false, SeqCst);
        assert_eq!(settled.await.unwrap(), Settled::Acknowledge);
        assert_eq!((log.times(), log.reasons()), (vec![601_000], vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_the_store_cannot_read_is_looked_at_again_and_then_goes_to_quarantine() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, by_default(), |_| Ok(()));
    *store.foreign.lock().unwrap() = KEY.to_owned();
    assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
    assert_eq!((log.now(), log.reasons()), (36_000, vec!["foreign_record"]));
    let other = "req-42:tool_end:2";
    assert_eq!(settle(&flow, &signed(other, BODY)).await, Settled::Acknowledge);
    assert_eq!((log.now(), log.keys()), (36_000, vec![other.to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_removed_in_time_is_no_reason_for_quarantine() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, by_default(), |_| Ok(()));
    *store.foreign.lock().unwrap() = KEY.to_owned();
    let settled = in_background(&flow, &CancellationToken::new());
    until(35_500).await;
    store.foreign.lock().unwrap().clear();
    assert_eq!(settled.await.unwrap(), Settled::Acknowledge);
    assert_eq!((log.times(), log.reasons()), (vec![36_000], vec![]));
    assert_eq!(store.look().await, Claim::Duplicate);
}

/// The effect has been taken. Where the store would have committed it, it has not, and the run counts.
#[tokio::test(start_paused = true)]
async fn a_record_that_comes_while_the_handler_runs_keeps_nothing_from_its_end() {
    for (store, runs, expected) in [
        (Store::new(), vec![0], vec![]),
        (Store::inbox(), vec![0], vec!["foreign_record"]),
    ] {
        let log = Log::new();
        let put = Arc::clone(&store);
        let flow = log.flow(&store, by_default(), move |_| {
            *put.foreign.lock().unwrap() = KEY.to_owned();
            Ok(())
        });
        assert_eq!(settle(&flow, &signed(KEY, BODY)).await, Settled::Acknowledge);
        assert_eq!((log.times(), log.reasons()), (runs, expected));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_before_the_mark_is_written() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, by_default(), |_| Ok(()));
    store.complete_down.store(true, SeqCst);
    let settled = in_background(&flow, &CancellationToken::new());
    until(600_500).await;
    assert!(!settled.is_finished());
    store.complete_down.store(false, SeqCst);
    assert_eq!(settled.await.unwrap(), Settled::Acknowledge);
    assert_eq!((log.times(), store.look().await), (vec![0], Claim::Duplicate));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_another_copy_has_done_meanwhile_does_not_run_again() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, by_default(), |_| FAILED);
    let settled = in_background(&flow, &CancellationToken::new());
    until(500).await;
    // The store forgets the claim, and another copy is faster.
    let owner = store.owner.lock().unwrap().clone().unwrap();
    assert!(store.inner.release(&owner).await.unwrap());
    let ttl = ttl();
    store.inner.complete(&other_owner(), ttl).await.unwrap();
    assert_eq!(settled.await.unwrap(), Settled::Acknowledge);
    assert_eq!((log.times().len() < 4, log.reasons()), (true, vec![]));
    assert_eq!(store.look().await, Claim::Duplicate);
}

#[tokio::test(start_paused = true)]
async fn a_quarantine_that_fails_is_waited_for() {
    let (log, store) = (Log::new(), Store::new());
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let quarantine = move |_| {
        let run = count.fetch_add(1, SeqCst) + 1;
        assert_ne!(run, 2, "a panic");
        async move {
            match run {
                1 => Err("no room".into()),
                // Over its cap of 30 s.
                3 => std::future::pending().await,
                _ => Ok(()),
            }
        }
    };
    let flow = Flow::new(&receiver(store), "test", by_default(), |_| async { FAILED }, quarantine).unwrap();
    let message = message("1", &[("key", KEY)], BODY);
    assert_eq!(settle(&flow, &message).await, Settled::Acknowledge);
    assert_eq!((tries.load(SeqCst), log.now()), (4, 33_000));

    let flow = {
        let quarantine = |_| async { Err("no room".into()) };
        Flow::new(
            &receiver(MemoryStore::new()),
            "test",
            by_default(),
            |_| async { Ok(()) },
            quarantine,
        )
        .unwrap()
    };
    let stop = CancellationToken::new();
    let settled = {
        let (flow, stop) = (flow.clone(), stop.clone());
        tokio::spawn(async move { flow.settle(&message, &stop).await })
    };
    until(600_500).await;
    assert!(!settled.is_finished());
    stop.cancel();
    assert_eq!(settled.await.unwrap(), Settled::Leave);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_waits_and_gives_claims_back() {
    let (log, store) = (Log::new(), Store::new());
    let flow = log.flow(&store, by_default(), |_| FAILED);
    let stop = CancellationToken::new();
    let settled = in_background(&flow, &stop);
    until(20_000).await;
    stop.cancel();
    assert_eq!(settled.await.unwrap(), Settled::Leave);
    assert_eq!(
        (log.now(), log.times(), log.reasons()),
        (20_000, vec![0, 1_000, 6_000], vec![])
    );
    assert_eq!(store.look().await, Claim::Claimed);
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_cut_a_run() {
    let store = Store::new();
    let handler = |_| async {
        sleep(Duration::from_secs(20)).await;
        Ok(())
    };
    let flow = Flow::new(
        &receiver(Arc::clone(&store)),
        "test",
        by_default(),
        handler,
        |_| async { Ok(()) },
    )
    .unwrap();
    let stop = CancellationToken::new();
    let settled = in_background(&flow, &stop);
    until(1_000).await;
    stop.cancel();
    assert_eq!(settled.await.unwrap(), Settled::Acknowledge);
    assert_eq!(store.look().await, Claim::Duplicate);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_commits_effects_holds_nothing_open_between_two_runs() {
    let (log, store) = (Log::new(), Store::inbox());
    let flow = log.flow(&store, by_default(), |run| if run < 3 { FAILED } else { Ok(()) });
    let settled = in_background(&flow, &CancellationToken::new());
    until(500).await;
    assert_eq!(store.look().await, Claim::Claimed);
    until(5_000).await;
    assert_eq!(store.look().await, Claim::Claimed);
    assert_eq!(settled.await.unwrap(), Settled::Acknowledge);
    assert_eq!(
        (log.times(), store.look().await),
        (vec![0, 1_000, 6_000], Claim::Duplicate)
    );
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_was_not_committed_is_taken_again() {
    let (log, store) = (Log::new(), Store::inbox());
    let flow = log.flow(&store, by_default(), |_| Ok(()));
    store.complete_down.store(true, SeqCst);
    let settled = in_background(&flow, &CancellationToken::new());
    // Far more runs than there are retries: a handler that succeeds is not at fault.
    until(10_500).await;
    assert!(!settled.is_finished());
    store.complete_down.store(false, SeqCst);
    assert_eq!(settled.await.unwrap(), Settled::Acknowledge);
    assert_eq!(log.times(), (0..=11).map(|run| run * 1_000).collect::<Vec<_>>());
    assert_eq!((log.reasons(), store.look().await), (vec![], Claim::Duplicate));
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_the_store_never_commits_goes_to_quarantine_as_a_failure() {
    let (log, store) = (Log::new(), Store::inbox());
    let flow = log.flow(&store, by_default(), |_| Ok(()));
    store.refuses.store(true, SeqCst);
    // An hour is far more than all runs and waits take.
    let settled = tokio::time::timeout(Duration::from_secs(3_600), settle(&flow, &signed(KEY, BODY))).await;
    assert_eq!(settled, Ok(Settled::Acknowledge));
    assert_eq!(log.times(), [0, 1_000, 6_000, 36_000]);
    assert_eq!((log.reasons(), store.look().await), (vec!["failed"], Claim::Claimed));
}
