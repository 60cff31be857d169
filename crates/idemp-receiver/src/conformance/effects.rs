//! What holds where a completion commits the handler's own work, as that of an inbox does, in place of lease and TTL.

use super::{LEASE, Suite, copy, fresh_key, ttl, with_another_body};
use crate::claim::Claimant;
use crate::store::{Claim, Completed};

impl Suite<'_> {
    pub(super) async fn holds_where_effects_are_committed(&self) {
        self.a_renewed_claim_keeps_others_off().await;
        self.however_long_it_takes_one_completes().await;
        self.done_is_remembered_beyond_the_ttl().await;
        self.another_body_is_in_progress_at_first().await;
        self.what_was_released_is_not_completed().await;
        self.nothing_is_done_without_a_claim().await;
    }

    async fn a_renewed_claim_keeps_others_off(&self) {
        let key = fresh_key();
        let owner = copy(&key);
        assert!(!self.renew(&owner).await, "nothing to renew");
        assert_eq!(self.claim(&owner).await, Claim::Claimed);
        for _ in 0..3 {
            self.subject.elapse(LEASE * 3 / 4).await;
            assert!(self.renew(&owner).await);
            assert!(!self.renew(&copy(&key)).await, "not its own");
            self.puts_others_off(&key).await;
        }
        assert_eq!(self.complete(&owner).await, Completed::Done);
    }

    /// The store may hold the key for longer than a lease, or let the next copy in.
    async fn however_long_it_takes_one_completes(&self) {
        for slow_ends_first in [true, false] {
            let key = fresh_key();
            let (slow, next) = (copy(&key), copy(&key));
            assert_eq!(self.claim(&slow).await, Claim::Claimed);
            self.subject.elapse(LEASE * 2).await;
            let claimants = match self.claim(&next).await {
                Claim::InProgress { .. } => vec![slow],
                Claim::Claimed if slow_ends_first => vec![slow, next],
                Claim::Claimed => vec![next, slow],
                other => unreachable!("claimed or in progress, not {other:?}"),
            };
            let mut completed = 0;
            for who in &claimants {
                completed += usize::from(self.completes(who).await);
            }
            assert_eq!(completed, 1);
            assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
        }
    }

    async fn done_is_remembered_beyond_the_ttl(&self) {
        let (key, marked) = (fresh_key(), fresh_key());
        let first = copy(&key);
        assert_eq!(self.claim(&first).await, Claim::Claimed);
        assert_eq!(self.complete(&first).await, Completed::Done);
        assert!(self.mark_seen(&marked).await);
        self.subject.elapse(ttl().as_duration() + LEASE).await;
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
        assert_eq!(self.claim(&with_another_body(&key)).await, Claim::Conflict);
        assert!(!self.mark_seen(&marked).await);
    }

    async fn another_body_is_in_progress_at_first(&self) {
        let key = fresh_key();
        let (first, other) = (copy(&key), with_another_body(&key));
        assert_eq!(self.claim(&first).await, Claim::Claimed);
        let early = self.claim(&other).await;
        assert!(
            matches!(early, Claim::InProgress { .. } | Claim::Conflict),
            "a store may not see what is not committed: {early:?}"
        );
        assert_eq!(self.complete(&first).await, Completed::Done);
        assert_eq!(self.claim(&other).await, Claim::Conflict);
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate, "unchanged by it");
    }

    async fn what_was_released_is_not_completed(&self) {
        let key = fresh_key();
        let (first, next) = (copy(&key), copy(&key));
        assert_eq!(self.claim(&first).await, Claim::Claimed);
        assert!(self.release(&first).await);
        assert_eq!(self.claim(&next).await, Claim::Claimed);
        // Whatever the first one still does changes nothing.
        assert!(!self.renew(&first).await);
        assert!(!self.release(&first).await);
        assert!(
            !self.completes(&first).await,
            "its work is undone, and the key is another's"
        );
        self.puts_others_off(&key).await;
        assert!(self.renew(&next).await);
        assert_eq!(self.complete(&next).await, Completed::Done);
        assert!(!self.completes(&first).await);
        assert!(!self.release(&first).await);
        assert_eq!(self.claim(&copy(&key)).await, Claim::Duplicate);
    }

    async fn nothing_is_done_without_a_claim(&self) {
        let released = copy(&fresh_key());
        assert_eq!(self.claim(&released).await, Claim::Claimed);
        assert!(self.release(&released).await);
        for who in [released, copy(&fresh_key())] {
            let done = self.store.complete(&who, ttl()).await;
            assert!(!matches!(done, Ok(Completed::Done)), "nothing of its work was there");
            // It is recorded all the same, or it is not; what was answered holds.
            let expected = match done {
                Ok(Completed::Late) => Claim::Duplicate,
                _ => Claim::Claimed,
            };
            let next = copy(&who.key);
            assert_eq!(self.claim(&next).await, expected);
            self.release(&next).await;
        }
    }

    /// Whether the store says that it did. It may as well fail where there is nothing to commit.
    async fn completes(&self, who: &Claimant) -> bool {
        matches!(
            self.store.complete(who, ttl()).await,
            Ok(Completed::Done | Completed::Late)
        )
    }
}
