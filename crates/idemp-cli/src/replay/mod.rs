//! `idemp replay`: sends dead letters once more, under the original key and with the original bytes.

mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use idemp_core::SinkName;
use idemp_dlq::{Fate, Filter, Letterhead, Progress as Step, Refused, ReplayOptions, Replayer, Target as Destination};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, ConfigArg};
use crate::dlq::{LetterJson, Readable, each_letterhead, heading, line, store_failed};
use crate::exit::{Exit, Failure};
use crate::filter::FilterArgs;
use crate::io::{print_bytes, print_json, print_line};
use crate::progress::Progress;
use crate::store::{DlqArg, Letters};
use crate::target::{Target, TargetArgs};
use crate::times::rfc3339;
use crate::{runtime, signals, times};
use totals::Totals;

/// How much longer than an attempt an entry is held at least.
const LEASE_MARGIN: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
// A dry run sends nothing, so it needs no target.
#[command(mut_arg("to", |to| to.required_unless_present_any(["config", "dry_run"])))]
#[command(mut_arg("secret_env", |secret| secret.required_unless_present_any(["secret_file", "config", "dry_run"])))]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArg,

    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    dlq: DlqArg,

    /// Print what would be replayed, in its order, and send nothing; needs neither --to nor a secret
    #[arg(long)]
    dry_run: bool,

    /// Attempts a second at most
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    rate: f64,

    /// Send so many entries at most; what is refused or held by another replay does not count
    #[arg(long, value_name = "N", value_parser = times::at_least_one::<u64>)]
    limit: Option<u64>,

    /// How long the receiver remembers a key: what may have been delivered longer ago is refused
    #[arg(long, value_name = "D", default_value = "24h", value_parser = times::duration)]
    receiver_ttl: Duration,

    /// Replay also what the receiver asked not to get yet, and what it may have got and forgotten
    #[arg(long)]
    force: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// How long an entry is held for its attempt; a killed replay leaves it held for so long
    #[arg(long, value_name = "D", value_parser = times::duration, hide = true)]
    lease: Option<Duration>,

    // Last: what follows it in the help stands under its heading.
    #[command(flatten)]
    filter: FilterArgs,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let config = args.config.load()?;
    runtime()?.block_on(async {
        let targets = match args.dry_run {
            true => Vec::new(),
            false => args.target.open(config.as_ref()).await?,
        };
        let replayer = replayer(args, &targets)?;
        let letters = args.dlq.open_existing(config.as_ref()).await?;
        let stop = signals::watch("interrupted")?;
        let result = with_letters(args, config.as_ref(), targets, &replayer, &letters, &stop).await;
        letters.close().await;
        result
    })
}

fn replayer(args: &Args, targets: &[Target]) -> Result<Replayer, Failure> {
    let slowest = targets.iter().map(|target| target.attempt_timeout).max();
    let defaults = ReplayOptions::default();
    let attempt_timeout = slowest.unwrap_or(defaults.attempt_timeout);
    let replayer = Replayer::new(ReplayOptions {
        rate_per_second: args.rate,
        lease: args
            .lease
            .unwrap_or_else(|| defaults.lease.max(attempt_timeout.saturating_add(LEASE_MARGIN))),
        attempt_timeout,
        limit: args.limit,
        receiver_ttl: args.receiver_ttl,
        force: args.force,
        ..defaults
    });
    replayer.map_err(|error| Failure::usage("configuration").because(&error))
}

async fn with_letters(
    args: &Args,
    config: Option<&Config>,
    targets: Vec<Target>,
    replayer: &Replayer,
    letters: &Letters,
    stop: &CancellationToken,
) -> Result<Exit, Failure> {
    let mut filter = args.filter.resolve()?;
    // What was sent with `--to` before may lie under any name; what `idemp.toml` names goes where it says.
    let named = config.map(|config| config.sinks.keys().map(|name| name.0.clone()).collect());
    let sink = match named.is_none() && args.target.is_given() {
        true => one_sink(letters, &mut filter).await?,
        false => None,
    };
    if args.dry_run {
        return dry_run(args, named.as_ref(), replayer, letters, &filter).await;
    }
    let destination = |target: &Target| Destination {
        sink: target.sink.clone(),
        policy: target.policy.clone(),
    };
    let by_name: BTreeMap<SinkName, Destination> = targets
        .iter()
        .map(|target| (target.name.clone(), destination(target)))
        .collect();
    // `--to` is one place, whatever name the letters have.
    let to = targets.first().map(destination);
    let destinations = |name: &SinkName| match &named {
        Some(_) => by_name.get(name).cloned(),
        None => to.clone().filter(|_| sink.as_ref() == Some(name)),
    };
    replay(args, &destinations, replayer, letters, &filter, stop).await
}

/// The sink of all that is meant, if anything is.
///
/// # Errors
/// If there are several, or a store fails.
async fn one_sink(letters: &Letters, filter: &mut Filter) -> Result<Option<SinkName>, Failure> {
    if filter.sink.is_some() {
        return Ok(filter.sink.clone());
    }
    let (mut sinks, mut depth, mut known) = (BTreeSet::new(), 0, 0);
    for store in letters.all() {
        let stats = store.stats(filter).await.map_err(|error| store_failed(&error))?;
        depth += stats.depth;
        known += stats.by_sink.values().sum::<u64>();
        sinks.extend(stats.by_sink.into_keys());
    }
    if sinks.len() > 1 {
        let names: Vec<_> = sinks.iter().map(SinkName::as_str).collect();
        let names = names.join(", ");
        return Err(Failure::usage(format_args!(
            "the selection is over several sinks ({names}): add --sink"
        )));
    }
    let sink = sinks.pop_first();
    // An entry that cannot be read may not tell its sink, and is to be named all the same.
    if known == depth {
        filter.sink.clone_from(&sink);
    }
    Ok(sink)
}

async fn dry_run(
    args: &Args,
    named: Option<&BTreeSet<SinkName>>,
    replayer: &Replayer,
    letters: &Letters,
    filter: &Filter,
) -> Result<Exit, Failure> {
    let mut exit = Exit::Done;
    let mut attempts_left = args.limit.unwrap_or(u64::MAX);
    if !args.json {
        print_bytes(heading().as_bytes())?;
    }
    for store in letters.all() {
        if attempts_left == 0 {
            break;
        }
        let readable = each_letterhead(store, filter, |head| {
            let refused = match replayer.refusal(head) {
                _ if named.is_some_and(|named| !named.contains(&head.sink)) => Some("no_target"),
                None => None,
                Some(Refused::NotBefore(_)) => Some("not_before"),
                Some(Refused::ReceiverForgot { .. }) => Some("receiver_ttl"),
                Some(_) => Some("refused"),
            };
            print_planned(head, refused, args.json)?;
            attempts_left -= u64::from(refused.is_none());
            Ok(match attempts_left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        });
        if readable.await? == Readable::NotAll {
            exit = Exit::Failed;
        }
    }
    Ok(exit)
}

fn print_planned(head: &Letterhead, refused: Option<&'static str>, json: bool) -> Result<(), Failure> {
    if json {
        let mut json = LetterJson::new(head);
        json.refused = refused;
        return print_json(&json);
    }
    let mut line = line(head);
    if let Some(refused) = refused {
        line.truncate(line.trim_end().len());
        line.push_str(&format!("  refused: {refused}\n"));
    }
    print_bytes(line.as_bytes())
}

async fn replay(
    args: &Args,
    destinations: &(dyn Fn(&SinkName) -> Option<Destination> + Send + Sync),
    replayer: &Replayer,
    letters: &Letters,
    filter: &Filter,
    stop: &CancellationToken,
) -> Result<Exit, Failure> {
    let stores: Vec<_> = letters.all().collect();
    let mut progress = None;
    let mut observe = |step: Step<'_>| observe(&mut progress, args.limit.is_some(), step);
    let result = replayer
        .run_over(&stores, filter, destinations, &mut observe, stop)
        .await;
    if let Some(progress) = progress {
        progress.end();
    }
    let (summary, failure) = match &result {
        Ok(summary) => (summary, None),
        Err(error) => (error.summary(), Some(Failure::failed("replay").because(error))),
    };
    let totals = Totals::new(summary, &letters.name);
    if args.json {
        print_json(&totals)?;
    } else {
        print_line(totals.human())?;
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(totals.exit()),
    }
}

/// Tells what is not as it should be, and moves the bar.
fn observe(progress: &mut Option<Progress>, is_limited: bool, step: Step<'_>) {
    if let Step::Selected { entries } = step {
        *progress = Some(Progress::over_entries(entries));
        return;
    }
    let Some(progress) = progress else { return };
    match step {
        Step::Settled { id, name, fate } => {
            // With a limit, the bar is over what is sent.
            if !is_limited || matches!(fate, Fate::Replayed | Fate::Unmarked | Fate::Failed { .. }) {
                progress.advance(1, String::new);
            }
            if let Some(trouble) = trouble(fate) {
                let name = name.map_or_else(|| format!("entry {id}"), |(_, key)| key.to_string());
                progress.say(format_args!("{name}: {trouble}"));
            }
        }
        Step::Waiting { entries, until } => {
            let until = rfc3339(until);
            progress.say(format_args!(
                "idemp: {entries} entries are held by another replay: waiting, until {until} first"
            ));
        }
        _ => {}
    }
}

fn trouble(fate: &Fate) -> Option<String> {
    Some(match fate {
        Fate::Replayed => return None,
        Fate::Unmarked => "delivered, but not marked: the next replay sends it again".to_owned(),
        Fate::Failed { verdict, cause } => {
            let cause = crate::dlq::cause(*cause);
            format!("not delivered: {cause} ({})", verdict.code())
        }
        Fate::Refused(Refused::NotBefore(at)) => {
            format!(
                "refused: the receiver asked not to get it before {}; --force overrides",
                rfc3339(*at)
            )
        }
        Fate::Refused(Refused::ReceiverForgot { since }) => {
            let since = rfc3339(*since);
            format!(
                "refused: it may have been delivered at {since} and be forgotten by the receiver; --force overrides"
            )
        }
        Fate::Refused(Refused::Unsendable(refusal)) => format!("refused: {refusal}"),
        Fate::Refused(_) => "refused".to_owned(),
        Fate::Held => "skipped: another replay holds it".to_owned(),
        Fate::Gone => "gone: replayed or purged meanwhile".to_owned(),
        Fate::NoTarget => "skipped: there is no target for its sink".to_owned(),
        Fate::Unreadable(Some(error)) => format!("cannot be read: {error}"),
        Fate::Unreadable(None) => "cannot be read".to_owned(),
        _ => "not replayed".to_owned(),
    })
}
