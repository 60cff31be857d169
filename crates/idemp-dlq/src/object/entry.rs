//! What an object holds: the record (docs/dlq.md), and one more member for the store's own use.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{DeadLetter, LeaseToken, RecordError, time};

/// A letter as it lies in the store.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) letter: DeadLetter,
    pub(super) keeping: Keeping,
}

/// The member `store` of an object.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Keeping {
    /// Tells this entry from others that lie here earlier or later.
    #[serde(default)]
    pub(super) entry: String,
    /// When this entry came to lie here, by its writer's clock.
    #[serde(default)]
    created_at: String,
    /// Made anew by every write, so that a writer knows its own work again if the reply was lost.
    #[serde(default)]
    pub(super) write: String,
    /// Who holds the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<Lease>,
    /// When it was replayed, once it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replayed_at: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lease {
    token: String,
    until: String,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    store: Keeping,
}

impl Entry {
    /// An entry that has not been there before.
    pub(super) fn new(letter: DeadLetter) -> Self {
        let keeping = Keeping {
            entry: Uuid::new_v4().to_string(),
            created_at: time::to_text(SystemTime::now()),
            ..Keeping::default()
        };
        Self { letter, keeping }
    }

    /// Makes this a write that can be told from all others, and gives the object's bytes.
    #[expect(clippy::expect_used, reason = "strings always have a JSON form")]
    pub(super) fn begin_write(&mut self) -> Vec<u8> {
        self.keeping.write = Uuid::new_v4().to_string();
        let keeping = serde_json::to_string(&self.keeping).expect("strings only");
        let mut json = self.letter.to_json();
        // A record is an object, and never an empty one.
        json.truncate(json.len() - 1);
        format!("{json},\"store\":{keeping}}}").into_bytes()
    }

    /// Reads an object. A record that somebody laid there by hand, without the store's member, is an entry too.
    pub(super) fn read(json: &[u8]) -> Result<Self, RecordError> {
        let letter = DeadLetter::from_json(json)?;
        let object: Object = serde_json::from_slice(json).map_err(|error| RecordError::Torn {
            line: error.line(),
            column: error.column(),
        })?;
        Ok(Self {
            letter,
            keeping: object.store,
        })
    }
}

impl Keeping {
    /// Until when somebody holds the entry.
    pub(super) fn held_until(&self) -> Option<SystemTime> {
        time::from_text(&self.lease.as_ref()?.until)
    }

    /// Whether this one holds the entry, even if the time is up.
    pub(super) fn is_held_by(&self, token: &LeaseToken) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.token == token.as_str())
    }

    pub(super) const fn is_held(&self) -> bool {
        self.lease.is_some()
    }

    pub(super) fn hold(&mut self, token: &LeaseToken, until: SystemTime) {
        self.lease = Some(Lease {
            token: token.as_str().to_owned(),
            until: time::to_text(until),
        });
    }

    pub(super) fn release(&mut self) {
        self.lease = None;
    }

    /// Whether the entry came here after this time.
    pub(super) fn is_younger_than(&self, at: SystemTime) -> bool {
        time::from_text(&self.created_at).is_some_and(|created| created > at)
    }
}
