//! `idemp demo`: sender, a receiver that misbehaves, dead letters and replay, in one process.
//!
//! The parts are the real ones, over real HTTP on the loopback interface and with SQLite files. What is special is
//! kept apart: who meets which fault ([`plan`]), how it is done to them ([`mischief`], [`mod@line`]), and who counts what
//! really took effect ([`ledger`]).

mod ledger;
mod line;
mod mischief;
mod plan;
mod play;
mod receiver;
mod report;
mod teller;
mod times;

use idemp_core::Message;

use crate::exit::{Exit, Failure};
use crate::io::print_json;
use crate::{jsonl, runtime, signals};
use play::Demo;
use teller::Teller;

/// Decides who meets which fault, unless another is given.
const SEED: u64 = 36;

/// Real events of LangChain runs.
const EVENTS: &str = include_str!("events.jsonl");

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Decides which event meets which fault
    #[arg(long, value_name = "N", default_value_t = SEED)]
    seed: u64,

    /// Print the figures as JSON, and nothing else
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let events = events()?;
    let folder = tempfile::Builder::new()
        .prefix("idemp-demo-")
        .tempdir()
        .map_err(|error| Failure::failed("cannot make a temporary folder").because(&error))?;
    runtime()?.block_on(async {
        let stop = signals::watch("interrupted")?;
        let teller = Teller::new(args.json);
        let report = Demo::set_up(args.seed, events, folder.path(), stop, teller)?
            .run()
            .await?;
        if args.json {
            print_json(&report)?;
        }
        Ok(report.exit())
    })
}

fn events() -> Result<Vec<Message>, Failure> {
    // Not `lines`, for which a carriage return is part of a line's end.
    let lines = EVENTS
        .split('\n')
        .map(|line| jsonl::message(line.as_bytes()).transpose());
    lines
        .flatten()
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::failed("bundled events").because(&error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use idemp_core::RetrySchedule;

    use super::*;

    #[test]
    fn the_bundled_events_are_of_every_kind() {
        let events = events().unwrap();
        let keys: BTreeSet<_> = events.iter().map(|event| event.key().as_str()).collect();
        assert_eq!((events.len(), keys.len()), (80, 80));
        let types: BTreeSet<_> = events.iter().map(|event| event.key().event_type()).collect();
        assert_eq!(
            types,
            BTreeSet::from(["chain_end", "llm_end", "tool_end", "tool_error"])
        );
        assert!(!EVENTS.is_ascii());
        assert!(EVENTS.len() < 100_000);
    }

    #[test]
    fn the_waits_are_what_the_demo_says() {
        let schedule = RetrySchedule::default().scaled(times::SCALE).unwrap();
        assert_eq!(schedule.waits(), [200, 1_000, 6_000].map(Duration::from_millis));
        assert_eq!(schedule.budget(), Duration::from_millis(7_200));
        assert_eq!(
            (times::ATTEMPT, times::LEASE),
            (Duration::from_secs(1), Duration::from_secs(2))
        );
    }
}
