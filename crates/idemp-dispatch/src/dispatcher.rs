//! Takes events on and fans them out to the lanes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use idemp_core::{Message, Refusal, SinkName};
use tokio::runtime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, SystemClock};
use crate::config::{ConfigError, LaneConfig};
use crate::lane::Lane;
use crate::ledger::{Accepted, Ledger, Rejection};
use crate::room::Room;
use crate::settlement::{Handle, Report};
use crate::stats::Stats;

/// Takes events and sees each of them to its end at every sink.
///
/// Cloning it shares it. An event runs on the tokio runtime in which it is submitted, and is lost with it. That runtime
/// must be driven until the event is settled: one that is not takes a place of the lane from all others. Dropping every
/// clone leaves what was accepted on its way; [`shutdown`](Self::shutdown) is the orderly end. A crash loses what is
/// still in memory.
#[derive(Clone)]
pub struct Dispatcher {
    inner: Arc<Inner>,
}

struct Inner {
    lanes: Vec<Arc<Lane>>,
    ledger: Arc<Ledger>,
    clock: Arc<dyn Clock>,
    stopping: CancellationToken,
    aborting: CancellationToken,
}

/// What a submitted event meets.
enum Asked {
    /// The same event, in every lane that takes it.
    OnItsWay(Handle),
    /// These lanes, by their numbers, which take it.
    Wanted(Vec<usize>),
}

/// Room in one lane, by its number.
type Seat = (usize, Room);

impl Dispatcher {
    /// A dispatcher over these lanes.
    ///
    /// # Errors
    /// If there is no lane, two have one name, or a field breaks its rule.
    pub fn new(lanes: Vec<LaneConfig>) -> Result<Self, ConfigError> {
        Self::with_clock(lanes, Arc::new(SystemClock))
    }

    /// The same with another time of day. The monotonic clock is tokio's.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_clock(lanes: Vec<LaneConfig>, clock: Arc<dyn Clock>) -> Result<Self, ConfigError> {
        if lanes.is_empty() {
            return Err(ConfigError::NoLane);
        }
        for (index, lane) in lanes.iter().enumerate() {
            lane.check()?;
            if lanes[..index].iter().any(|other| other.name == lane.name) {
                return Err(ConfigError::NameTwice(lane.name.clone()));
            }
        }
        let (stopping, aborting) = (CancellationToken::new(), CancellationToken::new());
        let lane = |config| {
            Arc::new(Lane::new(
                config,
                Arc::clone(&clock),
                stopping.clone(),
                aborting.clone(),
            ))
        };
        let inner = Inner {
            lanes: lanes.into_iter().map(lane).collect(),
            ledger: Arc::default(),
            clock,
            stopping,
            aborting,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Takes an event and waits until every sink has settled it.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// # Cancel safety
    /// Dropping the future before the event is accepted forgets it; after that it stops the waiting, not the event.
    pub async fn dispatch(&self, message: Message) -> Result<Report, SubmitError> {
        Ok(self.submit(message).await?.settled().await)
    }

    /// Takes an event, waiting for room in the lanes that ask for it, and returns once it is accepted.
    ///
    /// An event that is on its way already, with the same key and bytes, is joined rather than sent twice.
    ///
    /// # Errors
    /// If a sink could never send it, another event is on its way under its key, or the dispatcher takes no more.
    /// The event is in the error, and no lane has taken it.
    ///
    /// # Cancel safety
    /// Dropping the future before the event is accepted forgets it. It is accepted at once in all lanes, at the end.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or if the clock does. No lane has taken the event then.
    pub async fn submit(&self, message: Message) -> Result<Handle, SubmitError> {
        let wanting = match self.ask(&message)? {
            Asked::OnItsWay(handle) => return Ok(handle),
            Asked::Wanted(lanes) => lanes,
        };
        let mut seats = Vec::with_capacity(wanting.len());
        for index in wanting {
            let lane = &self.inner.lanes[index];
            let len = message.body().len();
            let room = match lane.rooms.take_now(len) {
                Some(room) => Some(room),
                None => tokio::select! {
                    biased;
                    () = self.inner.stopping.cancelled() => None,
                    room = lane.rooms.take(len) => room,
                },
            };
            match room {
                Some(room) => seats.push((index, room)),
                None => return Err(SubmitError::new(SubmitErrorKind::Closed, message)),
            }
        }
        self.accept(message, seats)
    }

    /// As [`submit`](Self::submit), but never waits.
    ///
    /// # Errors
    /// Also if a lane has no room.
    ///
    /// # Panics
    /// As [`submit`](Self::submit).
    pub fn try_submit(&self, message: Message) -> Result<Handle, SubmitError> {
        let wanting = match self.ask(&message)? {
            Asked::OnItsWay(handle) => return Ok(handle),
            Asked::Wanted(lanes) => lanes,
        };
        let mut seats = Vec::with_capacity(wanting.len());
        for index in wanting {
            let lane = &self.inner.lanes[index];
            match lane.rooms.take_now(message.body().len()) {
                Some(room) => seats.push((index, room)),
                None => return Err(SubmitError::new(SubmitErrorKind::Full(lane.name().clone()), message)),
            }
        }
        self.accept(message, seats)
    }

    /// Which lanes take the event. Most of what can be refused is refused here, before anything is waited for.
    fn ask(&self, message: &Message) -> Result<Asked, SubmitError> {
        let error = |kind| SubmitError::new(kind, message.clone());
        let mut wanted = Vec::with_capacity(self.inner.lanes.len());
        for (index, lane) in self.inner.lanes.iter().enumerate() {
            if !lane.takes(message) {
                continue;
            }
            let refused = |refusal| {
                error(SubmitErrorKind::Refused {
                    sink: lane.name().clone(),
                    refusal,
                })
            };
            lane.config.sink.check(message).map_err(refused)?;
            wanted.push(index);
        }
        let on_its_way = self.inner.ledger.look_up(message, &wanted);
        match on_its_way.map_err(|rejection| error(rejection.into()))? {
            // An event that is on its way in all of these lanes needs no room.
            Some(settled) => {
                let names = wanted.iter().map(|lane| self.inner.lanes[*lane].name().clone());
                Ok(Asked::OnItsWay(Handle {
                    key: message.key().clone(),
                    places: names.zip(settled).collect(),
                }))
            }
            None => Ok(Asked::Wanted(wanted)),
        }
    }

    /// Accepts the event in all lanes at once, or in none.
    fn accept(&self, message: Message, seats: Vec<Seat>) -> Result<Handle, SubmitError> {
        // First what can panic: nothing is accepted yet.
        let (runtime, accepted_at) = (runtime::Handle::current(), self.inner.clock.now());
        let accepted = match self.inner.ledger.accept(&message, seats.iter().map(|(lane, _)| *lane)) {
            Ok(accepted) => accepted,
            Err(rejection) => return Err(SubmitError::new(rejection.into(), message)),
        };
        let mut places = Vec::with_capacity(seats.len());
        for ((lane, room), Accepted { settled, fresh }) in seats.into_iter().zip(accepted) {
            let lane = &self.inner.lanes[lane];
            places.push((lane.name().clone(), settled));
            if let Some(event) = fresh {
                lane.take(event, room, accepted_at, &runtime);
            }
        }
        Ok(Handle {
            key: message.key().clone(),
            places,
        })
    }

    /// Waits until what was accepted before the call is settled, and goes on working. Returns how many
    /// (event, sink) pairs were not settled in time. Nobody waits for what is lost with its runtime; see
    /// [`LaneStats::lost`](crate::LaneStats::lost).
    ///
    /// # Cancel safety
    /// Safe: dropping the future only stops the waiting.
    pub async fn flush(&self, timeout: Duration) -> usize {
        let unsettled = self.inner.ledger.seal();
        let all = async {
            for counter in &unsettled {
                counter.wait().await;
            }
        };
        let _in_time = tokio::time::timeout(timeout, all).await;
        unsettled.iter().map(TaskTracker::len).sum()
    }

    /// Ends in order: nothing more is accepted; waits are cut short and their events dead-lettered with reason
    /// `shutdown`; attempts in flight may end within `deadline`, then they are dead-lettered as maybe delivered;
    /// the sinks are closed, once, each within `deadline` again. Returns the final counts, in which nothing is unsettled.
    ///
    /// # Cancel safety
    /// Once begun, the end goes on if the future is dropped, but attempts in flight get no deadline and sinks are not
    /// closed. Calling it again waits for the same end; a sink whose closing was cut short is closed again.
    pub async fn shutdown(&self, deadline: Duration) -> Stats {
        self.inner.ledger.close();
        self.inner.stopping.cancel();
        for lane in &self.inner.lanes {
            lane.stop();
        }
        if self.flush(deadline).await > 0 {
            self.inner.aborting.cancel();
            self.flush(Duration::MAX).await;
        }
        for lane in &self.inner.lanes {
            lane.close(deadline).await;
        }
        self.stats()
    }

    /// Takes new work again after a dead letter could not be saved, when the operator has mended the store.
    pub fn accept_again(&self) {
        self.inner.ledger.accept_again();
    }

    /// Counts since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            lanes: self.inner.lanes.iter().map(|lane| lane.stats()).collect(),
        }
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("stats", &self.stats()).finish()
    }
}

/// An event that was not accepted, with the event.
#[derive(Debug)]
pub struct SubmitError {
    kind: SubmitErrorKind,
    message: Box<Message>,
}

impl SubmitError {
    fn new(kind: SubmitErrorKind, message: Message) -> Self {
        Self {
            kind,
            message: Box::new(message),
        }
    }

    /// Why it was not accepted.
    #[must_use]
    pub const fn kind(&self) -> &SubmitErrorKind {
        &self.kind
    }

    /// The event, to be submitted again or kept elsewhere.
    #[must_use]
    pub fn into_message(self) -> Message {
        *self.message
    }
}

/// Why an event was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitErrorKind {
    /// A sink could never send it.
    Refused {
        /// Which sink.
        sink: SinkName,
        /// Why.
        refusal: Refusal,
    },
    /// Another event, with other bytes, is on its way under the same key.
    Conflict,
    /// This lane has no room.
    Full(SinkName),
    /// A dead letter could not be saved. See [`Dispatcher::accept_again`].
    DeadLettersFail,
    /// The dispatcher was shut down.
    Closed,
}

impl From<Rejection> for SubmitErrorKind {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Conflict => Self::Conflict,
            Rejection::DeadLettersFail => Self::DeadLettersFail,
            Rejection::Closed => Self::Closed,
        }
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.message.key();
        match &self.kind {
            SubmitErrorKind::Refused { sink, .. } => write!(f, "sink {sink} can never send event {key}"),
            SubmitErrorKind::Conflict => write!(f, "another event is on its way under key {key}"),
            SubmitErrorKind::Full(sink) => write!(f, "lane {sink} has no room for event {key}"),
            SubmitErrorKind::DeadLettersFail => {
                write!(
                    f,
                    "event {key} is not accepted: a dead letter before it could not be saved"
                )
            }
            SubmitErrorKind::Closed => write!(f, "event {key} is not accepted: the dispatcher is shut down"),
        }
    }
}

impl std::error::Error for SubmitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            SubmitErrorKind::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}
