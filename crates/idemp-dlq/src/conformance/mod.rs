//! Checks for the contract of [`DeadLetterStore`], for every store there is.
//!
//! Each function takes an empty store and panics where a promise is broken. [`all`] runs all of them. Times are made
//! up and nothing waits, except for the store.
//!
//! ```
//! use std::sync::Arc;
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! idemp_dlq::conformance::all(async || Arc::new(idemp_dlq::MemoryStore::new()) as _).await;
//! # })
//! ```
#![expect(clippy::unwrap_used, reason = "a broken promise is told by a panic")]

mod leasing;
mod listing;
mod writing;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use idemp_core::{
    AttemptRecord, Cause, Detail, EventType, IdempotencyKey, Message, Reason, RunId, SinkName, StepIndex, Transport,
};
use serde::Serialize;

pub use leasing::{
    a_failure_is_written_in_place, a_late_holder_settles_unless_taken_over, a_lease_keeps_others_off_until_it_ends,
    a_put_leaves_a_lease_alone, a_release_frees, failures_do_not_pile_up, one_of_many_claims_wins,
    strangers_settle_nothing, what_was_replayed_is_gone,
};
pub use listing::{
    a_purge_deletes_what_is_meant, a_selection_is_frozen, filters_mean_what_they_say, ids_are_not_used_again,
    many_entries_come_by_pages, selections_are_in_replay_order, stats_count_what_is_meant,
};
pub use writing::{
    bytes_come_out_as_they_went_in, concurrent_letters_are_all_kept, other_bytes_are_a_conflict, same_bytes_update,
};

use crate::{Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Letterhead};

/// Every check of this module, each on a store of its own, which `make` hands over empty.
///
/// # Panics
/// If the store breaks a promise. Outside a tokio runtime.
pub async fn all(make: impl AsyncFn() -> Arc<dyn DeadLetterStore>) {
    bytes_come_out_as_they_went_in(make().await).await;
    same_bytes_update(make().await).await;
    other_bytes_are_a_conflict(make().await).await;
    concurrent_letters_are_all_kept(make().await).await;

    selections_are_in_replay_order(make().await).await;
    many_entries_come_by_pages(make().await).await;
    a_selection_is_frozen(make().await).await;
    filters_mean_what_they_say(make().await).await;
    stats_count_what_is_meant(make().await).await;
    a_purge_deletes_what_is_meant(make().await).await;
    ids_are_not_used_again(make().await).await;

    one_of_many_claims_wins(make().await).await;
    a_lease_keeps_others_off_until_it_ends(make().await).await;
    strangers_settle_nothing(make().await).await;
    a_late_holder_settles_unless_taken_over(make().await).await;
    a_release_frees(make().await).await;
    what_was_replayed_is_gone(make().await).await;
    a_failure_is_written_in_place(make().await).await;
    failures_do_not_pile_up(make().await).await;
    a_put_leaves_a_lease_alone(make().await).await;
}

/// 2026-11-30T00:00:00Z.
const MIDNIGHT: Duration = Duration::from_secs(1_795_996_800);

const LEASE: Duration = Duration::from_secs(30);

/// So many seconds after midnight.
fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + MIDNIGHT + Duration::from_secs(seconds)
}

fn sink(name: &str) -> SinkName {
    SinkName::parse(name).unwrap()
}

fn run(id: &str) -> RunId {
    RunId::parse(id).unwrap()
}

fn event(name: &str) -> EventType {
    EventType::parse(name).unwrap()
}

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::parse(text).unwrap()
}

/// A letter for the sink `webhook` that was given up 40 s after midnight, after one attempt that got no answer.
fn letter(text: &str, data: &(impl Serialize + ?Sized)) -> DeadLetter {
    let reason = Reason::RetriesExhausted;
    DeadLetter {
        sink: sink("webhook"),
        message: Message::new(key(text), data).unwrap(),
        reason,
        class: reason.class(),
        maybe_delivered: false,
        attempts: vec![attempt(1, 3, Cause::Transport(Transport::Connect))],
        accepted_at: at(3),
        dead_at: at(40),
        not_before: None,
        replay_count: 0,
    }
}

/// The letter of a step of one run.
fn numbered(step: u64) -> DeadLetter {
    letter(
        IdempotencyKey::new(&run("r1"), &event("tool_end"), StepIndex::new(step).unwrap()).as_str(),
        &step,
    )
}

fn attempt(number: u32, started: u64, cause: Cause) -> AttemptRecord {
    AttemptRecord {
        number,
        started: at(started),
        elapsed: Duration::from_millis(12),
        cause: Some(cause),
        detail: Detail::new("as the peer said"),
    }
}

/// Everything that the filter means, in the store's order. Every entry has to be readable.
async fn list(store: &dyn DeadLetterStore, filter: &Filter) -> Vec<(EntryId, Letterhead)> {
    let mut entries = Vec::new();
    let mut selection = store.select(filter).await.unwrap();
    while let Some(page) = selection.next_page().await.unwrap() {
        entries.extend(page.into_iter().map(|listed| (listed.id, listed.letterhead.unwrap())));
    }
    entries
}

async fn keys(store: &dyn DeadLetterStore, filter: &Filter) -> Vec<String> {
    list(store, filter)
        .await
        .into_iter()
        .map(|(_, head)| head.key.as_str().to_owned())
        .collect()
}

/// Puts one letter into an empty store and says which entry it is.
async fn only(store: &dyn DeadLetterStore, letter: DeadLetter) -> EntryId {
    store.put(letter).await.unwrap();
    let mut entries = list(store, &Filter::default()).await;
    assert_eq!(entries.len(), 1, "one letter is one entry");
    entries.remove(0).0
}

async fn load(store: &dyn DeadLetterStore, id: &EntryId) -> DeadLetter {
    store.load(id).await.unwrap().unwrap().letter
}

async fn claim(store: &dyn DeadLetterStore, id: &EntryId, token: &LeaseToken, now: SystemTime) -> Claim {
    store.claim(id, token, LEASE, now).await.unwrap()
}

async fn claims(store: &dyn DeadLetterStore, id: &EntryId, token: &LeaseToken, now: SystemTime) -> bool {
    matches!(claim(store, id, token, now).await, Claim::Claimed(_))
}
