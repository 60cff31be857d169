//! The consumer of Redis Streams (docs/consumers.md, "Redis Streams").

mod config;
mod entry;
mod fault;
mod group;
mod link;
mod reader;
mod work;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, RedisError, cmd};
use tokio_util::sync::CancellationToken;

pub use config::RedisStreamsConsumerConfig;
use link::Link;
use reader::Reader;
use work::Shared;

use super::config::{ConsumeConfig, ConsumerError};
use super::flow::{self, Flow};
use super::message::{QuarantineError, Quarantined};
use crate::event::{Event, HandlerError};
use crate::receiver::Receiver;

/// Waits after a failure on the server: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Takes the events of a Redis Stream as a member of a consumer group.
///
/// An entry has the fields `idempotency_key`, `event_type`, `payload` and `signature`; the signed bytes are put together
/// from them. It is acknowledged only after it is settled. Up to `concurrency` entries are taken at the same time, in no
/// order.
///
/// Entries that a consumer has left behind are taken over once nothing was heard of them for `min_idle`; so are this
/// consumer's own, if an answer with new entries was lost. A group that is gone, with its stream or without it, is made
/// again.
#[derive(Clone)]
pub struct RedisStreamsConsumer {
    receiver: Receiver,
    consume: ConsumeConfig,
    config: RedisStreamsConsumerConfig,
    client: Client,
}

impl RedisStreamsConsumer {
    /// A consumer over a receiver's store, scope, secrets and limits. It does not connect yet.
    ///
    /// # Errors
    /// If a configuration breaks a rule, the receiver requires Standard Webhooks, or the URL is none.
    pub fn new(
        receiver: &Receiver,
        consume: ConsumeConfig,
        config: RedisStreamsConsumerConfig,
    ) -> Result<Self, ConsumerError> {
        flow::check(receiver, &consume)?;
        config.check(&consume)?;
        // The text of the client's error may quote the URL.
        let client =
            link::client(&config).map_err(|_| ConsumerError::client("the URL or the certificates cannot be used"))?;
        Ok(Self {
            receiver: receiver.clone(),
            consume,
            config,
            client,
        })
    }

    /// Asks the server for a sign of life, over a connection of its own and with the login. A server that is there and
    /// cannot serve now, such as one that loads its data or whose disk is full, will do.
    ///
    /// # Errors
    /// If it cannot be reached, does not answer in time, or refuses the login.
    ///
    /// # Panics
    /// Outside a tokio runtime with the time driver.
    pub async fn check(&self) -> Result<(), ConsumerError> {
        let (connect_within, answer_within) = (self.config.connect_timeout, self.config.response_timeout);
        let link = Link::new(self.client.clone(), connect_within, answer_within);
        match link.ask(&cmd("PING")).await {
            Ok(_) => Ok(()),
            Err(error) if is_there(&error) => Ok(()),
            Err(error) => Err(ConsumerError::unreachable(link::cause(&error))),
        }
    }

    /// Takes events until `stop` is cancelled. Then it finishes and acknowledges what runs and leaves the rest pending.
    ///
    /// A server that is away, and comes back, is no reason to end.
    ///
    /// # Errors
    /// If the flow cannot be made.
    ///
    /// # Cancel safety
    /// Dropping the future is a stop for which nobody waits.
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
        let transport = "redis_streams";
        let flow = Flow::new(&self.receiver, transport, self.consume.clone(), handler, quarantine)?;
        let halt = stop.child_token();
        // Entries at work also stop when this future is dropped.
        let _halt = halt.clone().drop_guard();
        let config = &self.config;
        let link = |answer_within| Link::new(self.client.clone(), config.connect_timeout, answer_within);
        let shared = Shared::new(flow, config.clone(), link(config.response_timeout), halt);
        let reads = link(config.block.saturating_add(config.response_timeout));
        Reader::new(Arc::new(shared), reads).run().await;
        Ok(())
    }
}

impl fmt::Debug for RedisStreamsConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamsConsumer")
            .field("consume", &self.consume)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Whether the server has answered, and with something else than that it does not know the login or the database.
fn is_there(error: &RedisError) -> bool {
    match error.code() {
        None | Some("NOAUTH" | "WRONGPASS") => false,
        Some("ERR") => error
            .detail()
            .is_some_and(|said| said.starts_with("max number of clients")),
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    #[test]
    fn a_server_that_cannot_serve_now_is_there() {
        for (answer, expected) in [
            ("LOADING Redis is loading the dataset in memory", true),
            ("MISCONF Redis is configured to save RDB snapshots", true),
            ("NOPERM this user has no permissions to run the 'ping' command", true),
            ("ERR max number of clients reached", true),
            ("ERR DB index is out of range", false),
            ("NOAUTH Authentication required.", false),
            ("WRONGPASS invalid username-password pair", false),
        ] {
            let reply = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes());
            let error = reply.and_then(Value::extract_error).unwrap_err();
            assert_eq!(is_there(&error), expected, "{answer}");
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(!is_there(&refused.into()));
    }
}
