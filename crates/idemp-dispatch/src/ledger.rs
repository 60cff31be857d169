//! What is accepted and not settled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use idemp_core::{IdempotencyKey, Message};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::settlement::Settlement;
use crate::slot::{Settle, Settled, slot};

/// Keeps account of every event in every lane, from its acceptance to its settlement.
#[derive(Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Open,
    unsettled: HashMap<IdempotencyKey, Places>,
    /// Counts what was accepted since the last [`seal`](Ledger::seal) and is unsettled.
    current: TaskTracker,
    /// Sealed counters that are not down to nothing yet.
    earlier: Vec<TaskTracker>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Open {
    #[default]
    Yes,
    /// A letter could not be saved.
    Refusing,
    /// Shut down.
    Closed,
}

/// The lanes in which an event is on its way, mostly one.
#[derive(Default)]
struct Places {
    /// `None` if there is no other either.
    first: Option<Place>,
    others: Vec<Place>,
}

/// One event in one lane.
struct Place {
    lane: usize,
    body: Bytes,
    settled: Settled,
}

/// Why an event is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Another event, with other bytes, is on its way under the same key.
    Conflict,
    /// A dead letter could not be saved.
    DeadLettersFail,
    /// Shut down.
    Closed,
}

/// An accepted event in one lane: it must be settled. Dropped before, it tells whoever waits that nothing will come.
pub(crate) struct Unsettled {
    message: Message,
    lane: usize,
    ledger: Arc<Ledger>,
    /// `None` once it is settled.
    settle: Option<Settle>,
    _counted: TaskTrackerToken,
}

/// What became of an event in one of the lanes for which it was accepted.
pub(crate) struct Accepted {
    /// What will be heard of it.
    pub(crate) settled: Settled,
    /// The event, `None` if it was on its way there already.
    pub(crate) fresh: Option<Unsettled>,
}

impl Ledger {
    /// Where the event is on its way in all of these lanes, `None` if in some it is not.
    ///
    /// # Errors
    /// If it may not be submitted at all.
    pub(crate) fn look_up(&self, message: &Message, lanes: &[usize]) -> Result<Option<Vec<Settled>>, Rejection> {
        let state = self.lock();
        state.admits()?;
        let Some(places) = state.unsettled.get(message.key()) else {
            return Ok(None);
        };
        places.admit(message)?;
        Ok(lanes.iter().map(|lane| places.settled_in(*lane)).collect())
    }

    /// Accepts the event in all of these lanes at once, in their order, or in none.
    ///
    /// # Errors
    /// As [`look_up`](Self::look_up).
    pub(crate) fn accept(
        self: &Arc<Self>,
        message: &Message,
        lanes: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Vec<Accepted>, Rejection> {
        let mut accepted = Vec::with_capacity(lanes.len());
        let mut state = self.lock();
        state.admits()?;
        if lanes.len() == 0 {
            return Ok(accepted);
        }
        let State { unsettled, current, .. } = &mut *state;
        let places = unsettled.entry(message.key().clone()).or_default();
        places.admit(message)?;
        for lane in lanes {
            let in_lane = match places.settled_in(lane) {
                Some(settled) => Accepted { settled, fresh: None },
                None => {
                    let (settle, settled) = slot();
                    places.push(Place {
                        lane,
                        body: message.body().clone(),
                        settled: settled.clone(),
                    });
                    let event = Unsettled {
                        message: message.clone(),
                        lane,
                        ledger: Arc::clone(self),
                        settle: Some(settle),
                        // Counted while the state is locked: a shutdown waits for the event, or it is refused.
                        _counted: current.token(),
                    };
                    Accepted {
                        settled,
                        fresh: Some(event),
                    }
                }
            };
            accepted.push(in_lane);
        }
        Ok(accepted)
    }

    /// Counters, each closed, of all that is unsettled now; what is accepted from here on is in none of them.
    pub(crate) fn seal(&self) -> Vec<TaskTracker> {
        let mut state = self.lock();
        let current = std::mem::take(&mut state.current);
        current.close();
        state.earlier.push(current);
        state.earlier.retain(|counter| !counter.is_empty());
        state.earlier.clone()
    }

    /// Takes nothing more, for good.
    pub(crate) fn close(&self) {
        self.lock().open = Open::Closed;
    }

    /// Takes events again after one could not be saved.
    pub(crate) fn accept_again(&self) {
        let mut state = self.lock();
        if state.open == Open::Refusing {
            state.open = Open::Yes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn admits(&self) -> Result<(), Rejection> {
        match self.open {
            Open::Yes => Ok(()),
            Open::Refusing => Err(Rejection::DeadLettersFail),
            Open::Closed => Err(Rejection::Closed),
        }
    }

    fn forget(&mut self, key: &IdempotencyKey, lane: usize) {
        if let Some(places) = self.unsettled.get_mut(key) {
            places.remove(lane);
            if places.first.is_none() {
                self.unsettled.remove(key);
            }
        }
    }
}

impl Places {
    fn iter(&self) -> impl Iterator<Item = &Place> {
        self.first.iter().chain(&self.others)
    }

    /// One event alone may be on its way under a key.
    fn admit(&self, message: &Message) -> Result<(), Rejection> {
        match self.iter().all(|place| place.body == message.body()) {
            true => Ok(()),
            false => Err(Rejection::Conflict),
        }
    }

    fn settled_in(&self, lane: usize) -> Option<Settled> {
        let place = self.iter().find(|place| place.lane == lane)?;
        Some(place.settled.clone())
    }

    fn push(&mut self, place: Place) {
        match self.first {
            None => self.first = Some(place),
            Some(_) => self.others.push(place),
        }
    }

    fn remove(&mut self, lane: usize) {
        match &self.first {
            Some(first) if first.lane == lane => self.first = self.others.pop(),
            _ => self.others.retain(|place| place.lane != lane),
        }
    }
}

impl Unsettled {
    pub(crate) const fn message(&self) -> &Message {
        &self.message
    }

    /// Tells all who wait how the event has ended. One that nobody saved closes the ledger to new ones.
    pub(crate) fn settle(mut self, settlement: Settlement) {
        let Some(settle) = self.settle.take() else { return };
        let mut state = self.ledger.lock();
        if matches!(settlement, Settlement::Unsaved { .. }) && state.open == Open::Yes {
            state.open = Open::Refusing;
        }
        // Forgotten before it is told, so that whoever hears of it can submit it anew.
        state.forget(self.message.key(), self.lane);
        drop(state);
        settle.tell(settlement);
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if self.settle.is_some() {
            self.ledger.lock().forget(self.message.key(), self.lane);
        }
    }
}
