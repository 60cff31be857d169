//! Events as messages of a Kafka topic.
//!
//! The message's key is the run id, so that the events of a run lie in one partition; its value is the body, and its
//! headers are `idempotency-key`, `event-type` and `x-signature-256`.
//!
//! Delivery reports alone decide: an attempt puts the message into the queue of librdkafka's idempotent producer
//! (`acks=all`) and waits for what becomes of it. librdkafka's own resends, which carry sequence numbers that brokers
//! de-duplicate by, happen inside one attempt.
//!
//! | what happened | outcome |
//! |---|---|
//! | all in-sync replicas have it | delivered |
//! | a code of the broker or of librdkafka | failed with this code and what it means: see docs/sinks/kafka.md |
//! | `MessageTimedOut`, `BrokerTransportFailure` | `transient` if it never was on its way, else `ambiguous` |
//! | the attempt ended, or was dropped, before the report came | `NoReport`, `ambiguous`: it may still arrive |
//! | no room in the queue for as long as a report could still come in time | `QueueFull`, pushed back |
//! | the producer broke (`OutOfOrderSequenceNumber`, `Fatal` and the like) | `ambiguous`; the next attempt has a new producer |
//!
//! A broker refuses a request as a whole, so that one event that is too large would take others with it. Hence a refused
//! message is sent once more, in a request of its own, within the same attempt; only then is the refusal believed.
//!
//! An attempt that is made again has a new sequence number: if the one before arrived after all, the topic holds the
//! event twice, under one `idempotency-key`.

mod classify;
mod config;
mod error;
mod producer;
mod report;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use idemp_core::headers::lower;
use idemp_core::{Attempt, Detail, ErrorClass, Failure, Message, Outcome, Signer, Sink};
use rdkafka::config::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use tokio::time::{Instant, sleep, timeout_at};

pub use config::KafkaConfig;
pub use error::{KafkaError, KafkaErrorKind};

use producer::{NotQueued, Producers, Queued, Record};
use report::{Report, Shared};

const EVENT_TYPE: &str = "event-type";

/// librdkafka does not tell when there is room: it makes room only after it has handed out a report.
const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_millis(10);

/// A Kafka topic, with its own producer and its own secret.
pub struct KafkaSink {
    brokers: String,
    topic: String,
    signer: Signer,
    policy_violation: ErrorClass,
    message_timeout: Duration,
    shared: Arc<Shared>,
    settings: ClientConfig,
    producers: Producers,
    alone: OnceLock<Option<Producers>>,
}

impl KafkaSink {
    /// Sets up the producer, which begins to connect in threads of its own; whether there is a broker is not waited
    /// for. Certificates are read from disk.
    ///
    /// # Errors
    /// Names the field that is at fault: brokers that are no `HOST:PORT`, a topic that is no topic name, a time or size
    /// out of its bounds, a property that is unknown, is given twice, has a value that librdkafka does not take, or is
    /// one on which the sink's promises rest.
    pub fn new(config: KafkaConfig) -> Result<Self, KafkaError> {
        let settings = config.checked()?;
        let (shared, message_timeout) = (Arc::<Shared>::default(), config.message_timeout());
        let producers = Producers::new(settings.clone(), Arc::clone(&shared), message_timeout)
            .map_err(|error| config.refused(&error))?;
        Ok(Self {
            signer: Signer::new(&config.secret),
            brokers: config.brokers,
            topic: config.topic,
            policy_violation: config.policy_violation,
            message_timeout,
            shared,
            settings,
            producers,
            alone: OnceLock::new(),
        })
    }

    /// The producer whose requests hold one message each, made when it is first needed.
    fn alone(&self) -> Option<&Producers> {
        let make = || {
            let mut settings = self.settings.clone();
            settings.set("batch.num.messages", "1");
            Producers::new(settings, Arc::clone(&self.shared), self.message_timeout).ok()
        };
        self.alone.get_or_init(make).as_ref()
    }

    /// Sends the message, and waits for its report.
    async fn send(&self, producers: &Producers, message: &Message, deadline: Instant) -> Result<Ended, Failure> {
        let Queued { generation, report } = self.queue(producers, message, deadline).await?;
        let report = match timeout_at(deadline, report).await {
            Ok(Ok(report)) => report,
            // librdkafka reports on every message, so this has no cause that is known.
            Ok(Err(_no_report)) => return Err(unreported("the producer went away without a report")),
            Err(_elapsed) => return Err(unreported("no delivery report before the end of the attempt")),
        };
        let may_be_broken = classify::may_have_a_cause(report.code);
        let cause = may_be_broken.then(|| producers.broken_by(generation)).flatten();
        if cause.is_some() || classify::breaks_producer(report.code) {
            producers.replace(generation);
        }
        Ok(Ended { report, cause })
    }

    /// Puts the message into the queue, waiting for room for as long as a report can still come in time.
    async fn queue(&self, producers: &Producers, message: &Message, deadline: Instant) -> Result<Queued, Failure> {
        let signature = self.signer.header(message.body());
        let until = deadline.checked_sub(self.message_timeout).unwrap_or(deadline);
        let mut replaced = false;
        loop {
            let record = Record {
                topic: &self.topic,
                key: message.key().run_id().as_bytes(),
                body: message.body(),
                headers: headers(message, signature.as_str()),
            };
            let (generation, code) = match producers.queue(record) {
                Ok(queued) => return Ok(queued),
                Err(NotQueued::Closed) => return Err(not_sent("the sink is closed")),
                Err(NotQueued::Refused(generation, code)) => (generation, code),
            };
            if code == RDKafkaErrorCode::QueueFull && Instant::now() < until {
                sleep(LOOK_FOR_ROOM_EVERY).await;
                continue;
            }
            // Another producer may take it, but not one after the other.
            if classify::breaks_producer(code) && producers.replace(generation) && !replaced {
                replaced = true;
                continue;
            }
            let cause = producers.broken_by(generation);
            return Err(classify::not_queued(cause.unwrap_or(code), self.shared.trouble()));
        }
    }
}

/// How a message ended, and what broke its producer, if anything did.
struct Ended {
    report: Report,
    cause: Option<RDKafkaErrorCode>,
}

#[async_trait]
impl Sink for KafkaSink {
    async fn deliver(&self, message: &Message, attempt: Attempt) -> Outcome {
        let deadline = Instant::from_std(attempt.deadline);
        if deadline <= Instant::now() {
            return not_sent("the attempt was over before it began").into();
        }
        let mut ended = self.send(&self.producers, message, deadline).await;
        // A broker refuses a request as a whole. Nothing of it was written.
        if let Ok(Ended { report, .. }) = &ended
            && classify::may_be_anothers_fault(report)
            && let Some(alone) = self.alone()
        {
            ended = self.send(alone, message, deadline).await;
        }
        match ended {
            Ok(Ended { report, cause }) => classify::reported(&report, cause, self.policy_violation),
            Err(failure) => failure.into(),
        }
    }

    /// Waits until every message in the producer has its report, at most as long as one may take, and a second; what is
    /// left then is purged.
    async fn close(&self) {
        let mut retiring = self.producers.close();
        if let Some(Some(alone)) = self.alone.get() {
            retiring.extend(alone.close());
        }
        let join = move || retiring.into_iter().for_each(|thread| drop(thread.join()));
        // It fails only when the runtime is being shut down; the threads end by themselves then.
        let _ = tokio::task::spawn_blocking(join).await;
    }
}

impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink")
            .field("brokers", &self.brokers)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

fn headers(message: &Message, signature: &str) -> OwnedHeaders {
    let header = |key, value| Header {
        key,
        value: Some(value),
    };
    OwnedHeaders::new_with_capacity(3)
        .insert(header(lower::IDEMPOTENCY_KEY, message.key().as_str()))
        .insert(header(EVENT_TYPE, message.key().event_type()))
        .insert(header(lower::X_SIGNATURE_256, signature))
}

/// A failure before the message was in the queue.
fn not_sent(why: &str) -> Failure {
    Failure::code(ErrorClass::Transient, "NotSent").with_detail(Detail::new(why))
}

/// The message was in the queue, and nothing more is known.
fn unreported(why: &str) -> Failure {
    Failure::code(ErrorClass::Ambiguous, "NoReport").with_detail(Detail::new(why))
}
