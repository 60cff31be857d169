//! Stops sending to a sink that is not there (docs/retry.md, "Circuit breaker").
//!
//! A pure machine, one per sink: it is asked before each attempt and told how each ended. Times are offsets on a
//! monotonic clock from an origin that the caller picks once.

use std::collections::VecDeque;
use std::time::Duration;

/// Seconds that rule (b) looks back over.
const WINDOW: u64 = 60;
/// Length of the slices of that window, each of which must be busy, in seconds.
const SLICE: u64 = 10;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Rule (a): this many deliveries exhausted in a row, with no success between them, open it. Default 10.
    pub exhausted_in_a_row: u32,
    /// Rule (b): dead letters faster than this many a second, sustained for 60 s, open it. Default 10.
    pub letters_per_second: u32,
    /// How long it stays open before it lets one probe through. Default 5 minutes.
    pub open_for: Duration,
    /// How long a probe may take before it counts as failed: the attempt's timeout and a second. Default 6 s.
    pub probe_lease: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            exhausted_in_a_row: 10,
            letters_per_second: 10,
            open_for: Duration::from_secs(300),
            probe_lease: Duration::from_secs(6),
        }
    }
}

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Everything passes.
    Closed,
    /// Nothing passes.
    Open,
    /// One probe passes, nothing else.
    HalfOpen,
}

impl BreakerState {
    /// Stable code for metrics and logs.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// Why a breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpenedBy {
    /// Rule (a): too many deliveries exhausted in a row.
    ExhaustedInARow,
    /// Rule (b): dead letters too fast for too long.
    LetterRate,
    /// The probe failed.
    ProbeFailed,
    /// The probe did not come back in time.
    ProbeLeaseExpired,
}

impl OpenedBy {
    /// Stable code for metrics and logs.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::ExhaustedInARow => "exhausted_in_a_row",
            Self::LetterRate => "letter_rate",
            Self::ProbeFailed => "probe_failed",
            Self::ProbeLeaseExpired => "probe_lease_expired",
        }
    }
}

/// A change of state, for logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state before.
    pub from: BreakerState,
    /// The state after.
    pub to: BreakerState,
    /// When, on the caller's monotonic clock.
    pub at: Duration,
    /// Why, if it opened.
    pub opened_by: Option<OpenedBy>,
}

/// The answer to "may this attempt go out?".
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// Yes. The permit must come back through [`Breaker::settle`].
    Admit(Permit),
    /// No: dead-letter the event.
    Refuse,
}

/// Leave for one attempt. It remembers the breaker's generation, so that a late result moves nothing.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a permit goes back through Breaker::settle"]
pub struct Permit {
    generation: u64,
    probe: bool,
}

impl Permit {
    /// Whether this is the one attempt that decides if the breaker closes. A probe is not retried.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.probe
    }
}

/// How an attempt ended, as far as the breaker cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The event was delivered.
    Delivered,
    /// The attempt failed in a way that may pass, and the event waits for its next one.
    Retryable,
    /// So did the last attempt of its schedule, or the peer asked for more patience than there is: a dead letter.
    Exhausted,
    /// The peer refuses everything from us: a dead letter.
    Configuration,
    /// The peer refuses this event, or the attempt was cancelled: nothing is learned of the receiver.
    Neutral,
}

#[derive(Debug)]
enum State {
    Closed,
    Open { until: Duration },
    HalfOpen { lease: Option<Duration> },
}

/// A circuit breaker.
#[derive(Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: State,
    generation: u64,
    exhausted: u32,
    letters: LetterRate,
    transitions: VecDeque<Transition>,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(config: BreakerConfig) -> Self {
        Self {
            config,
            state: State::Closed,
            generation: 0,
            exhausted: 0,
            letters: LetterRate::default(),
            transitions: VecDeque::new(),
        }
    }

    /// Where it stands, as of the last call.
    #[must_use]
    pub const fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// The next change of state that nobody has been told of, oldest first.
    pub fn poll_transition(&mut self) -> Option<Transition> {
        self.transitions.pop_front()
    }

    /// Asks whether an attempt may go out.
    pub fn admit(&mut self, now: Duration) -> Admission {
        self.advance(now);
        match &mut self.state {
            State::Closed => Admission::Admit(Permit {
                generation: self.generation,
                probe: false,
            }),
            State::HalfOpen { lease: place @ None } => {
                *place = Some(now.saturating_add(self.config.probe_lease));
                Admission::Admit(Permit {
                    generation: self.generation,
                    probe: true,
                })
            }
            State::HalfOpen { lease: Some(_) } | State::Open { .. } => Admission::Refuse,
        }
    }

    /// Tells how an admitted attempt ended.
    pub fn settle(&mut self, permit: Permit, signal: Signal, now: Duration) {
        self.advance(now);
        if permit.generation != self.generation {
            return;
        }
        if permit.probe {
            self.settle_probe(signal, now);
        } else {
            self.count(signal, now);
        }
    }

    fn settle_probe(&mut self, signal: Signal, now: Duration) {
        match signal {
            Signal::Delivered => self.close(now),
            Signal::Retryable | Signal::Exhausted | Signal::Configuration => self.open(now, OpenedBy::ProbeFailed),
            Signal::Neutral => self.state = State::HalfOpen { lease: None },
        }
    }

    fn count(&mut self, signal: Signal, now: Duration) {
        match signal {
            Signal::Delivered => self.exhausted = 0,
            Signal::Exhausted => {
                self.exhausted = self.exhausted.saturating_add(1);
                self.letters.count(now);
                if self.exhausted >= self.config.exhausted_in_a_row {
                    self.open(now, OpenedBy::ExhaustedInARow);
                }
            }
            Signal::Configuration => self.letters.count(now),
            Signal::Retryable | Signal::Neutral => {}
        }
    }

    /// Lets time pass: leases run out, open ends, and rule (b) looks at the seconds that are complete.
    fn advance(&mut self, now: Duration) {
        loop {
            match self.state {
                State::Closed => {
                    if self.letters.too_fast(now, self.config.letters_per_second) {
                        self.open(now, OpenedBy::LetterRate);
                    }
                    return;
                }
                State::Open { until } if now >= until => self.enter(State::HalfOpen { lease: None }, until, None),
                State::HalfOpen { lease: Some(end) } if now >= end => self.open(end, OpenedBy::ProbeLeaseExpired),
                State::Open { .. } | State::HalfOpen { .. } => return,
            }
        }
    }

    fn open(&mut self, at: Duration, by: OpenedBy) {
        self.enter(
            State::Open {
                until: at.saturating_add(self.config.open_for),
            },
            at,
            Some(by),
        );
    }

    fn close(&mut self, at: Duration) {
        self.exhausted = 0;
        self.letters = LetterRate::default();
        self.enter(State::Closed, at, None);
    }

    fn enter(&mut self, state: State, at: Duration, opened_by: Option<OpenedBy>) {
        let from = self.state();
        self.state = state;
        self.generation += 1;
        self.transitions.push_back(Transition {
            from,
            to: self.state(),
            at,
            opened_by,
        });
    }
}

/// Dead letters per second over the last minute.
#[derive(Debug, Default)]
struct LetterRate {
    /// Seconds in which letters came, oldest first, with their numbers.
    seconds: VecDeque<(u64, u64)>,
    /// The second at which the rate was last looked at; it changes only when another second is complete.
    looked_at: Option<u64>,
}

impl LetterRate {
    fn count(&mut self, now: Duration) {
        let second = now.as_secs();
        match self.seconds.back_mut() {
            // Threads may read their clocks in one order and get here in another.
            Some((last, letters)) if *last >= second => *letters += 1,
            _ => self.seconds.push_back((second, 1)),
        }
        self.forget_before(second.saturating_sub(WINDOW));
    }

    /// More than `rate` a second over the last 60 complete seconds in all, at least `rate` a second on average in
    /// each of its six slices, and the oldest second not empty: one burst is not a rate.
    fn too_fast(&mut self, now: Duration, rate: u32) -> bool {
        let second = now.as_secs();
        if self.seconds.is_empty() || self.looked_at == Some(second) {
            return false;
        }
        self.looked_at = Some(second);
        let Some(oldest) = second.checked_sub(WINDOW) else {
            return false;
        };
        self.forget_before(oldest);

        let mut slices = [0; (WINDOW / SLICE) as usize];
        for &(at, letters) in self.seconds.iter().filter(|(at, _)| *at < second) {
            slices[((at - oldest) / SLICE) as usize] += letters;
        }
        let rate = u64::from(rate);
        self.seconds.front().is_some_and(|(at, _)| *at == oldest)
            && slices.iter().sum::<u64>() > rate * WINDOW
            && slices.iter().all(|letters| *letters >= rate * SLICE)
    }

    fn forget_before(&mut self, second: u64) {
        while self.seconds.front().is_some_and(|(at, _)| *at < second) {
            self.seconds.pop_front();
        }
    }
}
