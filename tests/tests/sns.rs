//! The SNS sink on a server that speaks SNS, with a queue behind the topic that a Python peer reads with boto3.
//!
//! `cargo xtask e2e sns` brings up what this needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idemp_core::{Cause, Code, ErrorClass, IdempotencyKey, Message, Mode, Reason, RetrySchedule, Secret, SinkName};
use idemp_dispatch::{Dispatcher, LaneConfig, Settlement};
use idemp_dlq::{DeadLetterStore, Filter, Letterhead, MemoryStore, ReplayOptions, Replayer, Target};
use idemp_sinks::sns::{DEFAULT_MODE, SnsConfig, SnsSink};
use idemp_testkit::peer::{Answer, Peer, Request};
use idemp_tests::{Process, Server, Suite, aws_script, data, forward, ministack, selected, temp_dir};
use serde_json::{Value, json};

/// Lines of the corpus, each with a key of its own. One is longer than SNS takes.
const EVENTS: u64 = 585;
/// Only a guard against hanging for ever.
const LIMIT: Duration = Duration::from_secs(300);
const SECRET_ENV: &str = "IDEMP_TEST_SECRET";
const SECRET: &str = "of the test";

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_corpus_arrives_but_for_what_is_too_long() {
    if !selected(Suite::Sns) {
        return;
    }
    let place = Place::new();
    let topic = place.topic("corpus");
    let lane = LaneConfig::at_most_once(name(), topic.sink(&place.url()).await);
    assert_eq!(lane.mode, DEFAULT_MODE);
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();

    let mut handles = Vec::new();
    for message in corpus() {
        let is_too_long = message.body().len() > 262_144;
        handles.push((is_too_long, dispatcher.submit(message).await.unwrap()));
    }
    for (is_too_long, handle) in handles {
        let report = handle.settled().await;
        match &report.settlements()[0].1 {
            Settlement::Delivered { attempts: 1 } => assert!(!is_too_long),
            Settlement::Dropped { reason } => assert!(is_too_long && *reason == Reason::EventRejected, "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    let stats = dispatcher.shutdown(LIMIT).await.lanes.remove(0);
    assert_eq!((stats.delivered, stats.dropped), (EVENTS - 1, 1));
    assert_eq!(
        topic.received(&place.url(), &data("langchain-events.jsonl")).0,
        counts(EVENTS - 1, 1, 0),
        "the one that is missing is the one that was refused"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_in_mid_run_loses_nothing() {
    if !selected(Suite::Sns) {
        return;
    }
    let mut place = Place::new();
    if place.server.is_none() {
        return;
    }
    let topic = place.topic("stopped");
    let sink = topic.sink(&place.url()).await;
    let store = Arc::new(MemoryStore::new());
    // Waits of 20, 100 and 600 ms: what is under way when the server stops runs out of budget.
    let lane = LaneConfig {
        schedule: RetrySchedule::default().scaled(0.02).unwrap(),
        attempt_timeout: Duration::from_secs(60),
        concurrency: 8,
        ..LaneConfig::new(name(), Arc::clone(&sink) as _, Arc::clone(&store) as _)
    };
    assert_eq!(lane.mode, Mode::AtLeastOnce);
    let dispatcher = Arc::new(Dispatcher::new(vec![lane]).unwrap());

    let mut handles = Vec::new();
    for message in corpus() {
        if handles.len() == 300 {
            let delivered = || dispatcher.stats().lanes[0].delivered;
            idemp_testkit::until("some are delivered", || delivered() >= 100).await;
            place.stop();
        }
        handles.extend(dispatcher.submit(message).await.ok());
    }
    assert_eq!(handles.len() as u64, EVENTS);
    for handle in handles {
        for (_, settlement) in handle.settled().await.settlements() {
            match settlement {
                Settlement::Delivered { .. } => {}
                Settlement::DeadLettered { reason, .. } => {
                    assert!(
                        matches!(
                            reason,
                            Reason::RetriesExhausted | Reason::CircuitOpen | Reason::EventRejected
                        ),
                        "{reason:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let stats = dispatcher.shutdown(LIMIT).await.lanes.remove(0);
    assert_eq!(stats.delivered + stats.dead_lettered, EVENTS);
    let letters = heads(&*store).await;
    let exhausted = letters.iter().filter(|head| head.reason == Reason::RetriesExhausted);
    assert!(exhausted.count() > 0, "the stop came too late");
    let doubtful = letters.iter().filter(|head| head.maybe_delivered).count() as u64;

    place.start_again();
    let replayer = Replayer::new(ReplayOptions {
        rate_per_second: 10_000.0,
        attempt_timeout: Duration::from_secs(60),
        lease: Duration::from_secs(90),
        ..ReplayOptions::default()
    });
    let target = move |_: &SinkName| {
        Some(Target {
            sink: Arc::clone(&sink) as _,
            policy: Default::default(),
        })
    };
    let summary = replayer
        .unwrap()
        .run(&*store, &Filter::default(), &target, &mut |_| (), &Default::default())
        .await
        .unwrap();
    // All but the one that is longer than SNS takes.
    assert_eq!(summary.replayed, stats.dead_lettered - 1);
    let left = heads(&*store).await;
    assert_eq!(left.len(), 1);
    assert!(
        left[0].reason == Reason::EventRejected && left[0].body_len > 262_144,
        "{left:?}"
    );

    let (counted, _) = topic.received(&place.url(), &data("langchain-events.jsonl"));
    let twice = counted["more than once"].as_u64().unwrap();
    assert!(
        twice <= doubtful,
        "only what may have arrived is there twice: {twice} of {doubtful}"
    );
    assert_eq!(counted, counts(EVENTS - 1 + twice, 1, twice));
}

/// What the proxy does with the first request of an event; later ones pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Does not pass it on, and answers that there is no room.
    Throttle,
    /// Passes it on, and answers with an error.
    ErrorAfter,
    /// Passes it on, and closes the connection.
    Cut,
    /// Answers each request with an error.
    AlwaysError,
    /// Refuses each request.
    AlwaysRefuse,
}

const FAULTS: [Fault; 6] = [
    Fault::None,
    Fault::Throttle,
    Fault::ErrorAfter,
    Fault::Cut,
    Fault::AlwaysError,
    Fault::AlwaysRefuse,
];

#[tokio::test(flavor = "multi_thread")]
async fn each_request_at_a_faulty_proxy_is_an_attempt_in_our_record() {
    if !selected(Suite::Sns) {
        return;
    }
    let place = Place::new();
    let topic = place.topic("faulty");
    let messages = numbered("run-1", 60);
    let faults: HashMap<String, Fault> = messages
        .iter()
        .zip(FAULTS.into_iter().cycle())
        .map(|(message, fault)| (message.key().to_string(), fault))
        .collect();
    let (proxy, requests) = proxy(place.address(), faults.clone()).await;

    let store = Arc::new(MemoryStore::new());
    let sink = topic.sink(&proxy.url("")).await;
    let mut lane = LaneConfig::new(name(), sink, Arc::clone(&store) as _);
    lane.schedule = RetrySchedule::default().scaled(0.01).unwrap();
    lane.attempt_timeout = Duration::from_secs(60);
    // Ten in a row are exhausted here on purpose.
    lane.breaker.exhausted_in_a_row = 1_000;
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    let mut handles = Vec::new();
    for message in &messages {
        handles.push(dispatcher.submit(message.clone()).await.unwrap());
    }
    for handle in handles {
        let key = handle.key().to_string();
        let settlement = handle.settled().await.settlements()[0].1.clone();
        let at_proxy = requests.lock().unwrap()[&key];
        let fault = faults[&key];
        match (fault, settlement) {
            (Fault::None, Settlement::Delivered { attempts }) => assert_eq!((attempts, at_proxy), (1, 1)),
            (Fault::Throttle | Fault::ErrorAfter | Fault::Cut, Settlement::Delivered { attempts }) => {
                assert_eq!((attempts, at_proxy), (2, 2), "{fault:?}");
            }
            (Fault::AlwaysError, Settlement::DeadLettered { reason, attempts }) => {
                assert_eq!((reason, attempts, at_proxy), (Reason::RetriesExhausted, 4, 4));
            }
            (Fault::AlwaysRefuse, Settlement::DeadLettered { reason, attempts }) => {
                assert_eq!((reason, attempts, at_proxy), (Reason::EventRejected, 1, 1));
            }
            (fault, settlement) => panic!("{fault:?}: {settlement:?}"),
        }
    }
    let stats = dispatcher.shutdown(LIMIT).await.lanes.remove(0);
    let at_proxy: u64 = requests.lock().unwrap().values().sum();
    assert_eq!(stats.attempts, at_proxy);
    assert_eq!(proxy.requests().len() as u64, at_proxy);

    for head in heads(&*store).await {
        let fault = faults[head.key.as_str()];
        let (class, code) = match fault {
            Fault::AlwaysError => (ErrorClass::Ambiguous, "InternalError"),
            _ => (ErrorClass::RejectsEvent, "InvalidParameter"),
        };
        let cause = Cause::Code {
            class,
            code: Code::new(code),
        };
        assert_eq!(head.attempts.len() as u64, requests.lock().unwrap()[head.key.as_str()]);
        assert!(
            head.attempts.iter().all(|attempt| attempt.cause == Some(cause)),
            "{fault:?}"
        );
        assert_eq!(head.maybe_delivered, fault == Fault::AlwaysError);
    }
    // What was passed on before the fault is there twice: 10 after an error, 10 after a cut.
    let (counted, _) = topic.received(&place.url(), &lines(&place.dir, &messages));
    assert_eq!(counted, counts(40 + 20, 20, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_once_makes_one_request_and_counts_what_is_lost() {
    if !selected(Suite::Sns) {
        return;
    }
    let place = Place::new();
    let topic = place.topic("once");
    let messages = numbered("run-1", 12);
    let faults = [Fault::None, Fault::Throttle, Fault::ErrorAfter, Fault::Cut];
    let faults = messages.iter().zip(faults.into_iter().cycle());
    let faults = faults.map(|(message, fault)| (message.key().to_string(), fault));
    let (proxy, requests) = proxy(place.address(), faults.collect()).await;
    let mut lane = LaneConfig::at_most_once(name(), topic.sink(&proxy.url("")).await);
    lane.attempt_timeout = Duration::from_secs(60);
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    for message in &messages {
        let report = dispatcher.dispatch(message.clone()).await.unwrap();
        let settlement = &report.settlements()[0].1;
        assert!(
            matches!(
                settlement,
                Settlement::Delivered { attempts: 1 }
                    | Settlement::Dropped {
                        reason: Reason::RetriesExhausted
                    }
            ),
            "{settlement:?}"
        );
    }
    let stats = dispatcher.shutdown(LIMIT).await.lanes.remove(0);
    assert_eq!((stats.delivered, stats.dropped, stats.attempts), (3, 9, 12));
    assert!(requests.lock().unwrap().values().all(|count| *count == 1));
    // Those that were throttled are lost for good; nothing is there twice.
    let (counted, _) = topic.received(&place.url(), &lines(&place.dir, &messages));
    assert_eq!(counted, counts(9, 3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fifo_topic_drops_the_copies() {
    if !selected(Suite::Sns) {
        return;
    }
    let place = Place::new();
    let topic = place.topic("ordered.fifo");
    let mut messages = numbered("run-1", 20);
    // Too long for a de-duplication id as it is.
    messages.extend(numbered(&"r".repeat(64), 2).into_iter().map(|message| {
        let key = message.key();
        let key = format!("{}:{}:{}", key.run_id(), "t".repeat(64), key.step_index());
        Message::new(IdempotencyKey::parse(&key).unwrap(), &"long").unwrap()
    }));
    let faults = messages.iter().map(|message| (message.key().to_string(), Fault::Cut));
    let (proxy, requests) = proxy(place.address(), faults.collect()).await;

    let mut lane = LaneConfig::new(name(), topic.sink(&proxy.url("")).await, Arc::new(MemoryStore::new()));
    lane.schedule = RetrySchedule::default().scaled(0.01).unwrap();
    lane.attempt_timeout = Duration::from_secs(60);
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    for message in &messages {
        let report = dispatcher.dispatch(message.clone()).await.unwrap();
        assert!(report.all_delivered(), "{report:?}");
    }
    dispatcher.shutdown(LIMIT).await;
    assert!(requests.lock().unwrap().values().all(|count| *count == 2));
    assert_eq!(
        topic.received(&place.url(), &lines(&place.dir, &messages)),
        (counts(22, 0, 0), 0)
    );
}

/// Where tests run: a server of their own, or one from outside.
struct Place {
    server: Option<Server>,
    external: String,
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let external = std::env::var("IDEMP_E2E_SNS").unwrap_or_default();
        Self {
            server: external.is_empty().then(ministack),
            external,
            dir: temp_dir(),
        }
    }

    fn url(&self) -> String {
        match &self.server {
            Some(server) => format!("http://{}", server.address()),
            None => self.external.clone(),
        }
    }

    fn address(&self) -> SocketAddr {
        match &self.server {
            Some(server) => server.address(),
            None => self
                .external
                .trim_start_matches("http://")
                .trim_end_matches('/')
                .parse()
                .expect("a proxy needs IDEMP_E2E_SNS as http://ADDRESS:PORT"),
        }
    }

    fn stop(&mut self) {
        self.server.as_mut().expect("the test's own server").stop();
    }

    fn start_again(&mut self) {
        self.server.as_mut().expect("the test's own server").start_again();
    }

    fn topic(&self, name: &str) -> Topic {
        let mut command = aws_script("sns_topic.py");
        let made = json_of(command.args(["--endpoint", &self.url(), "--name", name]));
        Topic {
            arn: made["topic_arn"].as_str().unwrap().to_owned(),
            queue: made["queue_url"].as_str().unwrap().to_owned(),
        }
    }
}

/// A topic and the queue behind it.
struct Topic {
    arn: String,
    queue: String,
}

impl Topic {
    /// With the credentials of the environment.
    async fn sink(&self, endpoint: &str) -> Arc<SnsSink> {
        let config = SnsConfig {
            endpoint_url: Some(endpoint.to_owned()),
            ..SnsConfig::new(&self.arn, Secret::new(SECRET).unwrap())
        };
        Arc::new(SnsSink::new(config).await.unwrap())
    }

    /// What has come, by the peer's count, against what was to come; and how many runs came out of order, which only a
    /// FIFO topic and one event after the other rule out.
    fn received(&self, endpoint: &str, sent: &Path) -> (Value, u64) {
        let mut command = aws_script("sns_receiver.py");
        command.arg(sent).args(["--endpoint", endpoint, "--queue", &self.queue]);
        let mut counted = json_of(command.args(["--secret-env", SECRET_ENV]).env(SECRET_ENV, SECRET));
        let out_of_order = counted.as_object_mut().unwrap().remove("runs out of order").unwrap();
        (counted, out_of_order.as_u64().unwrap())
    }
}

fn counts(received: u64, missing: u64, twice: u64) -> Value {
    json!({
        "received": received, "missing": missing, "unknown": 0, "more than once": twice,
        "changed": 0, "bad signature": 0, "bad event type": 0,
    })
}

/// A proxy in front of the server that breaks requests as told, and how many it saw by key.
async fn proxy(server: SocketAddr, faults: HashMap<String, Fault>) -> (Peer, Arc<Mutex<HashMap<String, u64>>>) {
    let requests: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
    let seen = Arc::clone(&requests);
    let peer = Peer::start(move |request| {
        let key = key_of(request);
        let count = {
            let mut seen = seen.lock().unwrap();
            let count = seen.entry(key.clone()).or_default();
            *count += 1;
            *count
        };
        let pass = || {
            let Request {
                method,
                target,
                headers,
                body,
                ..
            } = request;
            tokio::task::block_in_place(|| forward(server, method, target, headers, body)).unwrap()
        };
        match (faults[&key], count) {
            (Fault::AlwaysError, _) => refused(500, "InternalError"),
            (Fault::AlwaysRefuse, _) => refused(400, "InvalidParameter"),
            (Fault::Throttle, 1) => refused(400, "Throttling"),
            (Fault::ErrorAfter, 1) => {
                pass();
                refused(500, "InternalError")
            }
            (Fault::Cut, 1) => {
                pass();
                Answer::close()
            }
            _ => Answer::raw(pass()),
        }
    })
    .await;
    (peer, requests)
}

/// The key in a form whose fields are encoded: the value of the attribute of that name.
fn key_of(request: &Request) -> String {
    let form = std::str::from_utf8(&request.body).unwrap();
    let (_, rest) = form.split_once("Name=idempotency-key").unwrap();
    let (_, value) = rest.split_once("StringValue=").unwrap();
    value.split('&').next().unwrap().replace("%3A", ":")
}

fn refused(status: u16, code: &str) -> Answer {
    Answer::status(status).header("Content-Type", "text/xml").body(format!(
        "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>by the proxy</Message></Error>\
         <RequestId>1</RequestId></ErrorResponse>"
    ))
}

fn name() -> SinkName {
    SinkName::parse("sns").unwrap()
}

/// The recorded events, with their payloads as they stand in the file.
fn corpus() -> Vec<Message> {
    let text = std::fs::read_to_string(data("langchain-events.jsonl")).unwrap();
    let message = |line: &str| {
        let (head, rest) = line.split_once("\"data\": ").unwrap();
        let head: Value = serde_json::from_str(&format!("{head}\"data\": null}}")).unwrap();
        let [run, event] = ["run_id", "event"].map(|field| head[field].as_str().unwrap());
        let key = IdempotencyKey::parse(&format!("{run}:{event}:{}", head["step_index"])).unwrap();
        Message::from_json(key, rest.strip_suffix('}').unwrap().as_bytes()).unwrap()
    };
    // Lines end at `\n` alone: the data holds raw U+2028 and U+0085.
    let messages: Vec<Message> = text.split_terminator('\n').map(message).collect();
    assert_eq!(messages.len() as u64, EVENTS);
    messages
}

/// Steps of one run.
fn numbered(run: &str, count: u64) -> Vec<Message> {
    let message = |step: u64| {
        let key = IdempotencyKey::parse(&format!("{run}:tool_end:{step}")).unwrap();
        Message::new(key, &step).unwrap()
    };
    (1..=count).map(message).collect()
}

/// Writes events in the form of the corpus.
fn lines(dir: &tempfile::TempDir, messages: &[Message]) -> PathBuf {
    let mut text = String::new();
    for message in messages {
        let key = message.key();
        let data: Value = serde_json::from_slice(&message.data()).unwrap();
        let line = json!({
            "run_id": key.run_id(), "event": key.event_type(), "step_index": key.step_index().as_u64(), "data": data,
        });
        writeln!(text, "{line}").unwrap();
    }
    let path = dir.path().join("sent.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

async fn heads(store: &dyn DeadLetterStore) -> Vec<Letterhead> {
    let mut selection = store.select(&Filter::default()).await.unwrap();
    let mut heads = Vec::new();
    while let Some(page) = selection.next_page().await.unwrap() {
        heads.extend(page.into_iter().map(|listed| listed.letterhead.unwrap()));
    }
    heads
}

/// The one JSON value that a script prints.
fn json_of(command: &mut std::process::Command) -> Value {
    let finished = Process::run("a Python script", command, LIMIT);
    assert!(finished.status.success(), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stdout))
}
