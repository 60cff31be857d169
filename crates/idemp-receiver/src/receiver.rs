//! Verify, claim, handle, complete.

use std::error::Error;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::SystemTime;

use bytes::Bytes;
use idemp_core::headers::HeaderLine;
use idemp_core::{Secrets, StandardHeaderValues, StandardVerifier, Ttl, Verifier};
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument;

use crate::claim::{ClaimKey, Claimant};
use crate::config::{ConfigError, ReceiverConfig};
use crate::envelope::{self, Envelope};
use crate::event::{Event, HandlerError};
use crate::gate::{Gate, Place};
use crate::meters::{BadSignature, Mark, Meters, Operation};
use crate::reply::{BadRequest, Reply, Unavailable};
use crate::store::{Claim, ClaimStore, StoreError, StoreErrorKind};

/// What came in: the headers that matter and the raw body.
///
/// Collect each header from all values that the request has under its name. The body is what came over the wire, not
/// parsed and not decompressed.
#[derive(Clone, Debug, Default)]
pub struct Incoming<'h> {
    /// `Idempotency-Key`.
    pub key: HeaderLine<'h>,
    /// `X-Signature-256`.
    pub signature: HeaderLine<'h>,
    /// The headers of Standard Webhooks; looked at only if the receiver requires them.
    pub standard: StandardHeaderValues<'h>,
    /// The raw body.
    pub body: Bytes,
}

/// Takes the effect of each event once: verifies the signature, claims the key, runs the handler, records the event as
/// done, and says what to reply.
///
/// Cloning shares it. It needs a tokio runtime with the time driver.
///
/// The handler and what follows it run in a task of their own: a client that hangs up does not cut them in half. A
/// handler that panics counts as failed. One that runs over its cap is cut at its next await; one that blocks its thread
/// cannot be cut.
///
/// ```
/// use bytes::Bytes;
/// use idemp_core::{Secret, Signer};
/// use idemp_receiver::{HandlerError, Incoming, MemoryStore, Receiver, ReceiverConfig, Reply};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let secret = Secret::new("whsec_test_secret")?;
/// let receiver = Receiver::new(MemoryStore::new(), &secret.clone().into(), ReceiverConfig::default())?;
///
/// let body = br#"{"data": {"output": "4"}, "event": "tool_end"}"#;
/// let signature = Signer::new(&secret).header(body);
/// let incoming = Incoming {
///     key: "req-42:tool_end:1".into(),
///     signature: signature.as_str().into(),
///     body: Bytes::from_static(body),
///     ..Incoming::default()
/// };
/// let first = receiver.receive(incoming.clone(), |event| async move {
///     assert_eq!(event.data_bytes(), br#"{"output": "4"}"#);
///     Ok(())
/// });
/// assert_eq!(first.await, Reply::Ok);
/// let again = receiver.receive(incoming, |_| async { Err(HandlerError::Failed) });
/// assert_eq!(again.await, Reply::Duplicate);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Receiver(Arc<Shared>);

struct Shared {
    store: Box<dyn ClaimStore>,
    check: Check,
    config: ReceiverConfig,
    ttl: Ttl,
    gate: Gate,
    meters: Meters,
}

enum Check {
    Body(Verifier),
    Standard(StandardVerifier),
}

impl Receiver {
    /// A receiver that accepts bodies signed with any of the secrets and keeps its claims in `store`.
    ///
    /// Its metrics go to the recorder that is installed now.
    ///
    /// # Errors
    /// If the configuration breaks a rule, or a secret cannot verify Standard Webhooks though they are required.
    pub fn new(store: impl ClaimStore, secrets: &Secrets, config: ReceiverConfig) -> Result<Self, ConfigError> {
        let ttl = config.check()?;
        let check = if config.require_standard_webhooks {
            Check::Standard(StandardVerifier::new(secrets, config.tolerance).map_err(ConfigError::Secret)?)
        } else {
            Check::Body(Verifier::new(secrets))
        };
        Ok(Self(Arc::new(Shared {
            store: Box::new(store),
            check,
            ttl,
            gate: Gate::new(config.concurrency),
            meters: Meters::new(config.scope.name().unwrap_or_default(), secrets),
            config,
        })))
    }

    /// Takes one request and says what to reply.
    ///
    /// # Cancel safety
    /// Dropping the future loses the reply. A handler that has begun goes on, and so does what follows it.
    ///
    /// # Panics
    /// Outside a tokio runtime with the time driver.
    pub async fn receive<H, F>(&self, incoming: Incoming<'_>, handler: H) -> Reply
    where
        H: FnOnce(Event) -> F + Send + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let reply = match self.enter().and_then(|place| Ok((place, self.examine(incoming)?))) {
            Ok((place, event)) => self.run(place, event, handler).await,
            Err(reply) => reply,
        };
        self.tell(reply)
    }

    /// Takes no further requests, which are put off with 503, and waits until those at work are answered and marked,
    /// also those whose clients have hung up.
    ///
    /// For a graceful end: first stop the server and let it answer what it has, then drain.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting; the receiver stays closed, and draining again waits for the rest.
    pub async fn drain(&self) {
        self.0.gate.drain().await;
    }

    /// How it works.
    #[must_use]
    pub fn config(&self) -> &ReceiverConfig {
        &self.0.config
    }

    pub(crate) fn enter(&self) -> Result<Place, Reply> {
        self.0.gate.enter(&self.0.meters.running).map_err(Reply::Unavailable)
    }

    /// Counts a reply that is about to be given.
    pub(crate) fn tell(&self, reply: Reply) -> Reply {
        self.0.meters.reply(reply);
        tracing::debug!(reply = reply.code(), "replied");
        reply
    }

    /// All that comes before the store: size, signature, key, envelope.
    pub(crate) fn examine(&self, incoming: Incoming<'_>) -> Result<Event, Reply> {
        let shared = &*self.0;
        if incoming.body.len() > shared.config.body_limit {
            return Err(Reply::TooLarge);
        }
        let label = shared.verify(&incoming).map_err(|reason| {
            shared.meters.bad_signature(reason);
            Reply::BadSignature
        })?;
        let secret = shared.meters.secret(label);
        let key = shared.key(&incoming)?;
        let canonical = key.canonical();
        if canonical.is_none() && shared.config.require_canonical {
            return Err(Reply::BadRequest(BadRequest::KeyNotCanonical));
        }
        let Some(Envelope { event, data }) = envelope::read(&incoming.body) else {
            return Err(Reply::BadRequest(BadRequest::NotAnEvent));
        };
        if canonical.is_some_and(|key| key.event_type() != &*event) {
            return Err(Reply::BadRequest(BadRequest::EventMismatch));
        }
        let claimant = Claimant::new(key, &incoming.body);
        Ok(Event::new(claimant, event, incoming.body, data, secret))
    }

    /// All that touches the store, in a task of its own.
    pub(crate) async fn run<H, F>(&self, place: Place, event: Event, handler: H) -> Reply
    where
        H: FnOnce(Event) -> F + Send + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let work = Arc::clone(&self.0).work(place, event, handler);
        // The task itself does not panic; it ends without a reply when the runtime is being shut down.
        tokio::spawn(work.in_current_span()).await.unwrap_or(Reply::Failed)
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("config", &self.0.config)
            .finish_non_exhaustive()
    }
}

/// How a handler ended.
enum Ended {
    Done,
    Not(HandlerError),
    Panicked,
    OverCap,
}

impl Shared {
    /// The label of the secret that matched.
    fn verify(&self, incoming: &Incoming<'_>) -> Result<&str, BadSignature> {
        match &self.check {
            Check::Body(verifier) => {
                let value = match incoming.signature {
                    HeaderLine::One(value) => value,
                    HeaderLine::Missing => return Err(BadSignature::Missing),
                    HeaderLine::Repeated => return Err(BadSignature::Repeated),
                };
                Ok(verifier.verify([value], &incoming.body)?)
            }
            Check::Standard(verifier) => Ok(verifier.verify(incoming.standard, &incoming.body, SystemTime::now())?),
        }
    }

    fn key(&self, incoming: &Incoming<'_>) -> Result<ClaimKey, Reply> {
        let malformed = |_| Reply::BadRequest(BadRequest::KeyMalformed);
        let scope = &self.config.scope;
        let key = match incoming.key {
            HeaderLine::One(value) => Some(ClaimKey::from_header(scope, value).map_err(malformed)?),
            HeaderLine::Repeated => return Err(Reply::BadRequest(BadRequest::KeyRepeated)),
            HeaderLine::Missing => None,
        };
        let Check::Standard(_) = self.check else {
            return key.ok_or(Reply::BadRequest(BadRequest::KeyMissing));
        };
        // Only the id is signed. A key beside it may be missing, but must not be another one.
        let HeaderLine::One(id) = incoming.standard.id else {
            return Err(Reply::BadRequest(BadRequest::KeyMissing));
        };
        let id = std::str::from_utf8(id).map_err(|_| Reply::BadRequest(BadRequest::KeyMalformed))?;
        let id = ClaimKey::new(scope, id).map_err(malformed)?;
        if key.is_some_and(|key| key != id) {
            self.meters.bad_signature(BadSignature::KeyNotCovered);
            return Err(Reply::BadSignature);
        }
        Ok(id)
    }

    async fn work<H, F>(self: Arc<Self>, place: Place, event: Event, handler: H) -> Reply
    where
        H: FnOnce(Event) -> F,
        F: Future<Output = Result<(), HandlerError>>,
    {
        let claimed_at = Instant::now();
        let claim = self.store.claim(event.claimant(), self.config.lease);
        match self.bounded(Operation::Claim, claim).await {
            Ok(Claim::Claimed) => {}
            Ok(Claim::Duplicate) => return Reply::Duplicate,
            Ok(Claim::InProgress { retry_after }) => return Reply::InProgress { retry_after },
            Ok(Claim::Conflict) => {
                tracing::warn!(key = event.key(), "another body under the same key");
                return Reply::Conflict;
            }
            Err(_) if self.config.fail_open => {
                // It may have been taken all the same, so what follows is the same as well.
                self.meters.unclaimed.increment(1);
                tracing::warn!(key = event.key(), "handling without a claim");
            }
            Err(_) => {
                // It may have been taken all the same: give it back, without keeping the sender waiting.
                tokio::spawn(async move {
                    self.release(&event).await;
                    drop(place);
                });
                return Reply::Unavailable(Unavailable::Store);
            }
        }
        let ended = self.attend(&event, handler, self.keep_lease(&event, claimed_at)).await;
        match ended {
            Ended::Done => self.complete(&event).await,
            _ => self.release(&event).await,
        }
        drop(place);
        reply_to(&event, ended)
    }

    /// Runs the handler to its end or to its cap, and `beside` as long as it runs.
    async fn attend<H, F>(&self, event: &Event, handler: H, beside: impl Future<Output = ()>) -> Ended
    where
        H: FnOnce(Event) -> F,
        F: Future<Output = Result<(), HandlerError>>,
    {
        let started = Instant::now();
        let handler = async { handler(event.clone()).await };
        let mut handler = pin!(handler);
        // A handler that never lets others run must not keep the timers from being looked at.
        let mut cap = pin!(unconstrained(sleep(self.config.handler_cap)));
        let mut beside = pin!(unconstrained(beside));
        let ended = poll_fn(|cx| {
            match catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(cx))) {
                Ok(Poll::Ready(Ok(()))) => return Poll::Ready(Ended::Done),
                Ok(Poll::Ready(Err(error))) => return Poll::Ready(Ended::Not(error)),
                Err(_) => return Poll::Ready(Ended::Panicked),
                Ok(Poll::Pending) => {}
            }
            if cap.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ended::OverCap);
            }
            // It never ends by itself.
            beside.as_mut().poll(cx).map(|()| Ended::OverCap)
        })
        .await;
        self.meters.handler_seconds.record(started.elapsed());
        ended
    }

    /// Renews the lease every third of it. Never ends.
    async fn keep_lease(&self, event: &Event, claimed_at: Instant) {
        let lease = self.config.lease;
        let mut since = claimed_at;
        loop {
            sleep(lease / 3).await;
            let asked_at = Instant::now();
            let renewal = self.store.renew(event.claimant(), lease);
            let lost = match self.bounded(Operation::Renew, renewal).await {
                Ok(true) => {
                    since = asked_at;
                    false
                }
                Ok(false) => true,
                // Not known: so it is once the lease is over.
                Err(_) => since.elapsed() >= lease,
            };
            if lost {
                event.lose_claim();
                self.meters.lost_leases.increment(1);
                tracing::warn!(key = event.key(), "the claim was lost while its handler is running");
                pending::<()>().await;
            }
        }
    }

    async fn complete(&self, event: &Event) {
        let completion = self.store.complete(event.claimant(), self.ttl);
        let completed = self.bounded(Operation::Complete, completion).await;
        let mark = completed.map_or(Mark::Unwritten, Mark::from);
        self.meters.mark(mark);
        match mark {
            Mark::Done => {}
            Mark::Late => tracing::info!(key = event.key(), "completed after the lease had run out"),
            Mark::Lost => tracing::warn!(key = event.key(), "completed after another copy had taken the key"),
            Mark::Unwritten => tracing::warn!(key = event.key(), "completed without a mark: a copy may run again"),
        }
    }

    async fn release(&self, event: &Event) {
        // If it fails, the lease ends by itself.
        let _ = self
            .bounded(Operation::Release, self.store.release(event.claimant()))
            .await;
    }

    async fn bounded<T>(
        &self,
        operation: Operation,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = timeout(self.config.store_timeout, asked)
            .await
            .unwrap_or_else(|_| Err(StoreError::new(StoreErrorKind::TimedOut)));
        if let Err(error) = &answer {
            self.meters.store_error(operation);
            tracing::warn!(
                operation = Operation::CODES[operation as usize],
                error = error as &(dyn Error + 'static),
                "the claim store failed"
            );
        }
        answer
    }
}

fn reply_to(event: &Event, ended: Ended) -> Reply {
    let key = event.key();
    match ended {
        Ended::Done => Reply::Ok,
        Ended::Not(HandlerError::Rejected) => {
            tracing::warn!(key, "the handler rejected the event");
            Reply::Rejected
        }
        Ended::Not(_) => {
            tracing::warn!(key, "the handler failed");
            Reply::Failed
        }
        Ended::Panicked => {
            tracing::error!(key, "the handler panicked");
            Reply::Failed
        }
        Ended::OverCap => {
            tracing::warn!(key, "the handler ran over its cap and was cut");
            Reply::OverCap
        }
    }
}
