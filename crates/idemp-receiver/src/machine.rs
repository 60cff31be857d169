//! The life of one key, without a store and without a clock: absent, pending, done, absent again.
//!
//! Each function takes what a store found under the key, live or not, and says what to answer and what to write.
//! Times are durations since an origin of the store's choice. A record whose time is up counts as absent.

use std::time::Duration;

use idemp_core::Ttl;

use crate::claim::{Claimant, Fingerprint, Token};
use crate::store::{Claim, Completed};

/// What a store keeps under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) state: State,
    /// `None` for a mark that was set without a body.
    pub(crate) fingerprint: Option<Fingerprint>,
    /// From here on the record counts as absent.
    pub(crate) until: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Pending(Token),
    Done,
}

/// What a store does to the record under the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Nothing,
    Put(Record),
    Remove,
}

impl Record {
    fn owned_by(&self, who: &Claimant) -> bool {
        self.state == State::Pending(who.token)
    }
}

pub(crate) fn claim(found: Option<Record>, who: &Claimant, lease: Duration, now: Duration) -> (Claim, Write) {
    match live(found, now) {
        Some(record) if record.fingerprint.is_some_and(|print| print != who.fingerprint) => {
            (Claim::Conflict, Write::Nothing)
        }
        Some(Record { state: State::Done, .. }) => (Claim::Duplicate, Write::Nothing),
        Some(record) if !record.owned_by(who) => {
            let retry_after = record.until - now;
            (Claim::InProgress { retry_after }, Write::Nothing)
        }
        _ => (Claim::Claimed, pending(who, lease, now)),
    }
}

pub(crate) fn renew(found: Option<Record>, who: &Claimant, lease: Duration, now: Duration) -> (bool, Write) {
    match live(found, now) {
        Some(record) if record.owned_by(who) => (true, pending(who, lease, now)),
        _ => (false, Write::Nothing),
    }
}

pub(crate) fn complete(found: Option<Record>, who: &Claimant, ttl: Ttl, now: Duration) -> (Completed, Write) {
    let completed = match live(found, now) {
        Some(record) if record.owned_by(who) => Completed::Done,
        Some(_) => return (Completed::Lost, Write::Nothing),
        None => Completed::Late,
    };
    (completed, done(Some(who.fingerprint), ttl, now))
}

pub(crate) fn release(found: Option<Record>, who: &Claimant) -> (bool, Write) {
    match found {
        Some(record) if record.owned_by(who) => (true, Write::Remove),
        _ => (false, Write::Nothing),
    }
}

pub(crate) fn mark_seen(found: Option<Record>, ttl: Ttl, now: Duration) -> (bool, Write) {
    match live(found, now) {
        Some(_) => (false, Write::Nothing),
        None => (true, done(None, ttl, now)),
    }
}

fn live(found: Option<Record>, now: Duration) -> Option<Record> {
    found.filter(|record| now < record.until)
}

fn pending(who: &Claimant, lease: Duration, now: Duration) -> Write {
    Write::Put(Record {
        state: State::Pending(who.token),
        fingerprint: Some(who.fingerprint),
        until: now.saturating_add(lease),
    })
}

fn done(fingerprint: Option<Fingerprint>, ttl: Ttl, now: Duration) -> Write {
    Write::Put(Record {
        state: State::Done,
        fingerprint,
        until: now.saturating_add(ttl.as_duration()),
    })
}
