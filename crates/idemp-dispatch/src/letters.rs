//! Where dead letters are put, and what happens when a store does not take them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use idemp_dlq::{DeadLetter, DeadLetterStore, Put, StoreError};

use tokio::time::Instant;

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
    /// All tries at the store together take no longer than one that hangs and the waits: a store that does not answer
    /// is not asked four times.
    ///
    /// # Errors
    /// What the last store said, or `None` if it did not answer.
    pub(crate) async fn put(&self, letter: &DeadLetter) -> Result<Put, Option<StoreError>> {
        let mut waits = WAITS.iter();
        let deadline = Instant::now() + self.timeout + WAITS.iter().sum::<Duration>();
        let error = loop {
            match self.once(&*self.store, letter, "primary", deadline).await {
                Ok(put) => return Ok(put),
                Err(error) => match waits.next() {
                    Some(wait) if Instant::now() + *wait < deadline => tokio::time::sleep(*wait).await,
                    _ => break error,
                },
            }
        };
        match &self.fallback {
            Some(fallback) => {
                self.once(&**fallback, letter, "fallback", Instant::now() + self.timeout)
                    .await
            }
            None => Err(error),
        }
    }

    async fn once(
        &self,
        store: &dyn DeadLetterStore,
        letter: &DeadLetter,
        which: &'static str,
        deadline: Instant,
    ) -> Result<Put, Option<StoreError>> {
        // A store that panics has failed like any other.
        let put = AssertUnwindSafe(async { store.put(letter.clone()).await }).catch_unwind();
        let error = match tokio::time::timeout_at(deadline, put).await {
            Ok(Ok(Ok(put))) => return Ok(put),
            Ok(Ok(Err(error))) => Some(error),
            Ok(Err(_panic)) => None,
            Err(_elapsed) => None,
        };
        self.meters.store_failed(which);
        tracing::error!(sink = %letter.sink, store = which, "a dead letter could not be written");
        Err(error)
    }
}
