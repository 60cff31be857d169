//! Children that are kept alive, a sender before them, and the replay of what the sender gave up.

use std::collections::HashSet;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use idemp_core::{EventType, RetrySchedule, Run, RunId, Secret, SinkName};
use idemp_dispatch::{Dispatcher, LaneConfig};
use idemp_dlq::{DeadLetterStore, Filter, SqliteStore};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_tests::{Process, idemp, temp_dir};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::child::{Fate, Ledger, Orders};
use crate::support::{Chance, PATIENCE, SECRET};

pub(super) const EVENTS: u64 = 2_000;
const RECEIVERS: u64 = 6;

/// The sender's schedule and the receivers' lease, both a quarter of what they are by default at most: a lease is still
/// no longer than a third of the budget.
const SCALE: f64 = 0.25;
const LEASE: Duration = Duration::from_secs(3);

/// What came of all the events, as far as the sender knows.
pub(super) struct Sent {
    /// One for each event.
    pub(super) keys: Vec<String>,
    pub(super) copies: u64,
    pub(super) attempts: u64,
    /// The keys of the dead letters before the replay.
    pub(super) dead: HashSet<String>,
}

/// What the replay did.
pub(super) struct Replayed {
    pub(super) rounds: u64,
    pub(super) letters: u64,
}

/// Receivers over one store, which share an address, in a folder for what outlives them.
pub(super) struct Fleet {
    place: TempDir,
    listener: TcpListener,
    keeper: Keeper,
}

impl Fleet {
    pub(super) fn start(store: String) -> Self {
        let place = temp_dir();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let orders = Orders {
            store,
            lease: LEASE,
            ledger: place.path().join("ledger"),
        };
        let keeper = Keeper::start(orders, listener.try_clone().unwrap());
        Self {
            place,
            listener,
            keeper,
        }
    }

    /// Submits every event, and a third of them to a second sender as well, and waits until all are settled.
    pub(super) async fn send(&self) -> Sent {
        let letters = Arc::new(SqliteStore::open(self.letters()).unwrap());
        let (sender, copier) = (self.sender(&letters), self.sender(&letters));
        let run = Run::with_id(RunId::parse("kills").unwrap());
        let mut chance = Chance(EVENTS);
        let (mut keys, mut accepted) = (Vec::new(), Vec::new());
        for n in 0..EVENTS {
            let event = run.event(EventType::TOOL_END, &n).unwrap();
            keys.push(event.key().to_string());
            if chance.one_in(3) {
                accepted.push(copier.submit(event.clone()).await.unwrap());
            }
            accepted.push(sender.submit(event).await.unwrap());
        }
        let copies = accepted.len() as u64 - EVENTS;
        let mut dead = HashSet::new();
        for event in accepted {
            let report = event.settled().await;
            if !report.all_delivered() {
                dead.insert(report.key().to_string());
            }
        }
        let mut attempts = 0;
        for sender in [sender, copier] {
            let stats = sender.shutdown(PATIENCE).await;
            attempts += stats.lanes[0].attempts;
        }
        // What the senders say of it is what lies in the store.
        assert_eq!(keys_in(&*letters).await, dead);
        letters.close().await;
        Sent {
            keys,
            copies,
            attempts,
            dead,
        }
    }

    /// With a schedule that is shorter than the default, and with all other defaults.
    fn sender(&self, letters: &Arc<SqliteStore>) -> Dispatcher {
        let webhook = WebhookConfig {
            proxy: WebhookProxy::None,
            ..WebhookConfig::new(self.url(), Secret::new(SECRET).unwrap())
        };
        let letters = Arc::clone(letters) as Arc<dyn DeadLetterStore>;
        let sink = Arc::new(WebhookSink::new(webhook).unwrap());
        let mut lane = LaneConfig::new(SinkName::parse("webhook").unwrap(), sink, letters);
        lane.schedule = RetrySchedule::default().scaled(SCALE).unwrap();
        lane.concurrency = RECEIVERS as usize;
        lane.attempt_timeout = PATIENCE;
        lane.store_timeout = PATIENCE;
        Dispatcher::new(vec![lane]).unwrap()
    }

    /// `idemp replay`, again and again, until `idemp dlq stats` counts no letter.
    pub(super) fn replay(&self) -> Replayed {
        let end = Instant::now() + 5 * PATIENCE;
        let mut replayed = Replayed { rounds: 0, letters: 0 };
        while self.depth() > 0 {
            assert!(Instant::now() < end, "the dead letters are not getting fewer");
            let to = self.url();
            let options = ["--to", &to, "--secret-env", "SECRET", "--rate", "1000"];
            let (code, totals) = self.idemp("replay", &options);
            assert!([Some(0), Some(3)].contains(&code), "{code:?}: {totals}");
            replayed.rounds += 1;
            replayed.letters += totals["replayed"].as_u64().unwrap();
        }
        replayed
    }

    fn depth(&self) -> u64 {
        let (code, stats) = self.idemp("dlq stats", &[]);
        assert_eq!(code, Some(0), "{stats}");
        stats["depth"].as_u64().unwrap()
    }

    fn idemp(&self, verb: &str, options: &[&str]) -> (Option<i32>, Value) {
        let store = format!("sqlite:{}", self.letters().display());
        let mut command = idemp();
        command
            .args(verb.split(' '))
            .args(["--dlq", &store, "--json"])
            .args(options)
            .current_dir(self.place.path())
            .env("SECRET", SECRET);
        let finished = Process::run(verb, &mut command, PATIENCE);
        let printed = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
        (finished.status.code(), printed)
    }

    /// Stops the receivers and says what they wrote down.
    pub(super) fn stop(self) -> Vec<(Fate, String)> {
        let died = self.keeper.stop();
        let ledger = Ledger::read(&self.place.path().join("ledger"));
        let killed = |(fate, _): &&(Fate, String)| matches!(fate, Fate::KilledBeforeEffect | Fate::KilledBeforeMark);
        assert_eq!(
            ledger.iter().filter(killed).count(),
            died,
            "each death is in the ledger, and each was a kill that hit one event"
        );
        ledger
    }

    fn url(&self) -> String {
        format!("http://{}/", self.listener.local_addr().unwrap())
    }

    fn letters(&self) -> PathBuf {
        self.place.path().join("letters.db")
    }
}

async fn keys_in(letters: &dyn DeadLetterStore) -> HashSet<String> {
    let mut selection = letters.select(&Filter::default()).await.unwrap();
    let mut keys = HashSet::new();
    while let Some(page) = selection.next_page().await.unwrap() {
        keys.extend(
            page.into_iter()
                .map(|listed| listed.letterhead.unwrap().key.to_string()),
        );
    }
    keys
}

/// Starts the next receiver when one has been killed.
struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Keeper {
    fn start(orders: Orders, listener: TcpListener) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = thread::spawn(move || keep(|seed| orders.command(&listener, &seed.to_string()), &asked));
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// How many were killed.
    fn stop(mut self) -> usize {
        self.stop.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // For a test that fails.
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Each child draws fates of its own.
fn keep(command: impl Fn(u64) -> Command, stop: &AtomicBool) -> usize {
    let start = |seed| Receiver(command(seed).stdout(Stdio::null()).spawn().unwrap());
    let mut children: Vec<Receiver> = (0..RECEIVERS).map(start).collect();
    let mut started = RECEIVERS;
    loop {
        // Looked at once more when it is asked to stop, so that no death is missed.
        let last = stop.load(SeqCst);
        for child in &mut children {
            if let Some(status) = child.0.try_wait().unwrap() {
                assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status}");
                *child = start(started);
                started += 1;
            }
        }
        if last {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    (started - RECEIVERS) as usize
}

struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
