//! Reads entries and gives each a task.

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::BACKOFF;
use super::entry::{self, ENDS, Entry};
use super::fault::Fault;
use super::group;
use super::link::{self, Link};
use super::work::{self, Shared};

/// Reads entries and gives each a task.
pub(super) struct Reader {
    shared: Arc<Shared>,
    link: Link,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    /// The id after which the group begins, once it is known.
    beginning: Option<String>,
    /// The number of the connection for which the group was seen to.
    connection: u64,
    /// After which of this consumer's own pending entries to go on; `None` when there are no more.
    own: Option<String>,
    reclaim: Reclaim,
}

/// How far a look for entries of dead consumers has come.
struct Reclaim {
    cursor: String,
    /// When the last look came to its end.
    ended: Option<Instant>,
}

impl Reclaim {
    /// How long the next look has to wait, if one comes this often.
    fn due_in(&self, every: Duration) -> Duration {
        self.ended
            .map_or(Duration::ZERO, |ended| every.saturating_sub(ended.elapsed()))
    }
}

impl Reader {
    /// A reader over a connection of its own, on which reads wait.
    pub(super) fn new(shared: Arc<Shared>, link: Link) -> Self {
        Self {
            link,
            places: Arc::new(Semaphore::new(shared.config.concurrency)),
            tasks: TaskTracker::new(),
            beginning: None,
            connection: 0,
            own: None,
            reclaim: Reclaim {
                cursor: ENDS.to_owned(),
                ended: None,
            },
            shared,
        }
    }

    /// Reads until a stop, and waits for the entries at work.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let (first, longest) = BACKOFF;
        let mut wait = first;
        loop {
            let free = tokio::select! {
                biased;
                () = shared.halt.cancelled() => break,
                free = self.free() => free,
            };
            let Some(free) = free else { break };
            // Not cut by a stop: entries that are on their way would be pending and taken by nobody.
            match self.step(free).await {
                Ok(()) => wait = first,
                Err(fault) => {
                    self.tell(&fault);
                    if fault.is_no_group() {
                        // To be made at once. If that does not work, it fails in another way.
                        self.connection = 0;
                        continue;
                    }
                    tokio::select! {
                        biased;
                        () = shared.halt.cancelled() => break,
                        () = sleep(wait) => wait = (wait * 2).min(longest),
                    }
                }
            }
        }
        self.tasks.close();
        self.tasks.wait().await;
        group::leave(&shared.writer, &shared.config).await;
    }

    /// Waits for a free place and takes all that are free.
    async fn free(&self) -> Option<OwnedSemaphorePermit> {
        let mut free = Arc::clone(&self.places).acquire_owned().await.ok()?;
        if let Ok(more) = u32::try_from(self.places.available_permits())
            && more > 0
            && let Ok(more) = Arc::clone(&self.places).try_acquire_many_owned(more)
        {
            free.merge(more);
        }
        Some(free)
    }

    /// Sees to the group, or reads once, in this order: entries that are this consumer's already, those of dead ones,
    /// new ones.
    async fn step(&mut self, free: OwnedSemaphorePermit) -> Result<(), Fault> {
        if self.connection == 0 || self.link.number().await != self.connection {
            self.make_group().await?;
            self.connection = self.link.number().await;
            // An answer may have been lost with the connection, and entries with it.
            self.own = Some(ENDS.to_owned());
        }
        if let Some(after) = self.own.take() {
            let entries = self.read(&after, free.num_permits(), false).await;
            let entries = entries.inspect_err(|_| self.own = Some(after))?;
            self.own = entries.last().map(|entry| entry.id.clone());
            self.take(entries, free);
            return Ok(());
        }
        let is_looking = self.reclaim.cursor != ENDS;
        if is_looking || self.reclaim.due_in(self.shared.config.reclaim_every).is_zero() {
            return self.reclaim(free).await;
        }
        let entries = self.read(">", free.num_permits(), true).await?;
        self.take(entries, free);
        Ok(())
    }

    async fn read(&self, after: &str, count: usize, blocks: bool) -> Result<Vec<Entry>, Fault> {
        let config = &self.shared.config;
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&config.group).arg(&config.consumer);
        read.arg("COUNT").arg(count);
        if blocks {
            // Not 0, which would be for ever.
            let until_reclaim = self.reclaim.due_in(config.reclaim_every);
            read.arg("BLOCK").arg(millis(config.block.min(until_reclaim)).max(1));
        }
        read.arg("STREAMS").arg(&config.stream).arg(after);
        Ok(entry::read(self.link.ask(&read).await?)?)
    }

    /// One step of a look for entries of dead consumers. The next one goes on where this one stopped: beginning anew
    /// each time would never reach the tail when there are more than fit in.
    async fn reclaim(&mut self, free: OwnedSemaphorePermit) -> Result<(), Fault> {
        let config = &self.shared.config;
        let mut claim = cmd("XAUTOCLAIM");
        claim.arg(&config.stream).arg(&config.group).arg(&config.consumer);
        claim.arg(millis(config.min_idle)).arg(&self.reclaim.cursor);
        claim.arg("COUNT").arg(free.num_permits());
        let claimed = entry::claimed(self.link.ask(&claim).await?)?;
        if claimed.cursor == ENDS {
            self.reclaim.ended = Some(Instant::now());
        }
        self.reclaim.cursor = claimed.cursor;
        if claimed.trimmed > 0 {
            tracing::warn!(
                entries = claimed.trimmed,
                "pending entries were trimmed from the stream"
            );
            self.shared.flow.meters().trimmed(claimed.trimmed);
        }
        if claimed.nameless > 0 {
            // Among this consumer's own they have their ids, and are let go of.
            self.own = Some(ENDS.to_owned());
        }
        let taken = self.take(claimed.entries, free);
        self.shared.flow.meters().reclaimed(taken);
        Ok(())
    }

    /// Gives each entry a task and a place, except for those that are at work already, and tells how many.
    fn take(&self, entries: Vec<Entry>, mut free: OwnedSemaphorePermit) -> usize {
        let mut taken = 0;
        for Entry { id, fields } in entries {
            if !self.shared.at_work().insert(id.clone()) {
                continue;
            }
            let Some(fields) = fields else {
                tracing::warn!("a pending entry was trimmed from the stream");
                self.shared.flow.meters().trimmed(1);
                self.tasks.spawn(work::let_go(Arc::clone(&self.shared), id));
                continue;
            };
            let place = free.split(1);
            taken += 1;
            let shared = Arc::clone(&self.shared);
            self.tasks.spawn(async move {
                work::settle(shared, id, fields).await;
                drop(place);
            });
        }
        taken
    }

    /// Makes the group where it begins, or where it began.
    async fn make_group(&mut self) -> Result<(), Fault> {
        let config = &self.shared.config;
        let beginning = match self.beginning.take() {
            Some(beginning) => beginning,
            None => group::beginning(&self.link, config).await?,
        };
        // Kept whatever comes of it: the group may be made, and only the answer lost.
        let beginning = self.beginning.insert(beginning);
        group::make(&self.link, config, beginning).await?;
        Ok(())
    }

    fn tell(&self, fault: &Fault) {
        self.shared.flow.meters().error(fault.operation());
        match fault {
            Fault::Server(error) => {
                let server = self.link.server();
                tracing::warn!(%server, cause = link::cause(error), "reading from the stream failed");
            }
            Fault::Misshapen => tracing::error!("the server's answer has an unknown shape"),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
