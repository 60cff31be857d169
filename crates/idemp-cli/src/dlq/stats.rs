//! `idemp dlq stats`: counts, and an alarm.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::{Common, store_failed};
use crate::exit::{Exit, Failure};
use crate::io::{print_bytes, print_json};
use crate::store::Letters;
use crate::times::rfc3339;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Exit 1 if there are more than so many
    #[arg(long, value_name = "N")]
    fail_above: Option<u64>,

    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Default, Serialize)]
struct Counts {
    depth: u64,
    by_sink: BTreeMap<String, u64>,
    by_reason: BTreeMap<&'static str, u64>,
    oldest: Option<String>,
}

pub(super) async fn run(args: &Args, letters: &Letters) -> Result<Exit, Failure> {
    let filter = args.common.filter.resolve()?;
    let (mut counts, mut oldest) = (Counts::default(), None);
    for store in letters.all() {
        let stats = store.stats(&filter).await.map_err(|error| store_failed(&error))?;
        counts.depth += stats.depth;
        for (sink, count) in stats.by_sink {
            *counts.by_sink.entry(sink.to_string()).or_default() += count;
        }
        for (reason, count) in stats.by_reason {
            *counts.by_reason.entry(reason.code()).or_default() += count;
        }
        oldest = [oldest, stats.oldest].into_iter().flatten().min();
    }
    counts.oldest = oldest.map(rfc3339);
    if args.common.json {
        print_json(&counts)?;
    } else {
        print_bytes(human(&counts).as_bytes())?;
    }
    let alarm = args.fail_above.is_some_and(|most| counts.depth > most);
    Ok(if alarm { Exit::Failed } else { Exit::Done })
}

fn human(counts: &Counts) -> String {
    let mut text = String::new();
    let mut row = |name: &str, count: u64| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<34}{count:>10}");
    };
    row("dead letters", counts.depth);
    for (sink, count) in &counts.by_sink {
        row(&format!("  sink {sink}"), *count);
    }
    for (reason, count) in &counts.by_reason {
        row(&format!("  {reason}"), *count);
    }
    if let Some(oldest) = &counts.oldest {
        let _ = writeln!(text, "{:<24}{oldest:>20}", "oldest");
    }
    text
}
