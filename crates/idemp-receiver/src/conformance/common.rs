//! What holds for every store.

use std::sync::Arc;

use super::{LEASE, Suite, checked, copy, fresh_key, ttl, with_another_body};
use crate::claim::{ClaimKey, Claimant, Scope};
use crate::store::{Claim, Completed};

impl Suite<'_> {
    pub(super) async fn holds_in_common(&self) {
        self.one_copy_claims_and_others_wait().await;
        self.a_released_key_is_free().await;
        self.ones_own_claim_is_ones_own().await;
        self.done_is_final().await;
        self.marks_are_set_once().await;
        self.keys_are_compared_byte_for_byte().await;
        self.one_of_many_claims_at_once_wins().await;
    }

    async fn one_copy_claims_and_others_wait(&self) {
        let (key, other_key) = (fresh_key(), fresh_key());
        let (first, other) = (copy(&key), copy(&other_key));
        assert_eq!(self.claim(&first).await, Claim::Claimed);
        let Claim::InProgress { retry_after } = self.claim(&copy(&key)).await else {
            unreachable!("a live claim of another copy is in progress")
        };
        assert!(!retry_after.is_zero());
        assert_eq!(self.claim(&other).await, Claim::Claimed, "another key");
        for (who, key) in [(first, key), (other, other_key)] {
            assert_eq!(self.complete(&who).await, Completed::Done);
            assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
            let other = self.claim(&with_another_body(&key)).await;
            assert_eq!(other, Claim::Conflict, "its body is remembered");
        }
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
        let other = with_another_body(&key);
        assert_eq!(self.claim(&other).await, Claim::Claimed, "what is undone binds nobody");
        assert!(self.release(&other).await);
        assert_eq!(self.claim(&second).await, Claim::Claimed);
        assert_eq!(self.complete(&second).await, Completed::Done);
    }

    async fn ones_own_claim_is_ones_own(&self) {
        let key = fresh_key();
        let owner = copy(&key);
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        // As if the first answer had been lost.
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        self.puts_others_off(&key).await;
        assert_eq!(self.complete(&owner).await, Completed::Done);
        assert_eq!(self.claim(&owner).await, Claim::Duplicate);
    }

    async fn done_is_final(&self) {
        let key = fresh_key();
        let owner = copy(&key);
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        assert_eq!(self.complete(&owner).await, Completed::Done);
        assert!(!self.renew(&owner).await);
        assert!(!self.release(&owner).await);
        // Sent again because its answer was lost. What it does is nothing, and what it says does not matter, unless an
        // effect would have to be in it.
        let again = self.store.complete(&owner, ttl()).await;
        if self.store.commits_effects() {
            assert!(!matches!(again, Ok(Completed::Done | Completed::Late)), "{again:?}");
        } else {
            checked(again);
        }
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
    }

    async fn marks_are_set_once(&self) {
        let key = fresh_key();
        assert!(self.mark_seen(&key).await);
        assert!(!self.mark_seen(&key).await);
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
        let other = self.claim(&with_another_body(&key)).await;
        assert_eq!(other, Claim::Duplicate, "a mark has no body");

        let key = fresh_key();
        let owner = copy(&key);
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        assert!(!self.mark_seen(&key).await, "pending is seen");
        assert_eq!(self.complete(&owner).await, Completed::Done);
        assert!(!self.mark_seen(&key).await, "done is seen");

        let key = fresh_key();
        let owner = copy(&key);
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        assert!(self.release(&owner).await);
        assert!(self.mark_seen(&key).await, "released is new");
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
        // First on a key that was never there, then on one that has just been given back.
        let key = fresh_key();
        for _ in 0..2 {
            let winner = self.one_of_many(&key).await;
            assert!(self.release(&winner).await);
        }
        let winner = self.one_of_many(&key).await;
        assert_eq!(self.complete(&winner).await, Completed::Done);
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
    }

    /// Of 50 copies that claim the key at once, the one that wins.
    pub(super) async fn one_of_many(&self, key: &ClaimKey) -> Claimant {
        let mut claims = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (store, who) = (Arc::clone(&self.store), copy(key));
            claims.spawn(async move { (checked(store.claim(&who, LEASE).await), who) });
        }
        let mut winners = Vec::new();
        while let Some(claimed) = claims.join_next().await {
            match checked(claimed) {
                (Claim::Claimed, who) => winners.push(who),
                (Claim::InProgress { .. }, _) => {}
                (other, _) => unreachable!("claimed or in progress, not {other:?}"),
            }
        }
        assert_eq!(winners.len(), 1);
        winners.remove(0)
    }
}
