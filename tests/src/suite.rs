//! Slow suites are chosen by the environment, never by `cfg`, so that they are always compiled.

use std::io::Write;

/// A suite of `cargo xtask e2e` that needs a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suite {
    /// Python peers, with a Redis or Valkey server.
    Python,
}

impl Suite {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
        }
    }
}

/// Whether `IDEMP_E2E`, a list of names with commas between, has this suite; if not, a line past the test harness's
/// capture says that the calling test was skipped.
///
/// # Panics
///
/// When standard error is closed.
#[must_use]
pub fn selected(suite: Suite) -> bool {
    let chosen = std::env::var("IDEMP_E2E").unwrap_or_default();
    let name = suite.name();
    let selected = chosen.split(',').any(|chosen| chosen == name);
    if !selected {
        // One write, so that the lines of parallel tests do not mix.
        let line = format!("skipped: set IDEMP_E2E={name}, or run `cargo xtask e2e {name}`\n");
        std::io::stderr()
            .write_all(line.as_bytes())
            .expect("standard error is open");
    }
    selected
}
