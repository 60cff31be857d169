//! When to try again: 1 s, 5 s, 30 s (docs/retry.md).

use std::fmt;
use std::time::Duration;

/// The waits before the second and later attempts. Their sum is the budget: total waiting never passes it.
///
/// There is no jitter: the spec's table is exact, and a lane's concurrency limit spreads a herd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetrySchedule {
    waits: Vec<Duration>,
    budget: Duration,
    shortest: Duration,
}

/// What to do after an attempt that may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Try again after this long, counted from the settlement of the attempt before.
    Wait(Duration),
    /// The schedule, or its budget, is used up.
    Exhausted,
    /// The peer asked for a longer pause than is left of the budget.
    RetryAfterExceedsBudget,
}

impl Default for RetrySchedule {
    /// 1 s, 5 s, 30 s: four attempts, 36 s of waiting.
    fn default() -> Self {
        Self {
            waits: vec![Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)],
            budget: Duration::from_secs(36),
            shortest: Duration::from_secs(1),
        }
    }
}

impl RetrySchedule {
    /// A schedule of one's own. An empty list means one attempt and no retry. A wait that `Retry-After` has cut
    /// into is still worth an attempt if it is as long as the shortest of the list, at most 1 s.
    ///
    /// # Errors
    /// If a wait is zero, or all together are longer than a day.
    pub fn new(waits: Vec<Duration>) -> Result<Self, ScheduleError> {
        if let Some(index) = waits.iter().position(Duration::is_zero) {
            return Err(ScheduleError::ZeroWait { index });
        }
        let day = Duration::from_secs(24 * 60 * 60);
        let budget = waits.iter().try_fold(Duration::ZERO, |sum, wait| {
            sum.checked_add(*wait).filter(|sum| *sum <= day)
        });
        let budget = budget.ok_or(ScheduleError::OverADay)?;
        let shortest = waits
            .iter()
            .copied()
            .min()
            .unwrap_or_default()
            .min(Duration::from_secs(1));
        Ok(Self {
            waits,
            budget,
            shortest,
        })
    }

    /// One attempt, no retry.
    #[must_use]
    pub const fn once() -> Self {
        Self {
            waits: Vec::new(),
            budget: Duration::ZERO,
            shortest: Duration::ZERO,
        }
    }

    /// The same schedule with every wait multiplied, for demonstrations and tests.
    ///
    /// # Errors
    /// If the factor makes a wait zero, or all together longer than a day.
    pub fn scaled(&self, factor: f64) -> Result<Self, ScheduleError> {
        let scale = |wait: &Duration| Duration::try_from_secs_f64(wait.as_secs_f64() * factor).unwrap_or_default();
        Self::new(self.waits.iter().map(scale).collect())
    }

    /// The waits, in order.
    #[must_use]
    pub fn waits(&self) -> &[Duration] {
        &self.waits
    }

    /// How many attempts there are at most.
    #[must_use]
    pub fn attempts(&self) -> usize {
        self.waits.len() + 1
    }

    /// How long all waits together may be.
    #[must_use]
    pub const fn budget(&self) -> Duration {
        self.budget
    }

    /// What follows after `failed` failed attempts, having waited for `waited` in all, if the last one was told
    /// to wait for `retry_after`.
    ///
    /// The next wait is the longer of the two, never earlier than asked. A scheduled wait is cut to what is left
    /// of the budget; if less than the shortest wait is left there is no further attempt.
    #[must_use]
    pub fn next(&self, failed: usize, waited: Duration, retry_after: Option<Duration>) -> Next {
        let Some(scheduled) = failed.checked_sub(1).and_then(|index| self.waits.get(index)) else {
            return Next::Exhausted;
        };
        self.wait(*scheduled, waited, retry_after)
    }

    /// What follows when the peer pushed back for the `pushed`th time in a row, having waited for `waited` in all.
    ///
    /// The wait is the schedule's first, doubled each time, up to the longest of the schedule: 1, 2, 4, 8, 16 s and
    /// what is left of 36 s by default. Everything else is as in [`next`](Self::next).
    #[must_use]
    pub fn push_back(&self, pushed: u32, waited: Duration, retry_after: Option<Duration>) -> Next {
        let (Some(first), Some(longest)) = (self.waits.first(), self.waits.iter().max()) else {
            return Next::Exhausted;
        };
        let factor = 2_u32.saturating_pow(pushed.saturating_sub(1));
        self.wait(first.saturating_mul(factor).min(*longest), waited, retry_after)
    }

    fn wait(&self, scheduled: Duration, waited: Duration, retry_after: Option<Duration>) -> Next {
        let left = self.budget.saturating_sub(waited);
        let asked = retry_after.unwrap_or_default();
        if asked > left {
            Next::RetryAfterExceedsBudget
        } else if left < self.shortest {
            Next::Exhausted
        } else {
            Next::Wait(scheduled.min(left).max(asked))
        }
    }
}

/// Why a list of waits is no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A wait of no time would be a hot loop.
    ZeroWait {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// All waits together are longer than a day.
    OverADay,
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroWait { index } => write!(f, "wait {} of the retry schedule is zero", index + 1),
            Self::OverADay => f.write_str("the waits of the retry schedule are longer than a day together"),
        }
    }
}

impl std::error::Error for ScheduleError {}
