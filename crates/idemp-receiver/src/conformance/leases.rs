//! What holds where a claim is a lease and done is remembered for a TTL.

use super::{LEASE, Suite, copy, fresh_key, ttl, with_another_body};
use crate::store::{Claim, Completed};

impl Suite<'_> {
    pub(super) async fn holds_where_claims_are_leases(&self) {
        self.others_are_put_off_for_the_rest_of_the_lease().await;
        self.done_is_remembered_for_the_ttl().await;
        self.a_mark_is_remembered_for_the_ttl().await;
        self.another_body_is_a_conflict().await;
        self.a_lease_that_ends_is_taken_over().await;
        self.one_of_many_take_overs_at_once_wins().await;
        self.a_late_completion_counts_if_nobody_contests_it().await;
        self.ones_own_claim_begins_the_lease_anew().await;
        self.a_renewed_lease_holds_longer().await;
    }

    async fn others_are_put_off_for_the_rest_of_the_lease(&self) {
        let key = fresh_key();
        assert_eq!(self.claim(&copy(&key)).await, Claim::Claimed);
        let Claim::InProgress { retry_after } = self.claim(&copy(&key)).await else {
            unreachable!("a live claim of another copy is in progress")
        };
        assert!(!retry_after.is_zero() && retry_after <= LEASE, "{retry_after:?}");
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

    async fn a_mark_is_remembered_for_the_ttl(&self) {
        let key = fresh_key();
        assert!(self.mark_seen(&key).await);
        self.subject.elapse(ttl().as_duration()).await;
        assert!(self.mark_seen(&key).await);
    }

    async fn another_body_is_a_conflict(&self) {
        let key = fresh_key();
        let (first, other) = (copy(&key), with_another_body(&key));
        assert_eq!(self.claim(&first).await, Claim::Claimed);
        assert_eq!(self.claim(&other).await, Claim::Conflict, "looked at before pending");
        assert_eq!(self.complete(&first).await, Completed::Done);
        assert_eq!(self.claim(&other).await, Claim::Conflict, "looked at before done");
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate, "unchanged by it");

        let key = fresh_key();
        assert_eq!(self.claim(&copy(&key)).await, Claim::Claimed);
        self.subject.elapse(LEASE).await;
        let other = with_another_body(&key);
        assert_eq!(self.claim(&other).await, Claim::Claimed, "what is over binds nobody");
        assert_eq!(self.claim(&copy(&key)).await, Claim::Conflict);
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

    async fn one_of_many_take_overs_at_once_wins(&self) {
        let key = fresh_key();
        assert_eq!(self.claim(&copy(&key)).await, Claim::Claimed);
        self.subject.elapse(LEASE).await;
        self.one_of_many(&key).await;
    }

    async fn a_late_completion_counts_if_nobody_contests_it(&self) {
        let key = fresh_key();
        let slow = copy(&key);
        assert_eq!(self.claim(&slow).await, Claim::Claimed);
        self.subject.elapse(LEASE).await;
        assert!(!self.renew(&slow).await, "a lease that has run out is not renewed");
        assert_eq!(self.complete(&slow).await, Completed::Late);
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
        let other = with_another_body(&key);
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

    async fn ones_own_claim_begins_the_lease_anew(&self) {
        let key = fresh_key();
        let owner = copy(&key);
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        self.subject.elapse(LEASE * 3 / 4).await;
        // As if the first answer had been lost.
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        self.subject.elapse(LEASE * 3 / 4).await;
        self.puts_others_off(&key).await;
        assert_eq!(self.complete(&owner).await, Completed::Done);
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
}
