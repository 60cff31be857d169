//! The command line as a whole. Each command's own arguments stand in its module.

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

#[cfg(all(feature = "webhook", feature = "sqlite"))]
use crate::demo;
use crate::{canonicalize, classify, completions, dlq, doctor, key, receive, replay, send, sign, verify};

const EXIT_CODES: &str = "Exit codes: 0 done, or the thing asked for is true; 1 a failed check, an invalid line, an error \
at run time, an event saved nowhere; 2 wrong usage or configuration; 3 finished, but some events were dead-lettered or \
skipped; 130 interrupted with everything accounted for.\n\nLogs go to standard error; IDEMP_LOG sets what is logged \
(default: warn; error in the demo, whose faults are on purpose).";

/// Gets events out once and for all: send, receive, dead-letter, replay.
#[derive(Debug, Parser)]
#[command(name = "idemp", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch real events go through every kind of trouble, and arrive once: about half a minute
    #[cfg(all(feature = "webhook", feature = "sqlite"))]
    Demo(demo::Args),
    /// Send events from JSON Lines to a webhook, Kafka, Redis Streams or SNS; what does not get there becomes a dead
    /// letter
    Send(send::Args),
    /// Serve a webhook, or consume from Kafka or Redis Streams, and write each event once
    Receive(receive::Args),
    /// Look at dead letters, count them, delete them
    Dlq(dlq::Args),
    /// Send dead letters once more, under their original keys
    Replay(replay::Args),
    /// Look whether a Redis suits claims, and whether the times of receiver and senders fit together
    Doctor(doctor::Args),
    /// Turn JSON text into canonical bytes, with nothing added
    Canonicalize(canonicalize::Args),
    /// Print the X-Signature-256 of some bytes
    Sign(sign::Args),
    /// Check an X-Signature-256: exit 0 good, 1 bad
    Verify(verify::Args),
    /// Make an idempotency key, or take one apart
    Key(key::Args),
    /// Say what an HTTP status means and what follows from it
    Classify(classify::Args),
    /// Print the completions for a shell
    Completions(completions::Args),
}

impl Command {
    /// What is logged unless `IDEMP_LOG` says otherwise.
    pub(crate) const fn log_level(&self) -> LevelFilter {
        match self {
            #[cfg(all(feature = "webhook", feature = "sqlite"))]
            Self::Demo(_) => LevelFilter::ERROR,
            _ => LevelFilter::WARN,
        }
    }
}
