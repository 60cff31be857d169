//! Tells what happens while it happens: lines for everybody, a bar on a terminal.

use std::convert::Infallible;
use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use idemp_dispatch::Dispatcher;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::exit::Failure;
use crate::io::print_line;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);

pub(super) struct Teller {
    bar: ProgressBar,
    silent: bool,
    begun: Instant,
}

impl Teller {
    /// With `silent` there are no lines. The bar is there if standard error is a terminal, and once something moves.
    pub(super) fn new(silent: bool) -> Self {
        let bar = ProgressBar::hidden();
        // The template is ours and valid; if not, the default style does as well.
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            bar,
            silent,
            begun: Instant::now(),
        }
    }

    /// A line with the time in front.
    pub(super) fn say(&self, what: impl Display) -> Result<(), Failure> {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.print(format_args!("{seconds:5.1} s  {what}"))
    }

    /// A line as it is.
    pub(super) fn print(&self, what: impl Display) -> Result<(), Failure> {
        if self.silent {
            return Ok(());
        }
        self.bar.suspend(|| print_line(what))
    }

    pub(super) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Moves the bar with what the dispatcher settles, out of `total`. Never ends.
    pub(super) async fn follow(&self, dispatcher: &Dispatcher, total: usize) -> Infallible {
        self.show(total as u64, "settled");
        let mut ticks = tokio::time::interval(TICK);
        loop {
            ticks.tick().await;
            let settled = dispatcher
                .stats()
                .lanes
                .iter()
                .map(|lane| lane.accepted - lane.unsettled())
                .sum();
            self.bar.set_position(settled);
        }
    }

    /// Begins a bar for so many dead letters.
    pub(super) fn begin_replay(&self, letters: u64) {
        self.show(letters, "replayed");
        self.bar.set_position(0);
    }

    fn show(&self, length: u64, what: &'static str) {
        self.bar.set_length(length);
        self.bar.set_message(what);
        if self.bar.is_hidden() && std::io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    pub(super) fn replayed_one(&self) {
        self.bar.inc(1);
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
