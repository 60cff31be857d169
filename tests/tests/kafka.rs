//! The Kafka sink on a real broker, with a consumer that is not ours (`python/kafka_consume.py`).
//!
//! `cargo xtask e2e kafka` brings up what this needs, and its table says which broker that was.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use idemp_core::{BreakerConfig, Cause, IdempotencyKey, Message, Reason, RetrySchedule, Secret, SinkName};
use idemp_dispatch::{Dispatcher, Handle, LaneConfig, LaneStats, Settlement};
use idemp_dlq::{DeadLetter, DeadLetterStore, Filter, MemoryStore, ReplayOptions, Replayer, Target};
use idemp_sinks::kafka::{KafkaConfig, KafkaSink};
use idemp_tests::{EVENTS, Kafka, LossyProxy, Process, Suite, corpus, data, kafka_script, make_topic, selected};
use serde_json::{Value, json};

/// Only a guard against hanging for ever.
const LIMIT: Duration = Duration::from_secs(300);
const SECRET_ENV: &str = "IDEMP_TEST_SECRET";
const SECRET: &str = "whsec_test_secret";
const TOPIC: &str = "events";

#[tokio::test(flavor = "multi_thread")]
async fn every_event_arrives_as_it_was_signed() {
    if !selected(Suite::Kafka) {
        return;
    }
    let own = Kafka::start();
    let brokers = match &own {
        Some(broker) => broker.address().to_string(),
        None => variable("IDEMP_E2E_KAFKA"),
    };
    // A broker from outside may have topics of this name.
    let topic = format!("idemp-{}", std::process::id());
    make_topic(&brokers, &topic, &[]);
    let sender = Sender::new(&brokers, &topic, Duration::from_secs(5));
    sender.send(corpus()).await;
    let stats = sender.close().await;
    assert_eq!((stats.delivered, stats.attempts), (EVENTS, EVENTS));
    assert_eq!(consumed(&brokers, &topic, &corpus_path()), all_once(EVENTS));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_the_broker_goes_away_in_mid_run() {
    let Some(mut broker) = own_broker() else { return };
    make_topic(&broker.address().to_string(), TOPIC, &[]);
    let sender = Sender::new(&broker.address().to_string(), TOPIC, Duration::from_secs(3));
    let mut events = corpus();
    let mut in_between = events.split_off(200);
    let rest = in_between.split_off(100);
    let mut handles = sender.submit(events).await;
    until(|| sender.stats().delivered >= 50).await;

    broker.take_away();
    handles.extend(sender.submit(in_between).await);
    // Until the first of them have run out of their budget.
    until(|| sender.stats().dead_lettered >= 20).await;
    handles.extend(sender.submit(rest).await);
    broker.bring_back();
    settle(handles).await;
    let stats = sender.stats();
    assert_eq!(stats.delivered + stats.dead_lettered, EVENTS);
    let letters = sender.letters().await;
    assert_eq!(letters.len() as u64, stats.dead_lettered);
    for letter in &letters {
        assert_eq!(letter.reason, Reason::RetriesExhausted);
        assert_eq!(letter.attempts.len(), 4, "{:?}", letter.attempts);
    }

    // What was reported as delivered is there, and nothing that was never sent.
    let before = consumed(&broker.address().to_string(), TOPIC, &corpus_path());
    assert!(before["distinct"].as_u64().unwrap() >= stats.delivered, "{before}");
    assert_eq!(sender.replay().await, stats.dead_lettered);
    assert!(sender.letters().await.is_empty());
    let after = consumed(&broker.address().to_string(), TOPIC, &corpus_path());
    assert_all_there(&after, EVENTS);
    assert_eq!(
        after["messages"].as_u64().unwrap() - before["messages"].as_u64().unwrap(),
        stats.dead_lettered,
        "a replay is one message each: {before} {after}"
    );
    report("broker away in mid-run", &broker, &after, &stats);
    sender.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_lose_no_event_and_keep_its_key() {
    let Some(broker) = own_broker() else { return };
    let proxy = LossyProxy::before(broker.address());
    let (direct, lossy) = (broker.address().to_string(), proxy.address().to_string());

    // An answer here and there: librdkafka sends again with the same sequence number, and the broker knows it.
    make_topic(&direct, "now-and-then", &[]);
    let sender = Sender::new(&lossy, "now-and-then", Duration::from_secs(10));
    let mut lost = 0;
    for (index, event) in corpus().into_iter().enumerate() {
        if index % 200 == 100 {
            lost += 1;
            proxy.lose(1);
        }
        sender.send(vec![event]).await;
    }
    assert_eq!(proxy.lost(), lost);
    let stats = sender.close().await;
    assert_eq!((stats.delivered, stats.attempts), (EVENTS, EVENTS));
    assert_eq!(consumed(&direct, "now-and-then", &corpus_path()), all_once(EVENTS));

    // All of them for longer than an attempt: the next attempt is another message, under the same key.
    make_topic(&direct, TOPIC, &[]);
    let sender = Sender::new(&lossy, TOPIC, Duration::from_secs(3));
    let mut events = corpus();
    let rest = events.split_off(50);
    proxy.lose(u64::MAX);
    let handles = sender.submit(events).await;
    until(|| sender.stats().attempts > 50).await;
    proxy.lose(0);
    settle(handles).await;
    sender.send(rest).await;
    let stats = sender.stats();
    assert_eq!(stats.delivered + stats.dead_lettered, EVENTS);
    assert!(stats.attempts > EVENTS);
    for letter in sender.letters().await {
        assert!(letter.maybe_delivered, "{:?}", letter.attempts);
    }
    assert_eq!(sender.replay().await, stats.dead_lettered);
    let found = consumed(&direct, TOPIC, &corpus_path());
    assert_all_there(&found, EVENTS);
    assert!(found["more than once"].as_u64().unwrap() > 0, "{found}");
    report("answers lost", &broker, &found, &stats);
    sender.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_is_a_matter_of_configuration_until_it_is_there() {
    let Some(broker) = own_broker() else { return };
    let brokers = broker.address().to_string();
    let sender = Sender::new(&brokers, TOPIC, Duration::from_secs(5));
    let events: Vec<_> = corpus().into_iter().take(20).collect();
    if broker.is_apache() {
        sender.send(events).await;
        let letters = sender.letters().await;
        assert_eq!(letters.len(), 20);
        for letter in letters {
            assert_eq!(letter.reason, Reason::ConfigurationRejected);
            assert!(!letter.maybe_delivered);
            assert_eq!(letter.attempts.len(), 1);
            assert!(code_of(&letter).starts_with("UnknownTopic"), "{:?}", letter.attempts);
        }
        make_topic(&brokers, TOPIC, &[]);
        // The same sink, without a restart. The client looks for the topic once a second.
        let end = Instant::now() + LIMIT;
        let mut replayed = 0;
        while replayed < 20 {
            assert!(Instant::now() < end, "{replayed} of 20");
            replayed += sender.replay().await;
        }
    } else {
        // Tansu makes topics of its own accord, or says that it has no such topic, as it likes.
        make_topic(&brokers, TOPIC, &[]);
        sender.send(events).await;
    }
    assert_eq!(sender.close().await.unsaved, 0);
    let sent = first_lines(20);
    assert_all_there(&consumed(&brokers, TOPIC, sent.path()), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_too_large_takes_no_other_with_it() {
    let Some(broker) = own_broker() else { return };
    let brokers = broker.address().to_string();
    // More than half of what a request may hold; the largest event of the corpus compresses to less.
    make_topic(&brokers, TOPIC, &["max.message.bytes=20000"]);
    let sender = Sender::new(&brokers, TOPIC, Duration::from_secs(5));
    let too_large_for_the_client = message("large:tool_end:1", &noise(1_200_000));
    sender.send(vec![too_large_for_the_client]).await;
    let letters = sender.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason, Reason::EventRejected);
    assert_eq!(code_of(&letters[0]), "MessageSizeTooLarge");
    assert!(!letters[0].maybe_delivered);

    if broker.is_apache() {
        let mut events = vec![message("large:tool_end:2", &noise(50_000))];
        events.extend((3..=40).map(|step| message(&format!("large:tool_end:{step}"), &noise(1_000))));
        sender.send(events).await;
        let letters = sender.letters().await;
        let keys: BTreeSet<&str> = letters.iter().map(|letter| letter.message.key().as_str()).collect();
        assert_eq!(keys, BTreeSet::from(["large:tool_end:1", "large:tool_end:2"]));
        assert!(letters.iter().all(|letter| letter.reason == Reason::EventRejected));
    }
    sender.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_not_there_at_first_costs_dead_letters_and_no_restart() {
    let Some(mut broker) = own_broker() else { return };
    let brokers = broker.address().to_string();
    make_topic(&brokers, TOPIC, &[]);
    broker.take_away();

    let sender = Sender::new(&brokers, TOPIC, Duration::from_secs(3));
    let mut events: Vec<_> = corpus().into_iter().take(40).collect();
    let rest = events.split_off(20);
    sender.send(events).await;
    let letters = sender.letters().await;
    assert_eq!(letters.len(), 20);
    for letter in &letters {
        assert_eq!(letter.reason, Reason::RetriesExhausted);
        assert_eq!(letter.attempts.len(), 4);
        // Nothing was ever on its way.
        assert!(!letter.maybe_delivered, "{:?}", letter.attempts);
        assert_eq!(code_of(letter), "MessageTimedOut");
    }

    broker.bring_back();
    sender.send(rest).await;
    let late = sender.letters().await.len() as u64 - 20;
    assert_eq!(sender.stats().delivered, 20 - late);
    assert_eq!(sender.replay().await, 20 + late);
    assert_all_there(&consumed(&brokers, TOPIC, first_lines(40).path()), 40);
    sender.close().await;
}

/// A dispatcher with one lane, its sink and its dead letters.
struct Sender {
    dispatcher: Dispatcher,
    sink: Arc<KafkaSink>,
    letters: Arc<MemoryStore>,
}

impl Sender {
    fn new(brokers: &str, topic: &str, attempt_timeout: Duration) -> Self {
        let config = KafkaConfig {
            attempt_timeout,
            ..KafkaConfig::new(brokers, topic, Secret::new(SECRET).unwrap())
        };
        let (sink, letters) = (Arc::new(KafkaSink::new(config).unwrap()), Arc::new(MemoryStore::new()));
        let lane = LaneConfig {
            attempt_timeout,
            schedule: RetrySchedule::default().scaled(0.02).unwrap(),
            // It has tests of its own, and here it would hold events back for minutes.
            breaker: BreakerConfig {
                exhausted_in_a_row: u32::MAX,
                letters_per_second: u32::MAX,
                ..BreakerConfig::default()
            },
            ..LaneConfig::new(SinkName::parse("kafka").unwrap(), sink.clone(), letters.clone())
        };
        Self {
            dispatcher: Dispatcher::new(vec![lane]).unwrap(),
            sink,
            letters,
        }
    }

    async fn submit(&self, events: Vec<Message>) -> Vec<Handle> {
        let mut handles = Vec::new();
        for event in events {
            handles.push(self.dispatcher.submit(event).await.unwrap());
        }
        handles
    }

    /// Sends these, and waits until each has an end.
    async fn send(&self, events: Vec<Message>) {
        settle(self.submit(events).await).await;
    }

    fn stats(&self) -> LaneStats {
        self.dispatcher.stats().lanes.remove(0)
    }

    async fn letters(&self) -> Vec<DeadLetter> {
        let mut selection = self.letters.select(&Filter::default()).await.unwrap();
        let mut letters = Vec::new();
        while let Some(page) = selection.next_page().await.unwrap() {
            for listed in page {
                letters.push(self.letters.load(&listed.id).await.unwrap().unwrap().letter);
            }
        }
        letters
    }

    /// Replays every dead letter once, and says how many are gone.
    async fn replay(&self) -> u64 {
        let options = ReplayOptions {
            rate_per_second: f64::INFINITY,
            ..ReplayOptions::default()
        };
        let sink = self.sink.clone();
        let targets = move |_: &SinkName| {
            Some(Target {
                sink: sink.clone(),
                policy: Default::default(),
            })
        };
        let replayer = Replayer::new(options).unwrap();
        let all = Filter::default();
        let summary = replayer
            .run(&*self.letters, &all, &targets, &mut |_| (), &Default::default())
            .await
            .unwrap();
        summary.replayed
    }

    async fn close(self) -> LaneStats {
        self.dispatcher.shutdown(Duration::from_secs(5)).await;
        let stats = self.stats();
        assert_eq!(stats.unsettled(), 0);
        assert_eq!(stats.unsaved, 0);
        stats
    }
}

async fn settle(handles: Vec<Handle>) {
    for handle in handles {
        let report = tokio::time::timeout(LIMIT, handle.settled())
            .await
            .expect("every event has an end");
        for (_, settlement) in report.settlements() {
            assert!(!matches!(settlement, Settlement::Unsaved { .. }), "{settlement:?}");
        }
    }
}

/// Asks `probe` until it says yes.
async fn until(probe: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !probe() {
        assert!(Instant::now() < end, "not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A broker that a test may stop.
fn own_broker() -> Option<Kafka> {
    if !selected(Suite::Kafka) {
        return None;
    }
    Kafka::start()
}

fn corpus_path() -> PathBuf {
    data("langchain-events.jsonl")
}

/// The beginning of the corpus, in a file.
fn first_lines(count: usize) -> tempfile::NamedTempFile {
    let text = std::fs::read_to_string(corpus_path()).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').take(count).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines.concat()).unwrap();
    file
}

fn message(key: &str, data: &str) -> Message {
    Message::new(key.parse::<IdempotencyKey>().unwrap(), data).unwrap()
}

/// Text that does not get smaller when it is compressed: hex digits of a linear congruential generator, to the letter.
fn noise(len: usize) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let letter = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(LETTERS[(state >> 58) as usize])
    };
    (0..len).map(letter).collect()
}

fn code_of(letter: &DeadLetter) -> String {
    match letter.attempts.last().unwrap().cause {
        Some(Cause::Code { code, .. }) => code.to_string(),
        cause => panic!("{cause:?}"),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// What the consumer found in the topic, compared with the events of a file.
fn consumed(brokers: &str, topic: &str, sent: &Path) -> Value {
    let mut command = kafka_script("kafka_consume.py");
    command
        .env(SECRET_ENV, SECRET)
        .args([brokers, topic])
        .arg(sent)
        .args(["--secret-env", SECRET_ENV]);
    let finished = Process::run("kafka_consume.py", &mut command, LIMIT);
    assert!(finished.status.success(), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stdout))
}

fn all_once(events: u64) -> Value {
    json!({
        "messages": events, "distinct": events, "missing": 0, "unknown": 0, "more than once": 0, "wrong": {},
    })
}

/// Every event is there as it was signed, some perhaps more than once.
#[track_caller]
fn assert_all_there(found: &Value, events: u64) {
    assert_eq!(found["distinct"], events, "{found}");
    assert_eq!(found["missing"], 0, "{found}");
    assert_eq!(found["unknown"], 0, "{found}");
    assert_eq!(found["wrong"], json!({}), "{found}");
}

/// For a person who looks: how many copies there were.
#[expect(
    clippy::print_stdout,
    reason = "the figures of a passed test; the harness captures them"
)]
fn report(what: &str, broker: &Kafka, found: &Value, stats: &LaneStats) {
    let broker = if broker.is_apache() { "Apache Kafka" } else { "Tansu" };
    println!(
        "{what}, on {broker}: {} delivered in {} attempts, {} dead letters replayed; the topic holds {found}",
        stats.delivered, stats.attempts, stats.dead_lettered
    );
}
