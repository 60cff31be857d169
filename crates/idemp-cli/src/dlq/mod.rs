//! `idemp dlq`: looks at dead letters, counts them, deletes them.

mod purge;
mod stats;
mod view;

use std::ops::ControlFlow;

use clap::Subcommand;
use idemp_core::IdempotencyKey;
use idemp_dlq::{DeadLetterStore, Filter, Letterhead, Listed, StoreError};

use crate::config::ConfigArg;
use crate::exit::{Exit, Failure, complain};
use crate::filter::FilterArgs;
use crate::io::{print_bytes, print_json, print_line};
use crate::runtime;
use crate::store::{DlqArg, Letters};

#[allow(unused_imports, reason = "the quarantine of a consumer, which is a feature")]
pub(crate) use view::hex;
pub(crate) use view::{LetterJson, cause, heading, line};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead letters in the order in which they would be replayed
    List(ListArgs),
    /// Show one dead letter with its attempts
    Show(ShowArgs),
    /// Count dead letters by sink and reason
    Stats(stats::Args),
    /// Delete dead letters
    Purge(purge::Args),
}

/// What all of them take.
#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    config: ConfigArg,

    #[command(flatten)]
    dlq: DlqArg,

    /// Print JSON
    #[arg(long)]
    json: bool,

    // Last: what follows it in the help stands under its heading.
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
// The key that is shown is the one to go by.
#[command(mut_arg("filter_key", |key| key.hide(true)))]
struct ShowArgs {
    /// The event's key
    #[arg(value_parser = IdempotencyKey::parse, conflicts_with = "filter_key")]
    key: IdempotencyKey,

    /// Show the exact body as well; it is the event's payload
    #[arg(long)]
    body: bool,

    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    match &args.command {
        Command::List(args) => with_letters(&args.common, async |letters| list(args, letters).await),
        Command::Show(args) => with_letters(&args.common, async |letters| show(args, letters).await),
        Command::Stats(args) => with_letters(&args.common, async |letters| stats::run(args, letters).await),
        Command::Purge(args) => with_letters(&args.common, async |letters| purge::run(args, letters).await),
    }
}

fn with_letters(common: &Common, work: impl AsyncFnOnce(&Letters) -> Result<Exit, Failure>) -> Result<Exit, Failure> {
    let config = common.config.load()?;
    runtime()?.block_on(async {
        let letters = common.dlq.open_existing(config.as_ref()).await?;
        let result = work(&letters).await;
        letters.close().await;
        result
    })
}

async fn list(args: &ListArgs, letters: &Letters) -> Result<Exit, Failure> {
    let filter = args.common.filter.resolve()?;
    let json = args.common.json;
    if !json {
        print_bytes(heading().as_bytes())?;
    }
    let mut exit = Exit::Done;
    for store in letters.all() {
        let readable = each_letterhead(store, &filter, |head| {
            if json {
                print_json(&LetterJson::new(head))?;
            } else {
                print_bytes(line(head).as_bytes())?;
            }
            Ok(ControlFlow::Continue(()))
        });
        if readable.await? == Readable::NotAll {
            exit = Exit::Failed;
        }
    }
    Ok(exit)
}

/// Whether every entry could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readable {
    All,
    NotAll,
}

/// Goes through a selection in replay order until `each` breaks. Entries that cannot be read are named on standard error.
///
/// # Errors
/// If the store cannot be read, or `each` fails.
pub(crate) async fn each_letterhead(
    store: &dyn DeadLetterStore,
    filter: &Filter,
    mut each: impl FnMut(&Letterhead) -> Result<ControlFlow<()>, Failure>,
) -> Result<Readable, Failure> {
    let mut readable = Readable::All;
    let mut selection = store.select(filter).await.map_err(|error| store_failed(&error))?;
    while let Some(page) = selection.next_page().await.map_err(|error| store_failed(&error))? {
        for Listed { id, letterhead } in page {
            match letterhead {
                Ok(head) => {
                    if each(&head)?.is_break() {
                        return Ok(readable);
                    }
                }
                Err(error) => {
                    readable = Readable::NotAll;
                    complain(format_args!("error: entry {id} cannot be read: {error}"));
                }
            }
        }
    }
    Ok(readable)
}

pub(crate) fn store_failed(error: &StoreError) -> Failure {
    Failure::failed("the dead-letter store failed").because(error)
}

async fn show(args: &ShowArgs, letters: &Letters) -> Result<Exit, Failure> {
    let filter = Filter {
        key: Some(args.key.clone()),
        ..args.common.filter.resolve()?
    };
    let mut found = 0_u64;
    for store in letters.all() {
        let mut selection = store.select(&filter).await.map_err(|error| store_failed(&error))?;
        while let Some(page) = selection.next_page().await.map_err(|error| store_failed(&error))? {
            for listed in page {
                let Some(loaded) = store.load(&listed.id).await.map_err(|error| store_failed(&error))? else {
                    continue;
                };
                if found > 0 && !args.common.json {
                    print_line("")?;
                }
                found += 1;
                show_one(args, &loaded)?;
            }
        }
    }
    match found {
        0 => Err(Failure::failed(format_args!(
            "no dead letter {} in {}",
            args.key, letters.name
        ))),
        _ => Ok(Exit::Done),
    }
}

fn show_one(args: &ShowArgs, loaded: &idemp_dlq::Loaded) -> Result<(), Failure> {
    let head = loaded.letter.letterhead();
    let sha256 = view::hex(&loaded.letter.body_sha256());
    let body = String::from_utf8_lossy(loaded.letter.message.body());
    if args.common.json {
        let mut json = LetterJson::new(&head);
        json.held_until = loaded.held_until.map(crate::times::rfc3339);
        json.body_sha256 = Some(sha256);
        json.body = args.body.then_some(&*body);
        return print_json(&json);
    }
    print_bytes(view::whole(&head, loaded, &sha256).as_bytes())?;
    if args.body {
        print_line(body)?;
    }
    Ok(())
}
