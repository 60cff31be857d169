//! How many requests are at work, and waiting until none is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use metrics::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::reply::Unavailable;

pub(crate) struct Gate {
    places: Arc<Semaphore>,
    most: u32,
    draining: AtomicBool,
}

impl Gate {
    /// `most` is at most a million (`ReceiverConfig::check`).
    pub(crate) fn new(most: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(most)),
            most: most as u32,
            draining: AtomicBool::new(false),
        }
    }

    /// Takes a place, never waiting for one.
    pub(crate) fn enter(&self, running: &Gauge) -> Result<Place, Unavailable> {
        if self.draining.load(SeqCst) {
            return Err(Unavailable::Draining);
        }
        let permit = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| Unavailable::Busy)?;
        running.increment(1);
        Ok(Place {
            running: running.clone(),
            _permit: permit,
        })
    }

    /// Lets nobody in any more and waits until all places are free.
    pub(crate) async fn drain(&self) {
        self.draining.store(true, SeqCst);
        // It fails only on a closed semaphore, and nobody closes this one.
        let _all = self.places.acquire_many(self.most).await;
    }
}

/// One request at work, from its first byte to the mark in the store.
pub(crate) struct Place {
    running: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.running.decrement(1);
    }
}
