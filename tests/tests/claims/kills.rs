//! Receivers that are killed between claim, effect and mark, and handlers that fail: what is lost, and what runs twice.
//!
//! A receiver is a process of its own, which has one event at a time: a kill hits one event. It is this test program,
//! started once more for `child_receiver` alone.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use idemp_core::{EventType, Run, Secret, SinkName};
use idemp_dispatch::{Dispatcher, LaneConfig};
use idemp_dlq::MemoryStore;
use idemp_receiver::{Event, HandlerError, PostgresInbox, Receiver, ReceiverConfig, ReceiverLayer};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_tests::{Process, free_address};
use rustix::process::{Signal, getpid, kill_process};

use crate::support::{
    Chance, PATIENCE, SECRET, Signed, client, patient_config, pool, postgres, receiver, redis, store,
};

const EVENTS: usize = 2_000;
const RECEIVERS: usize = 6;

/// `redis ADDRESS` or `postgres URL`.
const STORE: &str = "IDEMP_TEST_CHILD_STORE";

/// What a child prints is not all its own.
const ANSWER: &str = "> ";

/// How the handler behaves, if it comes to run.
const OK: &str = "ok";
const FAILS: &str = "fails";
const KILLED_BEFORE: &str = "killed-before-effect";
const KILLED_AFTER: &str = "killed-after-effect";

#[tokio::test(flavor = "multi_thread")]
async fn over_redis_nothing_is_lost_and_only_kills_before_the_mark_run_twice() {
    let Some(server) = redis() else { return };
    let address = server.address();
    let fates = tokio::task::spawn_blocking(move || deliver_all(&format!("redis {address}")))
        .await
        .unwrap();

    let mut client = client(server.address()).await;
    let effects: Vec<String> = redis::cmd("LRANGE")
        .arg(&["effects", "0", "-1"])
        .query_async(&mut client)
        .await
        .unwrap();
    let runs = counted(effects);
    assert!(fates.kills.values().sum::<usize>() > 20, "{}", fates.kills.len());
    let lost: Vec<&String> = fates.keys.iter().filter(|key| !runs.contains_key(*key)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    for key in &fates.keys {
        let kills = fates.kills.get(key).copied().unwrap_or_default();
        assert_eq!(
            runs[key],
            1 + kills,
            "{key}: one run, and one more for each kill between effect and mark"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_postgres_inbox_nothing_is_lost_and_nothing_runs_twice() {
    let Some(server) = postgres() else { return };
    let pool = pool(&server.url()).await;
    sqlx::query("CREATE TABLE effects (event_key text NOT NULL)")
        .execute(&pool)
        .await
        .unwrap();
    let url = server.url();
    let fates = tokio::task::spawn_blocking(move || deliver_all(&format!("postgres {url}")))
        .await
        .unwrap();

    let effects: Vec<String> = sqlx::query_scalar("SELECT event_key FROM effects")
        .fetch_all(&pool)
        .await
        .unwrap();
    assert!(fates.kills.values().sum::<usize>() > 20, "{}", fates.kills.len());
    let (effects_taken, runs) = (effects.len(), counted(effects));
    assert_eq!((effects_taken, runs.len()), (EVENTS, EVENTS));
    assert!(fates.keys.iter().all(|key| runs[key] == 1));
}

/// In real time, with the sender's own schedule: the claim of the dead is over before the budget is.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_killed_right_after_its_claim_costs_no_dead_letter() {
    let Some(server) = redis() else { return };
    let address = free_address();
    let dies = serve(server.address(), address, KILLED_BEFORE);
    let webhook = WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(format!("http://{address}/"), Secret::new(SECRET).unwrap())
    };
    let mut lane = LaneConfig::new(
        SinkName::parse("webhook").unwrap(),
        Arc::new(WebhookSink::new(webhook).unwrap()),
        Arc::new(MemoryStore::new()),
    );
    lane.attempt_timeout = PATIENCE;
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    let run = Run::new();
    let sent = dispatcher
        .try_submit(run.event(EventType::TOOL_END, &1).unwrap())
        .unwrap();
    let died = tokio::task::spawn_blocking(move || dies.finish(PATIENCE))
        .await
        .unwrap();
    assert_eq!(died.status.code(), None, "killed: {}", died.stdout);
    let mut client = client(server.address()).await;
    let held: usize = redis::cmd("DBSIZE").query_async(&mut client).await.unwrap();
    assert_eq!(held, 1, "the claim of the dead");

    let _lives = serve(server.address(), address, OK);
    assert!(sent.settled().await.all_delivered());
    let attempts = dispatcher.stats().lanes[0].attempts;
    assert!((2..=4).contains(&attempts), "{attempts}");
    let effects: usize = redis::cmd("LLEN")
        .arg("effects")
        .query_async(&mut client)
        .await
        .unwrap();
    assert_eq!(effects, 1);
}

/// A receiver over HTTP, in a process of its own.
fn serve(redis: SocketAddr, address: SocketAddr, action: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "kills::child_receiver", "--nocapture", "--test-threads=1"])
        .env(STORE, format!("http {redis} {address} {action}"));
    let mut process = Process::start("a receiver", &mut command);
    process.wait_until("it listens", PATIENCE, |_| TcpStream::connect(address).ok());
    process
}

fn counted(keys: Vec<String>) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

/// What was done to the events, by key.
#[derive(Default)]
struct Fates {
    keys: Vec<String>,
    /// Kills between the effect and its mark.
    kills: HashMap<String, usize>,
}

/// Sends every event, tries again as a sender does, replays what is left over until nothing is, and sends copies of a
/// third.
fn deliver_all(store: &str) -> Fates {
    let fates = Arc::new(Mutex::new(Fates::default()));
    thread::scope(|scope| {
        for receiver in 0..RECEIVERS {
            let fates = Arc::clone(&fates);
            scope.spawn(move || {
                let mut sender = Sender::new(store, Chance(receiver as u64), fates);
                let keys: Vec<String> = (1..=EVENTS)
                    .filter(|n| n % RECEIVERS == receiver)
                    .map(|n| format!("run-{receiver}:tool_end:{n}"))
                    .collect();
                let mut dead_letters: Vec<&String> = keys.iter().filter(|key| !sender.delivers(key)).collect();
                while !dead_letters.is_empty() {
                    dead_letters.retain(|key| !sender.delivers(key));
                }
                sender.fates.lock().unwrap().keys.extend(keys);
            });
        }
    });
    Arc::into_inner(fates).unwrap().into_inner().unwrap()
}

struct Sender<'s> {
    store: &'s str,
    chance: Chance,
    receiver: ChildReceiver,
    fates: Arc<Mutex<Fates>>,
}

impl<'s> Sender<'s> {
    fn new(store: &'s str, chance: Chance, fates: Arc<Mutex<Fates>>) -> Self {
        Self {
            store,
            chance,
            receiver: ChildReceiver::start(store),
            fates,
        }
    }

    /// One delivery with its attempts, a thousandth as far apart as a sender's. `false` is a dead letter.
    fn delivers(&mut self, key: &str) -> bool {
        for wait in [0, 10, 50, 300] {
            thread::sleep(Duration::from_millis(wait));
            let action = match self.chance.below(100) {
                0..30 => FAILS,
                30..34 => KILLED_BEFORE,
                34..38 => KILLED_AFTER,
                _ => OK,
            };
            match self.receiver.receive(key, action).as_deref() {
                Some("ok" | "duplicate") => {
                    if self.chance.one_in(3) {
                        let copy = self.receiver.receive(key, OK);
                        assert_eq!(copy.as_deref(), Some("duplicate"), "{key}");
                    }
                    return true;
                }
                Some("failed" | "in_progress") => {}
                Some(other) => panic!("{key}: {other}"),
                None => {
                    if action == KILLED_AFTER {
                        *self.fates.lock().unwrap().kills.entry(key.to_owned()).or_default() += 1;
                    }
                    assert!([KILLED_BEFORE, KILLED_AFTER].contains(&action), "{key}: {action}");
                    self.receiver = ChildReceiver::start(self.store);
                }
            }
        }
        false
    }
}

struct ChildReceiver {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ChildReceiver {
    fn start(store: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::child_receiver", "--nocapture", "--test-threads=1"])
            .env(STORE, store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            requests: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// The code of the reply, `None` if it was killed.
    fn receive(&mut self, key: &str, action: &str) -> Option<String> {
        writeln!(self.requests, "{key} {action}").unwrap();
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The test harness begins the first line.
            if let Some((_, code)) = line.trim_end().rsplit_once(ANSWER) {
                return Some(code.to_owned());
            }
        }
    }
}

impl Drop for ChildReceiver {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: the receiver that the tests above start and kill.
#[test]
fn child_receiver() {
    let Ok(named) = std::env::var(STORE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        match named.split_once(' ').unwrap() {
            ("redis", address) => serve_redis(address.parse().unwrap()).await,
            ("http", rest) => {
                let words: Vec<&str> = rest.split(' ').collect();
                serve_http(words[0].parse().unwrap(), words[1], words[2].to_owned()).await;
            }
            (_, url) => serve_inbox(url).await,
        }
    });
}

/// After a kill, copies are put off for no longer than this.
fn config() -> ReceiverConfig {
    ReceiverConfig {
        lease: Duration::from_millis(300),
        ..patient_config()
    }
}

async fn serve_redis(address: SocketAddr) {
    let receiver = receiver(store(address), config());
    let client = client(address).await;
    for (key, action) in requests() {
        let mut client = client.clone();
        let handler = async move |event: Event| {
            before_effect(&action)?;
            let mut push = redis::cmd("RPUSH");
            push.arg("effects").arg(event.key());
            push.exec_async(&mut client).await.unwrap();
            after_effect(&action);
            Ok(())
        };
        answer(&receiver, &key, handler).await;
    }
}

/// With the default lease, as it would be deployed.
async fn serve_http(redis: SocketAddr, address: &str, action: String) {
    let client = client(redis).await;
    let handle = move |event: Event| {
        let (mut client, action) = (client.clone(), action.clone());
        async move {
            before_effect(&action)?;
            let mut push = redis::cmd("RPUSH");
            push.arg("effects").arg(event.key());
            push.exec_async(&mut client).await.unwrap();
            Ok::<(), HandlerError>(())
        }
    };
    let layer = ReceiverLayer::new(receiver(store(redis), patient_config()));
    let app = axum::Router::new().route("/", axum::routing::post(handle).route_layer(layer));
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}

async fn serve_inbox(url: &str) {
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(2)
        .connect(url)
        .await
        .unwrap();
    let inbox = Arc::new(PostgresInbox::new(pool));
    let receiver = receiver(Arc::clone(&inbox), config());
    for (key, action) in requests() {
        let inbox = Arc::clone(&inbox);
        let handler = async move |event: Event| {
            let mut transaction = inbox.transaction(&event).await?;
            sqlx::query("INSERT INTO effects VALUES ($1)")
                .bind(event.key())
                .execute(&mut **transaction)
                .await?;
            before_effect(&action)?;
            after_effect(&action);
            Ok(())
        };
        answer(&receiver, &key, handler).await;
    }
}

/// From standard input, to its end.
fn requests() -> impl Iterator<Item = (String, String)> {
    std::io::stdin().lines().map(|line| {
        let line = line.unwrap();
        let (key, action) = line.split_once(' ').unwrap();
        (key.to_owned(), action.to_owned())
    })
}

async fn answer<H, F>(receiver: &Receiver, key: &str, handler: H)
where
    H: FnOnce(Event) -> F + Send + 'static,
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    let event = Signed::new(key);
    let reply = receiver.receive(event.incoming(), handler).await;
    // Not captured, and one write.
    let line = format!("{ANSWER}{}\n", reply.code());
    let mut out = std::io::stdout();
    out.write_all(line.as_bytes()).unwrap();
    out.flush().unwrap();
}

fn before_effect(action: &str) -> Result<(), HandlerError> {
    match action {
        FAILS => Err(HandlerError::Failed),
        KILLED_BEFORE => die(),
        _ => Ok(()),
    }
}

fn after_effect(action: &str) {
    if action == KILLED_AFTER {
        die();
    }
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("killed")
}
