//! The consumer of Kafka topics (docs/consumers.md, "Kafka").

mod check;
mod config;
mod context;
mod table;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use config::KafkaConsumerConfig;
use context::Context;
use table::{Hiring, Place, Table};

use super::config::{ConsumeConfig, ConsumerError};
use super::flow::{self, Flow, Settled};
use super::message::{Arrived, Position, QuarantineError, Quarantined};
use super::meters::Operation;
use crate::event::{Event, HandlerError};
use crate::receiver::Receiver;

/// For the last commit and the farewell to the group, when everything else has ended.
const LAST_STEPS: Duration = Duration::from_secs(5);

/// The longest time between two commits by then.
const LAST_COMMITS_EVERY: Duration = Duration::from_millis(100);

/// Waits before a client is made anew: the first, and the longest.
const ANEW_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Takes the events of Kafka topics as a member of a consumer group.
///
/// The record's value is the body; `idempotency-key` and `x-signature-256` are headers. Messages of one partition are
/// taken one after the other, those of different partitions at the same time. The offset of a message is committed only
/// after it is settled, so a crash brings back what was not, and its claim tells what of that is done.
///
/// A message that has to wait, for the next run of its handler or for anything else, holds up its partition alone, which
/// is paused meanwhile; the group still sees the consumer alive. A partition that goes to another member is left: what
/// runs is finished and recorded, and not committed.
#[derive(Clone)]
pub struct KafkaConsumer {
    receiver: Receiver,
    consume: ConsumeConfig,
    config: KafkaConsumerConfig,
    settings: ClientConfig,
}

impl KafkaConsumer {
    /// A consumer over a receiver's store, scope, secrets and limits. It does not connect yet.
    ///
    /// # Errors
    /// If a configuration breaks a rule, or the receiver requires Standard Webhooks.
    pub fn new(
        receiver: &Receiver,
        consume: ConsumeConfig,
        config: KafkaConsumerConfig,
    ) -> Result<Self, ConsumerError> {
        flow::check(receiver, &consume)?;
        Ok(Self {
            receiver: receiver.clone(),
            consume,
            settings: config.checked()?,
            config,
        })
    }

    /// Asks the brokers who they are, with a client of its own that joins no group, and waits up to 5 s for the answer.
    ///
    /// # Errors
    /// If none answers, or they refuse the login.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting. The client ends later.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn check(&self) -> Result<(), ConsumerError> {
        let settings = self.settings.clone();
        match spawn_blocking(move || check::brokers(&settings)).await {
            Ok(checked) => checked,
            Err(_) => Err(ConsumerError::client("asking the brokers panicked")),
        }
    }

    /// Takes events until `stop` is cancelled. Then it finishes and commits what runs, leaves the rest, and leaves the
    /// group.
    ///
    /// Brokers that are away, and come back, are no reason to end.
    ///
    /// # Errors
    /// If the client cannot be made.
    ///
    /// # Cancel safety
    /// Dropping the future is a stop for which nobody waits: what runs is finished, and not committed.
    ///
    /// # Panics
    /// Outside a tokio runtime with the time driver.
    pub async fn run<H, F, Q, G>(
        &self,
        handler: H,
        quarantine: Q,
        stop: &CancellationToken,
    ) -> Result<(), ConsumerError>
    where
        H: Fn(Event) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
        Q: Fn(Quarantined) -> G + Send + Sync + 'static,
        G: Future<Output = Result<(), QuarantineError>> + Send + 'static,
    {
        let flow = Flow::new(&self.receiver, "kafka", self.consume.clone(), handler, quarantine)?;
        let (mut wait, longest) = ANEW_AFTER;
        let mut session = self.open(&flow)?;
        loop {
            match session.run(stop).await {
                Ended::Stopped => return Ok(()),
                Ended::Broken => tracing::error!("the client is of no more use and is made anew"),
            }
            session = loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    () = sleep(wait) => wait = (wait * 2).min(longest),
                }
                match self.open(&flow) {
                    Ok(session) => break session,
                    Err(_) => tracing::error!("the client cannot be made"),
                }
            };
        }
    }

    fn open(&self, flow: &Flow) -> Result<Session, ConsumerError> {
        let table = Arc::new(Table::new(self.config.buffer));
        let context = Context {
            table: Arc::clone(&table),
            flow: flow.clone(),
        };
        // The text of the client's error may quote a property.
        let consumer: StreamConsumer<Context> = self
            .settings
            .create_with_context(context)
            .map_err(|_| ConsumerError::client("librdkafka makes no consumer of these properties"))?;
        let topics: Vec<&str> = self.config.topics.iter().map(String::as_str).collect();
        consumer
            .subscribe(&topics)
            .map_err(|_| ConsumerError::client("librdkafka does not take the topics"))?;
        Ok(Session {
            consumer: Closing(Some(Arc::new(consumer))),
            table,
            flow: flow.clone(),
            workers: TaskTracker::new(),
            commit_every: self.config.commit_every,
        })
    }
}

/// Shows no property.
impl fmt::Debug for KafkaConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConsumer")
            .field("consume", &self.consume)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// How a session ended.
enum Ended {
    Stopped,
    Broken,
}

/// One client, from its making to its end.
struct Session {
    consumer: Closing,
    table: Arc<Table>,
    flow: Flow,
    workers: TaskTracker,
    commit_every: Duration,
}

impl Session {
    async fn run(mut self, stop: &CancellationToken) -> Ended {
        let halt = stop.child_token();
        // Workers also stop when this future is dropped.
        let _halt = halt.clone().drop_guard();
        let mut commits = Commits::every(self.commit_every);
        let Some(consumer) = &self.consumer.0 else {
            return Ended::Broken;
        };
        let ended = loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break Ended::Stopped,
                () = self.table.changed.notified() => self.balance(consumer),
                due = commits.due() => self.commit(consumer, due, &mut commits),
                message = consumer.recv() => match message {
                    Ok(message) => self.take(&message, &halt),
                    Err(KafkaError::MessageConsumptionFatal(_)) => break Ended::Broken,
                    Err(error) => {
                        self.flow.meters().error(Operation::Read);
                        tracing::warn!(code = ?error.rdkafka_error_code(), "reading failed");
                    }
                },
            }
            tokio::task::coop::consume_budget().await;
        };
        halt.cancel();
        self.workers.close();
        self.finish(consumer, &mut commits).await;
        self.consumer.close().await;
        ended
    }

    /// Hands a message to its partition's worker.
    fn take(&self, message: &BorrowedMessage<'_>, halt: &CancellationToken) {
        let place: Place = (Arc::from(message.topic()), message.partition());
        self.table
            .push(place, message.offset(), arrived(message), halt, |hiring| {
                let (sender, queue) = unbounded_channel();
                let work = work(self.flow.clone(), Arc::clone(&self.table), hiring, queue);
                self.workers.spawn(work);
                sender
            });
    }

    fn balance(&self, consumer: &StreamConsumer<Context>) {
        let (pause, resume) = self.table.balance();
        let paused = if pause.count() > 0 {
            consumer.pause(&pause)
        } else {
            Ok(())
        };
        let resumed = if resume.count() > 0 {
            consumer.resume(&resume)
        } else {
            Ok(())
        };
        if let Err(error) = paused.and(resumed) {
            tracing::warn!(code = ?error.rdkafka_error_code(), "a partition is not paused or resumed");
        }
    }

    /// Looks at the answer to a commit, and sends the next one if there is something to commit.
    fn commit(&self, consumer: &Arc<StreamConsumer<Context>>, due: Due, commits: &mut Commits) {
        match due {
            Due::Answer(Ok((list, Err(error)))) => consumer.context().refused(&error, &list),
            Due::Answer(Ok((_, Ok(())))) => {}
            Due::Answer(Err(_)) => tracing::error!("a commit panicked"),
            Due::Time => {
                if let Some(list) = self.table.commit() {
                    commits.send(consumer, list);
                }
            }
        }
    }

    /// Waits for the workers, commits what they have settled and leaves the group. The client is asked all the while, so
    /// that the group sees it alive; what it still reads is left.
    async fn finish(&self, consumer: &Arc<StreamConsumer<Context>>, commits: &mut Commits) {
        if let Ok(assignment) = consumer.assignment()
            && assignment.count() > 0
        {
            // If it fails, a few more messages are read for nothing.
            let _ = consumer.pause(&assignment);
        }
        loop {
            tokio::select! {
                biased;
                () = self.workers.wait() => break,
                due = commits.due() => self.commit(consumer, due, commits),
                _ = consumer.recv() => {}
            }
            tokio::task::coop::consume_budget().await;
        }
        let end = Instant::now() + LAST_STEPS;
        commits.hasten();
        let mut is_leaving = false;
        loop {
            if !is_leaving && self.table.is_sent() && !commits.is_waiting() {
                is_leaving = true;
                consumer.unsubscribe();
            }
            let left = self.table.is_empty() && consumer.assignment().is_ok_and(|all| all.count() == 0);
            if is_leaving && left {
                break;
            }
            tokio::select! {
                biased;
                () = sleep_until(end) => {
                    tracing::warn!("stopped without a last commit or without a farewell to the group");
                    break;
                }
                due = commits.due() => self.commit(consumer, due, commits),
                _ = consumer.recv() => {}
            }
            tokio::task::coop::consume_budget().await;
        }
    }
}

/// When to commit. One commit is under way at a time, on a thread of its own: librdkafka tells nobody but a thread that
/// waits how it came out.
struct Commits {
    every: Interval,
    waiting: Option<JoinHandle<Answer>>,
}

type Answer = (TopicPartitionList, KafkaResult<()>);

enum Due {
    Time,
    Answer(Result<Answer, JoinError>),
}

impl Commits {
    fn every(period: Duration) -> Self {
        let mut every = interval(period);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { every, waiting: None }
    }

    /// Waits for the answer to the commit that is under way, or for the time of the next one. Nothing is lost if the
    /// future is dropped.
    async fn due(&mut self) -> Due {
        let Some(waiting) = &mut self.waiting else {
            self.every.tick().await;
            return Due::Time;
        };
        let answer = waiting.await;
        self.waiting = None;
        Due::Answer(answer)
    }

    /// The next one is due now, and others soon after, if it fails.
    fn hasten(&mut self) {
        let waiting = self.waiting.take();
        *self = Self::every(self.every.period().min(LAST_COMMITS_EVERY));
        self.waiting = waiting;
    }

    fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    fn send(&mut self, consumer: &Arc<StreamConsumer<Context>>, list: TopicPartitionList) {
        let consumer = Arc::clone(consumer);
        self.waiting = Some(spawn_blocking(move || {
            let answer = consumer.commit(&list, CommitMode::Sync);
            (list, answer)
        }));
    }
}

/// Takes the messages of one partition, one after the other.
async fn work(flow: Flow, table: Arc<Table>, hiring: Hiring, mut queue: UnboundedReceiver<(i64, Arrived)>) {
    let Hiring { place, number, stop } = hiring;
    loop {
        let next = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            next = queue.recv() => next,
        };
        let Some((offset, message)) = next else { break };
        let bytes = message.len();
        let settled = flow
            .settle_holding(&message, &stop, || table.hold(&place, number))
            .await;
        match settled {
            Settled::Acknowledge => table.settled(&place, number, offset, bytes),
            // Nothing after it may be committed.
            Settled::Leave => break,
        }
    }
}

fn arrived(message: &BorrowedMessage<'_>) -> Arrived {
    let fields = message.headers().map(|headers| {
        headers
            .iter()
            .map(|header| {
                let name = Bytes::copy_from_slice(header.key.as_bytes());
                (name, Bytes::copy_from_slice(header.value.unwrap_or_default()))
            })
            .collect()
    });
    Arrived {
        position: Position::Kafka {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
        },
        record_key: message.key().map(Bytes::copy_from_slice),
        fields: fields.unwrap_or_default(),
        body: message.payload().map(Bytes::copy_from_slice),
        key_field: "idempotency-key",
        signature_field: "x-signature-256",
    }
}

/// A client whose end blocks its thread, since it leaves its group.
struct Closing(Option<Arc<StreamConsumer<Context>>>);

impl Closing {
    async fn close(&mut self) {
        if let Some(consumer) = self.0.take() {
            // It fails if dropping panics.
            let _ = spawn_blocking(move || drop(consumer)).await;
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(consumer) = self.0.take() {
            // On another thread also if there is no runtime any more.
            std::thread::spawn(move || drop(consumer));
        }
    }
}
