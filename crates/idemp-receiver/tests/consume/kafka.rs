//! The Kafka consumer on a broker in process, in real time. It answers the first member of a group after 3 s.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idemp_receiver::consume::{
    ConsumeConfig, ConsumerError, ConsumerErrorKind, KafkaConsumer, KafkaConsumerConfig, Position, Quarantined,
};
use idemp_receiver::{Event, HandlerError, MemoryStore, Receiver};
use idemp_testkit::gate::Gate;
use idemp_testkit::until;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{DefaultProducerContext, FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{receiver, sign};

const TOPIC: &str = "events";

struct Broker {
    mock: MockCluster<'static, DefaultProducerContext>,
    producer: FutureProducer,
}

impl Broker {
    fn start(partitions: i32) -> Self {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic(TOPIC, partitions, 1).unwrap();
        let producer = ClientConfig::new()
            .set("bootstrap.servers", mock.bootstrap_servers())
            .set("reconnect.backoff.max.ms", "500")
            .create()
            .unwrap();
        Self { mock, producer }
    }

    /// Sends the event with this step of the run `p{partition}`.
    async fn send(&self, partition: i32, step: usize) {
        let body = body(step);
        let headers = [
            ("x-signature-256", sign(body.as_bytes())),
            ("idempotency-key", key(partition, step)),
        ];
        self.send_raw(partition, &body, &headers).await;
    }

    async fn send_raw(&self, partition: i32, body: &str, headers: &[(&str, String)]) {
        let headers = headers.iter().fold(OwnedHeaders::new(), |all, (name, value)| {
            all.insert(Header {
                key: name,
                value: Some(value),
            })
        });
        let record = FutureRecord::to(TOPIC)
            .partition(partition)
            .key("run")
            .payload(body)
            .headers(headers);
        self.producer.send(record, Timeout::Never).await.unwrap();
    }

    fn config(&self) -> KafkaConsumerConfig {
        KafkaConsumerConfig {
            // It keeps the next member waiting for as long as one that has left may be away.
            properties: vec![("session.timeout.ms".to_owned(), "6000".to_owned())],
            ..KafkaConsumerConfig::new(self.mock.bootstrap_servers(), "idemp", TOPIC)
        }
    }
}

fn key(partition: i32, step: usize) -> String {
    format!("p{partition}:tool_end:{step}")
}

fn body(step: usize) -> String {
    format!(r#"{{"data": {step}, "event": "tool_end"}}"#)
}

fn keys(partition: i32, steps: impl IntoIterator<Item = usize>) -> Vec<String> {
    steps.into_iter().map(|step| key(partition, step)).collect()
}

/// A consumer at work, and what it did.
struct Consumer {
    runs: Arc<Mutex<Vec<String>>>,
    quarantined: Arc<Mutex<Vec<Quarantined>>>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ConsumerError>>,
}

impl Consumer {
    /// The handler does what `script` says, after it has noted its run.
    fn start<F>(
        config: KafkaConsumerConfig,
        receiver: &Receiver,
        retries: Vec<Duration>,
        script: impl Fn(Event) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let consume = ConsumeConfig {
            retries,
            ..ConsumeConfig::default()
        };
        let consumer = KafkaConsumer::new(receiver, consume, config).unwrap();
        let (runs, quarantined) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let stop = CancellationToken::new();
        let task = {
            let (runs, quarantined, stop) = (Arc::clone(&runs), Arc::clone(&quarantined), stop.clone());
            let handler = move |event: Event| {
                runs.lock().unwrap().push(event.key().to_owned());
                script(event)
            };
            let quarantine = move |message| {
                quarantined.lock().unwrap().push(message);
                async { Ok(()) }
            };
            tokio::spawn(async move { consumer.run(handler, quarantine, &stop).await })
        };
        Self {
            runs,
            quarantined,
            stop,
            task,
        }
    }

    fn plain(broker: &Broker, receiver: &Receiver) -> Self {
        Self::start(broker.config(), receiver, Vec::new(), |_| async { Ok(()) })
    }

    async fn has_run(&self, count: usize) {
        until("handlers have run", || self.runs.lock().unwrap().len() >= count).await;
    }

    /// The runs of one partition, in their order.
    fn runs_of(&self, partition: i32) -> Vec<String> {
        let run = format!("p{partition}:");
        let runs = self.runs.lock().unwrap();
        runs.iter().filter(|key| key.starts_with(&run)).cloned().collect()
    }

    async fn stop(self) -> HashMap<String, usize> {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
        let mut counts = HashMap::new();
        for key in self.runs.lock().unwrap().iter() {
            *counts.entry(key.clone()).or_default() += 1;
        }
        counts
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_taken_in_order_and_what_is_settled_is_committed() {
    let broker = Broker::start(3);
    for step in 1..=20 {
        for partition in 0..3 {
            broker.send(partition, step).await;
        }
    }
    let consumer = Consumer::plain(&broker, &receiver(MemoryStore::new()));
    consumer.has_run(60).await;
    for partition in 0..3 {
        assert_eq!(consumer.runs_of(partition), keys(partition, 1..=20));
    }
    consumer.stop().await;

    // Another member with nothing in its store: what it gets was not committed.
    for partition in 0..3 {
        broker.send(partition, 21).await;
    }
    let next = Consumer::plain(&broker, &receiver(MemoryStore::new()));
    next.has_run(3).await;
    let counts = next.stop().await;
    let expected: HashMap<_, _> = (0..3).map(|partition| (key(partition, 21), 1)).collect();
    assert_eq!(counts, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_handler_holds_up_its_partition_alone_and_is_not_committed() {
    let broker = Broker::start(2);
    for step in 1..=10 {
        broker.send(0, step).await;
        broker.send(1, step).await;
    }
    let hour = vec![Duration::from_secs(3_600)];
    let consumer = Consumer::start(
        broker.config(),
        &receiver(MemoryStore::new()),
        hour,
        |event| async move {
            if event.key() == "p0:tool_end:3" {
                Err(HandlerError::Failed)
            } else {
                Ok(())
            }
        },
    );
    consumer.has_run(13).await;
    assert_eq!(consumer.runs_of(0), keys(0, 1..=3));
    assert_eq!(consumer.runs_of(1), keys(1, 1..=10));
    // The paused partition is still ours: the other one goes on.
    broker.send(1, 11).await;
    consumer.has_run(14).await;
    consumer.stop().await;

    let next = Consumer::plain(&broker, &receiver(MemoryStore::new()));
    next.has_run(8).await;
    assert_eq!(next.runs_of(0), keys(0, 3..=10));
    assert_eq!(next.stop().await.len(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_for_good_goes_to_quarantine_in_its_turn() {
    let broker = Broker::start(1);
    broker.send(0, 1).await;
    broker.send(0, 2).await;
    broker
        .send_raw(0, "no event", &[("idempotency-key", "k1".to_owned())])
        .await;
    broker.send(0, 3).await;
    let retries = vec![Duration::from_millis(10); 3];
    let consumer = Consumer::start(
        broker.config(),
        &receiver(MemoryStore::new()),
        retries,
        |event| async move {
            if event.key() == "p0:tool_end:2" {
                Err(HandlerError::Failed)
            } else {
                Ok(())
            }
        },
    );
    consumer.has_run(6).await;
    assert_eq!(consumer.runs_of(0), keys(0, [1, 2, 2, 2, 2, 3]));
    let at = |offset| Position::Kafka {
        topic: TOPIC.to_owned(),
        partition: 0,
        offset,
    };
    {
        let quarantined = consumer.quarantined.lock().unwrap();
        let told: Vec<_> = quarantined
            .iter()
            .map(|message| (message.position.clone(), message.reason.code()))
            .collect();
        assert_eq!(told, [(at(1), "failed"), (at(2), "bad_signature")]);
        assert_eq!(quarantined[1].body.as_deref(), Some(&b"no event"[..]));
        assert_eq!(quarantined[1].record_key.as_deref(), Some(&b"run"[..]));
        assert_eq!(&quarantined[1].fields[0].1[..], b"k1");
    }
    consumer.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_whose_buffer_is_full_is_paused_and_loses_nothing() {
    let broker = Broker::start(1);
    for step in 1..=60 {
        broker.send(0, step).await;
    }
    let gate = Gate::shut();
    let config = KafkaConsumerConfig {
        buffer: 8,
        ..broker.config()
    };
    let consumer = {
        let gate = gate.clone();
        Consumer::start(config, &receiver(MemoryStore::new()), Vec::new(), move |_| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Ok(())
            }
        })
    };
    gate.arrived(1).await;
    gate.open();
    consumer.has_run(60).await;
    assert_eq!(consumer.runs_of(0), keys(0, 1..=60));
    consumer.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_finishes_and_commits_what_runs_and_leaves_the_rest() {
    let broker = Broker::start(1);
    for step in 1..=3 {
        broker.send(0, step).await;
    }
    let gate = Gate::shut();
    let consumer = {
        let gate = gate.clone();
        Consumer::start(broker.config(), &receiver(MemoryStore::new()), Vec::new(), move |_| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Ok(())
            }
        })
    };
    gate.arrived(1).await;
    consumer.stop.cancel();
    gate.let_through(1);
    assert_eq!(consumer.stop().await.len(), 1);

    let next = Consumer::plain(&broker, &receiver(MemoryStore::new()));
    next.has_run(2).await;
    assert_eq!(next.runs_of(0), keys(0, [2, 3]));
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_goes_and_comes_back_is_no_end() {
    let broker = Broker::start(1);
    broker.send(0, 1).await;
    let consumer = Consumer::plain(&broker, &receiver(MemoryStore::new()));
    consumer.has_run(1).await;
    broker.mock.broker_down(1).unwrap();
    tokio::task::yield_now().await;
    broker.mock.broker_up(1).unwrap();
    broker.send(0, 2).await;
    consumer.has_run(2).await;
    assert_eq!(consumer.stop().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_future_is_dropped_finishes_what_runs() {
    let broker = Broker::start(1);
    broker.send(0, 1).await;
    let (gate, done) = (Gate::shut(), Gate::shut());
    let consumer = {
        let (gate, done) = (gate.clone(), done.clone());
        Consumer::start(broker.config(), &receiver(MemoryStore::new()), Vec::new(), move |_| {
            let (gate, done) = (gate.clone(), done.clone());
            async move {
                gate.pass().await;
                done.pass().await;
                Ok(())
            }
        })
    };
    gate.arrived(1).await;
    consumer.task.abort();
    assert!(consumer.task.await.unwrap_err().is_cancelled());
    gate.open();
    done.arrived(1).await;
}

/// However long the time between two commits is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_commits_what_is_settled() {
    let broker = Broker::start(1);
    for step in 1..=3 {
        broker.send(0, step).await;
    }
    let config = KafkaConsumerConfig {
        commit_every: Duration::from_secs(60),
        ..broker.config()
    };
    let consumer = Consumer::start(config, &receiver(MemoryStore::new()), Vec::new(), |_| async { Ok(()) });
    consumer.has_run(3).await;
    consumer.stop().await;

    broker.send(0, 4).await;
    let next = Consumer::plain(&broker, &receiver(MemoryStore::new()));
    next.has_run(1).await;
    assert_eq!(next.runs_of(0), keys(0, [4]));
    next.stop().await;
}

/// A broker that does not come back keeps neither the consumer nor its runtime from ending.
#[test]
fn a_stop_ends_though_the_broker_is_away() {
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let broker = runtime.block_on(async {
            let broker = Broker::start(1);
            broker.send(0, 1).await;
            let gate = Gate::shut();
            let consumer = {
                let gate = gate.clone();
                Consumer::start(broker.config(), &receiver(MemoryStore::new()), Vec::new(), move |_| {
                    let gate = gate.clone();
                    async move {
                        gate.pass().await;
                        Ok(())
                    }
                })
            };
            gate.arrived(1).await;
            // From here on nothing can be committed.
            broker.mock.broker_down(1).unwrap();
            gate.open();
            consumer.stop().await;
            broker
        });
        // It waits for threads that block.
        drop(runtime);
        drop(broker);
        ended.send(()).unwrap();
    });
    has_ended.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[tokio::test]
async fn a_check_tells_whether_a_broker_is_there() {
    let broker = Broker::start(1);
    let consumer = |brokers: &str| {
        let config = KafkaConsumerConfig::new(brokers, "group", TOPIC);
        let receiver = receiver(MemoryStore::new());
        KafkaConsumer::new(&receiver, ConsumeConfig::default(), config).unwrap()
    };
    consumer(&broker.mock.bootstrap_servers()).check().await.unwrap();

    // Nobody listens there any more.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let error = consumer(&address).check().await.unwrap_err();
    assert_eq!(error.kind(), ConsumerErrorKind::Unreachable);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        cause.contains(&address) && cause.contains("Connection refused"),
        "{cause}"
    );
}
