//! What a benchmark found out, as a table for a person and as JSON for a program.

use std::fmt;

use serde::Serialize;

use crate::machine;
use crate::measure::{Pairs, Spread};

/// Everything that ran.
#[derive(Serialize)]
pub(crate) struct Report {
    processor: Option<String>,
    cores: usize,
    sha_instructions: bool,
    load_before: Option<f64>,
    load_after: Option<f64>,
    pub(crate) benches: Vec<Bench>,
}

/// One benchmark.
#[derive(Serialize)]
pub(crate) struct Bench {
    name: &'static str,
    about: String,
    rows: Vec<Row>,
    facts: Vec<Fact>,
    skipped: Vec<String>,
}

/// One comparison.
#[derive(Serialize)]
struct Row {
    what: String,
    rounds: usize,
    ours: Figure,
    other: Figure,
    #[serde(flatten)]
    ratio: Ratio,
    target: Option<Target>,
    holds: Option<bool>,
}

/// A median.
#[derive(Serialize)]
struct Figure {
    median: f64,
    unit: &'static str,
}

/// How the two compare; which of the two is named by the target.
#[derive(Clone, Copy, Serialize)]
#[serde(tag = "ratio_of", content = "ratio", rename_all = "snake_case")]
enum Ratio {
    Time(Spread),
    Speed(Spread),
}

/// What the ratio's median should be.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// Times the other side's time.
    TimeAtMost(f64),
    /// Times the other side's speed.
    SpeedAtLeast(f64),
}

/// In what figures are given.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    /// Milliseconds for the whole.
    Milliseconds,
    /// This many events in the whole.
    EventsPerSecond(usize),
    /// This many bytes in the whole.
    MegabytesPerSecond(usize),
}

/// Something counted rather than compared.
#[derive(Serialize)]
struct Fact {
    what: String,
    value: String,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            processor: machine::processor(),
            cores: machine::cores(),
            sha_instructions: machine::has_sha(),
            load_before: machine::load(),
            load_after: None,
            benches: Vec::new(),
        }
    }

    pub(crate) fn end(&mut self) {
        self.load_after = machine::load();
    }

    pub(crate) fn head(&self) -> String {
        format!(
            "{}, {} cores, {}; load before: {}\n",
            self.processor.as_deref().unwrap_or("unknown processor"),
            self.cores,
            if self.sha_instructions {
                "with SHA instructions"
            } else {
                "WITHOUT SHA INSTRUCTIONS"
            },
            Load(self.load_before),
        )
    }

    pub(crate) fn foot(&self) -> String {
        let judged = || {
            self.benches
                .iter()
                .flat_map(|bench| &bench.rows)
                .filter_map(|row| row.holds)
        };
        let below = judged().filter(|holds| !holds).count();
        let skipped: usize = self.benches.iter().map(|bench| bench.skipped.len()).sum();
        let skipped = if skipped == 0 {
            String::new()
        } else {
            format!(", {skipped} SKIPPED")
        };
        format!(
            "\n{} of {} targets hold, {below} below target{skipped}; load after: {} (with our own)\n",
            judged().count() - below,
            judged().count(),
            Load(self.load_after),
        )
    }
}

impl Bench {
    pub(crate) fn new(name: &'static str, about: impl Into<String>) -> Self {
        Self {
            name,
            about: about.into(),
            rows: Vec::new(),
            facts: Vec::new(),
            skipped: Vec::new(),
        }
    }

    pub(crate) fn compare(&mut self, what: impl Into<String>, pairs: &Pairs, unit: Unit, target: Option<Target>) {
        let ratio = match target {
            Some(Target::TimeAtMost(_)) => Ratio::Time(pairs.time_ratio()),
            Some(Target::SpeedAtLeast(_)) | None => Ratio::Speed(pairs.speed_ratio()),
        };
        self.rows.push(Row {
            what: what.into(),
            rounds: pairs.rounds(),
            ours: unit.figure(pairs.ours()),
            other: unit.figure(pairs.other()),
            ratio,
            target,
            holds: target.map(|target| target.holds(ratio)),
        });
    }

    pub(crate) fn fact(&mut self, what: impl Into<String>, value: impl Into<String>) {
        self.facts.push(Fact {
            what: what.into(),
            value: value.into(),
        });
    }

    /// Something could not be run here.
    pub(crate) fn skip(&mut self, what: impl fmt::Display) {
        self.skipped.push(what.to_string());
    }
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}: {}", self.name, self.about)?;
        if !self.rows.is_empty() {
            writeln!(
                f,
                "  {:<44} {:>16} {:>16}   ratio   min  median     max   target",
                "ours and the other side, in turns", "ours", "other"
            )?;
        }
        for row in &self.rows {
            writeln!(f, "  {row}")?;
        }
        for fact in &self.facts {
            writeln!(f, "  {:<62} {}", fact.what, fact.value)?;
        }
        for what in &self.skipped {
            writeln!(f, "  SKIPPED: {what}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, spread) = self.ratio.parts();
        let Spread { min, median, max } = spread;
        write!(
            f,
            "{:<44} {:>16} {:>16}   ",
            self.what,
            self.ours.to_string(),
            self.other.to_string()
        )?;
        write!(f, "{name:<5} {min:>5.2}  {median:>6.2}  {max:>6.2}")?;
        match (self.target, self.holds) {
            (Some(target), Some(true)) => write!(f, "   {target}, holds"),
            (Some(target), _) => write!(f, "   {target}, below target"),
            (None, _) => Ok(()),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = match self.median {
            0.0..100.0 => 2,
            100.0..1000.0 => 1,
            _ => 0,
        };
        write!(f, "{:.decimals$} {}", self.median, self.unit)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimeAtMost(most) => write!(f, "at most {most}"),
            Self::SpeedAtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

struct Load(Option<f64>);

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(load) => write!(f, "{load}"),
            None => f.write_str("unknown"),
        }
    }
}

impl Target {
    fn holds(self, ratio: Ratio) -> bool {
        let (_, Spread { median, .. }) = ratio.parts();
        match self {
            Self::TimeAtMost(most) => median <= most,
            Self::SpeedAtLeast(least) => median >= least,
        }
    }
}

impl Ratio {
    const fn parts(self) -> (&'static str, Spread) {
        match self {
            Self::Time(spread) => ("time", spread),
            Self::Speed(spread) => ("speed", spread),
        }
    }
}

impl Unit {
    fn figure(self, seconds: f64) -> Figure {
        let (median, unit) = match self {
            Self::Milliseconds => (seconds * 1e3, "ms"),
            Self::EventsPerSecond(events) => (events as f64 / seconds, "events/s"),
            Self::MegabytesPerSecond(bytes) => (bytes as f64 / seconds / 1e6, "MB/s"),
        };
        Figure { median, unit }
    }
}
