//! Which entries a filter means: their names are kept, what they hold is read page by page.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::place::{Place, Root};
use super::shelf::{AT_ONCE, Shelf};
use crate::{EntryId, Filter, Letterhead, Listed, RecordError, Selection, StoreError};

/// Names of a page.
const PAGE: usize = 500;

/// A frozen selection.
pub(super) struct Scan {
    shelf: Arc<Shelf>,
    filter: Filter,
    /// In replay order, each with its entity tag when it was frozen.
    names: Vec<(Place, Option<String>)>,
    next: usize,
    left: usize,
    frozen_at: SystemTime,
}

/// One entry that the filter means.
pub(super) struct Seen {
    pub(super) place: Place,
    pub(super) id: EntryId,
    pub(super) head: Result<Letterhead, RecordError>,
    /// When it was written last.
    pub(super) modified: SystemTime,
}

impl Scan {
    pub(super) async fn new(shelf: Arc<Shelf>, filter: Filter) -> Result<Self, StoreError> {
        let frozen_at = SystemTime::now();
        let left = filter
            .limit
            .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let mut names = if left == 0 {
            Vec::new()
        } else {
            shelf.places(filter.sink.as_ref()).await?
        };
        names.retain(|(place, _)| place.may_match(&filter));
        names.sort_unstable_by(|(one, _), (other, _)| one.replay_order(other));
        Ok(Self {
            shelf,
            filter,
            names,
            next: 0,
            left,
            frozen_at,
        })
    }

    /// Whether the names tell everything that the filter looks at.
    pub(super) const fn is_by_name(&self) -> bool {
        let Filter {
            reason, since, until, ..
        } = &self.filter;
        reason.is_none() && since.is_none() && until.is_none()
    }

    /// The places that the names alone mean.
    pub(super) fn into_places(self) -> Vec<Place> {
        self.names.into_iter().map(|(place, _)| place).take(self.left).collect()
    }

    /// The next entries that the filter means, at least one; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Seen>>, StoreError> {
        while self.left > 0 && self.next < self.names.len() {
            // A small limit needs no whole page.
            let size = PAGE.min(self.left.max(AT_ONCE));
            let end = self.names.len().min(self.next.saturating_add(size));
            let seen: Vec<Option<Seen>> = stream::iter(self.names[self.next..end].to_vec())
                .map(|(place, e_tag)| self.see(place, e_tag))
                .buffered(AT_ONCE)
                .try_collect()
                .await?;
            let page: Vec<Seen> = seen.into_iter().flatten().take(self.left).collect();
            self.next = end;
            self.left -= page.len();
            if !page.is_empty() {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    async fn see(&self, place: Place, e_tag: Option<String>) -> Result<Option<Seen>, StoreError> {
        let path = place.path(&self.shelf.prefix, Root::Dead);
        let Some(found) = self.shelf.read(&path).await? else {
            return Ok(None);
        };
        let (id, head) = match found.entry {
            Ok(entry) => {
                let is_changed = found.version.e_tag != e_tag;
                if is_changed && entry.keeping.is_younger_than(self.frozen_at) {
                    // Another entry than the one that was frozen.
                    return Ok(None);
                }
                (place.id(&entry.keeping.entry), Ok(entry.letter.letterhead()))
            }
            Err(error) => (place.id(""), Err(error)),
        };
        let is_meant = match &head {
            Ok(head) => self.filter.matches(head),
            Err(_) => self.matches_unread(found.modified),
        };
        Ok(is_meant.then_some(Seen {
            place,
            id,
            head,
            modified: found.modified,
        }))
    }

    /// Whether an entry that cannot be read is meant: its reason is not known, and its time is when it was written.
    fn matches_unread(&self, modified: SystemTime) -> bool {
        let Filter {
            reason, since, until, ..
        } = &self.filter;
        reason.is_none() && since.is_none_or(|since| modified >= since) && until.is_none_or(|until| modified < until)
    }
}

#[async_trait]
impl Selection for Scan {
    async fn next_page(&mut self) -> Result<Option<Vec<Listed>>, StoreError> {
        let listed = |seen: Seen| Listed {
            id: seen.id,
            letterhead: seen.head,
        };
        let page = self.next().await?;
        Ok(page.map(|page| page.into_iter().map(listed).collect()))
    }
}
