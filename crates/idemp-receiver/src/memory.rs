//! Claims in memory: for one process, gone when it ends.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use idemp_core::Ttl;
use tokio::time::Instant;

use crate::claim::{ClaimKey, Claimant};
use crate::due::Due;
use crate::machine::{self, Record, Write};
use crate::store::{Claim, ClaimStore, Completed, StoreError, StoreErrorKind};

/// Parts of the table, each under a lock of its own, so that one that grows holds up few.
const SHARDS: usize = 64;

/// Due entries looked at per operation. More than one, so that the table shrinks when fewer events come.
const PURGE_STEPS: usize = 4;

/// Due entries looked at per shard when there is no room.
const PURGE_STEPS_WHEN_FULL: usize = 256;

/// Keeps claims in memory.
///
/// For tests, for demonstrations, and for receivers of one process that may forget what they have seen when they
/// restart. A key of 50 bytes takes about 250 bytes until its TTL ends. Its room is taken back by later calls, which
/// see it at most a second and a 256th of the TTL after the end. Nothing live is evicted: at the limit, claims fail with
/// [`StoreErrorKind::Full`], which a receiver answers with 503.
///
/// Time is tokio's, so a paused clock in tests moves leases and TTLs too.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    slots: AtomicUsize,
    limit: usize,
    origin: Instant,
}

impl MemoryStore {
    /// Most keys that [`MemoryStore::new`] keeps at one time: 10 million, about 2.5 GB.
    pub const DEFAULT_LIMIT: usize = 10_000_000;

    /// An empty store for at most [`DEFAULT_LIMIT`](Self::DEFAULT_LIMIT) keys.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(Self::DEFAULT_LIMIT)
    }

    /// An empty store for at most `limit` keys at one time.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            slots: AtomicUsize::new(0),
            limit,
            origin: Instant::now(),
        }
    }

    /// How many keys take up room, with those that are released or whose time is up and that are not yet purged.
    #[must_use]
    pub fn occupied(&self) -> usize {
        self.slots.load(Relaxed)
    }

    /// Runs one step of the machine on the record under `key`.
    fn step<T>(
        &self,
        key: &ClaimKey,
        decide: impl FnOnce(Option<Record>, Duration) -> (T, Write),
    ) -> Result<T, StoreError> {
        let now = self.origin.elapsed();
        let key = Key {
            hash: self.hasher.hash_one(key.as_str()),
            text: key.shared(),
        };
        // The table within the shard goes by the upper bits and the lowest ones.
        let mut shard = lock(&self.shards[(key.hash >> 32) as usize % SHARDS]);
        self.slots.fetch_sub(shard.purge(now, PURGE_STEPS), Relaxed);
        let Shard { records, due } = &mut *shard;
        match records.entry(key) {
            Entry::Occupied(mut slot) => {
                let (answer, write) = decide(*slot.get(), now);
                match write {
                    Write::Nothing => {}
                    Write::Remove => *slot.get_mut() = None,
                    Write::Put(record) => *slot.get_mut() = Some(record),
                }
                Ok(answer)
            }
            Entry::Vacant(slot) => {
                let (answer, write) = decide(None, now);
                if let Write::Put(record) = write {
                    if self.slots.fetch_add(1, Relaxed) >= self.limit {
                        self.slots.fetch_sub(1, Relaxed);
                        drop(shard);
                        self.make_room(now);
                        return Err(StoreError::new(StoreErrorKind::Full));
                    }
                    due.push(now, record.until, slot.key().clone());
                    slot.insert(Some(record));
                }
                Ok(answer)
            }
        }
    }

    /// Looks for expired records everywhere, for the claims to come.
    fn make_room(&self, now: Duration) {
        for shard in &self.shards {
            let freed = lock(shard).purge(now, PURGE_STEPS_WHEN_FULL);
            self.slots.fetch_sub(freed, Relaxed);
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("occupied", &self.occupied())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ClaimStore for MemoryStore {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        self.step(&claimant.key, |found, now| machine::claim(found, claimant, lease, now))
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        self.step(&claimant.key, |found, now| machine::renew(found, claimant, lease, now))
    }

    async fn complete(&self, claimant: &Claimant, ttl: Ttl) -> Result<Completed, StoreError> {
        self.step(&claimant.key, |found, now| machine::complete(found, claimant, ttl, now))
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        self.step(&claimant.key, |found, _| machine::release(found, claimant))
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError> {
        self.step(key, |found, now| machine::mark_seen(found, ttl, now))
    }
}

/// Every key in `records` has exactly one entry in `due`, put off no longer than to the end of its record. A released key
/// keeps its empty slot until that entry comes up, so that a key released and claimed over and over has one entry still.
#[derive(Default)]
struct Shard {
    records: HashMap<Key, Option<Record>, BuildHasherDefault<Hashed>>,
    due: Due<Key>,
}

impl Shard {
    /// Looks at up to `steps` entries that are due and says how many slots it freed.
    fn purge(&mut self, now: Duration, steps: usize) -> usize {
        let mut freed = 0;
        for _ in 0..steps {
            let Some(key) = self.due.pop(now) else { break };
            match self.records.get(&key) {
                Some(Some(record)) if now < record.until => self.due.push(now, record.until, key),
                _ => {
                    self.records.remove(&key);
                    freed += 1;
                }
            }
        }
        freed
    }
}

/// A key with its hash, so that choosing the shard, looking up and growing hash the text once.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    hash: u64,
    text: Arc<str>,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Takes the hash that a [`Key`] has.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A panic elsewhere leaves no shard half changed, so its lock is as good as new.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::Scope;

    const LEASE: Duration = Duration::from_secs(6);

    fn claimant(key: &str) -> Claimant {
        Claimant::new(ClaimKey::new(&Scope::default(), key).unwrap(), b"body")
    }

    fn ttl(seconds: u64) -> Ttl {
        Ttl::new(Duration::from_secs(seconds), Duration::ZERO).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn forgets_in_steps_what_is_over() {
        let store = MemoryStore::new();
        for n in 0..10_000 {
            let who = claimant(&format!("k{n}"));
            assert_eq!(store.claim(&who, LEASE).await.unwrap(), Claim::Claimed);
            match n % 3 {
                0 => assert_eq!(store.complete(&who, ttl(100)).await.unwrap(), Completed::Done),
                1 => assert!(store.release(&who).await.unwrap()),
                _ => {}
            }
        }
        assert_eq!(store.occupied(), 10_000);
        advance(Duration::from_secs(200)).await;
        // Each claim below looks at four that are due: all are gone long before as many have come.
        for n in 0..5_000 {
            store.claim(&claimant(&format!("l{n}")), LEASE).await.unwrap();
        }
        assert_eq!(store.occupied(), 5_000);
    }

    #[tokio::test(start_paused = true)]
    async fn one_entry_however_often_a_key_is_released() {
        let store = MemoryStore::new();
        for _ in 0..1_000 {
            let who = claimant("k1");
            assert_eq!(store.claim(&who, LEASE).await.unwrap(), Claim::Claimed);
            assert!(store.release(&who).await.unwrap());
            assert!(!store.release(&who).await.unwrap());
        }
        assert_eq!(store.occupied(), 1);
        assert_eq!(store.shards.iter().map(|shard| lock(shard).due.len()).sum::<usize>(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_store_refuses_new_keys_and_keeps_old_ones() {
        let store = MemoryStore::with_limit(2);
        let first = claimant("k1");
        store.claim(&first, LEASE).await.unwrap();
        store.complete(&first, ttl(100)).await.unwrap();
        store.claim(&claimant("k2"), LEASE).await.unwrap();
        let refused = store.claim(&claimant("k3"), LEASE).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Full);
        assert_eq!(store.claim(&claimant("k1"), LEASE).await.unwrap(), Claim::Duplicate);

        // The lease of k2 has run out: one refusal clears it away, the next claim has its place.
        advance(LEASE).await;
        let _ = store.claim(&claimant("k3"), LEASE).await;
        assert_eq!(store.claim(&claimant("k3"), LEASE).await.unwrap(), Claim::Claimed);
        assert_eq!(store.claim(&claimant("k1"), LEASE).await.unwrap(), Claim::Duplicate);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_store_has_room_again_soon_after_a_long_ttl() {
        let store = MemoryStore::with_limit(1);
        let (day, first) = (86_400, claimant("k1"));
        store.claim(&first, LEASE).await.unwrap();
        store.complete(&first, ttl(day)).await.unwrap();
        advance(LEASE).await;
        // From its lease on the mark is put off to the end of its TTL.
        let refused = store.claim(&claimant("k2"), LEASE).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Full);
        advance(Duration::from_secs(1 + day + day / 256)).await;
        let _ = store.claim(&claimant("k2"), LEASE).await;
        assert_eq!(store.claim(&claimant("k2"), LEASE).await.unwrap(), Claim::Claimed);
    }
}
