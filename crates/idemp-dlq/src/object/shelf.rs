//! The objects: each is read, made, replaced and deleted on its own, and only conditional writes change one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use idemp_core::SinkName;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use tokio::time::Instant;

use super::entry::Entry;
use super::fault;
use super::place::{Day, Place, Root, folder};
use crate::{RecordError, StoreError};

/// How many requests of one call are under way at once.
pub(super) const AT_ONCE: usize = 32;

/// For how long it is remembered on which days a sink has entries.
const DAYS_KNOWN_FOR: Duration = Duration::from_secs(60);

/// An object store and the folder in it that is ours.
pub(super) struct Shelf {
    store: Arc<dyn ObjectStore>,
    pub(super) prefix: Path,
    days: Mutex<HashMap<SinkName, (Instant, Vec<Day>)>>,
}

/// An object that was read.
pub(super) struct Found {
    pub(super) entry: Result<Entry, RecordError>,
    /// What has to be the same still when it is replaced.
    pub(super) version: UpdateVersion,
    /// When it was written last, by the clock of the object store.
    pub(super) modified: SystemTime,
}

impl Shelf {
    pub(super) fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self {
            store,
            prefix,
            days: Mutex::default(),
        }
    }

    /// The object at a path, if there is one.
    pub(super) async fn read(&self, path: &Path) -> Result<Option<Found>, StoreError> {
        let object = match self.store.get(path).await {
            Ok(object) => object,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(fault::error(error)),
        };
        let meta = object.meta.clone();
        let bytes = match object.bytes().await {
            Ok(bytes) => bytes,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(fault::error(error)),
        };
        Ok(Some(Found {
            entry: Entry::read(&bytes),
            version: UpdateVersion {
                e_tag: meta.e_tag,
                version: meta.version,
            },
            modified: meta.last_modified.into(),
        }))
    }

    /// Lays an entry where nothing is; `false` if something is there.
    pub(super) async fn create(&self, path: &Path, entry: &mut Entry) -> Result<bool, StoreError> {
        self.write(path, entry, PutMode::Create).await
    }

    /// Replaces what was read; `false` if somebody else has written there since, or deleted it.
    pub(super) async fn replace(
        &self,
        path: &Path,
        entry: &mut Entry,
        version: UpdateVersion,
    ) -> Result<bool, StoreError> {
        if version.e_tag.is_none() {
            return Err(fault::without_etag());
        }
        self.write(path, entry, PutMode::Update(version)).await
    }

    async fn write(&self, path: &Path, entry: &mut Entry, mode: PutMode) -> Result<bool, StoreError> {
        let payload = PutPayload::from(entry.begin_write());
        match self.store.put_opts(path, payload, PutOptions::from(mode)).await {
            Ok(_) => Ok(true),
            // The client sends a request again if the reply was lost, and then meets what it has written itself.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                let there = self.read(path).await?;
                Ok(there.is_some_and(|found| {
                    found
                        .entry
                        .is_ok_and(|there| there.keeping.write == entry.keeping.write)
                }))
            }
            Err(error) => Err(fault::error(error)),
        }
    }

    /// Deletes an object. That it is gone already is fine.
    pub(super) async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        match self.store.delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(fault::error(error)),
        }
    }

    /// The place of each entry and its entity tag, in no order.
    pub(super) async fn places(&self, sink: Option<&SinkName>) -> Result<Vec<(Place, Option<String>)>, StoreError> {
        let folder = folder(&self.prefix, Root::Dead, sink);
        let mut listed = self.store.list(Some(&folder));
        let mut places = Vec::new();
        while let Some(meta) = listed.try_next().await.map_err(fault::error)? {
            if let Some(place) = Place::of_path(&self.prefix, Root::Dead, &meta.location) {
                places.push((place, meta.e_tag));
            }
        }
        Ok(places)
    }

    /// The days on which a sink has entries. One that another process has begun within the last minute may be missing.
    pub(super) async fn days(&self, sink: &SinkName) -> Result<Vec<Day>, StoreError> {
        let known = self
            .days
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(sink)
            .cloned();
        if let Some((at, days)) = known
            && at.elapsed() < DAYS_KNOWN_FOR
        {
            return Ok(days);
        }
        let mut folders = vec![folder(&self.prefix, Root::Dead, Some(sink))];
        // Years, months, days.
        for _ in 0..3 {
            let below: Vec<Vec<Path>> = stream::iter(folders)
                .map(async |folder| self.store.list_with_delimiter(Some(&folder)).await)
                .buffered(AT_ONCE)
                .map_ok(|listed| listed.common_prefixes)
                .try_collect()
                .await
                .map_err(fault::error)?;
            folders = below.concat();
        }
        let day = |folder: &Path| {
            let parts: Vec<&str> = folder.as_ref().rsplitn(4, '/').collect();
            Day::parse(parts.get(2)?, parts.get(1)?, parts.first()?)
        };
        let days: Vec<Day> = folders.iter().filter_map(day).collect();
        self.days
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(sink.clone(), (Instant::now(), days.clone()));
        Ok(days)
    }

    /// Takes in that a sink has entries on this day.
    pub(super) fn learn(&self, sink: &SinkName, day: Day) {
        if let Some((_, days)) = self.days.lock().unwrap_or_else(PoisonError::into_inner).get_mut(sink)
            && !days.contains(&day)
        {
            days.push(day);
        }
    }

    /// Moves an entry to the same path among the replayed ones: copies it, reads the copy, and then deletes it here.
    pub(super) async fn move_away(&self, place: &Place, entry: &Entry) -> Result<(), StoreError> {
        let mut copied = false;
        for target in self.replayed_paths(place, entry) {
            let mut copy = entry.clone();
            copied = self.create(&target, &mut copy).await? || self.has(&target, entry).await?;
            if copied {
                // Nothing is deleted on the strength of a reply alone.
                copied = self.has(&target, entry).await?;
                break;
            }
        }
        if !copied {
            return Err(fault::not_copied());
        }
        self.delete(&place.path(&self.prefix, Root::Dead)).await
    }

    /// Whether an entry has been copied already by somebody who then could not delete it.
    pub(super) async fn is_moved(&self, place: &Place, entry: &Entry) -> Result<bool, StoreError> {
        for target in self.replayed_paths(place, entry) {
            if self.has(&target, entry).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Where the entry goes once it is replayed: the same path, or beside it where an earlier entry of that path lies.
    fn replayed_paths(&self, place: &Place, entry: &Entry) -> [Path; 2] {
        let mark = match &place.mark {
            Some(mark) => format!("{mark}.{}", entry.keeping.entry),
            None => entry.keeping.entry.clone(),
        };
        let beside = Place {
            mark: Some(mark.into()),
            ..place.clone()
        };
        [
            place.path(&self.prefix, Root::Replayed),
            beside.path(&self.prefix, Root::Replayed),
        ]
    }

    /// Whether the copy of this entry lies there, with its very bytes.
    async fn has(&self, path: &Path, entry: &Entry) -> Result<bool, StoreError> {
        let found = self.read(path).await?;
        Ok(found.and_then(|found| found.entry.ok()).is_some_and(|copy| {
            copy.keeping.entry == entry.keeping.entry && copy.letter.message == entry.letter.message
        }))
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf")
            .field("prefix", &self.prefix.as_ref())
            .finish_non_exhaustive()
    }
}
