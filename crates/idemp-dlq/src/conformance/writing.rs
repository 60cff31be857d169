//! Letters that are put.

use std::sync::Arc;

use idemp_core::{Cause, Class, ErrorClass, Failure, Reason, Transport};
use tokio::task::JoinSet;

use super::{at, attempt, letter, list, load, numbered, only, sink};
use crate::{DeadLetter, DeadLetterStore, Filter, Put};

/// A letter is read as it was written: every field, and the body byte for byte, from an empty text to 300 KB.
pub async fn bytes_come_out_as_they_went_in(store: Arc<dyn DeadLetterStore>) {
    let full = DeadLetter {
        maybe_delivered: true,
        attempts: vec![
            attempt(1, 3, Cause::Transport(Transport::Timeout)),
            attempt(2, 9, Cause::Status(429)),
            attempt(3, 15, Cause::Transport(Transport::Cut)),
            attempt(4, 20, Failure::code(ErrorClass::Ambiguous, "MessageTimedOut").cause),
        ],
        not_before: Some(at(100)),
        replay_count: 2,
        ..letter("r1:tool_end:9223372036854775807", "4 °C \u{2028}\u{0}\"\\ 𝄞")
    };
    let letters = [
        full,
        letter("r2:tool_end:1", ""),
        letter("r3:tool_end:1", &1e16),
        letter("r4:tool_end:1", &"x".repeat(300_000)),
    ];
    for letter in &letters {
        assert_eq!(store.put(letter.clone()).await.unwrap(), Put::Added);
    }
    let entries = list(&*store, &Filter::default()).await;
    assert_eq!(entries.len(), letters.len());
    for ((id, head), letter) in entries.iter().zip(&letters) {
        assert_eq!(*head, letter.letterhead());
        assert_eq!(load(&*store, id).await, *letter);
    }
}

/// A second letter of the same sink, key and bytes updates the entry; the same letter again changes nothing.
pub async fn same_bytes_update(store: Arc<dyn DeadLetterStore>) {
    let first = DeadLetter {
        maybe_delivered: true,
        not_before: Some(at(60)),
        ..numbered(1)
    };
    let id = only(&*store, first.clone()).await;
    assert_eq!(store.put(first.clone()).await.unwrap(), Put::Updated);
    assert_eq!(load(&*store, &id).await, first);

    let second = DeadLetter {
        reason: Reason::ConfigurationRejected,
        class: Class::Configuration,
        maybe_delivered: false,
        attempts: vec![attempt(1, 70, Cause::Status(401))],
        accepted_at: at(70),
        dead_at: at(71),
        not_before: None,
        ..first.clone()
    };
    assert_eq!(store.put(second.clone()).await.unwrap(), Put::Updated);
    let merged = DeadLetter {
        maybe_delivered: true,
        attempts: [first.attempts, second.attempts.clone()].concat(),
        accepted_at: at(3),
        ..second
    };
    assert_eq!(load(&*store, &id).await, merged);
    assert_eq!(list(&*store, &Filter::default()).await, [(id, merged.letterhead())]);
}

/// Other bytes under one sink and key are an entry of their own; the same key at another sink has nothing to do with it.
pub async fn other_bytes_are_a_conflict(store: Arc<dyn DeadLetterStore>) {
    let first = letter("r1:tool_end:1", "first");
    let other = letter("r1:tool_end:1", "other");
    let third = letter("r1:tool_end:1", "third");
    assert_eq!(store.put(first.clone()).await.unwrap(), Put::Added);
    assert_eq!(store.put(other.clone()).await.unwrap(), Put::Conflict);
    assert_eq!(store.put(third.clone()).await.unwrap(), Put::Conflict);
    assert_eq!(store.put(first.clone()).await.unwrap(), Put::Updated);
    assert_eq!(store.put(other.clone()).await.unwrap(), Put::Updated);
    let elsewhere = DeadLetter {
        sink: sink("audit"),
        ..other.clone()
    };
    assert_eq!(store.put(elsewhere.clone()).await.unwrap(), Put::Added);

    let conflicting = |letter| DeadLetter {
        reason: Reason::KeyConflict,
        class: Class::Event,
        ..letter
    };
    let mut expected = vec![first, conflicting(other), conflicting(third), elsewhere];
    let conflicts = Filter {
        reason: Some(Reason::KeyConflict),
        ..Filter::default()
    };
    assert_eq!(list(&*store, &conflicts).await.len(), 2);
    for (id, _) in list(&*store, &Filter::default()).await {
        let letter = load(&*store, &id).await;
        let known = expected.iter().position(|expected| *expected == letter);
        expected.remove(known.unwrap_or_else(|| unreachable!("{letter:?} was not put, or comes twice")));
    }
    assert_eq!(expected, [], "these were put and are not there");
}

/// Letters that are put at once are all there, and the same one from many tasks is one entry.
pub async fn concurrent_letters_are_all_kept(store: Arc<dyn DeadLetterStore>) {
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for step in 0..8 {
                store.put(numbered(1 + task * 8 + step)).await.unwrap();
            }
            store.put(numbered(1_000)).await.unwrap()
        });
    }
    let shared = tasks.join_all().await;
    assert_eq!(shared.iter().filter(|put| **put == Put::Added).count(), 1);
    let steps: Vec<u64> = list(&*store, &Filter::default())
        .await
        .iter()
        .map(|(_, head)| head.key.step_index().as_u64())
        .collect();
    let expected: Vec<u64> = (1..=128).chain([1_000]).collect();
    assert_eq!(steps, expected);
}
