//! Redis Streams: one attempt is one XADD.
//!
//! An entry has the fields `idempotency_key`, `event_type`, `payload` and `signature`. `payload` is the JSON of the data
//! alone; the signature is made over the whole body, `{"data": ` + payload + `, "event": "` + event type + `"}`, which
//! whoever verifies puts together again.
//!
//! A sink has one connection, which everybody who delivers shares: what waits shares a pipeline, and an event that comes
//! alone is written at once. A reply that is lost leaves it open whether the entry was
//! written, so a stream may hold two entries with one key.
//!
//! What each error code means stands in docs/sinks/redis-streams.md.

mod batch;
mod classify;
mod config;
mod dial;
mod error;
mod link;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use idemp_core::{Attempt, Message, Outcome, Signer, Sink};
use redis::{Cmd, Value};
use tokio::time::{Instant, timeout_at};

pub use config::RedisStreamsConfig;
pub use error::{RedisStreamsError, RedisStreamsErrorKind};
use link::{Line, Link};

/// A stream of a Redis or Valkey server or cluster, with one connection and its own secret.
pub struct RedisStreamsSink {
    link: Link,
    signer: Signer,
    stream: String,
    maxlen: Option<u64>,
}

impl RedisStreamsSink {
    /// Sets up the client; nothing is connected yet.
    ///
    /// TLS is by rustls with ring. For a cluster the process-wide cryptography of rustls is used, and set to ring where
    /// the application has chosen none.
    ///
    /// # Errors
    /// Names the field that is at fault: a URL that is not `redis://` or `rediss://` or has options, no name for the
    /// stream, a `maxlen` or connect timeout of zero, more nodes without a cluster, certificates that are not PEM.
    pub fn new(config: RedisStreamsConfig) -> Result<Self, RedisStreamsError> {
        config.checked()?;
        Ok(Self {
            link: Link::new(&config)?,
            signer: Signer::new(&config.secret),
            stream: config.stream,
            maxlen: config.maxlen,
        })
    }

    fn command(&self, message: &Message) -> Cmd {
        // What stands beside the payload is short: names, a key of 255 bytes, a signature of 71.
        let mut xadd = Cmd::with_capacity(14, message.body().len() + self.stream.len() + 512);
        xadd.arg("XADD").arg(&self.stream);
        if let Some(maxlen) = self.maxlen {
            xadd.arg("MAXLEN").arg("~").arg(maxlen);
        }
        let key = message.key();
        // An id of ours would have to be greater than every one before it. The server gives one.
        xadd.arg("*")
            .arg("idempotency_key")
            .arg(key.as_str())
            .arg("event_type")
            .arg(key.event_type())
            .arg("payload")
            .arg(&*message.data())
            .arg("signature")
            .arg(self.signer.header(message.body()).as_bytes());
        xadd
    }

    async fn settle(&self, line: &Arc<Line>, command: Cmd, deadline: Instant) -> Outcome {
        let judged = match timeout_at(deadline, line.send(command)).await {
            Err(_elapsed) => {
                self.link.unheard(line);
                return classify::out_of_time().into();
            }
            Ok(Ok(Value::BulkString(id))) if is_entry_id(&id) => {
                Link::heard(line);
                return Outcome::Delivered { status: None };
            }
            Ok(Ok(_)) => classify::strange(),
            Ok(Err(error)) => classify::answered(&error, self.link.cluster),
        };
        if judged.renew {
            self.link.renew(line);
        } else {
            Link::heard(line);
        }
        judged.failure.into()
    }
}

#[async_trait]
impl Sink for RedisStreamsSink {
    async fn deliver(&self, message: &Message, attempt: Attempt) -> Outcome {
        let deadline = Instant::from_std(attempt.deadline);
        if deadline <= Instant::now() {
            return classify::not_sent("the attempt was over before it began").into();
        }
        match self.link.line(deadline).await {
            Ok(line) => self.settle(&line, self.command(message), deadline).await,
            Err(failure) => failure.into(),
        }
    }

    async fn close(&self) {
        self.link.close();
    }
}

/// Milliseconds and a number, with a dash between: nothing else says that an entry was written.
fn is_entry_id(reply: &[u8]) -> bool {
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let mut parts = reply.splitn(2, |byte| *byte == b'-');
    parts.next().is_some_and(is_number) && parts.next().is_some_and(is_number)
}

impl fmt::Debug for RedisStreamsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamsSink")
            .field("stream", &self.stream)
            .field("cluster", &self.link.cluster)
            .finish_non_exhaustive()
    }
}
