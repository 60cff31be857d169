//! How long a receiver remembers a key (docs/receiver.md).

use std::fmt;
use std::time::Duration;

/// How often events come, from which the time to remember them follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Cadence {
    /// Per tool, per call: 24 hours.
    #[default]
    SubMinute,
    /// Per run: 7 days.
    SubHour,
    /// Summaries: 30 days.
    Daily,
}

impl Cadence {
    /// How long a done key is remembered.
    #[must_use]
    pub const fn ttl(self) -> Duration {
        const DAY: u64 = 24 * 60 * 60;
        Duration::from_secs(match self {
            Self::SubMinute => DAY,
            Self::SubHour => 7 * DAY,
            Self::Daily => 30 * DAY,
        })
    }
}

/// How long a done key is remembered, checked against the sender's retry budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl(Duration);

impl Ttl {
    /// Takes a time of whole seconds; a fraction is rounded up.
    ///
    /// # Errors
    /// If it is shorter than twice the sender's retry budget: a late retry would be taken for a new event.
    pub fn new(ttl: Duration, retry_budget: Duration) -> Result<Self, TtlError> {
        let least = retry_budget.saturating_mul(2);
        if ttl < least {
            return Err(TtlError { ttl, least });
        }
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        Ok(Self(Duration::from_secs(seconds)))
    }

    /// The time.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        self.0
    }
}

/// A time to remember that is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlError {
    ttl: Duration,
    least: Duration,
}

impl fmt::Display for TtlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ttl, least) = (self.ttl, self.least);
        write!(
            f,
            "a key would be remembered for {ttl:?}, but at least twice the retry budget is needed, {least:?}"
        )
    }
}

impl std::error::Error for TtlError {}
