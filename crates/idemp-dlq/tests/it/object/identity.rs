//! Which letters are one entry, and what an id stands for.

use std::sync::Arc;

use idemp_core::Reason;
use idemp_dlq::{Claim, DeadLetter, DeadLetterStore, Filter, ObjectStoreDlq, Put};
use tokio::task::JoinSet;

use super::support::{LEASE, Place, letter};
use crate::letters::{at, contents, ids, listed, with_other_bytes};

#[tokio::test]
async fn identity_does_not_end_with_the_day() {
    const DAY: u64 = 24 * 60 * 60;
    let place = Place::new();
    place.put(letter(1)).await.unwrap();
    let later = DeadLetter {
        accepted_at: at(3 * DAY),
        dead_at: at(3 * DAY + 40),
        ..letter(1)
    };
    assert_eq!(place.put(later.clone()).await.unwrap(), Put::Updated);
    let other = with_other_bytes(later);
    assert_eq!(place.put(other.clone()).await.unwrap(), Put::Conflict);
    assert_eq!(place.put(other).await.unwrap(), Put::Updated);
    let reasons: Vec<Reason> = contents(&place.store)
        .await
        .iter()
        .map(|letter| letter.reason)
        .collect();
    assert_eq!(reasons.len(), 2);
    assert!(reasons.contains(&Reason::KeyConflict), "{reasons:?}");

    // Another process, which has seen nothing of this yet.
    let fresh = ObjectStoreDlq::new(Arc::clone(&place.objects) as _, "team");
    let again = DeadLetter {
        accepted_at: at(9 * DAY),
        ..letter(1)
    };
    assert_eq!(fresh.put(again).await.unwrap(), Put::Updated);
}

#[tokio::test]
async fn an_id_means_one_entry_for_ever() {
    let place = Place::new();
    let (first, token) = place.claimed(&letter(1)).await;
    let mut frozen = place.select(&Filter::default()).await.unwrap();
    place.mark_replayed(&first, &token, at(101)).await.unwrap();
    assert_eq!(place.put(letter(1)).await.unwrap(), Put::Added);
    assert_eq!(
        frozen.next_page().await.unwrap(),
        None,
        "it was not there when the selection was frozen"
    );
    assert_eq!(place.load(&first).await.unwrap(), None);
    assert_eq!(place.claim(&first, &token, LEASE, at(102)).await.unwrap(), Claim::Gone);
    assert_ne!(ids(&place.store).await, [first]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_letters_from_sixteen_tasks_are_all_there() {
    let place = Arc::new(Place::new());
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let place = Arc::clone(&place);
        tasks.spawn(async move {
            for step in 0..625 {
                let put = place.put(letter(1 + task * 625 + step)).await.unwrap();
                assert_eq!(put, Put::Added);
            }
        });
    }
    tasks.join_all().await;
    let heads = listed(&place.store).await;
    let steps = heads
        .into_iter()
        .map(|listed| listed.letterhead.unwrap().key.step_index().as_u64());
    assert!(steps.eq(1..=10_000));
    assert_eq!(place.stats(&Filter::default()).await.unwrap().depth, 10_000);
}
