//! What the tests put.

use std::time::{Duration, SystemTime};

use idemp_core::{AttemptRecord, Cause, Detail, IdempotencyKey, Message, Reason, SinkName};
use idemp_dlq::{DeadLetter, DeadLetterStore, EntryId, Filter, Listed};

/// So many seconds after 2026-11-30T00:00:00Z.
pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_996_800 + seconds)
}

pub(crate) fn sink(name: &str) -> SinkName {
    SinkName::parse(name).unwrap()
}

/// A letter for the sink `webhook` with one attempt that was answered with 503.
pub(crate) fn letter(key: &str) -> DeadLetter {
    let reason = Reason::RetriesExhausted;
    DeadLetter {
        sink: sink("webhook"),
        message: Message::new(IdempotencyKey::parse(key).unwrap(), &[key]).unwrap(),
        reason,
        class: reason.class(),
        maybe_delivered: false,
        attempts: vec![attempt(1, at(1), Cause::Status(503))],
        accepted_at: at(1),
        dead_at: at(2),
        not_before: None,
        replay_count: 0,
    }
}

/// Steps of one run, from 1.
pub(crate) fn letters(count: u64) -> Vec<DeadLetter> {
    (1..=count).map(|step| letter(&format!("r1:tool_end:{step}"))).collect()
}

pub(crate) fn attempt(number: u32, started: SystemTime, cause: Cause) -> AttemptRecord {
    AttemptRecord {
        number,
        started,
        elapsed: Duration::from_millis(7),
        cause: Some(cause),
        detail: Detail::default(),
    }
}

/// The same letter with another body under its key: a conflict.
pub(crate) fn with_other_bytes(letter: DeadLetter) -> DeadLetter {
    DeadLetter {
        message: Message::new(letter.message.key().clone(), "other bytes").unwrap(),
        ..letter
    }
}

/// Puts letters one after another.
pub(crate) async fn put_all(store: &dyn DeadLetterStore, letters: impl IntoIterator<Item = DeadLetter>) {
    for letter in letters {
        store.put(letter).await.unwrap();
    }
}

pub(crate) async fn listed(store: &dyn DeadLetterStore) -> Vec<Listed> {
    let mut selection = store.select(&Filter::default()).await.unwrap();
    let mut entries = Vec::new();
    while let Some(page) = selection.next_page().await.unwrap() {
        entries.extend(page);
    }
    entries
}

pub(crate) async fn ids(store: &dyn DeadLetterStore) -> Vec<EntryId> {
    listed(store).await.into_iter().map(|entry| entry.id).collect()
}

/// Every letter of a store, in replay order.
pub(crate) async fn contents(store: &dyn DeadLetterStore) -> Vec<DeadLetter> {
    let mut letters = Vec::new();
    for id in ids(store).await {
        letters.push(store.load(&id).await.unwrap().unwrap().letter);
    }
    letters
}
