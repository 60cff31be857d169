//! Any sequence of operations, on a store and on a model of the contract that is written the plain way.

use std::sync::Arc;
use std::time::Duration;

use idemp_core::Ttl;
use idemp_receiver::{Claim, ClaimKey, ClaimStore, Claimant, Completed, Fingerprint, MemoryStore, Scope, Token};
use proptest::prelude::*;

use crate::stores::Clock;

/// Three copies under one key, of which the third has another body, and one under another key.
const COPIES: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Claim(usize, u64),
    Renew(usize, u64),
    Complete(usize, u64),
    Release(usize),
    MarkSeen(usize, u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (copy, seconds) = (0..COPIES, 1..5_u64);
    prop_oneof![
        4 => (copy.clone(), seconds.clone()).prop_map(|(copy, lease)| Step::Claim(copy, lease)),
        2 => (copy.clone(), seconds.clone()).prop_map(|(copy, lease)| Step::Renew(copy, lease)),
        2 => (copy.clone(), seconds.clone()).prop_map(|(copy, ttl)| Step::Complete(copy, ttl)),
        2 => copy.clone().prop_map(Step::Release),
        1 => (copy, seconds.clone()).prop_map(|(copy, ttl)| Step::MarkSeen(copy, ttl)),
        3 => seconds.prop_map(Step::Wait),
    ]
}

/// What is known of one key: who, which body, until which second.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    Absent,
    Pending { owner: usize, until: u64 },
    Done { body: Option<usize>, until: u64 },
}

struct Model {
    now: u64,
    keys: [Known; 2],
}

impl Model {
    fn key_of(copy: usize) -> usize {
        usize::from(copy == 3)
    }

    fn body_of(copy: usize) -> usize {
        usize::from(copy == 2)
    }

    fn known(&mut self, copy: usize) -> &mut Known {
        let now = self.now;
        let known = &mut self.keys[Self::key_of(copy)];
        if let Known::Pending { until, .. } | Known::Done { until, .. } = *known
            && until <= now
        {
            *known = Known::Absent;
        }
        known
    }

    fn claim(&mut self, copy: usize, lease: u64) -> Claim {
        let (now, until) = (self.now, self.now + lease);
        let known = self.known(copy);
        match *known {
            Known::Absent => {}
            Known::Pending { owner, .. } if Self::body_of(owner) != Self::body_of(copy) => return Claim::Conflict,
            Known::Pending { owner, .. } if owner == copy => {}
            Known::Pending { until, .. } => {
                let retry_after = Duration::from_secs(until - now);
                return Claim::InProgress { retry_after };
            }
            Known::Done { body: Some(body), .. } if body != Self::body_of(copy) => return Claim::Conflict,
            Known::Done { .. } => return Claim::Duplicate,
        }
        *known = Known::Pending { owner: copy, until };
        Claim::Claimed
    }

    fn renew(&mut self, copy: usize, lease: u64) -> bool {
        let new = self.now + lease;
        match self.known(copy) {
            Known::Pending { owner, until } if *owner == copy => {
                *until = new;
                true
            }
            _ => false,
        }
    }

    fn complete(&mut self, copy: usize, ttl: u64) -> Completed {
        let until = self.now + ttl;
        let known = self.known(copy);
        let completed = match *known {
            Known::Absent => Completed::Late,
            Known::Pending { owner, .. } if owner == copy => Completed::Done,
            _ => return Completed::Lost,
        };
        let body = Some(Self::body_of(copy));
        *known = Known::Done { body, until };
        completed
    }

    fn release(&mut self, copy: usize) -> bool {
        let known = self.known(copy);
        let own = matches!(*known, Known::Pending { owner, .. } if owner == copy);
        if own {
            *known = Known::Absent;
        }
        own
    }

    fn mark_seen(&mut self, copy: usize, ttl: u64) -> bool {
        let until = self.now + ttl;
        let known = self.known(copy);
        let new = *known == Known::Absent;
        if new {
            *known = Known::Done { body: None, until };
        }
        new
    }
}

fn copies() -> Vec<Claimant> {
    (0..COPIES)
        .map(|copy| Claimant {
            key: ClaimKey::new(&Scope::default(), ["k1", "k2"][Model::key_of(copy)]).unwrap(),
            token: Token::unique(),
            fingerprint: Fingerprint::of(&[u8::try_from(Model::body_of(copy)).unwrap()]),
        })
        .collect()
}

fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds), Duration::ZERO).unwrap()
}

/// Runs the steps on both and compares every answer; then shows that no key is stuck.
async fn agree(store: &dyn ClaimStore, steps: &[Step], wait: impl AsyncFn(Duration)) {
    let copies = copies();
    let mut model = Model {
        now: 0,
        keys: [Known::Absent; 2],
    };
    let lease = Duration::from_secs;
    for (at, step) in steps.iter().enumerate() {
        let said = format!("step {at} of {steps:?}");
        match *step {
            Step::Claim(copy, seconds) => {
                let claim = store.claim(&copies[copy], lease(seconds)).await.unwrap();
                assert_eq!(claim, model.claim(copy, seconds), "{said}");
            }
            Step::Renew(copy, seconds) => {
                let renewed = store.renew(&copies[copy], lease(seconds)).await.unwrap();
                assert_eq!(renewed, model.renew(copy, seconds), "{said}");
            }
            Step::Complete(copy, seconds) => {
                let completed = store.complete(&copies[copy], ttl(seconds)).await.unwrap();
                assert_eq!(completed, model.complete(copy, seconds), "{said}");
            }
            Step::Release(copy) => {
                let released = store.release(&copies[copy]).await.unwrap();
                // Of one's own claim that has run out, only this may be said either way: it is absent after.
                let expected = model.release(copy);
                assert!(released == expected || !expected, "{said}");
            }
            Step::MarkSeen(copy, seconds) => {
                let new = store.mark_seen(&copies[copy].key, ttl(seconds)).await.unwrap();
                assert_eq!(new, model.mark_seen(copy, seconds), "{said}");
            }
            Step::Wait(seconds) => {
                wait(Duration::from_secs(seconds)).await;
                model.now += seconds;
            }
        }
    }
    // Whatever came before, once all leases and TTLs are over a new copy claims, completes and is remembered.
    wait(Duration::from_secs(5)).await;
    for key in ["k1", "k2"] {
        let fresh = || Claimant::new(ClaimKey::new(&Scope::default(), key).unwrap(), b"fresh");
        let owner = fresh();
        assert_eq!(
            store.claim(&owner, lease(1)).await.unwrap(),
            Claim::Claimed,
            "{steps:?}"
        );
        assert_eq!(
            store.complete(&owner, ttl(4)).await.unwrap(),
            Completed::Done,
            "{steps:?}"
        );
        assert_eq!(
            store.claim(&fresh(), lease(1)).await.unwrap(),
            Claim::Duplicate,
            "{steps:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_follows_the_model(steps in prop::collection::vec(step(), 0..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            agree(&MemoryStore::new(), &steps, tokio::time::advance).await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn sqlite_follows_the_model(steps in prop::collection::vec(step(), 0..40)) {
        let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let store = Arc::new(clock.open(&folder.path().join("claims.db")));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(agree(&store, &steps, async |time| clock.advance(time)));
    }
}
