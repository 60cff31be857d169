//! `idemp dlq purge`: deletes dead letters, on clear words only.

use idemp_dlq::Filter;
use serde::Serialize;

use super::{Common, store_failed};
use crate::exit::{Exit, Failure};
use crate::io::{print_json, print_line};
use crate::store::Letters;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Delete all of them
    #[arg(long)]
    all: bool,

    /// Really delete; without it, only their number is told
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Serialize)]
struct Purged {
    purged: u64,
}

pub(super) async fn run(args: &Args, letters: &Letters) -> Result<Exit, Failure> {
    let filter = args.common.filter.resolve()?;
    match (args.all, filter == Filter::default()) {
        (false, true) => return Err(Failure::usage("purge wants a filter, or --all")),
        (true, false) => return Err(Failure::usage("purge takes a filter or --all, not both")),
        _ => {}
    }
    if !args.yes {
        let mut count = 0;
        for store in letters.all() {
            count += store.stats(&filter).await.map_err(|error| store_failed(&error))?.depth;
        }
        let name = &letters.name;
        return Err(Failure::usage(format_args!(
            "{count} dead letters in {name} would be deleted: add --yes"
        )));
    }
    let mut purged = 0;
    for store in letters.all() {
        purged += store.purge(&filter).await.map_err(|error| store_failed(&error))?;
    }
    if args.common.json {
        print_json(&Purged { purged })?;
    } else {
        print_line(format_args!("{purged} dead letters deleted"))?;
    }
    Ok(Exit::Done)
}
