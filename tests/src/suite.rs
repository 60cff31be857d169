//! Slow suites are chosen by the environment, never by `cfg`, so that they are always compiled.

use std::io::Write;

/// A suite of `cargo xtask e2e` that needs a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suite {
    /// Python peers, with a Redis or Valkey server.
    Python,
    /// The Kafka sink and consumer, on a broker.
    Kafka,
    /// The Redis Streams sink and consumer, claims in Redis, on servers of both kinds.
    Redis,
    /// The SNS sink.
    Sns,
    /// Every dead-letter store, on real servers.
    DeadLetters,
    /// Claims and the inbox in Postgres.
    Postgres,
    /// Claims in Redis, Valkey and Postgres, and the inbox, on servers that come and go.
    Claims,
    /// Consumers of Kafka and Redis Streams, on servers that come and go.
    Consumers,
    /// The command with sinks, stores and consumers that need a server.
    Command,
    /// Several sinks at once.
    FanOut,
    /// Fleets of receivers that share a store.
    Fleet,
}

impl Suite {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Kafka => "kafka",
            Self::Redis => "redis",
            Self::Sns => "sns",
            Self::DeadLetters => "dead-letters",
            Self::Postgres => "postgres",
            Self::Claims => "claims",
            Self::Consumers => "consumers",
            Self::Command => "command",
            Self::FanOut => "fan-out",
            Self::Fleet => "fleet",
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
