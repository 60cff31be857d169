//! Requests that are refused, replies that are lost, and others who write in between.

use std::time::Duration;

use idemp_core::{AttemptRecord, Cause, Detail};
use idemp_dlq::{Claim, DeadLetter, DeadLetterStore, Filter, LeaseToken, Put, ReplayFailure, Settled, StoreErrorKind};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::support::{Fault, LEASE, Place, dead, letter, replayed};
use crate::letters::{at, contents, ids, letters, put_all, with_other_bytes};

#[tokio::test]
async fn a_refused_delete_loses_nothing_and_the_next_run_finishes_it() {
    let place = Place::new();
    let (id, token) = place.claimed(&letter(1)).await;
    place.deny_deletes();
    let error = place.mark_replayed(&id, &token, at(101)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CannotOpen);
    assert_eq!(place.paths().await, [dead(1), replayed(1)]);
    assert_eq!(contents(&place.store).await, [letter(1)]);

    // While it is refused the entry stays, and nobody is told otherwise.
    let next = LeaseToken::random();
    assert!(place.claim(&id, &next, LEASE, at(130)).await.is_err());
    place.mend();
    assert_eq!(
        place.claim(&id, &next, LEASE, at(129)).await.unwrap(),
        Claim::Held { until: at(130) }
    );
    assert_eq!(
        place.claim(&id, &next, LEASE, at(130)).await.unwrap(),
        Claim::Gone,
        "it was delivered, so it is not sent again"
    );
    assert_eq!(place.paths().await, [replayed(1)]);
}

#[tokio::test]
async fn a_failing_copy_leaves_the_entry_where_it_is() {
    let place = Place::new();
    let (id, token) = place.claimed(&letter(1)).await;
    for fault in [Fault::Denied, Fault::Swallowed] {
        place.break_puts("replayed/", fault);
        let error = place.mark_replayed(&id, &token, at(101)).await.unwrap_err();
        let kind = if fault == Fault::Denied {
            StoreErrorKind::CannotOpen
        } else {
            StoreErrorKind::Unavailable
        };
        assert_eq!(error.kind(), kind, "{fault:?}");
        assert_eq!(place.paths().await, [dead(1)], "{fault:?}");
        assert_eq!(contents(&place.store).await, [letter(1)], "{fault:?}");
    }
    place.mend();
    assert!(place.claims(&id, &LeaseToken::random(), 130).await);
    // The new holder has it now.
    assert_eq!(place.mark_replayed(&id, &token, at(131)).await.unwrap(), Settled::Lost);
}

#[tokio::test]
async fn a_write_that_is_denied_says_so() {
    let place = Place::new();
    place.break_puts("dlq/", Fault::Denied);
    let error = place.put(letter(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CannotOpen);
    assert!(!error.to_string().contains("not today"), "{error}");
    assert_eq!(place.paths().await, [""; 0]);
}

#[tokio::test]
async fn a_lost_reply_is_not_taken_for_somebody_elses_write() {
    let place = Place::new();
    place.break_puts("/", Fault::ReplyLost);
    assert_eq!(place.put(letter(1)).await.unwrap(), Put::Added);
    let (id, token) = place.claim_first().await;
    let failure = ReplayFailure {
        attempt: AttemptRecord {
            number: 2,
            started: at(100),
            elapsed: Duration::from_millis(1),
            cause: Some(Cause::Status(503)),
            detail: Detail::default(),
        },
        reason: None,
        maybe_delivered: true,
        not_before: None,
    };
    assert_eq!(place.record_failure(&id, &token, failure).await.unwrap(), Settled::Done);
    let there = contents(&place.store).await.remove(0);
    assert_eq!(
        (there.replay_count, there.attempts.len()),
        (1, letter(1).attempts.len() + 1)
    );
    assert!(place.claims(&id, &token, 101).await);
    assert_eq!(place.mark_replayed(&id, &token, at(102)).await.unwrap(), Settled::Done);
    assert_eq!(place.paths().await, [replayed(1)]);
}

#[tokio::test]
async fn what_somebody_else_writes_between_reading_and_writing_is_not_lost() {
    let place = Place::new();
    let (id, token) = place.claimed(&letter(1)).await;
    let held = place.bytes(&dead(1)).await;
    place.release(&id, &token).await.unwrap();
    let free = place.bytes(&dead(1)).await;
    let intervene = |bytes: &[u8]| *place.objects.intervention.lock().unwrap() = Some(bytes.to_vec());

    intervene(&held);
    let claim = place.claim(&id, &LeaseToken::random(), LEASE, at(101)).await.unwrap();
    assert_eq!(claim, Claim::Held { until: at(130) });

    // A letter is taken into what the other has written.
    intervene(&free);
    let newer = DeadLetter {
        dead_at: at(500),
        ..letter(1)
    };
    assert_eq!(place.put(newer).await.unwrap(), Put::Updated);
    let there = place.load(&id).await.unwrap().unwrap();
    assert_eq!((there.letter.dead_at, there.held_until), (at(500), None));

    // A new letter does not take the place of one that has just come.
    place.purge(&Filter::default()).await.unwrap();
    intervene(&held);
    let other = with_other_bytes(letter(1));
    assert_eq!(place.put(other).await.unwrap(), Put::Conflict);
    assert_eq!(contents(&place.store).await.len(), 2);
}

#[tokio::test]
async fn an_object_deleted_under_the_list_is_left_out() {
    let place = Place::new();
    put_all(&place.store, letters(3)).await;
    let all = ids(&place.store).await;
    let mut selection = place.select(&Filter::default()).await.unwrap();
    let second = dead(2);
    place.objects.inner.delete(&Path::from(second)).await.unwrap();
    let page = selection.next_page().await.unwrap().unwrap();
    let steps: Vec<u64> = page
        .into_iter()
        .map(|listed| listed.letterhead.unwrap().key.step_index().as_u64())
        .collect();
    assert_eq!(steps, [1, 3]);
    assert_eq!(place.load(&all[1]).await.unwrap(), None);
    let claim = place.claim(&all[1], &LeaseToken::random(), LEASE, at(100)).await;
    assert_eq!(claim.unwrap(), Claim::Gone);
}
