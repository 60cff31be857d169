//! The producer of the moment: it is replaced when it has broken, and laid to rest away from the async threads.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use tokio::sync::oneshot;

use super::report::{Report, Reports, Shared};

type KafkaProducer = ThreadedProducer<Reports>;

/// Between two replacements: what breaks again at once is not helped by more of them.
const BETWEEN_REPLACEMENTS: Duration = Duration::from_secs(1);

/// Tells one producer from the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(u64);

/// What goes into the queue.
pub(super) struct Record<'r> {
    pub(super) topic: &'r str,
    pub(super) key: &'r [u8],
    pub(super) body: &'r [u8],
    pub(super) headers: OwnedHeaders,
}

/// A message in the queue, and where its report will come.
pub(super) struct Queued {
    pub(super) generation: Generation,
    pub(super) report: oneshot::Receiver<Report>,
}

/// Why a message is not in the queue.
pub(super) enum NotQueued {
    /// The sink is closed.
    Closed,
    /// This producer did not take it.
    Refused(Generation, RDKafkaErrorCode),
}

/// One producer at a time.
pub(super) struct Producers {
    config: ClientConfig,
    shared: Arc<Shared>,
    /// How long a message may be at the producer.
    message_timeout: Duration,
    current: RwLock<Current>,
}

struct Current {
    /// `None` once closed.
    producer: Option<KafkaProducer>,
    generation: Generation,
    replaced_at: Option<Instant>,
    /// What broke the producer before this one.
    broken_by: Option<RDKafkaErrorCode>,
    retiring: Vec<JoinHandle<()>>,
}

impl Producers {
    pub(super) fn new(
        config: ClientConfig,
        shared: Arc<Shared>,
        message_timeout: Duration,
    ) -> Result<Self, ClientError> {
        let producer = config.create_with_context(Reports(Arc::clone(&shared)))?;
        Ok(Self {
            config,
            shared,
            message_timeout,
            current: RwLock::new(Current {
                producer: Some(producer),
                generation: Generation(0),
                replaced_at: None,
                broken_by: None,
                retiring: Vec::new(),
            }),
        })
    }

    /// Puts a message into the queue; never waits for room.
    pub(super) fn queue(&self, record: Record<'_>) -> Result<Queued, NotQueued> {
        // Held while sending, which does not block, so that no task ever is the last to have a producer.
        let current = self.read();
        let Some(producer) = &current.producer else {
            return Err(NotQueued::Closed);
        };
        let generation = current.generation;
        let (report_to, report) = oneshot::channel();
        let record = BaseRecord::with_opaque_to(record.topic, Box::new(report_to))
            .key(record.key)
            .payload(record.body)
            .headers(record.headers);
        match producer.send(record) {
            Ok(()) => Ok(Queued { generation, report }),
            Err((error, _record)) => {
                // What has no code is a topic with a NUL in it, which the configuration excludes.
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::InvalidArgument);
                Err(NotQueued::Refused(generation, code))
            }
        }
    }

    /// Puts a new producer in place of a broken one, once for all attempts that found it broken. Says whether there is
    /// another one than `broken`.
    pub(super) fn replace(&self, broken: Generation) -> bool {
        let mut current = self.write();
        if current.generation != broken {
            return current.producer.is_some();
        }
        let too_soon = |at: Instant| at.elapsed() < BETWEEN_REPLACEMENTS;
        if current.producer.is_none() || current.replaced_at.is_some_and(too_soon) {
            return false;
        }
        // What was well enough before fails for want of memory or threads: the next attempt tries again.
        let Ok(new) = self.config.create_with_context(Reports(Arc::clone(&self.shared))) else {
            return false;
        };
        current.generation = Generation(broken.0 + 1);
        current.replaced_at = Some(Instant::now());
        if let Some(old) = current.producer.replace(new) {
            current.broken_by = fatal_error(&old);
            current.retiring.retain(|thread| !thread.is_finished());
            current.retiring.extend(retire(old, self.message_timeout));
        }
        true
    }

    /// The error that broke this producer for good, if that is known (still).
    pub(super) fn broken_by(&self, generation: Generation) -> Option<RDKafkaErrorCode> {
        let current = self.read();
        match current.generation.0 - generation.0 {
            0 => current.producer.as_ref().and_then(fatal_error),
            1 => current.broken_by,
            _ => None,
        }
    }

    /// Takes no more, and begins to let go of all producers.
    pub(super) fn close(&self) -> Vec<JoinHandle<()>> {
        let mut current = self.write();
        let mut retiring = std::mem::take(&mut current.retiring);
        if let Some(last) = current.producer.take() {
            retiring.extend(retire(last, self.message_timeout));
        }
        retiring
    }

    fn read(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Current> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Producers {
    fn drop(&mut self) {
        // The threads end by themselves.
        drop(self.close());
    }
}

fn fatal_error(producer: &KafkaProducer) -> Option<RDKafkaErrorCode> {
    producer.client().fatal_error().map(|(code, _)| code)
}

/// Flushes a producer and drops it, which takes as long as a message may be in it, on a thread of its own. Every message
/// gets its report: what is left after that time is purged.
fn retire(producer: KafkaProducer, message_timeout: Duration) -> Option<JoinHandle<()>> {
    let rest = move || {
        // Messages that have run out of time are found once a second.
        let _ = producer.flush(message_timeout + Duration::from_secs(1));
        drop(producer);
    };
    // Without a thread it is dropped here and now.
    thread::Builder::new()
        .name("idemp-kafka-flush".to_owned())
        .spawn(rest)
        .ok()
}
