//! Dead letters in a stream of Redis or Valkey, with an index beside it.
//!
//! A letter is one stream entry with the fields `idempotency_key`, `event_type`, `payload` and `record`. Whatever
//! changes more than one thing is a script, so that the server does the whole or nothing; whatever needs a record to be
//! read and changed is done here and written only if the entry is still as it was read.

mod config;
mod fault;
mod link;
mod query;
mod scripts;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_core::Reason;

use crate::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Loaded, Put, ReplayFailure, Selection, Settled,
    Stats, StoreError, StoreErrorKind, time,
};
pub use config::RedisStreamsConfig;
use link::{Again, Link};
use query::{Frozen, Id};

/// Entries of a page.
const PAGE: usize = 100;

/// How often a write is tried again because somebody else wrote the same entry in between.
const TRIES: usize = 64;

/// Keeps dead letters in a stream of a Redis or Valkey server or cluster: Redis 7.0 or later, Valkey 7.2 or later.
///
/// How durable a letter is once [`put`](DeadLetterStore::put) returns is up to the server: with `appendonly yes` and
/// `appendfsync always` also when its power fails; what a replica does not have yet is lost if it takes over
/// (docs/dlq.md). A letter that was replayed is deleted.
///
/// Calls share one connection, which is made when it is first needed and made anew when it is of no use any more.
pub struct RedisStreamsStore {
    link: Arc<Link>,
}

/// An entry as it was read.
struct Read {
    /// The stream entry in which the letter lies.
    at: String,
    record: Vec<u8>,
    lease: Option<(String, SystemTime)>,
}

impl RedisStreamsStore {
    /// Sets up the client; nothing is connected yet.
    ///
    /// With `rediss://` the process-wide cryptography of rustls is used, and set to ring where the application has
    /// chosen none.
    ///
    /// # Errors
    /// If the configuration makes no store: the message begins with the field that is at fault.
    pub fn new(config: &RedisStreamsConfig) -> Result<Self, StoreError> {
        Ok(Self {
            link: Arc::new(Link::new(config)?),
        })
    }

    /// Sets up the client, connects, and looks whether the keys are free or hold dead letters. Where they are free, it
    /// makes the index, which says from then on that the store is there, also when it is empty. A server that does not
    /// let it, such as a replica, does not keep the store from being opened.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if the server cannot be reached or refuses, the keys hold something else, or a later
    /// version made them.
    pub async fn open(config: &RedisStreamsConfig) -> Result<Self, StoreError> {
        let (store, is_there) = Self::look(config).await?;
        if !is_there {
            // What is wrong shows when the first letter comes, and a fallback takes that.
            let _: Result<u64, _> = store.link.run(&scripts::MAKE, &[], Again::Harmless).await;
        }
        Ok(store)
    }

    /// As [`open`](Self::open), and makes nothing: one of the keys has to be there. A store that became empty is.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if there is no such store.
    pub async fn open_existing(config: &RedisStreamsConfig) -> Result<Self, StoreError> {
        match Self::look(config).await? {
            (store, true) => Ok(store),
            (_, false) => {
                let why = format!("there is no dead-letter store with the stream {}", config.stream);
                Err(StoreError::new(StoreErrorKind::CannotOpen, why))
            }
        }
    }

    /// Connects, and says whether one of the keys is there.
    async fn look(config: &RedisStreamsConfig) -> Result<(Self, bool), StoreError> {
        let store = Self::new(config)?;
        let (stream, index, version): (String, String, String) =
            store.link.run(&scripts::LOOK, &[], Again::Harmless).await?;
        if !matches!(stream.as_str(), "none" | "stream") || !matches!(index.as_str(), "none" | "hash") {
            let why = "the key of the dead letters holds something else";
            return Err(StoreError::new(StoreErrorKind::Corrupt, why));
        }
        if version
            .parse::<u64>()
            .ok()
            .is_none_or(|version| version > scripts::VERSION)
        {
            let why = "a later version of idemp made the dead-letter store";
            return Err(StoreError::new(StoreErrorKind::Version, why));
        }
        let is_there = stream != "none" || index != "none";
        Ok((store, is_there))
    }

    async fn read(&self, id: Id) -> Result<Option<Read>, StoreError> {
        let id = id.text();
        let found: Vec<Vec<u8>> = self.link.run(&scripts::LOAD, &[id.as_bytes()], Again::Harmless).await?;
        let Ok([at, record, until, token]) = <[Vec<u8>; 4]>::try_from(found) else {
            return Ok(None);
        };
        let text = |bytes| String::from_utf8(bytes).unwrap_or_default();
        Ok(Some(Read {
            at: text(at),
            record,
            lease: from_digits(&text(until)).map(|until| (text(token), until)),
        }))
    }

    /// Writes a changed letter in place of the stream entry that was read. `None` if that is not what is there.
    async fn rewrite(
        &self,
        id: &str,
        at: &str,
        token: Option<&LeaseToken>,
        letter: &DeadLetter,
    ) -> Result<Option<Settled>, StoreError> {
        let (key, payload, record) = (letter.message.key(), letter.message.data(), letter.to_json());
        let arguments = [
            id.as_bytes(),
            at.as_bytes(),
            token.map_or("", LeaseToken::as_str).as_bytes(),
            key.as_str().as_bytes(),
            key.event_type().as_bytes(),
            &payload,
            record.as_bytes(),
        ];
        let again = if token.is_some() {
            Again::Misleading
        } else {
            Again::Harmless
        };
        let done: String = self.link.run(&scripts::REWRITE, &arguments, again).await?;
        Ok(match done.as_str() {
            "done" => Some(Settled::Done),
            "lost" => Some(Settled::Lost),
            _ => None,
        })
    }
}

#[async_trait]
impl DeadLetterStore for RedisStreamsStore {
    async fn put(&self, letter: DeadLetter) -> Result<Put, StoreError> {
        let key = letter.message.key();
        let (name, sha256, payload) = (name_of(&letter), hex(&letter.body_sha256()), letter.message.data());
        let mut record = letter.to_json();
        let (mut conflict, mut unreadable) = (false, String::new());
        for _ in 0..TRIES {
            let arguments = [
                name.as_bytes(),
                sha256.as_bytes(),
                if conflict { b"1" } else { b"0" },
                unreadable.as_bytes(),
                key.as_str().as_bytes(),
                key.event_type().as_bytes(),
                &payload,
                record.as_bytes(),
            ];
            let answer: Vec<Vec<u8>> = self.link.run(&scripts::PUT, &arguments, Again::Harmless).await?;
            let text = |place: usize| {
                answer
                    .get(place)
                    .map_or("".into(), |text| String::from_utf8_lossy(text))
            };
            match &*text(0) {
                "added" if conflict => return Ok(Put::Conflict),
                "added" => return Ok(Put::Added),
                "fresh" => (conflict, record) = (false, letter.to_json()),
                "conflict" => (conflict, record) = (true, conflicting(&letter).to_json()),
                _ => {
                    let (id, at, known) = (text(1), text(2), answer.get(3).map_or(&[][..], |record| record));
                    let Ok(known) = DeadLetter::from_json(known) else {
                        // What cannot be read is left as it is, and the letter is written beside it.
                        unreadable = format!("{unreadable} {id}");
                        continue;
                    };
                    let mut head = known.letterhead();
                    head.absorb(letter.letterhead());
                    let merged = DeadLetter::assemble(head, letter.message.clone());
                    if merged == known || self.rewrite(&id, &at, None, &merged).await?.is_some() {
                        return Ok(Put::Updated);
                    }
                }
            }
        }
        Err(fault::contended())
    }

    async fn select(&self, filter: &Filter) -> Result<Box<dyn Selection>, StoreError> {
        let ids = query::select(&self.link, filter).await?;
        Ok(Box::new(Frozen::new(Arc::clone(&self.link), ids)))
    }

    async fn load(&self, id: &EntryId) -> Result<Option<Loaded>, StoreError> {
        let Some(number) = Id::of(id) else { return Ok(None) };
        let Some(Read { record, lease, .. }) = self.read(number).await? else {
            return Ok(None);
        };
        Ok(Some(Loaded {
            letter: DeadLetter::from_json(&record).map_err(|error| fault::unreadable(id.as_str(), error))?,
            held_until: lease.map(|(_, until)| until),
        }))
    }

    async fn claim(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        lease: Duration,
        now: SystemTime,
    ) -> Result<Claim, StoreError> {
        let Some(number) = Id::of(id) else {
            return Ok(Claim::Gone);
        };
        for _ in 0..TRIES {
            let Some(Read {
                at,
                record,
                lease: held,
            }) = self.read(number).await?
            else {
                return Ok(Claim::Gone);
            };
            if let Some((holder, until)) = held
                && holder != token.as_str()
                && until > now
            {
                return Ok(Claim::Held { until });
            }
            let letter = DeadLetter::from_json(&record).map_err(|error| fault::unreadable(id.as_str(), error))?;
            let (until, now) = (digits(time::after(now, lease)), digits(now));
            let (sha256, name) = (hex(&letter.body_sha256()), name_of(&letter));
            let arguments = [id.as_str(), &at, token.as_str(), &until, &now, &sha256, &name].map(str::as_bytes);
            let answer: Vec<String> = self.link.run(&scripts::CLAIM, &arguments, Again::Harmless).await?;
            match (answer.first().map(String::as_str), answer.get(1)) {
                (Some("claimed"), _) => return Ok(Claim::Claimed(Box::new(letter))),
                (Some("held"), Some(until)) => {
                    if let Some(until) = from_digits(until) {
                        return Ok(Claim::Held { until });
                    }
                }
                _ => {}
            }
        }
        Err(fault::contended())
    }

    async fn mark_replayed(&self, id: &EntryId, token: &LeaseToken, _now: SystemTime) -> Result<Settled, StoreError> {
        let arguments = [id.as_str(), token.as_str()].map(str::as_bytes);
        let count: u64 = self.link.run(&scripts::REMOVE, &arguments, Again::Misleading).await?;
        Ok(settled(count))
    }

    async fn record_failure(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        failure: ReplayFailure,
    ) -> Result<Settled, StoreError> {
        let Some(number) = Id::of(id) else {
            return Ok(Settled::Lost);
        };
        for _ in 0..TRIES {
            let Some(Read { at, record, lease }) = self.read(number).await? else {
                return Ok(Settled::Lost);
            };
            if lease.is_none_or(|(holder, _)| holder != token.as_str()) {
                return Ok(Settled::Lost);
            }
            let letter = DeadLetter::from_json(&record).map_err(|error| fault::unreadable(id.as_str(), error))?;
            let mut head = letter.letterhead();
            head.record(failure.clone());
            let letter = DeadLetter::assemble(head, letter.message);
            if let Some(settled) = self.rewrite(id.as_str(), &at, Some(token), &letter).await? {
                return Ok(settled);
            }
        }
        Err(fault::contended())
    }

    async fn release(&self, id: &EntryId, token: &LeaseToken) -> Result<Settled, StoreError> {
        let arguments = [id.as_str(), token.as_str()].map(str::as_bytes);
        let count: u64 = self.link.run(&scripts::RELEASE, &arguments, Again::Misleading).await?;
        Ok(settled(count))
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let mut purged = 0;
        for ids in query::select(&self.link, filter).await?.chunks(PAGE) {
            let mut pairs = Vec::with_capacity(2 * ids.len());
            for entry in query::heads(&self.link, ids).await? {
                if entry.is_meant_by(filter) {
                    pairs.extend([entry.id.text(), entry.at]);
                }
            }
            let pairs: Vec<&[u8]> = pairs.iter().map(String::as_bytes).collect();
            let count: u64 = self.link.run(&scripts::PURGE, &pairs, Again::Misleading).await?;
            purged += count;
        }
        Ok(purged)
    }

    async fn stats(&self, filter: &Filter) -> Result<Stats, StoreError> {
        query::stats(&self.link, filter).await
    }

    async fn close(&self) {
        self.link.close();
    }
}

impl fmt::Debug for RedisStreamsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamsStore").finish_non_exhaustive()
    }
}

fn settled(count: u64) -> Settled {
    if count > 0 { Settled::Done } else { Settled::Lost }
}

/// Sink and key as the index has them.
fn name_of(letter: &DeadLetter) -> String {
    format!("{}:{}", letter.sink, letter.message.key().as_str())
}

fn conflicting(letter: &DeadLetter) -> DeadLetter {
    DeadLetter {
        reason: Reason::KeyConflict,
        class: Reason::KeyConflict.class(),
        ..letter.clone()
    }
}

fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A time as twenty digits, which compare as the times do: the scripts' numbers are not exact enough.
fn digits(time: SystemTime) -> String {
    let moved = i128::from(time::nanos(time)) - i128::from(i64::MIN);
    format!("{moved:020}")
}

fn from_digits(text: &str) -> Option<SystemTime> {
    let moved: i128 = text.parse().ok()?;
    i64::try_from(moved + i128::from(i64::MIN)).ok().map(time::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_compare_as_their_digits() {
        let at = |nanos| time::from_nanos(nanos);
        let times = [
            at(i64::MIN),
            at(-1),
            at(0),
            at(1),
            at(1_795_996_800_123_456_789),
            at(i64::MAX),
        ];
        for pair in times.windows(2) {
            assert!(digits(pair[0]) < digits(pair[1]));
        }
        for time in times {
            assert_eq!(digits(time).len(), 20);
            assert_eq!(from_digits(&digits(time)), Some(time));
        }
        assert_eq!(from_digits(""), None);
    }

    #[test]
    fn an_id_is_what_a_server_gives_out() {
        for text in ["0-1", "1700000000000-0", "18446744073709551615-18446744073709551615"] {
            assert_eq!(Id::parse(text).map(Id::text).as_deref(), Some(text));
        }
        for text in ["", "7", "-", "1-", "01-1", "+1-1", "1-1 ", "-1-1", "a-b", "1-1-1"] {
            assert_eq!(Id::parse(text), None, "{text:?}");
        }
    }
}
