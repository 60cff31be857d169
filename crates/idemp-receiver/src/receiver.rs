//! Verify, claim, handle, complete.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use idemp_core::headers::HeaderLine;
use idemp_core::{Secrets, StandardHeaderValues, StandardVerifier, Ttl, Verifier};

use crate::claim::{ClaimKey, Claimant};
use crate::config::{ConfigError, ReceiverConfig};
use crate::envelope;
use crate::event::{Event, HandlerError};
use crate::gate::{Gate, Place};
use crate::meters::{BadSignature, Meters};
use crate::reply::{BadRequest, Reply};
use crate::store::ClaimStore;
use crate::work;

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
pub struct Receiver(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) store: Box<dyn ClaimStore>,
    check: Check,
    pub(crate) config: ReceiverConfig,
    pub(crate) ttl: Ttl,
    gate: Gate,
    pub(crate) meters: Meters,
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
            Ok((place, event)) => self.handle(place, event, handler).await,
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

    /// [Drains](Self::drain), and then closes the store, also for other receivers that share it.
    ///
    /// # Cancel safety
    /// As [`drain`](Self::drain).
    pub async fn close(&self) {
        self.drain().await;
        self.0.store.close().await;
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
        if incoming.body.len() > self.0.config.body_limit {
            return Err(Reply::TooLarge);
        }
        let label = self.0.verify(&incoming).map_err(|reason| {
            self.0.meters.bad_signature(reason);
            Reply::BadSignature
        })?;
        let secret = self.0.meters.secret(label);
        self.examine_verified(incoming, secret)
    }

    /// The rest of it, once the body is trusted by what `secret` stands for.
    fn examine_verified(&self, incoming: Incoming<'_>, secret: Arc<str>) -> Result<Event, Reply> {
        let shared = &*self.0;
        let key = shared.key(&incoming)?;
        let parts = key.parts();
        if parts.is_none() && shared.config.require_canonical {
            return Err(Reply::BadRequest(BadRequest::KeyNotCanonical));
        }
        let Some(envelope) = envelope::read(incoming.body) else {
            return Err(Reply::BadRequest(BadRequest::NotAnEvent));
        };
        if parts.is_some_and(|parts| parts.event_type != envelope.event()) {
            return Err(Reply::BadRequest(BadRequest::EventMismatch));
        }
        let claimant = Claimant::new(key, envelope.body());
        Ok(Event::new(claimant, envelope, secret))
    }

    /// The same for a transport on which producers need not sign: what has a signature is verified, what has none is
    /// trusted as it is.
    #[cfg(any(feature = "kafka", feature = "redis-streams"))]
    pub(crate) fn examine_unsigned(&self, incoming: Incoming<'_>) -> Result<Event, Reply> {
        if incoming.signature != HeaderLine::Missing || incoming.body.len() > self.0.config.body_limit {
            return self.examine(incoming);
        }
        self.examine_verified(incoming, Arc::from(""))
    }

    /// [`run`](Self::run) with a handler that is called then.
    pub(crate) fn handle<H, F>(&self, place: Place, event: Event, handler: H) -> impl Future<Output = Reply> + use<H, F>
    where
        H: FnOnce(Event) -> F + Send + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let handling = {
            let event = event.clone();
            async move { handler(event).await }
        };
        self.run(place, event, handling)
    }

    /// All that touches the store. `handling` is polled once the event is claimed.
    pub(crate) fn run<F>(&self, place: Place, event: Event, handling: F) -> impl Future<Output = Reply> + use<F>
    where
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        work::run(Arc::clone(&self.0), place, event, Box::pin(handling))
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("config", &self.0.config)
            .finish_non_exhaustive()
    }
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
}
