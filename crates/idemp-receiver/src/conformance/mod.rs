//! The contract of [`ClaimStore`] as a suite, for the tests of a store.
//!
//! Every store is asked for the same answers but where the contract itself differs: one that commits effects
//! ([`ClaimStore::commits_effects`]) has no lease and no TTL of its own, and other cases in their place.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use idemp_receiver::conformance::{self, Subject};
//! use idemp_receiver::{ClaimStore, MemoryStore};
//!
//! struct Memory(Arc<MemoryStore>);
//!
//! #[async_trait::async_trait]
//! impl Subject for Memory {
//!     fn store(&self) -> Arc<dyn ClaimStore> {
//!         self.0.clone()
//!     }
//!
//!     async fn elapse(&self, time: Duration) {
//!         // The store's clock is tokio's, which is paused in this test.
//!         tokio::time::advance(time).await;
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
//! conformance::check(&Memory(Arc::new(MemoryStore::new()))).await;
//! # });
//! ```

mod common;
mod effects;
mod leases;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use idemp_core::Ttl;

use crate::claim::{ClaimKey, Claimant, Scope};
use crate::store::{Claim, ClaimStore, Completed, StoreError};

/// A store under test and its clock.
#[async_trait]
pub trait Subject: Sync {
    /// The store. It may hold other keys; the suite makes its own.
    fn store(&self) -> Arc<dyn ClaimStore>;

    /// Lets this much time pass on the store's clock: by moving it, or by sleeping a little longer than that.
    async fn elapse(&self, time: Duration);
}

/// Long enough for a few operations on a slow machine.
const LEASE: Duration = Duration::from_secs(2);

/// Runs every case, in about 30 s of the store's time. A store that commits effects is asked for no more than two keys
/// at work at one time, and for 50 claims at once on one key.
///
/// # Panics
/// If the store breaks the contract: with the place in this module, whose comments say which part.
pub async fn check(subject: &dyn Subject) {
    let suite = Suite {
        subject,
        store: subject.store(),
    };
    suite.holds_in_common().await;
    if suite.store.commits_effects() {
        suite.holds_where_effects_are_committed().await;
    } else {
        suite.holds_where_claims_are_leases().await;
    }
}

struct Suite<'s> {
    subject: &'s dyn Subject,
    store: Arc<dyn ClaimStore>,
}

impl Suite<'_> {
    async fn claim(&self, who: &Claimant) -> Claim {
        checked(self.store.claim(who, LEASE).await)
    }

    async fn renew(&self, who: &Claimant) -> bool {
        checked(self.store.renew(who, LEASE).await)
    }

    async fn complete(&self, who: &Claimant) -> Completed {
        checked(self.store.complete(who, ttl()).await)
    }

    async fn release(&self, who: &Claimant) -> bool {
        checked(self.store.release(who).await)
    }

    /// That another copy, which has just arrived, is put off.
    async fn puts_others_off(&self, key: &ClaimKey) {
        let other = self.claim(&copy(key)).await;
        assert!(matches!(other, Claim::InProgress { .. }), "{other:?}");
    }

    async fn mark_seen(&self, key: &ClaimKey) -> bool {
        checked::<_, StoreError>(self.store.mark_seen(key, ttl()).await)
    }
}

/// A key that no other run of the suite has.
fn fresh_key() -> ClaimKey {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Relaxed);
    let run = uuid::Uuid::new_v4();
    checked(ClaimKey::new(
        &Scope::default(),
        &format!("{run}:conformance:{}", count + 1),
    ))
}

/// One copy of the event with this key.
fn copy(key: &ClaimKey) -> Claimant {
    Claimant::new(key.clone(), b"the body")
}

/// Another event that comes under the same key.
fn with_another_body(key: &ClaimKey) -> Claimant {
    Claimant::new(key.clone(), b"another body")
}

/// Short, and longer than two leases.
fn ttl() -> Ttl {
    checked(Ttl::new(LEASE * 5 / 2, Duration::ZERO))
}

#[track_caller]
#[expect(clippy::expect_used, reason = "a check that fails is loud")]
fn checked<T, E: std::fmt::Debug>(result: Result<T, E>) -> T {
    result.expect("the store answers")
}
