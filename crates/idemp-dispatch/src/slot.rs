//! Where an event's settlement is put once, for all who wait for it.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::settlement::Settlement;

/// `None` if whoever was to settle it has vanished.
type Told = Option<Settlement>;

#[derive(Default)]
struct Slot {
    told: OnceLock<Told>,
    waiting: Notify,
}

/// Tells, once. Dropped before, it tells that nothing will come.
pub(crate) struct Settle(Arc<Slot>);

/// Hears of it.
#[derive(Clone)]
pub(crate) struct Settled(Arc<Slot>);

pub(crate) fn slot() -> (Settle, Settled) {
    let slot = Arc::new(Slot::default());
    (Settle(Arc::clone(&slot)), Settled(slot))
}

impl Settle {
    pub(crate) fn tell(self, settlement: Settlement) {
        self.0.tell(Some(settlement));
    }
}

impl Drop for Settle {
    fn drop(&mut self) {
        self.0.tell(None);
    }
}

impl Slot {
    /// The first word counts.
    fn tell(&self, told: Told) {
        if self.told.set(told).is_ok() {
            self.waiting.notify_waiters();
        }
    }
}

impl Settled {
    /// Waits until it is told. Dropping the future stops the waiting.
    pub(crate) async fn wait(&self) -> Option<Settlement> {
        loop {
            // Before the look, so that no word falls in between.
            let waiting = self.0.waiting.notified();
            if let Some(told) = self.0.told.get() {
                return told.clone();
            }
            waiting.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use idemp_core::Reason;

    use super::*;

    fn dropped() -> Settlement {
        Settlement::Dropped {
            reason: Reason::Shutdown,
            cause: None,
        }
    }

    #[tokio::test]
    async fn all_hear_what_was_told_before_and_after() {
        let (settle, settled) = slot();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let settled = settled.clone();
                tokio::spawn(async move { settled.wait().await })
            })
            .collect();
        tokio::task::yield_now().await;
        settle.tell(dropped());
        for heard in waiting {
            assert!(matches!(heard.await.unwrap(), Some(Settlement::Dropped { .. })));
        }
        assert!(matches!(settled.wait().await, Some(Settlement::Dropped { .. })));
    }

    #[tokio::test]
    async fn a_task_that_vanishes_is_heard_of() {
        let (settle, settled) = slot();
        let waiting = tokio::spawn({
            let settled = settled.clone();
            async move { settled.wait().await }
        });
        tokio::task::yield_now().await;
        drop(settle);
        assert!(waiting.await.unwrap().is_none());
        assert!(settled.wait().await.is_none());
    }
}
