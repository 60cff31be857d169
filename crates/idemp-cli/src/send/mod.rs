//! `idemp send`: JSON Lines in, events out.

mod again;
mod causes;
mod reader;
mod seen;
mod tally;

use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use idemp_core::{Message, Mode, RetrySchedule};
use idemp_dispatch::{Dispatcher, LaneConfig, Report, Settlement, SubmitErrorKind};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::ConfigArg;
use crate::exit::{Exit, Failure, chain, complain};
use crate::io::{Input, print_json, print_line};
use crate::jsonl::LineError;
use crate::progress::Progress;
use crate::store::{DlqArg, Letters};
use crate::target::{Target, TargetArgs};
use crate::times::at_least_one;
use crate::{runtime, signals};
use reader::{Batch, Item, What};
use tally::{Settled, Tally};

/// How long attempts in flight may take to end once we are interrupted.
const SHUTDOWN: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,

    #[command(flatten)]
    config: ConfigArg,

    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    dlq: DlqArg,

    /// Attempts in flight at each sink at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one::<usize>)]
    concurrency: usize,

    /// Begin with this line, as an interrupted run has told
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,

    /// Print the summary as JSON
    #[arg(long)]
    json: bool,

    /// Multiplies the waits between attempts, for tests and demonstrations
    #[arg(long, value_name = "F", default_value_t = 1.0, hide = true)]
    schedule_scale: f64,

    /// Bytes of bodies on their way at most, for tests
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, hide = true)]
    lane_bytes: usize,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let schedule = RetrySchedule::default()
        .scaled(args.schedule_scale)
        .map_err(|error| Failure::usage("--schedule-scale").because(&error))?;
    let config = args.config.load()?;
    runtime()?.block_on(async {
        let stop = signals::watch("interrupted")?;
        let targets = args.target.open(config.as_ref()).await?;
        let input = args.input.open()?;
        // What is lost at most once becomes no letter.
        let may_be_letters = targets.iter().any(|target| target.mode == Mode::AtLeastOnce);
        let letters = args.dlq.open_to_send(config.as_ref(), may_be_letters).await?;
        let sinks = targets
            .iter()
            .map(|target| (target.name.to_string(), Settled::default()));
        let sinks = sinks.collect();
        let dispatcher = dispatcher(args, targets, &schedule, &letters)?;
        let batches = reader::start(input, args.from_line)?;
        let file = args
            .input
            .path()
            .and_then(|path| path.metadata().ok())
            .filter(|file| file.is_file());
        let progress = Progress::over_bytes(file.map(|file| file.len()));
        let sender = Sender {
            dispatcher,
            stop,
            settling: FuturesUnordered::new(),
            next_line: args.from_line,
            input: args.input.name(),
            progress,
            tally: Tally {
                sinks,
                dlq: letters.name.clone(),
                ..Tally::default()
            },
        };
        // In a task: this thread is none of the runtime's own and would be woken for each event that is settled.
        let sending = tokio::spawn(sender.run(batches)).await;
        let mut tally = sending.unwrap_or_else(|error| resume_unwind(error.into_panic()));
        letters.close().await;
        let fallback = letters.fallback.map(|fallback| fallback.path);
        tally.dlq_fallback = fallback
            .filter(|path| path.exists())
            .map(|path| path.display().to_string());
        if let (Some(config), true) = (&config, tally.is_unwanted()) {
            complain(format_args!(
                "warning: no sink takes any of the {} events that were read: compare `events` in {} with their types",
                tally.unwanted,
                config.path.display()
            ));
        }
        for line in tally.next_steps(&again::replay(args, config.as_ref())) {
            complain(line);
        }
        if args.json {
            print_json(&tally)?;
        } else {
            print_line(tally.human())?;
        }
        if let Some(line) = tally.where_to_look(&again::list(args, config.as_ref())) {
            complain(line);
        }
        Ok(tally.exit())
    })
}

fn dispatcher(
    args: &Args,
    targets: Vec<Target>,
    schedule: &RetrySchedule,
    letters: &Letters,
) -> Result<Dispatcher, Failure> {
    let lane = |target: Target| {
        let lane = LaneConfig {
            fallback: letters.fallback.as_ref().map(|fallback| fallback.store.clone()),
            mode: target.mode,
            schedule: schedule.clone(),
            policy: target.policy,
            attempt_timeout: target.attempt_timeout,
            concurrency: target.concurrency.unwrap_or(args.concurrency),
            max_bytes: args.lane_bytes,
            on_full: target.on_full.into(),
            ..LaneConfig::new(target.name, target.sink, letters.primary.clone())
        };
        match target.events {
            Some(events) => lane.only(events),
            None => lane,
        }
    };
    let lanes = targets.into_iter().map(lane).collect();
    Dispatcher::new(lanes).map_err(|error| Failure::usage("configuration").because(&error))
}

/// An accepted event that is on its way, with the number of its line.
type Settling = Pin<Box<dyn Future<Output = (u64, Report)> + Send>>;

/// Takes lines in order and sees every accepted event to its end.
struct Sender {
    dispatcher: Dispatcher,
    stop: CancellationToken,
    settling: FuturesUnordered<Settling>,
    /// The first line that is not taken yet.
    next_line: u64,
    input: String,
    progress: Progress,
    tally: Tally,
}

/// Why no more lines are taken.
enum Ended {
    Input,
    Interrupted,
    Unreadable(io::Error),
    /// A dead letter could not be saved.
    Refused,
}

impl Sender {
    async fn run(mut self, batches: mpsc::Receiver<io::Result<Batch>>) -> Tally {
        let ended = self.take_all(batches).await;
        if let Ended::Unreadable(error) = &ended {
            let (input, line) = (&self.input, self.next_line);
            self.progress.say(format_args!(
                "idemp: error: cannot read {input} from line {line} on: {error}"
            ));
        }
        self.settle_all().await;
        // Interrupted: what waits for its next attempt becomes a dead letter. Otherwise there is nothing left.
        self.dispatcher.shutdown(SHUTDOWN).await;
        while let Some((line, report)) = self.settling.next().await {
            self.settled(line, &report);
        }
        let is_left = !matches!(ended, Ended::Input);
        self.tally.resume_from(is_left.then_some(self.next_line));
        self.tally.interrupted = self.stop.is_cancelled();
        self.progress.end();
        self.tally
    }

    async fn take_all(&mut self, mut batches: mpsc::Receiver<io::Result<Batch>>) -> Ended {
        loop {
            let batch = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ended::Interrupted,
                Some((line, report)) = self.settling.next() => {
                    self.settled(line, &report);
                    continue;
                }
                batch = batches.recv() => batch,
            };
            let batch = match batch {
                None => return Ended::Input,
                Some(Err(error)) => return Ended::Unreadable(error),
                Some(Ok(batch)) => batch,
            };
            for item in batch.items {
                if let Err(ended) = self.take(item).await {
                    return ended;
                }
                while let Some(Some((line, report))) = self.settling.next().now_or_never() {
                    self.settled(line, &report);
                }
            }
            self.progress.advance(batch.taken, || self.tally.brief());
            if let Some(lines) = batch.lines {
                self.ended_after(lines);
            }
        }
    }

    /// A run that begins after the end has nothing to send, which may be a wrong number or a wrong file.
    fn ended_after(&self, lines: u64) {
        let (input, line) = (&self.input, self.next_line);
        if self.tally.read == 0 && line == 1 {
            self.progress.say(format_args!("idemp: no events in {input}"));
        } else if lines < line && self.tally.read == 0 {
            self.progress.say(format_args!(
                "idemp: warning: {input} has {lines} lines: there is nothing from line {line} on"
            ));
        }
    }

    /// Takes one line, or none of it.
    async fn take(&mut self, item: Item) -> Result<(), Ended> {
        let Item { line, what } = item;
        if self.stop.is_cancelled() {
            return Err(Ended::Interrupted);
        }
        match what {
            What::Event(message) => self.submit(line, message).await?,
            What::Duplicate => {
                self.tally.read += 1;
                self.tally.duplicates += 1;
            }
            What::Invalid(error) => self.invalid(line, &error),
        }
        self.next_line = line + 1;
        Ok(())
    }

    async fn submit(&mut self, line: u64, message: Message) -> Result<(), Ended> {
        let submitted = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(Ended::Interrupted),
            submitted = self.dispatcher.submit(message) => submitted,
        };
        match submitted {
            Ok(handle) => {
                self.tally.read += 1;
                self.settling
                    .push(Box::pin(async move { (line, handle.settled().await) }));
            }
            Err(error) => match error.kind() {
                SubmitErrorKind::DeadLettersFail => return Err(Ended::Refused),
                SubmitErrorKind::Closed => return Err(Ended::Interrupted),
                SubmitErrorKind::Refused { refusal, .. } => self.invalid(line, refusal),
                _ => self.invalid(line, &error),
            },
        }
        Ok(())
    }

    fn invalid(&mut self, line: u64, error: &(dyn std::error::Error + 'static)) {
        // What begins so is most likely no JSON Lines at all.
        let hint = match error.downcast_ref::<LineError>() {
            Some(error) if self.tally.read == 0 && error.is_no_object() => ": send expects one JSON object per line",
            _ => "",
        };
        self.progress.say(format_args!("{}:{line}: {error}{hint}", self.input));
        self.tally.invalid(line);
    }

    /// Waits for what is on its way, unless we are interrupted.
    async fn settle_all(&mut self) {
        loop {
            let settled = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                settled = self.settling.next() => settled,
            };
            let Some((line, report)) = settled else { return };
            self.settled(line, &report);
            self.progress.advance(0, || self.tally.brief());
        }
    }

    fn settled(&mut self, line: u64, report: &Report) {
        if report.settlements().is_empty() {
            self.tally.unwanted += 1;
        }
        for (sink, settlement) in report.settlements() {
            match settlement {
                Settlement::Delivered { .. } => self.tally.delivered(sink),
                Settlement::DeadLettered { reason, cause, .. } => self.tally.dead_lettered(sink, *reason, *cause),
                Settlement::Dropped { reason, cause } => self.tally.dropped(sink, *reason, *cause),
                // What is left is what no store took.
                other => {
                    self.tally.unsaved(sink, line);
                    let (key, input) = (report.key(), &self.input);
                    let why = match other {
                        Settlement::Unsaved { error: Some(error), .. } => chain(&**error),
                        _ => "no store answered in time".to_owned(),
                    };
                    self.progress.say(format_args!(
                        "idemp: error: event {key} ({input}:{line}) is saved nowhere: {why}"
                    ));
                }
            }
        }
    }
}
