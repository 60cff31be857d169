//! Where dead letters are put, and what happens when a store does not take them.

use std::sync::Arc;
use std::time::Duration;

use idemp_dlq::{DeadLetter, DeadLetterStore, Put, StoreError};

use crate::meters::Meters;

/// Waits before the second, third and fourth write to the store.
const WAITS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
];

pub(crate) struct Letters {
    pub(crate) store: Arc<dyn DeadLetterStore>,
    pub(crate) fallback: Option<Arc<dyn DeadLetterStore>>,
    pub(crate) timeout: Duration,
    pub(crate) meters: Arc<Meters>,
}

impl Letters {
    /// Puts a letter into the store, trying four times, then into the fallback.
    ///
    /// # Errors
    /// What the last store said, or `None` if it said nothing in time.
    pub(crate) async fn put(&self, letter: &DeadLetter) -> Result<Put, Option<StoreError>> {
        let mut waits = WAITS.iter();
        let error = loop {
            match self.once(&*self.store, letter, "primary").await {
                Ok(put) => return Ok(put),
                Err(error) => match waits.next() {
                    Some(wait) => tokio::time::sleep(*wait).await,
                    None => break error,
                },
            }
        };
        match &self.fallback {
            Some(fallback) => self.once(&**fallback, letter, "fallback").await,
            None => Err(error),
        }
    }

    async fn once(
        &self,
        store: &dyn DeadLetterStore,
        letter: &DeadLetter,
        which: &'static str,
    ) -> Result<Put, Option<StoreError>> {
        let error = match tokio::time::timeout(self.timeout, store.put(letter.clone())).await {
            Ok(Ok(put)) => return Ok(put),
            Ok(Err(error)) => Some(error),
            Err(_elapsed) => None,
        };
        self.meters.store_failed(which);
        tracing::error!(sink = %letter.sink, store = which, "a dead letter could not be written");
        Err(error)
    }
}
