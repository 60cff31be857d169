//! What was sent and what took effect: counted here, by the application's side, and by nobody who is being judged.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use idemp_core::Message;

/// Keeps account of every event that was sent and of every effect that was taken.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    sent: HashMap<String, Entry>,
    strange: usize,
}

#[derive(Debug)]
struct Entry {
    body: Bytes,
    effects: u32,
}

/// What the ledger says in the end, in events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) sent: usize,
    /// With exactly one effect.
    pub(super) once: usize,
    /// With more than one.
    pub(super) twice: usize,
    /// Without an effect, but still among the dead letters.
    pub(super) waiting: usize,
    /// Without an effect, and nowhere.
    pub(super) lost: usize,
    /// Effects of what nobody has sent: an unknown key, or other bytes.
    pub(super) strange: usize,
}

impl Ledger {
    /// An event is about to be sent.
    pub(super) fn send(&self, message: &Message) {
        let entry = Entry {
            body: message.body().clone(),
            effects: 0,
        };
        self.lock().sent.insert(message.key().as_str().to_owned(), entry);
    }

    /// The effect of an event has been taken.
    pub(super) fn take_effect(&self, key: &str, body: &Bytes) {
        let mut entries = self.lock();
        match entries.sent.get_mut(key) {
            Some(entry) if entry.body == *body => entry.effects += 1,
            _ => entries.strange += 1,
        }
    }

    /// Draws the balance. `dead` are the keys that still lie among the dead letters.
    pub(super) fn balance(&self, dead: &HashSet<String>) -> Account {
        let entries = self.lock();
        let mut account = Account {
            sent: entries.sent.len(),
            strange: entries.strange,
            ..Account::default()
        };
        for (key, entry) in &entries.sent {
            let column = match entry.effects {
                0 if dead.contains(key) => &mut account.waiting,
                0 => &mut account.lost,
                1 => &mut account.once,
                _ => &mut account.twice,
            };
            *column += 1;
        }
        account
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use idemp_core::{EventType, Run, RunId};

    use super::*;

    /// A ledger with three events that were sent.
    fn ledger() -> (Ledger, Vec<Message>) {
        let (ledger, run) = (Ledger::default(), Run::with_id(RunId::parse("r").unwrap()));
        let sent: Vec<_> = (0..3)
            .map(|number| run.event(EventType::TOOL_END, &number).unwrap())
            .collect();
        sent.iter().for_each(|message| ledger.send(message));
        (ledger, sent)
    }

    #[track_caller]
    fn check(effects: &[usize], dead: &[usize], expected: Account) {
        let (ledger, sent) = ledger();
        for index in effects {
            ledger.take_effect(sent[*index].key().as_str(), sent[*index].body());
        }
        let dead = dead
            .iter()
            .map(|index| sent[*index].key().as_str().to_owned())
            .collect();
        assert_eq!(ledger.balance(&dead), expected);
    }

    #[test]
    fn one_effect_each_is_right() {
        check(
            &[0, 2, 1],
            &[],
            Account {
                sent: 3,
                once: 3,
                ..Account::default()
            },
        );
    }

    #[test]
    fn an_event_without_an_effect_is_lost() {
        check(
            &[0, 2],
            &[],
            Account {
                sent: 3,
                once: 2,
                lost: 1,
                ..Account::default()
            },
        );
    }

    #[test]
    fn an_event_among_the_dead_letters_is_not_lost_but_waits() {
        check(
            &[0, 2],
            &[1],
            Account {
                sent: 3,
                once: 2,
                waiting: 1,
                ..Account::default()
            },
        );
        check(
            &[0, 1, 2],
            &[1],
            Account {
                sent: 3,
                once: 3,
                ..Account::default()
            },
        );
    }

    #[test]
    fn a_second_effect_is_seen() {
        check(
            &[0, 1, 2, 1],
            &[],
            Account {
                sent: 3,
                once: 2,
                twice: 1,
                ..Account::default()
            },
        );
        check(
            &[0, 1, 2, 1, 1],
            &[],
            Account {
                sent: 3,
                once: 2,
                twice: 1,
                ..Account::default()
            },
        );
    }

    #[test]
    fn an_effect_of_something_else_counts_for_no_event() {
        let (ledger, sent) = ledger();
        ledger.take_effect("r:tool_end:4", sent[0].body());
        ledger.take_effect(sent[0].key().as_str(), sent[1].body());
        assert_eq!(
            ledger.balance(&HashSet::new()),
            Account {
                sent: 3,
                lost: 3,
                strange: 2,
                ..Account::default()
            }
        );
    }
}
