//! What a lane is told, and what it refuses to be told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use idemp_core::{BreakerConfig, EventType, Message, Mode, RetrySchedule, Sink, SinkName, StatusPolicy};
use idemp_dlq::DeadLetterStore;
use tokio::sync::Semaphore;

/// The longest time for an attempt, and for a write of a dead letter.
const LONGEST: Duration = Duration::from_secs(3600);

/// Which events a lane takes.
pub type Filter = Arc<dyn Fn(&Message) -> bool + Send + Sync>;

/// What happens to an event when its lane has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnFull {
    /// `submit` waits: back-pressure. With several sinks one sick lane then holds up `submit` until its breaker opens.
    #[default]
    Wait,
    /// The event becomes a dead letter with reason `lane_full`; at most once, it is dropped and counted. As many events
    /// as the lane holds may be on that way; beyond that, `submit` waits.
    DeadLetter,
}

/// One sink and how it is treated. The fields are open; [`Dispatcher::new`](crate::Dispatcher::new) checks them.
#[derive(Clone)]
pub struct LaneConfig {
    /// Logical name, unique in a dispatcher: it labels metrics and names the sink in dead letters.
    pub name: SinkName,
    /// Where events go.
    pub sink: Arc<dyn Sink>,
    /// Where events go that did not get there. Needed unless `mode` is at-most-once.
    pub dead_letters: Option<Arc<dyn DeadLetterStore>>,
    /// Where dead letters go when `dead_letters` fails.
    pub fallback: Option<Arc<dyn DeadLetterStore>>,
    /// What the lane promises. Default: at least once.
    pub mode: Mode,
    /// When attempts follow each other. Default: after 1 s, 5 s and 30 s. Not used at most once.
    pub schedule: RetrySchedule,
    /// What a status means. Default: the table of docs/retry.md.
    pub policy: StatusPolicy,
    /// How long one attempt may take, over connecting, sending and reading the answer, above zero. Default 5 s, at
    /// most an hour.
    pub attempt_timeout: Duration,
    /// When the circuit breaker opens. Its `probe_lease` is always `attempt_timeout` and a second.
    pub breaker: BreakerConfig,
    /// How many attempts are in flight at most. An event that waits for its retry holds no place. Default 64.
    pub concurrency: usize,
    /// How many events may be unsettled. Default 10,000, at most `usize::MAX >> 3`.
    pub max_events: usize,
    /// How many bytes of bodies may be unsettled; a body larger than that has the lane to itself. Default 64 MiB,
    /// less than 4 GiB.
    pub max_bytes: usize,
    /// What happens beyond that. Default: `submit` waits.
    pub on_full: OnFull,
    /// Which events the lane takes. Default: all.
    pub filter: Option<Filter>,
    /// How long a dead-letter store may take to answer before it counts as failed, above zero. Default 5 s, at most an
    /// hour.
    pub store_timeout: Duration,
}

impl LaneConfig {
    /// A lane with every default.
    #[must_use]
    pub fn new(name: SinkName, sink: Arc<dyn Sink>, dead_letters: Arc<dyn DeadLetterStore>) -> Self {
        Self {
            dead_letters: Some(dead_letters),
            ..Self::bare(name, sink, Mode::AtLeastOnce)
        }
    }

    /// A lane that sends each event once and counts what is lost.
    #[must_use]
    pub fn at_most_once(name: SinkName, sink: Arc<dyn Sink>) -> Self {
        Self::bare(name, sink, Mode::AtMostOnce)
    }

    fn bare(name: SinkName, sink: Arc<dyn Sink>, mode: Mode) -> Self {
        Self {
            name,
            sink,
            dead_letters: None,
            fallback: None,
            mode,
            schedule: RetrySchedule::default(),
            policy: StatusPolicy::default(),
            attempt_timeout: Duration::from_secs(5),
            breaker: BreakerConfig::default(),
            concurrency: 64,
            max_events: 10_000,
            max_bytes: 64 << 20,
            on_full: OnFull::Wait,
            filter: None,
            store_timeout: Duration::from_secs(5),
        }
    }

    /// Takes only these event types.
    #[must_use]
    pub fn only(mut self, event_types: impl IntoIterator<Item = EventType>) -> Self {
        let wanted: Vec<EventType> = event_types.into_iter().collect();
        self.filter = Some(Arc::new(move |message| {
            wanted
                .iter()
                .any(|event_type| event_type.as_str() == message.key().event_type())
        }));
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let bad = |field, rule| {
            Err(ConfigError::Lane {
                name: self.name.clone(),
                field,
                rule,
            })
        };
        if self.mode == Mode::AtLeastOnce && self.dead_letters.is_none() {
            return bad(
                "dead_letters",
                "a lane that delivers at least once needs a dead-letter store",
            );
        }
        for (field, timeout) in [
            ("attempt_timeout", self.attempt_timeout),
            ("store_timeout", self.store_timeout),
        ] {
            if timeout.is_zero() || timeout > LONGEST {
                return bad(field, "it must be above zero and at most an hour");
            }
        }
        if self.concurrency == 0 || self.max_events == 0 || self.max_bytes == 0 {
            return bad("concurrency, max_events or max_bytes", "none may be zero");
        }
        let most = Semaphore::MAX_PERMITS;
        if self.max_events > most || self.max_bytes > most.min(u32::MAX as usize) {
            return bad("max_events or max_bytes", "it is too large");
        }
        if self.breaker.exhausted_in_a_row == 0 || self.breaker.letters_per_second == 0 {
            return bad("breaker", "its limits must be above zero");
        }
        Ok(())
    }
}

impl fmt::Debug for LaneConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneConfig")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// A configuration that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no lane.
    NoLane,
    /// Two lanes have one name.
    NameTwice(SinkName),
    /// A lane's field breaks its rule.
    Lane {
        /// Which lane.
        name: SinkName,
        /// Which field.
        field: &'static str,
        /// What the rule is.
        rule: &'static str,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLane => f.write_str("a dispatcher needs at least one lane"),
            Self::NameTwice(name) => write!(f, "two lanes are called {name}"),
            Self::Lane { name, field, rule } => write!(f, "lane {name}: {field}: {rule}"),
        }
    }
}

impl std::error::Error for ConfigError {}
