//! Where letters lie, what they cost, and what lies beside them.

use std::sync::atomic::Ordering;

use idemp_dlq::{DeadLetter, DeadLetterStore, Filter, LeaseToken, Put, RecordError, Settled, StoreErrorKind};

use super::support::{LEASE, Place, dead, letter, replayed};
use crate::letters::{at, contents, letters, listed, put_all};

#[tokio::test]
async fn a_letter_lies_where_the_docs_say_and_moves_when_it_is_replayed() {
    let place = Place::new();
    let (id, token) = place.claimed(&letter(1)).await;
    assert_eq!(place.paths().await, [dead(1)]);
    let bytes = place.bytes(&dead(1)).await;
    assert_eq!(
        DeadLetter::from_json(&bytes),
        Ok(letter(1)),
        "an object is a record, with something of the store's own"
    );

    assert_eq!(place.mark_replayed(&id, &token, at(101)).await.unwrap(), Settled::Done);
    assert_eq!(place.paths().await, [replayed(1)]);
    let bytes = place.bytes(&replayed(1)).await;
    assert_eq!(DeadLetter::from_json(&bytes), Ok(letter(1)));
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(json["store"]["replayed_at"], "2026-11-30T00:01:41Z");
    assert_eq!(json["store"].get("lease"), None);
}

#[tokio::test]
async fn a_key_that_is_replayed_twice_leaves_both_behind() {
    let place = Place::new();
    for _ in 0..2 {
        let (id, token) = place.claimed(&letter(1)).await;
        assert_eq!(place.mark_replayed(&id, &token, at(101)).await.unwrap(), Settled::Done);
    }
    let paths = place.paths().await;
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(paths.iter().all(|path| path.starts_with("team/replayed/")), "{paths:?}");
    assert!(paths.contains(&replayed(1)), "{paths:?}");
}

#[tokio::test]
async fn a_letter_costs_two_requests() {
    let place = Place::new();
    place.put(letter(1)).await.unwrap();
    let before = place.objects.requests.load(Ordering::SeqCst);
    for step in 2..=11 {
        assert_eq!(place.put(letter(step)).await.unwrap(), Put::Added);
    }
    assert_eq!(place.objects.requests.load(Ordering::SeqCst) - before, 20);
}

#[tokio::test]
async fn a_record_laid_there_by_hand_is_an_entry() {
    let place = Place::new();
    place.lay(&dead(1), &letter(1).to_json()).await;
    assert_eq!(contents(&place.store).await, [letter(1)]);
    let (id, token) = place.claim_first().await;
    assert_eq!(place.mark_replayed(&id, &token, at(101)).await.unwrap(), Settled::Done);
    assert_eq!(place.paths().await, [replayed(1)]);
}

#[tokio::test]
async fn what_cannot_be_read_is_listed_kept_and_in_nobodys_way() {
    let place = Place::new();
    put_all(&place.store, letters(2)).await;
    let torn = dead(3);
    place.lay(&torn, "{\"version\":1,").await;
    let future = dead(4);
    place.lay(&future, "{\"version\":2,\"key\":\"r1:tool_end:4\"}").await;
    // Not named like an entry: somebody else's.
    place.lay("team/dlq/readme.txt", "hands off").await;
    place
        .lay("other/dlq/webhook/2026/11/30/r9/r9:tool_end:1.json", "{}")
        .await;

    let heads = listed(&place.store).await;
    assert_eq!(heads.len(), 4);
    assert!(matches!(heads[2].letterhead, Err(RecordError::Torn { .. })));
    assert_eq!(heads[3].letterhead, Err(RecordError::Version { found: 2 }));
    for unread in &heads[2..] {
        let token = LeaseToken::random();
        let error = place.claim(&unread.id, &token, LEASE, at(100)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Record);
        assert!(error.record().is_some());
        assert!(place.load(&unread.id).await.is_err());
    }
    let stats = place.stats(&Filter::default()).await.unwrap();
    assert_eq!((stats.depth, stats.by_reason.values().sum::<u64>()), (4, 2));

    // A letter whose place is taken by something unreadable is kept beside it.
    assert_eq!(place.put(letter(3)).await.unwrap(), Put::Conflict);
    assert_eq!(place.put(letter(3)).await.unwrap(), Put::Updated);
    assert_eq!(place.bytes(&torn).await, b"{\"version\":1,");

    assert_eq!(place.purge(&Filter::default()).await.unwrap(), 5);
    assert_eq!(
        place.paths().await,
        [
            "other/dlq/webhook/2026/11/30/r9/r9:tool_end:1.json",
            "team/dlq/readme.txt"
        ]
    );
}
