//! Claims, and what their holders may do.

use std::sync::Arc;

use idemp_core::{Cause, Class, Reason};
use tokio::task::JoinSet;

use super::{LEASE, at, attempt, claim, claims, list, load, numbered, only};
use crate::{Claim, DeadLetter, DeadLetterStore, Filter, LeaseToken, Put, ReplayFailure, Settled};

/// Of many claims at once exactly one wins, and the others are told until when.
pub async fn one_of_many_claims_wins(store: Arc<dyn DeadLetterStore>) {
    let id = only(&*store, numbered(1)).await;
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (store, id) = (Arc::clone(&store), id.clone());
        tasks.spawn(async move { claim(&*store, &id, &LeaseToken::random(), at(100)).await });
    }
    let (won, lost): (Vec<_>, Vec<_>) = tasks
        .join_all()
        .await
        .into_iter()
        .partition(|claim| matches!(claim, Claim::Claimed(_)));
    assert_eq!(won, [Claim::Claimed(Box::new(numbered(1)))]);
    assert_eq!(lost, vec![Claim::Held { until: at(100) + LEASE }; 15]);
}

/// A lease keeps others off until its last moment; its holder can prolong it.
pub async fn a_lease_keeps_others_off_until_it_ends(store: Arc<dyn DeadLetterStore>) {
    let id = only(&*store, numbered(1)).await;
    assert_eq!(store.load(&id).await.unwrap().unwrap().held_until, None);
    let (first, second) = (LeaseToken::random(), LeaseToken::random());
    assert!(claims(&*store, &id, &first, at(100)).await);
    assert_eq!(store.load(&id).await.unwrap().unwrap().held_until, Some(at(130)));
    assert_eq!(
        claim(&*store, &id, &second, at(129)).await,
        Claim::Held { until: at(130) }
    );
    assert!(
        claims(&*store, &id, &first, at(110)).await,
        "a holder's own claim is not in its way"
    );
    assert_eq!(
        claim(&*store, &id, &second, at(139)).await,
        Claim::Held { until: at(140) }
    );
    assert!(claims(&*store, &id, &second, at(140)).await);
    assert_eq!(
        claim(&*store, &id, &first, at(141)).await,
        Claim::Held { until: at(170) }
    );
}

fn failure(number: u32, seconds: u64) -> ReplayFailure {
    ReplayFailure {
        attempt: attempt(number, seconds, Cause::Status(503)),
        reason: None,
        maybe_delivered: true,
        not_before: None,
    }
}

/// Whoever does not hold an entry cannot settle it, held by somebody else or by nobody.
pub async fn strangers_settle_nothing(store: Arc<dyn DeadLetterStore>) {
    let id = only(&*store, numbered(1)).await;
    let (holder, stranger) = (LeaseToken::random(), LeaseToken::random());
    for held in [false, true] {
        if held {
            assert!(claims(&*store, &id, &holder, at(100)).await);
        }
        assert_eq!(
            store.mark_replayed(&id, &stranger, at(101)).await.unwrap(),
            Settled::Lost
        );
        assert_eq!(
            store.record_failure(&id, &stranger, failure(2, 101)).await.unwrap(),
            Settled::Lost
        );
        assert_eq!(store.release(&id, &stranger).await.unwrap(), Settled::Lost);
        assert_eq!(load(&*store, &id).await, numbered(1));
    }
    assert_eq!(
        claim(&*store, &id, &stranger, at(102)).await,
        Claim::Held { until: at(130) }
    );
}

/// A holder whose lease has run out may still settle the entry, unless somebody has taken it over.
pub async fn a_late_holder_settles_unless_taken_over(store: Arc<dyn DeadLetterStore>) {
    let id = only(&*store, numbered(1)).await;
    let (first, second) = (LeaseToken::random(), LeaseToken::random());
    assert!(claims(&*store, &id, &first, at(100)).await);
    assert!(claims(&*store, &id, &second, at(130)).await);
    assert_eq!(store.mark_replayed(&id, &first, at(131)).await.unwrap(), Settled::Lost);
    assert_eq!(
        store.record_failure(&id, &first, failure(2, 101)).await.unwrap(),
        Settled::Lost
    );
    assert_eq!(load(&*store, &id).await, numbered(1));
    assert_eq!(
        store.mark_replayed(&id, &second, at(1_000)).await.unwrap(),
        Settled::Done
    );
    assert_eq!(list(&*store, &Filter::default()).await, []);
}

/// A released entry is as it was, and anybody's.
pub async fn a_release_frees(store: Arc<dyn DeadLetterStore>) {
    let id = only(&*store, numbered(1)).await;
    let (first, second) = (LeaseToken::random(), LeaseToken::random());
    assert!(claims(&*store, &id, &first, at(100)).await);
    assert_eq!(store.release(&id, &first).await.unwrap(), Settled::Done);
    assert_eq!(store.release(&id, &first).await.unwrap(), Settled::Lost);
    assert_eq!(load(&*store, &id).await, numbered(1));
    assert!(claims(&*store, &id, &second, at(101)).await);
}

/// A replayed entry is no dead letter any more. If its event is given up again, that is a new one.
pub async fn what_was_replayed_is_gone(store: Arc<dyn DeadLetterStore>) {
    let id = only(&*store, numbered(1)).await;
    let token = LeaseToken::random();
    assert!(claims(&*store, &id, &token, at(100)).await);
    assert_eq!(store.mark_replayed(&id, &token, at(101)).await.unwrap(), Settled::Done);
    assert_eq!(store.mark_replayed(&id, &token, at(101)).await.unwrap(), Settled::Lost);
    assert_eq!(store.load(&id).await.unwrap(), None);
    assert_eq!(claim(&*store, &id, &token, at(102)).await, Claim::Gone);
    assert_eq!(list(&*store, &Filter::default()).await, []);
    assert_eq!(store.stats(&Filter::default()).await.unwrap().depth, 0);
    assert_eq!(store.put(numbered(1)).await.unwrap(), Put::Added);
    assert_eq!(list(&*store, &Filter::default()).await.len(), 1);
}

/// A failed replay changes its entry and nothing else, and lets go of it.
pub async fn a_failure_is_written_in_place(store: Arc<dyn DeadLetterStore>) {
    let before = numbered(1);
    let id = only(&*store, before.clone()).await;
    let token = LeaseToken::random();
    assert!(claims(&*store, &id, &token, at(100)).await);
    let failure = ReplayFailure {
        reason: Some(Reason::ConfigurationRejected),
        not_before: Some(at(500)),
        ..failure(2, 100)
    };
    assert_eq!(
        store.record_failure(&id, &token, failure.clone()).await.unwrap(),
        Settled::Done
    );
    let after = DeadLetter {
        reason: Reason::ConfigurationRejected,
        class: Class::Configuration,
        maybe_delivered: true,
        attempts: vec![before.attempts[0].clone(), failure.attempt],
        not_before: Some(at(500)),
        replay_count: 1,
        ..before
    };
    assert_eq!(load(&*store, &id).await, after);
    assert_eq!(
        list(&*store, &Filter::default()).await,
        [(id.clone(), after.letterhead())]
    );
    assert!(
        claims(&*store, &id, &LeaseToken::random(), at(101)).await,
        "the entry is free again"
    );
}

/// After many failed replays an entry is as large as after some.
pub async fn failures_do_not_pile_up(store: Arc<dyn DeadLetterStore>) {
    let id = only(&*store, numbered(1)).await;
    let token = LeaseToken::random();
    let mut sizes = Vec::new();
    for number in 2..=41 {
        let now = 100 + u64::from(number);
        assert!(claims(&*store, &id, &token, at(now)).await);
        assert_eq!(
            store.record_failure(&id, &token, failure(number, now)).await.unwrap(),
            Settled::Done
        );
        sizes.push(load(&*store, &id).await.to_json().len());
    }
    assert_eq!(sizes[19], sizes[39]);
    let letter = load(&*store, &id).await;
    assert_eq!(
        (letter.replay_count, letter.attempts.last().map(|last| last.number)),
        (40, Some(41))
    );
    assert_eq!(
        letter.maybe_delivered_since(),
        Some(at(102)),
        "the earliest attempt that may have arrived is kept"
    );
}

/// A letter that is put while its entry is held updates it, and leaves the lease alone.
pub async fn a_put_leaves_a_lease_alone(store: Arc<dyn DeadLetterStore>) {
    let id = only(&*store, numbered(1)).await;
    let (holder, other) = (LeaseToken::random(), LeaseToken::random());
    assert!(claims(&*store, &id, &holder, at(100)).await);
    assert_eq!(
        store
            .put(DeadLetter {
                dead_at: at(110),
                ..numbered(1)
            })
            .await
            .unwrap(),
        Put::Updated
    );
    assert_eq!(
        claim(&*store, &id, &other, at(111)).await,
        Claim::Held { until: at(130) }
    );
    assert_eq!(
        store.record_failure(&id, &holder, failure(2, 101)).await.unwrap(),
        Settled::Done
    );
    let letter = load(&*store, &id).await;
    assert_eq!(
        (letter.dead_at, letter.replay_count),
        (at(110), 1),
        "neither write has lost the other"
    );
}
