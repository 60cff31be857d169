//! idemp beside Python programs that were written from the specification, with a Redis or Valkey server between.
//!
//! `cargo xtask e2e python` brings up what this needs. CPython is the judge of what arrived (`python/compare.py`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use idemp_tests::{Process, Suite, data, http_get, idemp, json_of, selected, temp_dir};
use serde_json::{Value, json};

/// Lines of `langchain-events.jsonl`, each with a key of its own.
const EVENTS: u64 = 585;
/// For a server to answer, or for the whole corpus to go through: only a guard against hanging for ever.
const LIMIT: Duration = Duration::from_secs(300);
const SECRET_ENV: &str = "IDEMP_TEST_SECRET";
/// A key of 24 bytes, in the form that the Standard Webhooks libraries take.
const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

#[test]
fn the_python_peers_agree_with_each_other() {
    let Some(peers) = Peers::new(1) else { return };
    for fail_when in ["before", "after"] {
        peers.forget_claims();
        let mut receiver = peers.receiver(&["--fail-first", "1", "--fail-when", fail_when]);
        let answers = peers.python_sends(receiver.address, &["--scale", "0.05"]);

        let last_word = if fail_when == "before" { "ok" } else { "duplicate" };
        assert_eq!(answers, json!({ last_word: EVENTS }));
        assert_eq!(receiver.stats()["unavailable"], EVENTS);
        assert_eq!(receiver.stats()["bad signature"], 0);
        peers.assert_all_processed_once(&receiver.processed);
    }
}

#[test]
fn a_receiver_written_from_the_specification_accepts_what_idemp_sends() {
    let Some(peers) = Peers::new(2) else { return };
    peers.forget_claims();
    let mut receiver = peers.receiver(&[]);

    peers.idemp_sends(receiver.address, &[]);
    assert_eq!(
        receiver.stats(),
        json!({"ok": EVENTS, "duplicate": 0, "bad signature": 0, "unavailable": 0})
    );
    peers.assert_all_processed_once(&receiver.processed);
    assert_eq!(peers.claims(), json!({"claimed": EVENTS, "for a day": EVENTS}));

    peers.idemp_sends(receiver.address, &[]);
    assert_eq!(
        receiver.stats(),
        json!({"ok": EVENTS, "duplicate": EVENTS, "bad signature": 0, "unavailable": 0})
    );
    peers.assert_all_processed_once(&receiver.processed);
}

#[test]
fn a_receiver_that_fails_once_per_key_takes_each_event_once() {
    let Some(peers) = Peers::new(3) else { return };
    for (fail_when, last_word) in [("before", "ok"), ("after", "duplicate")] {
        peers.forget_claims();
        let mut receiver = peers.receiver(&["--fail-first", "1", "--fail-when", fail_when]);
        peers.idemp_sends(receiver.address, &[]);

        let stats = receiver.stats();
        assert_eq!(stats[last_word], EVENTS, "{fail_when}: {stats}");
        assert_eq!(stats["unavailable"], EVENTS, "{fail_when}: {stats}");
        assert_eq!(stats["bad signature"], 0, "{fail_when}: {stats}");
        peers.assert_all_processed_once(&receiver.processed);
    }
}

#[test]
fn idemp_receives_from_a_sender_written_from_the_specification() {
    let Some(peers) = Peers::new(4) else { return };
    let receiver = peers.idemp_receives(&[]);

    assert_eq!(peers.python_sends(receiver.address, &[]), json!({"ok": EVENTS}));
    peers.assert_all_processed_once(&receiver.processed);
    let written = std::fs::read(&receiver.processed).unwrap();

    assert_eq!(peers.python_sends(receiver.address, &[]), json!({"duplicate": EVENTS}));
    assert!(
        std::fs::read(&receiver.processed).unwrap() == written,
        "a duplicate was written"
    );
    receiver.ends_well();
}

#[test]
fn the_standard_webhooks_library_verifies_what_idemp_signs() {
    let Some(peers) = Peers::new(5) else { return };
    let mut judge = peers.serve("standard_check.py", &["receive"]);

    peers.idemp_sends(judge.address, &["--standard-webhooks"]);
    assert_eq!(judge.stats(), json!({"verified": EVENTS}));
    peers.assert_all_processed_once(&judge.processed);
}

#[test]
fn idemp_verifies_what_the_standard_webhooks_library_signs() {
    let Some(peers) = Peers::new(6) else { return };
    let receiver = peers.idemp_receives(&["--require-standard-webhooks"]);
    let mut send = peers.script("standard_check.py");
    send.arg("send")
        .arg(&peers.events)
        .args(["--to", &receiver.url(), "--secret-env", SECRET_ENV]);

    let answers = json_of(&mut send);
    assert_eq!(
        answers,
        json!({
            "tampered body: 401": 1,
            "another key beside the id: 401": 1,
            "other id: 401": 1,
            "other timestamp: 401": 1,
            "old: 401": 1,
            "from the future: 401": 1,
            "another secret: 401": 1,
            "no signature: 401": 1,
            "empty signature: 401": 1,
            "ok": EVENTS,
        })
    );
    peers.assert_all_processed_once(&receiver.processed);
    receiver.ends_well();
}

/// The venv's interpreter, a logical database of its own in Redis, and a folder for one test.
struct Peers {
    python: PathBuf,
    redis: String,
    events: PathBuf,
    dir: tempfile::TempDir,
}

impl Peers {
    fn new(database: u8) -> Option<Self> {
        if !selected(Suite::Python) {
            return None;
        }
        let variable = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        Some(Self {
            python: variable("IDEMP_E2E_PYTHON").into(),
            redis: format!("{}/{database}", variable("IDEMP_E2E_REDIS").trim_end_matches('/')),
            events: data("langchain-events.jsonl"),
            dir: temp_dir(),
        })
    }

    fn script(&self, name: &str) -> Command {
        let mut command = Command::new(&self.python);
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name))
            .env(SECRET_ENV, SECRET);
        command
    }

    /// The receiver of the specification.
    fn receiver(&self, options: &[&str]) -> Server {
        self.serve("receiver.py", &[&["--redis", self.redis.as_str()], options].concat())
    }

    /// A Python server, which prints its address.
    fn serve(&self, name: &str, options: &[&str]) -> Server {
        let processed = self.fresh_file();
        let mut command = self.script(name);
        command
            .args(options)
            .args(["--secret-env", SECRET_ENV, "--out"])
            .arg(&processed);
        let mut process = Process::start(name, &mut command);
        let address = process.wait_until("it prints its address", LIMIT, |process| {
            process
                .stdout()
                .lines()
                .find_map(|line| line.strip_prefix("listening on ")?.parse().ok())
        });
        Server {
            process,
            address,
            processed,
        }
    }

    fn idemp_receives(&self, options: &[&str]) -> Server {
        let processed = self.fresh_file();
        let mut command = idemp();
        command.args([
            "receive",
            "--listen",
            "127.0.0.1:0",
            "--secret-env",
            SECRET_ENV,
            "--store",
            "memory",
            "--out",
        ]);
        command.arg(&processed).args(options).env(SECRET_ENV, SECRET);
        let mut process = Process::start("idemp receive", &mut command);
        let address = process.wait_until("it prints its address", LIMIT, |process| address_in(&process.stderr()));
        Server {
            process,
            address,
            processed,
        }
    }

    fn idemp_sends(&self, to: SocketAddr, options: &[&str]) {
        let mut command = idemp();
        command
            .arg("send")
            .arg(&self.events)
            .args(["--to", &url(to), "--secret-env", SECRET_ENV]);
        command
            .arg("--dlq")
            .arg(format!("sqlite:{}", self.dir.path().join("dlq.db").display()));
        command.args(options).env(SECRET_ENV, SECRET);
        let sent = Process::run("idemp send", &mut command, LIMIT);
        assert_eq!(sent.status.code(), Some(0), "{}{}", sent.stdout, sent.stderr);
    }

    fn python_sends(&self, to: SocketAddr, options: &[&str]) -> Value {
        let mut command = self.script("sender.py");
        command
            .arg(&self.events)
            .args(["--to", &url(to), "--secret-env", SECRET_ENV])
            .args(options);
        json_of(&mut command)
    }

    fn forget_claims(&self) {
        let mut command = self.script("claims.py");
        command.arg("clear").arg(&self.events).args(["--redis", &self.redis]);
        let cleared = Process::run("claims.py", &mut command, LIMIT);
        assert!(cleared.status.success(), "{}", cleared.stderr);
    }

    fn claims(&self) -> Value {
        let mut command = self.script("claims.py");
        json_of(command.arg("count").arg(&self.events).args(["--redis", &self.redis]))
    }

    /// Every event of the corpus is in the file, once, with its data unchanged.
    fn assert_all_processed_once(&self, processed: &Path) {
        let counts = json_of(self.script("compare.py").arg(&self.events).arg(processed));
        assert_eq!(
            counts,
            json!({
                "sent": EVENTS, "processed": EVENTS, "missing": 0, "unknown": 0, "more than once": 0, "changed": 0,
            })
        );
    }

    /// A path in the test's folder where nothing is yet.
    fn fresh_file(&self) -> PathBuf {
        (1..)
            .map(|n| self.dir.path().join(format!("{n}.jsonl")))
            .find(|path| !path.exists())
            .expect("a free number")
    }
}

/// A receiver that appends what it processed to a file.
struct Server {
    process: Process,
    address: SocketAddr,
    processed: PathBuf,
}

impl Server {
    fn url(&self) -> String {
        url(self.address)
    }

    /// How often the Python servers answered what.
    fn stats(&mut self) -> Value {
        let address = self.address;
        self.process.wait_until("GET /stats", LIMIT, |_| {
            let (_, body) = http_get(address, "/stats").filter(|(status, _)| *status == 200)?;
            serde_json::from_str(&body).ok()
        })
    }

    fn ends_well(self) {
        self.process.terminate();
        let ended = self.process.finish(LIMIT);
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    }
}

/// The address in the line by which a server says that it takes connections.
fn address_in(printed: &str) -> Option<SocketAddr> {
    printed.lines().find_map(|line| {
        let address = line.strip_prefix("listening on ")?;
        address.strip_prefix("http://").unwrap_or(address).parse().ok()
    })
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/webhooks/langchain")
}
