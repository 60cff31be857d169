//! A progress bar on standard error, on a terminal only.

use std::fmt::Display;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::say;

/// How far a command has come. Hidden unless standard error is a terminal.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Counts bytes of an input, whose length may be known.
    pub(crate) fn over_bytes(len: Option<u64>) -> Self {
        match len {
            Some(len) => Self::start(
                Some(len),
                "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}  {msg}",
            ),
            None => Self::start(None, "{spinner} {bytes} {bytes_per_sec}  {msg}"),
        }
    }

    /// Counts entries.
    pub(crate) fn over_entries(len: u64) -> Self {
        Self::start(Some(len), "{bar:30} {pos}/{len} {per_sec} eta {eta}  {msg}")
    }

    fn start(len: Option<u64>, template: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = len.map_or_else(ProgressBar::no_length, ProgressBar::new);
        // The templates are ours and valid; if not, the default style does as well.
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Goes on by so many, with a word beside the bar.
    pub(crate) fn advance(&self, by: u64, message: impl FnOnce() -> String) {
        if !self.0.is_hidden() {
            self.0.inc(by);
            self.0.set_message(message());
        }
    }

    /// Prints a line to standard error, above the bar.
    pub(crate) fn say(&self, what: impl Display) {
        self.0.suspend(|| say(what));
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}
