//! The consumer of Redis Streams (docs/consumers.md, "Redis Streams").

mod config;
mod entry;
mod link;

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Client, Cmd, RedisError, Value, cmd};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use config::RedisStreamsConsumerConfig;
use entry::{Entry, Misshapen};
use link::Link;

use super::config::{ConsumeConfig, ConsumerError, Start};
use super::flow::{self, Flow, Settled};
use super::message::{QuarantineError, Quarantined};
use super::meters::Operation;
use crate::event::{Event, HandlerError};
use crate::receiver::Receiver;

/// Waits after a failure on the server: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long an acknowledgement that fails is tried again after a stop.
const LAST_ACKNOWLEDGEMENTS: Duration = Duration::from_secs(5);

/// The cursor of a look for entries, at its beginning and again at its end.
const ENDS: &str = "0-0";

/// One step, so that no entry comes in between.
const LEAVE: &str = "\
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
return 0";

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
        let shared = Arc::new(Shared {
            flow,
            config: config.clone(),
            writer: Link::new(self.client.clone(), config.connect_timeout, config.response_timeout),
            halt,
            at_work: Mutex::default(),
        });
        let reader = Reader {
            link: Link::new(
                self.client.clone(),
                config.connect_timeout,
                config.block.saturating_add(config.response_timeout),
            ),
            places: Arc::new(Semaphore::new(config.concurrency)),
            tasks: TaskTracker::new(),
            beginning: None,
            connection: 0,
            own: None,
            reclaim: Reclaim {
                cursor: ENDS.to_owned(),
                due: Instant::now(),
            },
            shared,
        };
        reader.run().await;
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

/// What the reader and the entries at work share.
struct Shared {
    flow: Flow,
    config: RedisStreamsConsumerConfig,
    /// For acknowledgements, which must not stand behind a read that waits.
    writer: Link,
    halt: CancellationToken,
    /// Ids of the entries at work, so that none of them is taken a second time.
    at_work: Mutex<HashSet<String>>,
}

/// Reads entries and gives each a task.
struct Reader {
    shared: Arc<Shared>,
    link: Link,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    /// The id after which the group begins, once it is known.
    beginning: Option<String>,
    /// The number of the connection for which the group was seen to.
    connection: u64,
    /// After which of this consumer's own pending entries to go on; `None` when there are no more.
    own: Option<String>,
    reclaim: Reclaim,
}

/// How far a look for entries of dead consumers has come.
struct Reclaim {
    cursor: String,
    due: Instant,
}

/// A step that did not work.
#[derive(Debug)]
enum Fault {
    Server(RedisError),
    Misshapen,
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        Self::Server(error)
    }
}

impl From<Misshapen> for Fault {
    fn from(_: Misshapen) -> Self {
        Self::Misshapen
    }
}

impl Reader {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let (first, longest) = BACKOFF;
        let mut wait = first;
        loop {
            let free = tokio::select! {
                biased;
                () = shared.halt.cancelled() => break,
                free = self.free() => free,
            };
            let Some(free) = free else { break };
            // Not cut by a stop: entries that are on their way would be pending and taken by nobody.
            match self.step(free).await {
                Ok(()) => wait = first,
                Err(fault) => {
                    self.tell(&fault);
                    if is_no_group(&fault) {
                        // To be made at once. If that does not work, it fails in another way.
                        self.connection = 0;
                        continue;
                    }
                    tokio::select! {
                        biased;
                        () = shared.halt.cancelled() => break,
                        () = sleep(wait) => wait = (wait * 2).min(longest),
                    }
                }
            }
        }
        self.tasks.close();
        self.tasks.wait().await;
        self.leave_group().await;
    }

    /// Waits for a free place and takes all that are free.
    async fn free(&self) -> Option<OwnedSemaphorePermit> {
        let mut free = Arc::clone(&self.places).acquire_owned().await.ok()?;
        if let Ok(more) = u32::try_from(self.places.available_permits())
            && more > 0
            && let Ok(more) = Arc::clone(&self.places).try_acquire_many_owned(more)
        {
            free.merge(more);
        }
        Some(free)
    }

    /// Sees to the group, or reads once, in this order: entries that are this consumer's already, those of dead ones,
    /// new ones.
    async fn step(&mut self, free: OwnedSemaphorePermit) -> Result<(), Fault> {
        if self.connection == 0 || self.link.number().await != self.connection {
            self.make_group().await?;
            self.connection = self.link.number().await;
            // An answer may have been lost with the connection, and entries with it.
            self.own = Some(ENDS.to_owned());
        }
        if let Some(after) = self.own.take() {
            let entries = self.read(&after, free.num_permits(), false).await;
            let entries = entries.inspect_err(|_| self.own = Some(after))?;
            self.own = entries.last().map(|entry| entry.id.clone());
            self.take(entries, free);
            return Ok(());
        }
        let is_looking = self.reclaim.cursor != ENDS;
        if is_looking || Instant::now() >= self.reclaim.due {
            return self.reclaim(free).await;
        }
        let entries = self.read(">", free.num_permits(), true).await?;
        self.take(entries, free);
        Ok(())
    }

    async fn read(&self, after: &str, count: usize, blocks: bool) -> Result<Vec<Entry>, Fault> {
        let config = &self.shared.config;
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&config.group).arg(&config.consumer);
        read.arg("COUNT").arg(count);
        if blocks {
            // Not 0, which would be for ever.
            let until_reclaim = self.reclaim.due.saturating_duration_since(Instant::now());
            read.arg("BLOCK").arg(millis(config.block.min(until_reclaim)).max(1));
        }
        read.arg("STREAMS").arg(&config.stream).arg(after);
        Ok(entry::read(self.link.ask(&read).await?)?)
    }

    /// One step of a look for entries of dead consumers. The next one goes on where this one stopped: beginning anew
    /// each time would never reach the tail when there are more than fit in.
    async fn reclaim(&mut self, free: OwnedSemaphorePermit) -> Result<(), Fault> {
        let config = &self.shared.config;
        let mut claim = cmd("XAUTOCLAIM");
        claim.arg(&config.stream).arg(&config.group).arg(&config.consumer);
        claim.arg(millis(config.min_idle)).arg(&self.reclaim.cursor);
        claim.arg("COUNT").arg(free.num_permits());
        let claimed = entry::claimed(self.link.ask(&claim).await?)?;
        if claimed.cursor == ENDS {
            self.reclaim.due = Instant::now() + config.reclaim_every;
        }
        self.reclaim.cursor = claimed.cursor;
        if claimed.trimmed > 0 {
            tracing::warn!(
                entries = claimed.trimmed,
                "pending entries were trimmed from the stream"
            );
            self.shared.flow.meters().trimmed(claimed.trimmed);
        }
        let taken = self.take(claimed.entries, free);
        self.shared.flow.meters().reclaimed(taken);
        Ok(())
    }

    /// Gives each entry a task and a place, except for those that are at work already, and tells how many.
    fn take(&self, entries: Vec<Entry>, mut free: OwnedSemaphorePermit) -> usize {
        let mut taken = 0;
        for Entry { id, fields } in entries {
            let Some(fields) = fields else {
                tracing::warn!("a pending entry was trimmed from the stream");
                self.shared.flow.meters().trimmed(1);
                self.spawn(acknowledge(Arc::clone(&self.shared), id));
                continue;
            };
            if !self.shared.at_work().insert(id.clone()) {
                continue;
            }
            let place = free.split(1);
            taken += 1;
            let shared = Arc::clone(&self.shared);
            self.spawn(async move {
                let message = entry::arrived(&shared.config.stream, id.clone(), fields);
                let settled = shared.flow.settle(&message, &shared.halt).await;
                if settled == Settled::Acknowledge {
                    acknowledge(Arc::clone(&shared), id.clone()).await;
                }
                shared.at_work().remove(&id);
                drop(place);
            });
        }
        taken
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Makes the group, and the stream if need be. It may be there.
    async fn make_group(&mut self) -> Result<(), Fault> {
        let config = &self.shared.config;
        let beginning = match (&self.beginning, config.start) {
            (Some(beginning), _) => beginning.clone(),
            (None, Start::Earliest) => ENDS.to_owned(),
            // Not `$`: made again, the group must begin where it began.
            (None, Start::Latest) => self.last_id().await?,
        };
        let mut make = cmd("XGROUP");
        make.arg("CREATE").arg(&config.stream).arg(&config.group);
        make.arg(&beginning).arg("MKSTREAM");
        match self.link.ask(&make).await {
            Ok(_) => tracing::info!(stream = config.stream, group = config.group, "made the consumer group"),
            Err(error) if error.code() == Some("BUSYGROUP") => {}
            Err(error) => return Err(error.into()),
        }
        self.beginning = Some(beginning);
        Ok(())
    }

    /// Takes this consumer's name out of the group, unless entries are pending under it: they would be lost.
    async fn leave_group(&self) {
        let config = &self.shared.config;
        let mut leave = cmd("EVAL");
        leave
            .arg(LEAVE)
            .arg(1)
            .arg(&config.stream)
            .arg(&config.group)
            .arg(&config.consumer);
        if let Err(error) = self.shared.writer.ask(&leave).await {
            tracing::info!(cause = link::cause(&error), "the consumer's name stays in the group");
        }
    }

    /// The id of the stream's newest entry, there or trimmed.
    async fn last_id(&self) -> Result<String, Fault> {
        let mut newest = cmd("XREVRANGE");
        newest
            .arg(&self.shared.config.stream)
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(1);
        let answer = self.link.ask(&newest).await?;
        let Value::Array(mut entries) = answer else {
            return Err(Fault::Misshapen);
        };
        match entries.pop() {
            None => Ok(ENDS.to_owned()),
            Some(entry) => {
                let stream = Value::Array(vec![Value::Nil, Value::Array(vec![entry])]);
                let newest = entry::read(Value::Array(vec![stream]))?;
                newest.into_iter().next().map(|entry| entry.id).ok_or(Fault::Misshapen)
            }
        }
    }

    fn tell(&self, fault: &Fault) {
        let operation = match fault {
            Fault::Server(error) if error.is_connection_refusal() => Operation::Connect,
            Fault::Server(_) | Fault::Misshapen => Operation::Read,
        };
        self.shared.flow.meters().error(operation);
        match fault {
            Fault::Server(error) => {
                let server = self.link.server();
                tracing::warn!(%server, cause = link::cause(error), "reading from the stream failed");
            }
            Fault::Misshapen => tracing::error!("the server's answer has an unknown shape"),
        }
    }
}

impl Shared {
    fn at_work(&self) -> MutexGuard<'_, HashSet<String>> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Acknowledges an entry, again and again until it is done or not waited for any more; then it is pending, and its next
/// owner finds it done.
async fn acknowledge(shared: Arc<Shared>, id: String) {
    let config = &shared.config;
    let mut acknowledge: Cmd = cmd("XACK");
    acknowledge.arg(&config.stream).arg(&config.group).arg(&id);
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

fn is_no_group(fault: &Fault) -> bool {
    matches!(fault, Fault::Server(error) if error.code() == Some("NOGROUP"))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
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
