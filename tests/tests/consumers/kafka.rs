//! Kafka, on a broker of each test's own.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use idemp_receiver::consume::{ConsumeConfig, ConsumerError, KafkaConsumer, KafkaConsumerConfig};
use idemp_receiver::{ClaimStore, Event, HandlerError, MemoryStore, SqliteStore};
use idemp_tests::{Kafka, Process, Suite, selected, temp_dir};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{Effects, LIMIT, body, key, once_each, receiver, sign, until};

pub(crate) const TOPIC: &str = "events";
const CHILD_BROKERS: &str = "IDEMP_TEST_CHILD_BROKERS";
const CHILD_FOLDER: &str = "IDEMP_TEST_CHILD_FOLDER";

/// A broker with the topic, and a producer to it. `None` if the suite is not selected, or no broker can be started.
pub(crate) struct Broker {
    pub(crate) kafka: Kafka,
    producer: FutureProducer,
}

impl Broker {
    pub(crate) async fn start(partitions: i32) -> Option<Self> {
        if !selected(Suite::Consumers) {
            return None;
        }
        let kafka = Kafka::start()?;
        println!("Apache Kafka: {}", kafka.is_apache());
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", kafka.address().to_string())
            .set("reconnect.backoff.max.ms", "500");
        let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
        let topic = NewTopic::new(TOPIC, partitions, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(LIMIT));
        let made = admin.create_topics(&[topic], &options).await.unwrap();
        made.into_iter().for_each(|made| drop(made.unwrap()));
        let producer = client.create().unwrap();
        Some(Self { kafka, producer })
    }

    /// Sends the event of this step, to the partition that its number says.
    pub(crate) async fn send(&self, step: usize, partitions: usize) {
        let (body, key) = (body(step), key(step));
        let header = |name, value| Header {
            key: name,
            value: Some(value),
        };
        let (signature, partition) = (sign(&body), i32::try_from(step % partitions).unwrap());
        let headers = OwnedHeaders::new()
            .insert(header("idempotency-key", &key))
            .insert(header("event-type", &"tool_end".to_owned()))
            .insert(header("x-signature-256", &signature));
        let record = FutureRecord::to(TOPIC)
            .partition(partition)
            .key("r1")
            .payload(&body)
            .headers(headers);
        self.producer.send(record, Timeout::Never).await.unwrap();
    }

    pub(crate) fn config(&self) -> KafkaConsumerConfig {
        config(&self.kafka.address().to_string())
    }
}

fn config(brokers: &str) -> KafkaConsumerConfig {
    let properties = [("session.timeout.ms", "6000"), ("heartbeat.interval.ms", "500")];
    KafkaConsumerConfig {
        properties: properties
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..KafkaConsumerConfig::new(brokers, "idemp", TOPIC)
    }
}

fn consume() -> ConsumeConfig {
    ConsumeConfig {
        retries: Vec::new(),
        recheck: Duration::from_millis(50),
        ..ConsumeConfig::default()
    }
}

pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), ConsumerError>>,
}

impl Running {
    fn start<F>(
        config: KafkaConsumerConfig,
        consume: ConsumeConfig,
        store: impl ClaimStore,
        effects: &Effects,
        handler: impl Fn(Event) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let consumer = KafkaConsumer::new(&receiver(store), consume, config).unwrap();
        let (stop, quarantine) = (CancellationToken::new(), effects.quarantine());
        let task = {
            let stop = stop.clone();
            tokio::spawn(async move { consumer.run(handler, quarantine, &stop).await })
        };
        Self { stop, task }
    }

    pub(crate) fn plain(broker: &Broker, store: impl ClaimStore, effects: &Effects) -> Self {
        Self::start(broker.config(), consume(), store, effects, effects.handler())
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(LIMIT, self.task)
            .await
            .expect("it stops")
            .unwrap()
            .unwrap();
    }
}

/// Effects that outlive a process: a line each.
fn take_effect(folder: &Path, event: &Event) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("effects"))
        .unwrap();
    file.write_all(format!("{}\n", event.key()).as_bytes()).unwrap();
}

fn effects_in(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("effects")).unwrap_or_default();
    let mut keys: Vec<String> = text.lines().map(str::to_owned).collect();
    keys.sort();
    keys
}

fn sorted(steps: impl IntoIterator<Item = usize>) -> Vec<String> {
    once_each(steps).into_keys().collect()
}

/// Part of the test below: takes events and never commits.
#[tokio::test]
async fn the_child_never_commits() {
    let Ok(brokers) = std::env::var(CHILD_BROKERS) else {
        return;
    };
    let folder = std::path::PathBuf::from(std::env::var_os(CHILD_FOLDER).unwrap());
    let store = SqliteStore::open(folder.join("claims.db")).unwrap();
    let config = KafkaConsumerConfig {
        commit_every: Duration::from_secs(60),
        ..config(&brokers)
    };
    let consumer = KafkaConsumer::new(&receiver(store), consume(), config).unwrap();
    let handler = move |event: Event| {
        take_effect(&folder, &event);
        // The 21st is at work when the process is killed.
        let hangs = event.key() == key(21);
        async move { if hangs { std::future::pending().await } else { Ok(()) } }
    };
    consumer
        .run(handler, |_| async { Ok(()) }, &CancellationToken::new())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_consumer_had_done_and_not_committed_is_known_as_done() {
    let Some(broker) = Broker::start(1).await else { return };
    for step in 1..=30 {
        broker.send(step, 1).await;
    }
    let folder = temp_dir();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "kafka::the_child_never_commits"])
        .env(CHILD_BROKERS, broker.kafka.address().to_string())
        .env(CHILD_FOLDER, folder.path());
    let mut child = Process::start("child", &mut command);
    child.wait_until("it is at the 21st", LIMIT, |_| {
        (effects_in(folder.path()).len() == 21).then_some(())
    });
    child.kill();

    let effects = Effects::default();
    let running = {
        let (folder, script) = (folder.path().to_owned(), effects.clone());
        let store = SqliteStore::open(folder.join("claims.db")).unwrap();
        Running::start(broker.config(), consume(), store, &effects, move |event| {
            script.run(&event);
            take_effect(&folder, &event);
            async { Ok(()) }
        })
    };
    until("all have run", || effects.runs().contains_key(&key(30))).await;
    running.stop().await;
    // Only the effect that had no mark yet was taken again.
    assert_eq!(effects.runs(), once_each(21..=30));
    let mut expected = sorted(1..=30);
    expected.push(key(21));
    expected.sort();
    assert_eq!(effects_in(folder.path()), expected);

    // And this time all was committed: a member with an empty store gets what comes now and nothing else.
    broker.send(31, 1).await;
    let effects = Effects::default();
    let running = Running::plain(&broker, MemoryStore::new(), &effects);
    until("the last one has run", || effects.distinct() > 0).await;
    running.stop().await;
    assert_eq!(effects.runs(), once_each([31]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_restarted_is_no_end() {
    let Some(mut broker) = Broker::start(3).await else {
        return;
    };
    let (effects, store) = (Effects::default(), Arc::new(MemoryStore::new()));
    let running = Running::plain(&broker, Arc::clone(&store), &effects);
    for step in 1..=60 {
        broker.send(step, 3).await;
    }
    until("some have run", || effects.distinct() >= 20).await;
    broker.kafka.take_away();
    broker.kafka.bring_back();
    for step in 61..=120 {
        broker.send(step, 3).await;
    }
    until("all have run", || effects.distinct() == 120).await;
    running.stop().await;
    assert_eq!((effects.runs(), effects.quarantined()), (once_each(1..=120), vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_and_each_event_runs_once() {
    let Some(broker) = Broker::start(4).await else { return };
    let store = Arc::new(MemoryStore::new());
    let (first, second) = (Effects::default(), Effects::default());
    let one = Running::plain(&broker, Arc::clone(&store), &first);
    for step in 1..=100 {
        broker.send(step, 4).await;
    }
    until("the first member has run some", || first.distinct() >= 20).await;
    let two = Running::plain(&broker, Arc::clone(&store), &second);
    let mut step = 100;
    while second.distinct() == 0 {
        for _ in 0..4 {
            step += 1;
            broker.send(step, 4).await;
        }
    }
    one.stop().await;
    for step in step + 1..=step + 100 {
        broker.send(step, 4).await;
    }
    let last = step + 100;
    until("all have run", || first.distinct() + second.distinct() >= last).await;
    two.stop().await;
    let mut runs = first.runs();
    for (key, count) in second.runs() {
        *runs.entry(key).or_default() += count;
    }
    assert_eq!(runs, once_each(1..=last));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_whose_message_waits_long_stays_in_the_group() {
    let Some(broker) = Broker::start(1).await else { return };
    broker.send(1, 1).await;
    broker.send(2, 1).await;
    let mut config = broker.config();
    config
        .properties
        .push(("max.poll.interval.ms".to_owned(), "6000".to_owned()));
    let consume = ConsumeConfig {
        // Longer than the group waits for a consumer that does nothing.
        retries: vec![Duration::from_secs(8)],
        ..consume()
    };
    let (effects, script) = (Effects::default(), Effects::default());
    let noted = effects.clone();
    let running = Running::start(config, consume, MemoryStore::new(), &script, move |event| {
        let run = noted.run(&event);
        let fails = run == 1 && event.key() == key(1);
        async move { if fails { Err(HandlerError::Failed) } else { Ok(()) } }
    });
    until("both have run", || effects.distinct() == 2).await;
    running.stop().await;
    // Thrown out and back again, it would have begun anew: with a third run, after one more failure.
    let runs: Vec<_> = effects.runs().into_values().collect();
    assert_eq!(runs, [2, 1]);
}
