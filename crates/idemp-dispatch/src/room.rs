//! How much a lane holds.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{LaneConfig, OnFull};

/// Room for the events of a lane, by their number and by their bytes.
pub(crate) struct Rooms {
    /// For events on their way to the sink.
    regular: Capacity,
    /// For events that found none, on their way to the dead letters. As large as the other.
    overflow: Capacity,
    max_bytes: usize,
    on_full: OnFull,
}

/// Room for one event, until it is settled.
pub(crate) struct Room {
    _permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    /// There was none on the way to the sink.
    pub(crate) is_overflow: bool,
}

impl Rooms {
    pub(crate) fn new(config: &LaneConfig) -> Self {
        Self {
            regular: Capacity::new(config),
            overflow: Capacity::new(config),
            max_bytes: config.max_bytes,
            on_full: config.on_full,
        }
    }

    /// Room for a body of this length if there is any now.
    pub(crate) fn take_now(&self, len: usize) -> Option<Room> {
        let bytes = self.weight(len);
        let room = |is_overflow| move |_permits| Room { _permits, is_overflow };
        let regular = self.regular.take_now(bytes).map(room(false));
        match self.on_full {
            OnFull::Wait => regular,
            OnFull::DeadLetter => regular.or_else(|| self.overflow.take_now(bytes).map(room(true))),
        }
    }

    /// Waits for room.
    pub(crate) async fn take(&self, len: usize) -> Option<Room> {
        let is_overflow = self.on_full == OnFull::DeadLetter;
        let capacity = if is_overflow { &self.overflow } else { &self.regular };
        let _permits = capacity.take(self.weight(len)).await?;
        Some(Room { _permits, is_overflow })
    }

    fn weight(&self, len: usize) -> u32 {
        // `max_bytes` fits: the configuration was checked.
        len.min(self.max_bytes) as u32
    }
}

struct Capacity {
    events: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Capacity {
    fn new(config: &LaneConfig) -> Self {
        Self {
            events: Arc::new(Semaphore::new(config.max_events)),
            bytes: Arc::new(Semaphore::new(config.max_bytes)),
        }
    }

    fn take_now(&self, bytes: u32) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let event = Arc::clone(&self.events).try_acquire_owned().ok()?;
        Some((event, Arc::clone(&self.bytes).try_acquire_many_owned(bytes).ok()?))
    }

    /// `None` never comes: nobody closes the semaphores.
    async fn take(&self, bytes: u32) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let event = Arc::clone(&self.events).acquire_owned().await.ok()?;
        Some((event, Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok()?))
    }
}
