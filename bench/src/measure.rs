//! Samples in pairs: ours, the other side, the other side, ours, and so on.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long one sample of something fast takes.
const SAMPLE: Duration = Duration::from_millis(40);

/// Samples of both sides, in seconds for the same piece of work; those at one place were taken one after the other.
pub(crate) struct Pairs {
    ours: Vec<f64>,
    other: Vec<f64>,
}

/// The least, the middle and the greatest.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Pairs {
    /// Takes `rounds` pairs, after one that only warms up. Who begins alternates. A sample is a number of seconds.
    pub(crate) fn take(
        rounds: usize,
        mut ours: impl FnMut() -> anyhow::Result<f64>,
        mut other: impl FnMut() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Self> {
        let mut pairs = Self {
            ours: Vec::with_capacity(rounds),
            other: Vec::with_capacity(rounds),
        };
        ours()?;
        other()?;
        for round in 0..rounds {
            let (a, b) = if round % 2 == 0 {
                let a = ours()?;
                (a, other()?)
            } else {
                let b = other()?;
                (ours()?, b)
            };
            pairs.ours.push(a);
            pairs.other.push(b);
        }
        Ok(pairs)
    }

    pub(crate) fn ours(&self) -> f64 {
        Spread::of(self.ours.iter().copied()).median
    }

    pub(crate) fn other(&self) -> f64 {
        Spread::of(self.other.iter().copied()).median
    }

    /// Our time in the other side's times, pair by pair.
    pub(crate) fn time_ratio(&self) -> Spread {
        Spread::of(self.ours.iter().zip(&self.other).map(|(ours, other)| ours / other))
    }

    /// Our speed in the other side's speeds, pair by pair.
    pub(crate) fn speed_ratio(&self) -> Spread {
        Spread::of(self.ours.iter().zip(&self.other).map(|(ours, other)| other / ours))
    }

    pub(crate) fn rounds(&self) -> usize {
        self.ours.len()
    }
}

impl Spread {
    /// Not a number if there are no values.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let (half, last) = (values.len() / 2, values.len().saturating_sub(1));
        Self {
            min: at(0),
            median: (at(half.min(last)) + at((last) / 2)) / 2.0,
            max: at(last),
        }
    }
}

/// Samples of `work`: seconds of this thread's processor time for one call, over as many calls as take about
/// [`SAMPLE`]. What else runs on the machine takes no processor time of ours.
pub(crate) fn calls_of<T>(mut work: impl FnMut() -> T) -> impl FnMut() -> anyhow::Result<f64> {
    let mut calls = 0;
    move || {
        if calls == 0 {
            let start = thread_time();
            while thread_time() - start < SAMPLE {
                black_box(work());
                calls += 1;
            }
        }
        let start = thread_time();
        for _ in 0..calls {
            black_box(work());
        }
        Ok((thread_time() - start).as_secs_f64() / f64::from(calls))
    }
}

/// Processor time that this thread has had.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
