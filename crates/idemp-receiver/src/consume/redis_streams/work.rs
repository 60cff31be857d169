//! Entries at work: each is settled, then acknowledged.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, cmd};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::BACKOFF;
use super::config::RedisStreamsConsumerConfig;
use super::entry;
use super::link::{self, Link};
use crate::consume::flow::{Flow, Settled};
use crate::consume::meters::Operation;

/// How long an acknowledgement that fails is tried again after a stop.
const LAST_ACKNOWLEDGEMENTS: Duration = Duration::from_secs(5);

/// What the reader and the entries at work share.
pub(super) struct Shared {
    pub(super) flow: Flow,
    pub(super) config: RedisStreamsConsumerConfig,
    /// For acknowledgements, which must not stand behind a read that waits.
    pub(super) writer: Link,
    pub(super) halt: CancellationToken,
    /// Ids of the entries at work, so that none of them is taken a second time.
    at_work: Mutex<HashSet<String>>,
}

impl Shared {
    pub(super) fn new(flow: Flow, config: RedisStreamsConsumerConfig, writer: Link, halt: CancellationToken) -> Self {
        Self {
            flow,
            config,
            writer,
            halt,
            at_work: Mutex::default(),
        }
    }

    pub(super) fn at_work(&self) -> MutexGuard<'_, HashSet<String>> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes an entry to its end. It is at work already, and then no more.
pub(super) async fn settle(shared: Arc<Shared>, id: String, fields: Vec<(Bytes, Bytes)>) {
    let message = entry::arrived(&shared.config.stream, id.clone(), fields);
    let settled = shared.flow.settle(&message, &shared.halt).await;
    if settled == Settled::Acknowledge {
        acknowledge(&shared, &id).await;
    }
    shared.at_work().remove(&id);
}

/// Lets go of an entry that was trimmed from the stream. It is at work already, and then no more.
pub(super) async fn let_go(shared: Arc<Shared>, id: String) {
    acknowledge(&shared, &id).await;
    shared.at_work().remove(&id);
}

/// Acknowledges an entry, again and again until it is done or not waited for any more; then it is pending, and its next
/// owner finds it done.
async fn acknowledge(shared: &Shared, id: &str) {
    let config = &shared.config;
    let mut acknowledge: Cmd = cmd("XACK");
    acknowledge.arg(&config.stream).arg(&config.group).arg(id);
    let tried = async {
        let (mut wait, longest) = BACKOFF;
        while let Err(error) = shared.writer.ask(&acknowledge).await {
            shared.flow.meters().error(Operation::Acknowledge);
            let server = shared.writer.server();
            tracing::warn!(%server, cause = link::cause(&error), "an acknowledgement failed");
            sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    };
    let stopped = async {
        shared.halt.cancelled().await;
        sleep(LAST_ACKNOWLEDGEMENTS).await;
    };
    tokio::select! {
        biased;
        () = tried => {}
        () = stopped => tracing::warn!("stopped without an acknowledgement: the entry comes again"),
    }
}
