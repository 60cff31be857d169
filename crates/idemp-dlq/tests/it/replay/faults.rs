//! Replays over a store that fails, or that takes its time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Fate, Filter, LeaseToken, Loaded, MemoryStore, Progress, Put,
    ReplayFailure, ReplayOptions, Selection, Settled, Stats, Stopped, StoreError, StoreErrorKind,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::support::{Clock, DELIVERED, Peer, busy, filled, hold, replay_by_default, replayer, targets};
use crate::letters::{contents, ids, letter, letters};

/// What goes wrong in the store.
#[derive(Clone, Copy)]
enum Fault {
    /// Nothing can be marked.
    Mark,
    /// No failure can be written.
    Record,
    /// The entry is purged while its attempt is in flight.
    Purged,
    /// The second entry cannot be read.
    Unreadable,
    /// The answer to a claim takes its time.
    Slow,
}

struct Faulty {
    inner: MemoryStore,
    fault: Fault,
    claims: Mutex<u32>,
}

impl Faulty {
    async fn of(count: u64, fault: Fault) -> Self {
        Self {
            inner: filled(letters(count)).await,
            fault,
            claims: Mutex::default(),
        }
    }
}

fn unavailable() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the disk failed")
}

#[async_trait]
impl DeadLetterStore for Faulty {
    async fn put(&self, letter: DeadLetter) -> Result<Put, StoreError> {
        self.inner.put(letter).await
    }

    async fn select(&self, filter: &Filter) -> Result<Box<dyn Selection>, StoreError> {
        self.inner.select(filter).await
    }

    async fn load(&self, id: &EntryId) -> Result<Option<Loaded>, StoreError> {
        self.inner.load(id).await
    }

    async fn claim(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        lease: Duration,
        now: SystemTime,
    ) -> Result<Claim, StoreError> {
        let number = {
            let mut claims = self.claims.lock().unwrap();
            *claims += 1;
            *claims
        };
        if matches!(self.fault, Fault::Unreadable) && number == 2 {
            return Err(StoreError::new(StoreErrorKind::Record, "entry 2 cannot be read"));
        }
        let claim = self.inner.claim(id, token, lease, now).await;
        if matches!(self.fault, Fault::Slow) {
            sleep(Duration::from_millis(400)).await;
        }
        if matches!(self.fault, Fault::Purged) {
            self.inner
                .purge(&Filter {
                    limit: Some(1),
                    ..Filter::default()
                })
                .await?;
        }
        claim
    }

    async fn mark_replayed(&self, id: &EntryId, token: &LeaseToken, now: SystemTime) -> Result<Settled, StoreError> {
        if matches!(self.fault, Fault::Mark) {
            return Err(unavailable());
        }
        self.inner.mark_replayed(id, token, now).await
    }

    async fn record_failure(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        failure: ReplayFailure,
    ) -> Result<Settled, StoreError> {
        if matches!(self.fault, Fault::Record) {
            return Err(unavailable());
        }
        self.inner.record_failure(id, token, failure).await
    }

    async fn release(&self, id: &EntryId, token: &LeaseToken) -> Result<Settled, StoreError> {
        self.inner.release(id, token).await
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.inner.purge(filter).await
    }

    async fn stats(&self, filter: &Filter) -> Result<Stats, StoreError> {
        self.inner.stats(filter).await
    }

    async fn close(&self) {}
}

/// A look begins each 1.4 s, one of them at 29.8 s.
#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_while_the_store_answers_is_waited_out() {
    let clock = Clock::start();
    let store = Faulty::of(1, Fault::Slow).await;
    let id = ids(&store.inner).await.remove(0);
    let (dead, lease) = (LeaseToken::random(), Duration::from_secs(30));
    hold(&store.inner, &id, &dead, lease, clock.now()).await;
    let peer = Peer::delivering(clock);
    let (summary, fates) = replay_by_default(clock, &store, &peer).await;
    assert_eq!(fates, [Fate::Replayed]);
    assert_eq!((summary.replayed, summary.held), (1, 0));
}

/// Nothing else would end it before the last page: none of the letters has a target.
#[tokio::test(start_paused = true)]
async fn cancelling_ends_a_replay_that_skips_letters() {
    let clock = Clock::start();
    let store = Faulty::of(3, Fault::Slow).await;
    let cancel = CancellationToken::new();
    let replayer = replayer(clock, ReplayOptions::default());
    let mut skipped = 0;
    let mut observe = |progress: Progress<'_>| {
        if let Progress::Settled { fate, .. } = progress {
            assert_eq!(*fate, Fate::NoTarget);
            skipped += 1;
            cancel.cancel();
        }
    };
    let summary = replayer
        .run(&store, &Filter::default(), &|_| None, &mut observe, &cancel)
        .await
        .unwrap();
    assert_eq!(skipped, 1);
    assert_eq!(summary.stopped, Some(Stopped::Cancelled));
    assert_eq!((summary.selected, summary.no_target, summary.left), (3, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_ends_the_replay_with_its_summary() {
    for (fault, outcome) in [(Fault::Mark, DELIVERED), (Fault::Record, busy())] {
        let clock = Clock::start();
        let store = Faulty::of(3, fault).await;
        let peer = Arc::new(Peer::new(clock, [], outcome));
        let replayer = replayer(clock, ReplayOptions::default());
        let error = replayer
            .run(
                &store,
                &Filter::default(),
                &targets(&peer),
                &mut |_| (),
                &CancellationToken::new(),
            )
            .await
            .unwrap_err();
        assert_eq!(error.store().kind(), StoreErrorKind::Unavailable);
        let summary = error.summary();
        let (unmarked, failed) = if matches!(fault, Fault::Mark) { (1, 0) } else { (0, 1) };
        assert_eq!(
            (summary.selected, summary.unmarked, summary.failed(), summary.left),
            (3, unmarked, failed, 2)
        );
        assert_eq!(contents(&store).await, letters(3), "nothing is lost");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_purged_in_flight_is_delivered_but_not_marked() {
    let clock = Clock::start();
    let store = Faulty::of(1, Fault::Purged).await;
    let peer = Peer::delivering(clock);
    let (summary, fates) = replay_by_default(clock, &store, &peer).await;
    assert_eq!((summary.unmarked, fates), (1, vec![Fate::Unmarked]));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_cannot_be_read_is_passed_over() {
    let clock = Clock::start();
    let store = Faulty::of(3, Fault::Unreadable).await;
    let peer = Peer::delivering(clock);
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!((summary.unreadable, summary.replayed), (1, 2));
    assert_eq!(contents(&store).await, [letter("r1:tool_end:2")]);
}
