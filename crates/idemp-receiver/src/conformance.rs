//! The contract of [`ClaimStore`] as a suite, for the tests of a store.
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

/// Runs every case, in about 30 s of the store's time.
///
/// # Panics
/// If the store breaks the contract: with the place in this file, whose comments say which part.
pub async fn check(subject: &dyn Subject) {
    let suite = Suite {
        subject,
        store: subject.store(),
    };
    suite.one_copy_claims_and_others_wait().await;
    suite.done_is_remembered_for_the_ttl().await;
    suite.another_body_is_a_conflict().await;
    suite.a_released_key_is_free().await;
    suite.a_lease_that_ends_is_taken_over().await;
    suite.a_late_completion_counts_if_nobody_contests_it().await;
    suite.ones_own_claim_is_ones_own().await;
    suite.a_renewed_lease_holds_longer().await;
    suite.done_is_final().await;
    suite.marks_are_set_once().await;
    suite.keys_are_compared_byte_for_byte().await;
    suite.one_of_many_claims_at_once_wins().await;
}

struct Suite<'s> {
    subject: &'s dyn Subject,
    store: Arc<dyn ClaimStore>,
}

impl Suite<'_> {
    async fn one_copy_claims_and_others_wait(&self) {
        let key = fresh_key();
        assert_eq!(self.claim(&copy(&key)).await, Claim::Claimed);
        let Claim::InProgress { retry_after } = self.claim(&copy(&key)).await else {
            unreachable!("a live claim of another copy is in progress")
        };
        assert!(!retry_after.is_zero() && retry_after <= LEASE, "{retry_after:?}");
        assert_eq!(self.claim(&copy(&fresh_key())).await, Claim::Claimed, "another key");
    }

    async fn done_is_remembered_for_the_ttl(&self) {
        let key = fresh_key();
        let first = copy(&key);
        assert_eq!(self.claim(&first).await, Claim::Claimed);
        self.subject.elapse(LEASE / 2).await;
        assert_eq!(self.complete(&first).await, Completed::Done);
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
        // The TTL counts from the completion, and has nothing to do with the lease.
        self.subject.elapse(LEASE).await;
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
        self.subject.elapse(ttl().as_duration() - LEASE).await;
        assert_eq!(self.claim(&copy(&key)).await, Claim::Claimed);
    }

    async fn another_body_is_a_conflict(&self) {
        let key = fresh_key();
        let (first, other) = (copy(&key), Claimant::new(key.clone(), b"another body"));
        assert_eq!(self.claim(&first).await, Claim::Claimed);
        assert_eq!(self.claim(&other).await, Claim::Conflict, "looked at before pending");
        assert_eq!(self.complete(&first).await, Completed::Done);
        assert_eq!(self.claim(&other).await, Claim::Conflict, "looked at before done");
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate, "unchanged by it");

        let key = fresh_key();
        assert_eq!(self.claim(&copy(&key)).await, Claim::Claimed);
        self.subject.elapse(LEASE).await;
        let other = Claimant::new(key.clone(), b"another body");
        assert_eq!(self.claim(&other).await, Claim::Claimed, "what is over binds nobody");
        assert_eq!(self.claim(&copy(&key)).await, Claim::Conflict);
    }

    async fn a_released_key_is_free(&self) {
        let key = fresh_key();
        let (first, second) = (copy(&key), copy(&key));
        assert!(!self.release(&first).await, "nothing to release");
        assert_eq!(self.claim(&first).await, Claim::Claimed);
        assert!(!self.release(&second).await, "not its own");
        assert!(matches!(self.claim(&second).await, Claim::InProgress { .. }));
        assert!(self.release(&first).await);
        assert!(!self.release(&first).await, "released before");
        assert!(!self.renew(&first).await, "released before");
        assert_eq!(self.claim(&second).await, Claim::Claimed);
    }

    async fn a_lease_that_ends_is_taken_over(&self) {
        let key = fresh_key();
        let (slow, next, third) = (copy(&key), copy(&key), copy(&key));
        assert_eq!(self.claim(&slow).await, Claim::Claimed);
        self.subject.elapse(LEASE).await;
        assert_eq!(self.claim(&next).await, Claim::Claimed);
        // Whatever the slow owner still does changes nothing.
        assert!(!self.renew(&slow).await);
        assert!(!self.release(&slow).await);
        assert_eq!(self.complete(&slow).await, Completed::Lost);
        assert!(matches!(self.claim(&third).await, Claim::InProgress { .. }));
        assert!(self.renew(&next).await);
        assert_eq!(self.complete(&next).await, Completed::Done);
        assert_eq!(self.complete(&slow).await, Completed::Lost);
        assert!(!self.release(&slow).await);
        assert_eq!(self.claim(&third).await, Claim::Duplicate);
    }

    async fn a_late_completion_counts_if_nobody_contests_it(&self) {
        let key = fresh_key();
        let slow = copy(&key);
        assert_eq!(self.claim(&slow).await, Claim::Claimed);
        self.subject.elapse(LEASE).await;
        assert!(!self.renew(&slow).await, "a lease that has run out is not renewed");
        assert_eq!(self.complete(&slow).await, Completed::Late);
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
        let other = Claimant::new(key.clone(), b"another body");
        assert_eq!(self.claim(&other).await, Claim::Conflict, "its body is remembered");

        // Another copy took the key over, failed, and gave it back.
        let key = fresh_key();
        let (slow, next) = (copy(&key), copy(&key));
        assert_eq!(self.claim(&slow).await, Claim::Claimed);
        self.subject.elapse(LEASE).await;
        assert_eq!(self.claim(&next).await, Claim::Claimed);
        assert!(self.release(&next).await);
        assert_eq!(self.complete(&slow).await, Completed::Late);
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
    }

    async fn ones_own_claim_is_ones_own(&self) {
        let key = fresh_key();
        let owner = copy(&key);
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        self.subject.elapse(LEASE * 3 / 4).await;
        // As if the first answer had been lost.
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        self.subject.elapse(LEASE * 3 / 4).await;
        let other = self.claim(&copy(&key)).await;
        assert!(
            matches!(other, Claim::InProgress { .. }),
            "the lease began anew: {other:?}"
        );
        assert_eq!(self.complete(&owner).await, Completed::Done);
        assert_eq!(self.claim(&owner).await, Claim::Duplicate);
    }

    async fn a_renewed_lease_holds_longer(&self) {
        let key = fresh_key();
        let owner = copy(&key);
        assert!(!self.renew(&owner).await, "nothing to renew");
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        for _ in 0..3 {
            self.subject.elapse(LEASE * 3 / 4).await;
            assert!(self.renew(&owner).await);
        }
        assert!(!self.renew(&copy(&key)).await, "not its own");
        self.subject.elapse(LEASE * 3 / 4).await;
        assert!(matches!(self.claim(&copy(&key)).await, Claim::InProgress { .. }));
        self.subject.elapse(LEASE / 4).await;
        assert_eq!(self.claim(&copy(&key)).await, Claim::Claimed);
    }

    async fn done_is_final(&self) {
        let key = fresh_key();
        let owner = copy(&key);
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        assert_eq!(self.complete(&owner).await, Completed::Done);
        assert!(!self.renew(&owner).await);
        assert!(!self.release(&owner).await);
        // Sent again because its answer was lost: what it says does not matter, what it does is nothing.
        self.complete(&owner).await;
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
    }

    async fn marks_are_set_once(&self) {
        let key = fresh_key();
        assert!(self.mark_seen(&key).await);
        assert!(!self.mark_seen(&key).await);
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
        let other = Claimant::new(key.clone(), b"another body");
        assert_eq!(self.claim(&other).await, Claim::Duplicate, "a mark has no body");
        self.subject.elapse(ttl().as_duration()).await;
        assert!(self.mark_seen(&key).await);

        let key = fresh_key();
        let owner = copy(&key);
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        assert!(!self.mark_seen(&key).await, "pending is seen");
        assert_eq!(self.complete(&owner).await, Completed::Done);
        assert!(!self.mark_seen(&key).await, "done is seen");
    }

    async fn keys_are_compared_byte_for_byte(&self) {
        let scope = Scope::named("Orders").unwrap_or_default();
        let base = fresh_key();
        let base = base.key();
        let longest = format!("{base}{}", "k".repeat(255 - base.len()));
        for text in [
            base,
            &base.to_uppercase(),
            &base.replace("conformance", "conformanc_"),
            &base.replace("conformance", "conform%"),
            &format!("{base}'"),
            &format!("{base};--"),
            &format!("{base}*"),
            &format!("/Orders:{base}"),
            &longest,
            &longest[..254],
        ] {
            for scope in [Scope::default(), scope.clone()] {
                let key = checked(ClaimKey::new(&scope, text));
                let owner = copy(&key);
                assert_eq!(self.claim(&owner).await, Claim::Claimed, "{key:?}");
                assert_eq!(self.complete(&owner).await, Completed::Done, "{key:?}");
                assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate, "{key:?}");
            }
        }
    }

    async fn one_of_many_claims_at_once_wins(&self) {
        let key = fresh_key();
        // First on a key that was never there, then on one whose lease has just run out.
        for _ in 0..2 {
            let mut claims = tokio::task::JoinSet::new();
            for _ in 0..50 {
                let (store, who) = (Arc::clone(&self.store), copy(&key));
                claims.spawn(async move { store.claim(&who, LEASE).await });
            }
            let mut claimed = 0;
            while let Some(claim) = claims.join_next().await {
                match claim.map(checked) {
                    Ok(Claim::Claimed) => claimed += 1,
                    Ok(Claim::InProgress { .. }) => {}
                    other => unreachable!("claimed or in progress, not {other:?}"),
                }
            }
            assert_eq!(claimed, 1);
            self.subject.elapse(LEASE).await;
        }
    }

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

/// Short, and longer than two leases.
fn ttl() -> Ttl {
    checked(Ttl::new(LEASE * 5 / 2, Duration::ZERO))
}

#[track_caller]
#[expect(clippy::expect_used, reason = "a check that fails is loud")]
fn checked<T, E: std::fmt::Debug>(result: Result<T, E>) -> T {
    result.expect("the store answers")
}
