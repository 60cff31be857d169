//! The acts of the demo, one after the other, and the balance.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use idemp_core::{BreakerConfig, Message, RetrySchedule, Secret, Sink, SinkName, StatusPolicy};
use idemp_dispatch::{Dispatcher, LaneConfig, LaneStats};
use idemp_dlq::{DeadLetterStore, Fate, Filter, Progress, ReplayOptions, Replayer, SqliteStore, StoreError, Target};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::mischief::Mischief;
use super::plan::{Acts, Plan};
use super::receiver::{Down, PATH, Site, Up};
use super::report::Report;
use super::teller::Teller;
use super::times;
use crate::exit::{Exit, Failure};

/// How often the dead letters are replayed until they are given up.
const ROUNDS: u32 = 5;

/// Between two rounds.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(1);

/// How long the sender may take to settle everything: far more than four attempts and their waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long attempts in flight may take to end when the sender is shut down.
const SHUTDOWN: Duration = Duration::from_secs(2);

const INTRODUCTION: &str = "\
idemp demo: real events, a receiver that misbehaves, and in the end nothing lost and nothing twice.

One process, which talks HTTP to itself at 127.0.0.1 and keeps dead letters and claims in SQLite files of a
temporary folder. So that you need not wait, the waits are a fifth of the usual ones: 0.2, 1 and 6 s between
attempts in place of 1, 5 and 30 s, 1 s for an attempt in place of 5 s. A claim's lease is 2 s in place of 6 s.
Which event meets which fault comes ";

/// Everything that takes part.
pub(super) struct Demo {
    acts: Acts,
    events: Vec<Message>,
    ledger: Arc<Ledger>,
    mischief: Arc<Mischief>,
    sink: Arc<dyn Sink>,
    letters: Arc<SqliteStore>,
    dispatcher: Dispatcher,
    receiver: Receiver,
    stop: CancellationToken,
    teller: Teller,
    report: Report,
}

/// The receiver, which goes up and down.
enum Receiver {
    Up(Up),
    Down(Down),
    /// On its way from one to the other, or broken.
    Between,
}

/// Why an act ended early.
enum Ended {
    Interrupted,
    Failed(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Demo {
    /// Everything is there, and nothing has begun.
    pub(super) fn set_up(
        seed: u64,
        events: Vec<Message>,
        folder: &Path,
        stop: CancellationToken,
        teller: Teller,
    ) -> Result<Self, Failure> {
        let cannot = |error: &dyn std::error::Error| Failure::failed("cannot set up the demo").because(error);
        let acts = Acts::new(events.len());
        let ledger = Arc::new(Ledger::default());
        let mischief = Arc::new(Mischief::new(&Plan::new(seed, &acts), &events));
        let secret = Secret::new(uuid::Uuid::new_v4().to_string()).map_err(|error| cannot(&error))?;
        let schedule = RetrySchedule::default()
            .scaled(times::SCALE)
            .map_err(|error| cannot(&error))?;
        let receiver = Down::new(Site {
            secret: secret.clone(),
            claims: folder.join("claims.db"),
            schedule: schedule.clone(),
            ledger: Arc::clone(&ledger),
            mischief: Arc::clone(&mischief),
        })?;
        let url = format!("http://{}{}", receiver.address(), PATH);
        let webhook = WebhookConfig {
            // The loopback interface is not reached over a proxy.
            proxy: WebhookProxy::None,
            connect_timeout: times::ATTEMPT / 2,
            ..WebhookConfig::new(url, secret)
        };
        let sink: Arc<dyn Sink> = Arc::new(WebhookSink::new(webhook).map_err(|error| cannot(&error))?);
        let letters = Arc::new(SqliteStore::open(folder.join("dead-letters.db")).map_err(|error| cannot(&error))?);
        let name = SinkName::parse("webhook").map_err(|error| cannot(&error))?;
        let lane = LaneConfig {
            schedule,
            attempt_timeout: times::ATTEMPT,
            breaker: BreakerConfig {
                open_for: times::BREAKER_OPEN,
                ..BreakerConfig::default()
            },
            ..LaneConfig::new(name, Arc::clone(&sink), Arc::clone(&letters) as _)
        };
        let dispatcher = Dispatcher::new(vec![lane]).map_err(|error| cannot(&error))?;
        Ok(Self {
            acts,
            events,
            ledger,
            mischief,
            sink,
            letters,
            dispatcher,
            receiver: Receiver::Down(receiver),
            stop,
            teller,
            report: Report {
                seed,
                ..Report::default()
            },
        })
    }

    /// Plays all acts, or as many as there is time for, and draws the balance.
    pub(super) async fn run(mut self) -> Result<Report, Failure> {
        self.introduce()?;
        let mut played = self.send_everything().await;
        self.shut_down_sender().await?;
        if played.is_ok() {
            played = self.replay().await;
        }
        self.stop_receiver().await?;
        self.draw_balance().await?;
        self.teller.end();
        match played {
            Ok(()) => {}
            Err(Ended::Interrupted) => self.report.interrupted = true,
            Err(Ended::Failed(failure)) => return Err(failure),
        }
        self.conclude()?;
        Ok(self.report)
    }

    fn introduce(&self) -> Result<(), Failure> {
        let seed = self.report.seed;
        self.teller.print(format_args!(
            "{INTRODUCTION}from seed {seed}; --seed N takes another. How many attempts and copies that\n\
             makes also depends on the moment.\n"
        ))
    }

    async fn send_everything(&mut self) -> Result<(), Ended> {
        self.misbehave().await?;
        self.go_down().await
    }

    /// Sends to a receiver that is up and misbehaves.
    async fn misbehave(&mut self) -> Result<(), Ended> {
        self.start_receiver()?;
        let rough = self.acts.rough.clone();
        let count = rough.len();
        self.teller.say(format_args!(
            "{count} events go out, to a receiver that errs, hangs up and dawdles"
        ))?;
        self.send(rough).await?;
        self.teller
            .say("all are sent; some wait for their next attempt, up to 6 s")?;
        self.settle().await?;
        let lane = self.lane()?;
        let (delivered, dead) = (lane.delivered, lane.dead_lettered);
        self.teller
            .say(format_args!("{delivered} delivered, {dead} given up and dead-lettered"))?;
        let calm = self.acts.calm.clone();
        let count = calm.len();
        self.send(calm).await?;
        self.settle().await?;
        let delivered = self.lane()?.delivered;
        self.teller.say(format_args!(
            "{count} more goes out, in peace: {delivered} delivered in all, and the circuit breaker counts failures from \
             zero"
        ))?;
        Ok(())
    }

    /// Sends to a receiver that is down.
    async fn go_down(&mut self) -> Result<(), Ended> {
        self.stop_receiver().await?;
        let down = self.acts.down.clone();
        let count = down.len();
        self.teller.say(format_args!(
            "the receiver is down and refuses connections; {count} more events go out"
        ))?;
        self.send(down).await?;
        self.settle().await?;
        let breaker = self.lane()?.breaker.code();
        self.teller.say(format_args!(
            "they are given up after 7.2 s of waiting each; the circuit breaker is {breaker}"
        ))?;
        let refused = self.acts.refused.clone();
        let count = refused.len();
        self.teller.say(format_args!(
            "{count} more events go out, and straight to the dead letters"
        ))?;
        self.send(refused).await?;
        self.settle().await
    }

    /// Replays until nothing is left.
    async fn replay(&mut self) -> Result<(), Ended> {
        self.start_receiver()?;
        self.teller
            .say("the receiver is up again, and remembers; its operator replays the dead letters, 10 a second")?;
        let options = ReplayOptions {
            attempt_timeout: times::ATTEMPT,
            lease: times::REPLAY_LEASE,
            ..ReplayOptions::default()
        };
        let replayer = Replayer::new(options).map_err(|error| Failure::failed("replay").because(&error))?;
        self.teller.begin_replay(self.report.dead_lettered);
        for round in 1..=ROUNDS {
            let left = self.replay_once(&replayer).await?;
            if self.stop.is_cancelled() {
                return Err(Ended::Interrupted);
            }
            self.teller
                .say(format_args!("replay {round}: {left} dead letters left"))?;
            if left == 0 {
                break;
            }
            self.unless_stopped(sleep(BETWEEN_ROUNDS)).await?;
        }
        Ok(())
    }

    /// Replays what there is and returns what is left.
    async fn replay_once(&mut self, replayer: &Replayer) -> Result<u64, Failure> {
        let target = Target {
            sink: Arc::clone(&self.sink),
            policy: StatusPolicy::default(),
        };
        let targets = |_: &SinkName| Some(target.clone());
        let teller = &self.teller;
        let mut observe = |progress: Progress<'_>| {
            if let Progress::Settled {
                fate: Fate::Replayed, ..
            } = progress
            {
                teller.replayed_one();
            }
        };
        let all = Filter::default();
        let run = replayer.run(&*self.letters, &all, &targets, &mut observe, &self.stop);
        let summary = run.await.map_err(|error| Failure::failed("replay").because(&error))?;
        self.report.replayed += summary.replayed;
        self.report.replay_attempts += summary.replayed + summary.unmarked + summary.failed();
        let stats = self.letters.stats(&all).await.map_err(|error| cannot_read(&error))?;
        Ok(stats.depth)
    }

    /// Accepts these events, one after the other.
    async fn send(&self, range: Range<usize>) -> Result<(), Ended> {
        let mut pace = interval(times::PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let sending = async {
            for event in &self.events[range] {
                self.unless_stopped(pace.tick()).await?;
                self.ledger.send(event);
                let accepted = self.dispatcher.submit(event.clone()).await;
                // Its end is waited for with everybody else's.
                drop(accepted.map_err(|error| Failure::failed("the sender").because(&error))?);
            }
            Ok::<(), Ended>(())
        };
        self.with_bar(sending).await
    }

    /// Waits until everything that was accepted is settled.
    async fn settle(&self) -> Result<(), Ended> {
        let unsettled = self
            .with_bar(self.unless_stopped(self.dispatcher.flush(PATIENCE)))
            .await?;
        match unsettled {
            0 => Ok(()),
            _ => Err(Failure::failed(format_args!("{unsettled} events are not settled in time")).into()),
        }
    }

    async fn with_bar<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            never = self.teller.follow(&self.dispatcher, self.events.len()) => match never {},
        }
    }

    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, Ended> {
        self.stop.run_until_cancelled(work).await.ok_or(Ended::Interrupted)
    }

    fn start_receiver(&mut self) -> Result<(), Failure> {
        self.receiver = match std::mem::replace(&mut self.receiver, Receiver::Between) {
            Receiver::Down(down) => Receiver::Up(down.start()?),
            other => other,
        };
        Ok(())
    }

    async fn stop_receiver(&mut self) -> Result<(), Failure> {
        self.receiver = match std::mem::replace(&mut self.receiver, Receiver::Between) {
            Receiver::Up(up) => Receiver::Down(up.stop().await?),
            other => other,
        };
        Ok(())
    }

    /// Ends the sender, and counts what it has left among the dead letters.
    async fn shut_down_sender(&mut self) -> Result<(), Failure> {
        self.dispatcher.shutdown(SHUTDOWN).await;
        let lane = self.lane()?;
        let stats = self
            .letters
            .stats(&Filter::default())
            .await
            .map_err(|error| cannot_read(&error))?;
        self.report.attempts = lane.attempts;
        self.report.dead_lettered = lane.dead_lettered;
        self.report.dead_lettered_by_reason = stats
            .by_reason
            .into_iter()
            .map(|(reason, count)| (reason.code(), count))
            .collect();
        Ok(())
    }

    /// Asks the ledger and the dead letters what became of everything.
    async fn draw_balance(&mut self) -> Result<(), Failure> {
        let mut dead = HashSet::new();
        let mut entries = self
            .letters
            .select(&Filter::default())
            .await
            .map_err(|error| cannot_read(&error))?;
        while let Some(page) = entries.next_page().await.map_err(|error| cannot_read(&error))? {
            dead.extend(
                page.into_iter()
                    .filter_map(|entry| Some(entry.letterhead.ok()?.key.as_str().to_owned())),
            );
        }
        self.letters.close().await;
        let report = &mut self.report;
        report.settle(self.ledger.balance(&dead));
        report.left = dead.len();
        report.attempts += report.replay_attempts;
        report.duplicates_received = self.mischief.duplicates();
        report.faults = self
            .mischief
            .met()
            .into_iter()
            .map(|(fault, count)| (fault.code(), count))
            .collect();
        report.seconds = (self.teller.seconds() * 10.0).round() / 10.0;
        Ok(())
    }

    fn conclude(&self) -> Result<(), Failure> {
        let (report, teller) = (&self.report, &self.teller);
        teller.print("\nWhat the receiver did on purpose, besides being down:\n")?;
        for (fault, count) in self.mischief.met() {
            teller.print(format_args!("{:<30}{count:>4}", fault.text()))?;
        }
        teller.print("\nWhat came of it, counted by a ledger in which the handler enters its effects:\n")?;
        teller.print(report.table())?;
        match report.exit() {
            Exit::Failed => teller.print("\nThat is a fault of idemp. Please report it, with the seed."),
            Exit::Interrupted => {
                teller.print("\nInterrupted. The dead letters that are left go with the temporary folder.")
            }
            Exit::Partial => teller.print("\nThe replays were given up with dead letters left."),
            _ => teller.print("\nWhat next: `idemp send --help` for events of your own; README.md has a quick start."),
        }
    }

    /// The counts of the one lane there is.
    fn lane(&self) -> Result<LaneStats, Failure> {
        self.dispatcher
            .stats()
            .lanes
            .pop()
            .ok_or_else(|| Failure::failed("the sender has no lane"))
    }
}

fn cannot_read(error: &StoreError) -> Failure {
    Failure::failed("cannot read the dead letters").because(error)
}
