//! Dead letters in memory: for tests, demonstrations, and senders that write them elsewhere at the end.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_core::{IdempotencyKey, Message, Reason, SinkName};

use crate::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Letterhead, Listed, Loaded, Put, ReplayFailure,
    Selection, Settled, Stats, StoreError, time,
};

/// Entries of a page.
const PAGE: usize = 500;

/// Keeps dead letters in memory: they are gone when the process ends, and nothing bounds them but a purge.
///
/// Clones share one store. A letter that was replayed is dropped.
#[derive(Clone, Default)]
pub struct MemoryStore {
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Default)]
struct Shelf {
    last_id: u64,
    entries: BTreeMap<u64, Entry>,
    by_key: HashMap<(SinkName, IdempotencyKey), Vec<u64>>,
}

struct Entry {
    head: Letterhead,
    message: Message,
    lease: Option<(LeaseToken, SystemTime)>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // Nothing panics between two changes that belong together.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl DeadLetterStore for MemoryStore {
    async fn put(&self, letter: DeadLetter) -> Result<Put, StoreError> {
        Ok(self.shelf().put(letter))
    }

    async fn select(&self, filter: &Filter) -> Result<Box<dyn Selection>, StoreError> {
        let ids = self.shelf().select(filter);
        Ok(Box::new(Frozen {
            shelf: Arc::clone(&self.shelf),
            ids: ids.into_iter(),
        }))
    }

    async fn load(&self, id: &EntryId) -> Result<Option<Loaded>, StoreError> {
        let shelf = self.shelf();
        let entry = number(id).and_then(|number| shelf.entries.get(&number));
        Ok(entry.map(|entry| Loaded {
            letter: entry.letter(),
            held_until: entry.lease.as_ref().map(|(_, until)| *until),
        }))
    }

    async fn claim(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        lease: Duration,
        now: SystemTime,
    ) -> Result<Claim, StoreError> {
        let mut shelf = self.shelf();
        let Some(entry) = number(id).and_then(|number| shelf.entries.get_mut(&number)) else {
            return Ok(Claim::Gone);
        };
        if let Some((holder, until)) = &entry.lease
            && holder != token
            && *until > now
        {
            return Ok(Claim::Held { until: *until });
        }
        entry.lease = Some((token.clone(), time::after(now, lease)));
        Ok(Claim::Claimed(Box::new(entry.letter())))
    }

    async fn mark_replayed(&self, id: &EntryId, token: &LeaseToken, _now: SystemTime) -> Result<Settled, StoreError> {
        let mut shelf = self.shelf();
        match shelf.held(id, token) {
            Some((number, _)) => {
                shelf.remove(number);
                Ok(Settled::Done)
            }
            None => Ok(Settled::Lost),
        }
    }

    async fn record_failure(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        failure: ReplayFailure,
    ) -> Result<Settled, StoreError> {
        Ok(self.shelf().settle(id, token, |head| head.record(failure)))
    }

    async fn release(&self, id: &EntryId, token: &LeaseToken) -> Result<Settled, StoreError> {
        Ok(self.shelf().settle(id, token, |_| ()))
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let mut shelf = self.shelf();
        let ids = shelf.select(filter);
        for id in &ids {
            shelf.remove(*id);
        }
        Ok(ids.len() as u64)
    }

    async fn stats(&self, filter: &Filter) -> Result<Stats, StoreError> {
        let shelf = self.shelf();
        let mut stats = Stats::default();
        for id in shelf.select(filter) {
            if let Some(Entry { head, .. }) = shelf.entries.get(&id) {
                stats.count(Some(head.sink.clone()), Some(head.reason), 1, head.dead_at);
            }
        }
        Ok(stats)
    }

    async fn close(&self) {}
}

impl Shelf {
    fn put(&mut self, letter: DeadLetter) -> Put {
        let mut head = letter.letterhead();
        let identity = (head.sink.clone(), head.key.clone());
        let ids = self.by_key.entry(identity).or_default();
        for id in ids.iter() {
            if let Some(entry) = self.entries.get_mut(id)
                && entry.message == letter.message
            {
                entry.head.absorb(head);
                return Put::Updated;
            }
        }
        let put = if ids.is_empty() {
            Put::Added
        } else {
            (head.reason, head.class) = (Reason::KeyConflict, Reason::KeyConflict.class());
            Put::Conflict
        };
        self.last_id += 1;
        ids.push(self.last_id);
        self.entries.insert(
            self.last_id,
            Entry {
                head,
                message: letter.message,
                lease: None,
            },
        );
        put
    }

    fn select(&self, filter: &Filter) -> Vec<u64> {
        let mut meant: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| filter.matches(&entry.head))
            .collect();
        meant.sort_by_cached_key(|(id, Entry { head, .. })| {
            (
                time::day(head.accepted_at),
                head.key.run_id().to_owned(),
                head.key.step_index(),
                **id,
            )
        });
        let limit = filter
            .limit
            .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        meant.into_iter().map(|(id, _)| *id).take(limit).collect()
    }

    fn held(&mut self, id: &EntryId, token: &LeaseToken) -> Option<(u64, &mut Entry)> {
        let number = number(id)?;
        let entry = self.entries.get_mut(&number)?;
        matches!(&entry.lease, Some((holder, _)) if holder == token).then_some((number, entry))
    }

    fn settle(&mut self, id: &EntryId, token: &LeaseToken, change: impl FnOnce(&mut Letterhead)) -> Settled {
        match self.held(id, token) {
            Some((_, entry)) => {
                change(&mut entry.head);
                entry.lease = None;
                Settled::Done
            }
            None => Settled::Lost,
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(Entry { head, .. }) = self.entries.remove(&id) else {
            return;
        };
        let identity = (head.sink, head.key);
        if let Some(ids) = self.by_key.get_mut(&identity) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_key.remove(&identity);
            }
        }
    }
}

impl Entry {
    fn letter(&self) -> DeadLetter {
        DeadLetter::assemble(self.head.clone(), self.message.clone())
    }
}

fn number(id: &EntryId) -> Option<u64> {
    id.as_str().parse().ok()
}

struct Frozen {
    shelf: Arc<Mutex<Shelf>>,
    ids: std::vec::IntoIter<u64>,
}

#[async_trait]
impl Selection for Frozen {
    async fn next_page(&mut self) -> Result<Option<Vec<Listed>>, StoreError> {
        let shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ids.len() == 0 {
            return Ok(None);
        }
        let page = self.ids.by_ref().take(PAGE).filter_map(|id| {
            let entry = shelf.entries.get(&id)?;
            Some(Listed {
                id: EntryId::new(id.to_string()),
                letterhead: Ok(entry.head.clone()),
            })
        });
        Ok(Some(page.collect()))
    }
}
