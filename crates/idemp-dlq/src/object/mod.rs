//! Dead letters as objects, in S3 or anything that speaks its language (docs/dlq.md, "Object store").

mod entry;
mod fault;
mod place;
mod s3;
mod scan;
mod shelf;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use idemp_core::Reason;
use object_store::ObjectStore;
use object_store::path::Path;

pub use s3::S3Config;

use crate::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Letterhead, Loaded, Put, RecordError,
    ReplayFailure, Selection, Settled, Stats, StoreError, StoreErrorKind, time,
};
use entry::Entry;
use place::{Day, Place, Root};
use scan::Scan;
use shelf::{AT_ONCE, Found, Shelf};

/// How often a write that others were quicker than is tried again.
const TRIES: usize = 64;

/// Keeps dead letters as objects, one each: `dlq/<sink>/YYYY/MM/DD/<run_id>/<key>.json`, by the day (UTC) of
/// `accepted_at`. A letter that was replayed moves to the same path below `replayed/`.
///
/// An object holds the record and, in the member `store`, who holds the entry and until when. Every change is a
/// conditional write: `If-None-Match` for a new entry, `If-Match` with the entity tag for one that was read. The object
/// store has to support both, and to be consistent, as S3 is.
///
/// Other bytes under a key lie beside the first as `<key>.<SHA-256 of the body>.json`.
///
/// A lease is compared with the caller's time of day, so the clocks of those who replay from one store should agree to
/// within a few seconds. S3 has no conditional delete here: the token is compared right before a replayed entry is moved,
/// and not by the delete itself.
///
/// Clones share one store.
#[derive(Clone)]
pub struct ObjectStoreDlq {
    shelf: Arc<Shelf>,
}

impl ObjectStoreDlq {
    /// Uses an object store that exists. `prefix` is the folder in it, `""` for none.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self {
            shelf: Arc::new(Shelf::new(store, Path::from(prefix))),
        }
    }

    /// Opens a bucket of S3, or of a server that speaks its language, and looks whether it is there and may be used.
    ///
    /// # Errors
    /// [`StoreErrorKind::CannotOpen`], and why: no credentials, no such bucket, no permission, no answer, or a
    /// configuration that makes no sense.
    ///
    /// # Cancel safety
    /// Safe: nothing is written.
    pub async fn s3(config: S3Config) -> Result<Self, StoreError> {
        let store = s3::open(&config).await?;
        Ok(Self::new(Arc::new(store), &config.prefix))
    }

    fn path(&self, place: &Place) -> Path {
        place.path(&self.shelf.prefix, Root::Dead)
    }

    /// The entry of an id, and where it lies; `None` if it is gone.
    async fn find(&self, id: &EntryId) -> Result<Option<(Place, Entry, Found)>, StoreError> {
        let Some((place, name)) = Place::of_id(id) else {
            return Ok(None);
        };
        let Some(found) = self.shelf.read(&self.path(&place)).await? else {
            return Ok(None);
        };
        let entry = match &found.entry {
            Ok(entry) => entry.clone(),
            Err(error) => return Err(unread(*error)),
        };
        Ok((entry.keeping.entry == name).then_some((place, entry, found)))
    }

    /// Puts a letter, unless somebody else is quicker.
    async fn try_put(&self, letter: &DeadLetter, mark: &str) -> Result<Option<Put>, StoreError> {
        let own = Place {
            sink: letter.sink.clone(),
            day: Day::of(letter.accepted_at),
            key: letter.message.key().clone(),
            mark: None,
        };
        let marked = |place: &Place| Place {
            mark: Some(mark.into()),
            ..place.clone()
        };
        // Where the key may lie already: beside the own place, or on another day.
        let mut others = vec![marked(&own)];
        for day in self.shelf.days(&own.sink).await? {
            if day != own.day {
                let there = Place { day, ..own.clone() };
                others.extend([marked(&there), there]);
            }
        }
        let found: Vec<(Place, Option<Found>)> = stream::iter(others)
            .map(async |place| {
                let found = self.shelf.read(&self.path(&place)).await?;
                Ok::<_, StoreError>((place, found))
            })
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        let mut is_conflict = false;
        for (place, found) in found {
            match found {
                Some(found) if is_of(&found, letter) => return self.update(&place, found, letter).await,
                Some(found) => {
                    if let Err(error) = found.entry
                        && place == marked(&own)
                    {
                        return Err(unread(error));
                    }
                    is_conflict = true;
                }
                None => {}
            }
        }
        if !is_conflict {
            if self
                .shelf
                .create(&self.path(&own), &mut Entry::new(letter.clone()))
                .await?
            {
                self.shelf.learn(&own.sink, own.day);
                return Ok(Some(Put::Added));
            }
            match self.shelf.read(&self.path(&own)).await? {
                Some(found) if is_of(&found, letter) => return self.update(&own, found, letter).await,
                Some(_) => {}
                // Deleted in between.
                None => return Ok(None),
            }
        } else if let Some(found) = self.shelf.read(&self.path(&own)).await?
            && is_of(&found, letter)
        {
            return self.update(&own, found, letter).await;
        }
        let mut entry = Entry::new(DeadLetter {
            reason: Reason::KeyConflict,
            class: Reason::KeyConflict.class(),
            ..letter.clone()
        });
        let created = self.shelf.create(&self.path(&marked(&own)), &mut entry).await?;
        Ok(created.then_some(Put::Conflict))
    }

    /// Takes a newer letter into an entry, unless somebody else is quicker.
    async fn update(&self, place: &Place, found: Found, letter: &DeadLetter) -> Result<Option<Put>, StoreError> {
        let Ok(mut entry) = found.entry else {
            return Ok(None);
        };
        let before = entry.letter.clone();
        change(&mut entry, |head| head.absorb(letter.letterhead()));
        let done = before == entry.letter || self.shelf.replace(&self.path(place), &mut entry, found.version).await?;
        Ok(done.then_some(Put::Updated))
    }

    /// Lets the holder change an entry and lets go of it.
    async fn settle(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        mut settle: impl FnMut(&mut Letterhead),
    ) -> Result<Settled, StoreError> {
        for _ in 0..TRIES {
            let Some((place, mut entry, found)) = self.find(id).await? else {
                return Ok(Settled::Lost);
            };
            if !entry.keeping.is_held_by(token) {
                return Ok(Settled::Lost);
            }
            change(&mut entry, &mut settle);
            entry.keeping.release();
            if self
                .shelf
                .replace(&self.path(&place), &mut entry, found.version)
                .await?
            {
                return Ok(Settled::Done);
            }
        }
        Err(fault::contended())
    }
}

#[async_trait]
impl DeadLetterStore for ObjectStoreDlq {
    async fn put(&self, letter: DeadLetter) -> Result<Put, StoreError> {
        let mark = hex(&letter.body_sha256());
        for _ in 0..TRIES {
            if let Some(put) = self.try_put(&letter, &mark).await? {
                return Ok(put);
            }
        }
        Err(fault::contended())
    }

    async fn select(&self, filter: &Filter) -> Result<Box<dyn Selection>, StoreError> {
        Ok(Box::new(Scan::new(Arc::clone(&self.shelf), filter.clone()).await?))
    }

    async fn load(&self, id: &EntryId) -> Result<Option<Loaded>, StoreError> {
        let found = self.find(id).await?;
        Ok(found.map(|(_, entry, _)| Loaded {
            held_until: entry.keeping.held_until(),
            letter: entry.letter,
        }))
    }

    async fn claim(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        lease: Duration,
        now: SystemTime,
    ) -> Result<Claim, StoreError> {
        for _ in 0..TRIES {
            let Some((place, mut entry, found)) = self.find(id).await? else {
                return Ok(Claim::Gone);
            };
            let keeping = &mut entry.keeping;
            if keeping.is_held() && !keeping.is_held_by(token) {
                if let Some(until) = keeping.held_until().filter(|until| *until > now) {
                    return Ok(Claim::Held { until });
                }
                // Whoever held it may have delivered and copied it, and then died or been kept from deleting it.
                if self.shelf.is_moved(&place, &entry).await? {
                    self.shelf.delete(&self.path(&place)).await?;
                    return Ok(Claim::Gone);
                }
            }
            entry.keeping.hold(token, time::after(now, lease));
            if self
                .shelf
                .replace(&self.path(&place), &mut entry, found.version)
                .await?
            {
                return Ok(Claim::Claimed(Box::new(entry.letter)));
            }
        }
        Err(fault::contended())
    }

    async fn mark_replayed(&self, id: &EntryId, token: &LeaseToken, now: SystemTime) -> Result<Settled, StoreError> {
        let Some((place, mut entry, _)) = self.find(id).await? else {
            return Ok(Settled::Lost);
        };
        if !entry.keeping.is_held_by(token) {
            return Ok(Settled::Lost);
        }
        entry.keeping.release();
        entry.keeping.replayed_at = Some(time::to_text(now));
        self.shelf.move_away(&place, &entry).await?;
        Ok(Settled::Done)
    }

    async fn record_failure(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        failure: ReplayFailure,
    ) -> Result<Settled, StoreError> {
        self.settle(id, token, |head| head.record(failure.clone())).await
    }

    async fn release(&self, id: &EntryId, token: &LeaseToken) -> Result<Settled, StoreError> {
        self.settle(id, token, |_| ()).await
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let delete = |places: Vec<Place>| async {
            let count = places.len() as u64;
            stream::iter(places)
                .map(async |place| self.shelf.delete(&self.path(&place)).await)
                .buffer_unordered(AT_ONCE)
                .try_collect::<()>()
                .await
                .map(|()| count)
        };
        let mut scan = Scan::new(Arc::clone(&self.shelf), filter.clone()).await?;
        if scan.is_by_name() {
            return delete(scan.into_places()).await;
        }
        let mut count = 0;
        while let Some(page) = scan.next().await? {
            count += delete(page.into_iter().map(|seen| seen.place).collect()).await?;
        }
        Ok(count)
    }

    async fn stats(&self, filter: &Filter) -> Result<Stats, StoreError> {
        let mut stats = Stats::default();
        let mut scan = Scan::new(Arc::clone(&self.shelf), filter.clone()).await?;
        while let Some(page) = scan.next().await? {
            for seen in page {
                let sink = Some(seen.place.sink);
                match seen.head {
                    Ok(head) => stats.count(sink, Some(head.reason), 1, head.dead_at),
                    Err(_) => stats.count(sink, None, 1, seen.modified),
                }
            }
        }
        Ok(stats)
    }

    async fn close(&self) {}
}

impl fmt::Debug for ObjectStoreDlq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStoreDlq")
            .field("prefix", &self.shelf.prefix.as_ref())
            .finish_non_exhaustive()
    }
}

/// Whether an entry has the letter's bytes.
fn is_of(found: &Found, letter: &DeadLetter) -> bool {
    found
        .entry
        .as_ref()
        .is_ok_and(|entry| entry.letter.message == letter.message)
}

fn unread(error: RecordError) -> StoreError {
    StoreError::new(StoreErrorKind::Record, "this entry cannot be read").with_source(error)
}

/// Changes all of a letter that ever changes.
fn change(entry: &mut Entry, change: impl FnOnce(&mut Letterhead)) {
    let mut head = entry.letter.letterhead();
    change(&mut head);
    entry.letter = DeadLetter::assemble(head, entry.letter.message.clone());
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
