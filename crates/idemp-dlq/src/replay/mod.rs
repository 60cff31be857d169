//! Sends dead letters once more, under the original key and with the original bytes.
//!
//! Every entry is claimed, sent in one attempt, and taken out of the store only after that attempt succeeded. So a
//! replay may be killed at any instant and run again: what was sent but not marked goes out twice under one key, and
//! the receiver drops the copy.

mod options;
mod pass;
mod report;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use idemp_core::{Sink, SinkName, StatusPolicy};
use tokio_util::sync::CancellationToken;

pub use options::{OptionsError, ReplayOptions};
pub use report::{Fate, Progress, Refused, ReplayError, ReplaySummary, Stopped};

use crate::{DeadLetterStore, Filter, Letterhead};
use options::Checked;

/// Where the letters of one sink go.
#[derive(Clone)]
pub struct Target {
    /// Makes the attempts. Letters are claimed one at a time, so it gets one attempt at a time.
    pub sink: Arc<dyn Sink>,
    /// What the answers mean.
    pub policy: StatusPolicy,
}

/// Replays dead letters.
///
/// ```
/// use idemp_dlq::{Filter, MemoryStore, ReplayOptions, Replayer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let replayer = Replayer::new(ReplayOptions { rate_per_second: 50.0, ..ReplayOptions::default() })?;
/// let store = MemoryStore::new();
/// let no_sinks = |_: &idemp_core::SinkName| None;
/// let summary = replayer
///     .run(&store, &Filter::default(), &no_sinks, &mut |_| (), &Default::default())
///     .await?;
/// assert_eq!(summary.selected, 0);
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct Replayer {
    options: Checked,
    clock: Arc<dyn Fn() -> SystemTime + Send + Sync>,
}

impl Replayer {
    /// Checks the options.
    ///
    /// # Errors
    /// If one of them is out of its bounds.
    pub fn new(options: ReplayOptions) -> Result<Self, OptionsError> {
        Ok(Self {
            options: options.check()?,
            clock: Arc::new(SystemTime::now),
        })
    }

    /// Takes the time of day from elsewhere than the system, for tests. Waiting is tokio's.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Why this entry would be refused if it were replayed now, by what its record says: for a list of what a replay
    /// would do. What the sink can never send shows only with the body.
    #[must_use]
    pub fn refusal(&self, head: &Letterhead) -> Option<Refused> {
        self.options
            .refusal(head.not_before, head.maybe_delivered_since(), (self.clock)())
    }

    /// Replays what the filter means now, in replay order, to the target that `targets` names for each sink; entries
    /// of a sink without one are left alone. `observe` is told what happens.
    ///
    /// [`Filter::limit`] bounds the selection, whatever becomes of its entries; [`ReplayOptions::limit`] bounds the
    /// attempts.
    ///
    /// Entries that somebody else holds are tried again at the end, when their leases have run out: that is how a
    /// second run finds what a killed one had taken. When `cancel` is cancelled, the attempt in flight is finished and
    /// written down, and the rest is left.
    ///
    /// # Errors
    /// If the store fails. The summary until then is in the error.
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    ///
    /// # Cancel safety
    /// Dropping the future in the middle loses no letter: the entry at work stays in the store and is held until its
    /// lease runs out. Whether its attempt arrived is then not written down, so prefer `cancel`.
    pub async fn run(
        &self,
        store: &dyn DeadLetterStore,
        filter: &Filter,
        targets: &(dyn Fn(&SinkName) -> Option<Target> + Send + Sync),
        observe: &mut (dyn FnMut(Progress<'_>) + Send),
        cancel: &CancellationToken,
    ) -> Result<ReplaySummary, ReplayError> {
        self.run_over(&[store], filter, targets, observe, cancel).await
    }

    /// As [`run`](Self::run), over one store after the other: their selections are one, with one limit on attempts and
    /// one row of failures. [`Filter::limit`] bounds the selection of each.
    ///
    /// # Errors
    /// As for [`run`](Self::run), whichever store fails.
    ///
    /// # Panics
    /// As for [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As for [`run`](Self::run).
    pub async fn run_over(
        &self,
        stores: &[&dyn DeadLetterStore],
        filter: &Filter,
        targets: &(dyn Fn(&SinkName) -> Option<Target> + Send + Sync),
        observe: &mut (dyn FnMut(Progress<'_>) + Send),
        cancel: &CancellationToken,
    ) -> Result<ReplaySummary, ReplayError> {
        pass::Pass::new(&self.options, &*self.clock, stores, targets, observe, cancel)
            .run(filter)
            .await
    }
}

impl fmt::Debug for Replayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replayer")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
