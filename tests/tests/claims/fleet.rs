//! Our receiver and Python receivers on one Redis.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Router};
use idemp_core::{Attempt, Cause, EventType, Message, Outcome, Run, RunId, Secret, Sink, Transport};
use idemp_receiver::{Event, ReceiverLayer};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_testkit::gate::Gate;
use idemp_tests::{Process, temp_dir};
use tokio::net::TcpListener;

use crate::support::{Chance, Effects, PATIENCE, SECRET, patient_config, receiver, redis, store};

const EVENTS: usize = 2_000;
const SECRET_ENV: &str = "IDEMP_TEST_SECRET";
const PATH: &str = "/webhooks/langchain";

/// A receiver in Python, and the file to which it appends its effects.
struct Python {
    _process: Process,
    address: SocketAddr,
    out: PathBuf,
    _dir: tempfile::TempDir,
}

impl Python {
    /// `name` is a script in `tests/python/`.
    fn start(name: &str, redis: SocketAddr, options: &[&str]) -> Self {
        let dir = temp_dir();
        let out = dir.path().join("effects.jsonl");
        let python = std::env::var_os("IDEMP_E2E_PYTHON").expect("IDEMP_E2E_PYTHON is set");
        let mut command = Command::new(python);
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name))
            .args([
                "--redis",
                &format!("redis://{redis}"),
                "--secret-env",
                SECRET_ENV,
                "--out",
            ])
            .arg(&out)
            .args(options)
            .env(SECRET_ENV, SECRET);
        let mut process = Process::start(name, &mut command);
        let address = process.wait_until("it prints its address", PATIENCE, |process| {
            process
                .stdout()
                .lines()
                .find_map(|line| line.strip_prefix("listening on ")?.parse().ok())
        });
        Self {
            _process: process,
            address,
            out,
            _dir: dir,
        }
    }

    fn has_done(&self, key: &str) -> bool {
        std::fs::read_to_string(&self.out)
            .unwrap_or_default()
            .contains(&format!("\"{key}\""))
    }

    fn effects(&self) -> HashMap<String, usize> {
        let mut effects = HashMap::new();
        for line in std::fs::read_to_string(&self.out).unwrap_or_default().lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            *effects.entry(line["key"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        effects
    }
}

/// Ours over HTTP, with a handler that is held by the gate if there is one, and fails one run in `fails`.
async fn ours(redis: SocketAddr, effects: &Effects, gate: Option<Gate>, fails: Option<u64>) -> SocketAddr {
    #[derive(Clone)]
    struct Handler {
        effects: Effects,
        gate: Option<Gate>,
        fails: Option<u64>,
        chance: Arc<std::sync::Mutex<Chance>>,
    }
    async fn handle(Extension(handler): Extension<Handler>, event: Event) -> StatusCode {
        if let Some(gate) = &handler.gate {
            gate.pass().await;
        }
        let fails = handler
            .fails
            .is_some_and(|fails| handler.chance.lock().unwrap().one_in(fails));
        let pause = handler.chance.lock().unwrap().below(5);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if fails {
            return StatusCode::INTERNAL_SERVER_ERROR;
        }
        handler.effects.add(event.key());
        StatusCode::OK
    }
    let handler = Handler {
        effects: effects.clone(),
        gate,
        fails,
        chance: Arc::new(std::sync::Mutex::new(Chance(7))),
    };
    let layer = ReceiverLayer::new(receiver(store(redis), patient_config()));
    let app = Router::new()
        .route(PATH, post(handle))
        .layer(layer)
        .layer(Extension(handler));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn sink(address: SocketAddr) -> WebhookSink {
    let config = WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(format!("http://{address}{PATH}"), Secret::new(SECRET).unwrap())
    };
    WebhookSink::new(config).unwrap()
}

/// The status of one attempt, 0 if its connection was cut.
async fn send(sink: &WebhookSink, message: &Message) -> u16 {
    let attempt = Attempt {
        number: 1,
        now: SystemTime::now(),
        deadline: Instant::now() + PATIENCE,
    };
    match sink.deliver(message, attempt).await {
        Outcome::Delivered { status } => status.unwrap(),
        Outcome::Failed(failure) => match failure.cause {
            Cause::Status(status) => status,
            // A connection that the other side had just closed.
            Cause::Transport(Transport::Cut) => 0,
            other => panic!("{other:?}"),
        },
    }
}

fn messages(run: &str, count: usize) -> Vec<Message> {
    let run = Run::with_id(RunId::parse(run).unwrap());
    (0..count)
        .map(|n| run.event(EventType::TOOL_END, &n).unwrap())
        .collect()
}

/// Both sides fail now and then; the Python side is the one of docs/python/.
#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_processed_by_both_sides_of_a_fleet() {
    let Some(server) = redis() else { return };
    let python = Python::start("fleet.py", server.address(), &["--fail", "0.1"]);
    let effects = Effects::default();
    let ours = ours(server.address(), &effects, None, Some(10)).await;
    send_to_either(ours, python, &effects, true).await;
}

/// The base document's receiver, byte for byte. It acknowledges copies of what is at work, so nobody may fail here.
#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_processed_by_both_ours_and_an_unmodified_peer() {
    let Some(server) = redis() else { return };
    let python = Python::start("receiver.py", server.address(), &[]);
    let effects = Effects::default();
    let ours = ours(server.address(), &effects, None, None).await;
    send_to_either(ours, python, &effects, false).await;
}

/// Each copy goes to one of the two at random and is sent until it gets a 2xx; a third of the events have two copies,
/// at the same time. Each event is processed once; `acknowledged_after`: and before any 2xx.
async fn send_to_either(ours: SocketAddr, python: Python, effects: &Effects, acknowledged_after: bool) {
    let python = Arc::new(python);
    let sinks = Arc::new([sink(ours), sink(python.address)]);

    let messages = messages("fleet", EVENTS);
    let mut chance = Chance(1);
    let slots = Arc::new(tokio::sync::Semaphore::new(32));
    let mut copies = tokio::task::JoinSet::new();
    for message in &messages {
        let number = if chance.one_in(3) { 2 } else { 1 };
        let permit = Arc::clone(&slots).acquire_owned().await.unwrap();
        let permit = Arc::new(permit);
        for _ in 0..number {
            let (sinks, message, permit) = (Arc::clone(&sinks), message.clone(), Arc::clone(&permit));
            let (effects, python) = (effects.clone(), Arc::clone(&python));
            let mut chance = Chance(chance.below(u64::MAX));
            copies.spawn(async move {
                let end = Instant::now() + 2 * PATIENCE;
                loop {
                    let side = usize::from(chance.one_in(2));
                    match send(&sinks[side], &message).await {
                        200 => break,
                        500 | 503 | 0 => {}
                        other => panic!("{other}"),
                    }
                    assert!(Instant::now() < end, "not taken in vain");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let key = message.key().to_string();
                assert!(
                    !acknowledged_after || effects.of(&key) == 1 || python.has_done(&key),
                    "{key} was acknowledged too early"
                );
                drop(permit);
            });
        }
    }
    while let Some(copy) = copies.join_next().await {
        copy.unwrap();
    }
    let theirs = python.effects();
    let mut shares = (0, 0);
    for message in &messages {
        let key = message.key().to_string();
        let (own, other) = (effects.of(&key), theirs.get(&key).copied().unwrap_or_default());
        assert_eq!(own + other, 1, "{key}: {own} by ours, {other} by theirs");
        shares = (shares.0 + own, shares.1 + other);
    }
    assert!(shares.0 > EVENTS / 4 && shares.1 > EVENTS / 4, "{shares:?}");
}

/// The limit that docs/receiver.md names, and that the change removes.
#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_peer_acknowledges_what_ours_has_not_done_yet() {
    let Some(server) = redis() else { return };
    let gate = Gate::shut();
    let effects = Effects::default();
    let ours = sink(ours(server.address(), &effects, Some(gate.clone()), Some(1)).await);
    let plain = Python::start("receiver.py", server.address(), &[]);
    let changed = Python::start("fleet.py", server.address(), &[]);
    let message = messages("limit", 1).remove(0);
    let key = message.key().to_string();

    let first = {
        let message = message.clone();
        tokio::spawn(async move { send(&ours, &message).await })
    };
    gate.arrived(1).await;
    assert_eq!(send(&sink(changed.address), &message).await, 503, "in progress");
    assert_eq!(
        send(&sink(plain.address), &message).await,
        200,
        "duplicate, though nobody has done it"
    );
    gate.open();
    assert_eq!(first.await.unwrap(), 500, "and then it fails");
    assert_eq!(
        (effects.of(&key), plain.effects().len(), changed.effects().len()),
        (0, 0, 0)
    );

    // The changed peer had put its copy off, and takes it now.
    assert_eq!(send(&sink(changed.address), &message).await, 200);
    assert_eq!(changed.effects().get(&key), Some(&1));
    for peer in [plain.address, changed.address] {
        assert_eq!(send(&sink(peer), &message).await, 200);
    }
    assert_eq!((plain.effects().len(), changed.effects()[&key]), (0, 1));
}
