//! Samples in pairs: ours, the other side, the other side, ours, and so on.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long one sample of something fast takes.
const SAMPLE: Duration = Duration::from_millis(40);

/// Samples of both sides for the same piece of work, mostly in seconds; those at one place were taken one after the
/// other.
pub(crate) struct Pairs<S = f64> {
    ours: Vec<S>,
    other: Vec<S>,
}

/// A sample by two measures, in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Both {
    pub(crate) clock: f64,
    pub(crate) processor: f64,
}

/// The least, the middle and the greatest.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Both {
    /// A share of it.
    pub(crate) fn divided_by(self, parts: usize) -> Self {
        Self {
            clock: self.clock / parts as f64,
            processor: self.processor / parts as f64,
        }
    }
}

impl<S> Pairs<S> {
    /// Takes `rounds` pairs, after one that only warms up. Who begins alternates.
    pub(crate) fn take(
        rounds: usize,
        mut ours: impl FnMut() -> anyhow::Result<S>,
        mut other: impl FnMut() -> anyhow::Result<S>,
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
}

impl Pairs<Both> {
    /// By the clock.
    pub(crate) fn clock(&self) -> Pairs {
        self.map(|both| both.clock)
    }

    /// In processor time.
    pub(crate) fn processor(&self) -> Pairs {
        self.map(|both| both.processor)
    }

    fn map(&self, by: fn(&Both) -> f64) -> Pairs {
        Pairs {
            ours: self.ours.iter().map(by).collect(),
            other: self.other.iter().map(by).collect(),
        }
    }
}

impl Pairs {
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
    processor_time(ClockId::ThreadCPUTime)
}

/// Processor time that all threads of this process have had.
pub(crate) fn process_time() -> Duration {
    processor_time(ClockId::ProcessCPUTime)
}

fn processor_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
