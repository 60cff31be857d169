//! Signed messages, a store that is down on command, and a record of what handlers and the quarantine got.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use idemp_core::{Secret, Signer, Ttl};
use idemp_receiver::consume::{Arrived, ConsumeConfig, Flow, Position, Quarantined};
use idemp_receiver::{
    Claim, ClaimKey, ClaimStore, Claimant, Completed, Event, HandlerError, MemoryStore, Receiver, ReceiverConfig,
    Scope, StoreError, StoreErrorKind,
};
use tokio::time::Instant;

pub(crate) const KEY: &str = "req-42:tool_end:1";
pub(crate) const BODY: &str = r#"{"data": {"output": "4"}, "event": "tool_end"}"#;

pub(crate) fn secret() -> Secret {
    Secret::new("whsec_test_secret").unwrap()
}

pub(crate) fn sign(body: &[u8]) -> String {
    Signer::new(&secret()).header(body).as_str().to_owned()
}

pub(crate) fn receiver(store: impl ClaimStore) -> Receiver {
    Receiver::new(store, &secret().into(), ReceiverConfig::default()).unwrap()
}

/// A message with these fields.
pub(crate) fn message(id: &str, fields: &[(&str, &str)], body: &str) -> Arrived {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    Arrived {
        position: Position::Other {
            transport: "test",
            id: id.to_owned(),
        },
        record_key: None,
        fields: fields.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        body: Some(bytes(body)),
        key_field: "key",
        signature_field: "signature",
    }
}

pub(crate) fn signed(key: &str, body: &str) -> Arrived {
    message(key, &[("key", key), ("signature", &sign(body.as_bytes()))], body)
}

/// Another owner for the key and the body of the tests.
pub(crate) fn other_owner() -> Claimant {
    Claimant::new(ClaimKey::new(&Scope::default(), KEY).unwrap(), BODY.as_bytes())
}

/// A memory store that is down on command, and can pass for an inbox.
pub(crate) struct Store {
    pub(crate) inner: MemoryStore,
    pub(crate) down: AtomicBool,
    pub(crate) complete_down: AtomicBool,
    /// What it says when it is down.
    pub(crate) outage: StoreErrorKind,
    /// Under this key lies what it cannot read; under none if it is empty.
    pub(crate) foreign: Mutex<String>,
    /// An inbox does not commit what handlers have done.
    pub(crate) refuses: AtomicBool,
    pub(crate) commits_effects: bool,
    pub(crate) asked: AtomicUsize,
    /// The last claimant that was given the key.
    pub(crate) owner: Mutex<Option<Claimant>>,
}

impl Store {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::raw())
    }

    pub(crate) fn inbox() -> Arc<Self> {
        Arc::new(Self {
            commits_effects: true,
            ..Self::raw()
        })
    }

    pub(crate) fn failing_with(outage: StoreErrorKind) -> Arc<Self> {
        Arc::new(Self { outage, ..Self::raw() })
    }

    fn raw() -> Self {
        Self {
            inner: MemoryStore::new(),
            down: AtomicBool::new(false),
            complete_down: AtomicBool::new(false),
            outage: StoreErrorKind::Unavailable,
            foreign: Mutex::default(),
            refuses: AtomicBool::new(false),
            commits_effects: false,
            asked: AtomicUsize::new(0),
            owner: Mutex::new(None),
        }
    }

    fn ask(&self) -> Result<(), StoreError> {
        self.asked.fetch_add(1, SeqCst);
        if self.down.load(SeqCst) {
            return Err(StoreError::new(self.outage));
        }
        Ok(())
    }

    fn read(&self, who: &Claimant) -> Result<(), StoreError> {
        if *self.foreign.lock().unwrap() == who.key.key() {
            return Err(StoreError::new(StoreErrorKind::Foreign));
        }
        Ok(())
    }

    /// What another owner is told.
    pub(crate) async fn look(&self) -> Claim {
        let other = other_owner();
        let claim = self.inner.claim(&other, Duration::from_secs(6)).await.unwrap();
        if claim == Claim::Claimed {
            assert!(self.inner.release(&other).await.unwrap());
        }
        claim
    }
}

#[async_trait]
impl ClaimStore for Store {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        self.ask()?;
        self.read(claimant)?;
        let claim = self.inner.claim(claimant, lease).await?;
        if claim == Claim::Claimed {
            *self.owner.lock().unwrap() = Some(claimant.clone());
        }
        Ok(claim)
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        self.ask()?;
        self.inner.renew(claimant, lease).await
    }

    async fn complete(&self, claimant: &Claimant, ttl: Ttl) -> Result<Completed, StoreError> {
        self.ask()?;
        if self.complete_down.load(SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unavailable));
        }
        if self.refuses.load(SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Refused));
        }
        self.read(claimant)?;
        self.inner.complete(claimant, ttl).await
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        self.ask()?;
        self.inner.release(claimant).await
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError> {
        self.ask()?;
        self.inner.mark_seen(key, ttl).await
    }

    fn commits_effects(&self) -> bool {
        self.commits_effects
    }
}

/// When handlers ran and what came to quarantine.
#[derive(Clone)]
pub(crate) struct Log {
    began: Instant,
    runs: Arc<Mutex<Vec<(u64, String)>>>,
    pub(crate) quarantined: Arc<Mutex<Vec<Quarantined>>>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            runs: Arc::default(),
            quarantined: Arc::default(),
        }
    }

    /// Notes a run and gives its number, from 1.
    pub(crate) fn run(&self, event: &Event) -> usize {
        let mut runs = self.runs.lock().unwrap();
        runs.push((self.began.elapsed().as_millis() as u64, event.key().to_owned()));
        runs.len()
    }

    /// Milliseconds from the start at which handlers ran.
    pub(crate) fn times(&self) -> Vec<u64> {
        self.runs.lock().unwrap().iter().map(|(at, _)| *at).collect()
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.runs.lock().unwrap().iter().map(|(_, key)| key.clone()).collect()
    }

    pub(crate) fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    pub(crate) fn reasons(&self) -> Vec<&'static str> {
        let all = self.quarantined.lock().unwrap();
        all.iter().map(|message| message.reason.code()).collect()
    }

    /// A flow over `store` whose handler does what `script` says of its n-th run, from 1.
    pub(crate) fn flow(
        &self,
        store: &Arc<Store>,
        config: ConsumeConfig,
        script: impl Fn(usize) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Flow {
        let (log, script) = (self.clone(), Arc::new(script));
        let handler = move |event: Event| {
            let (log, script) = (log.clone(), Arc::clone(&script));
            async move { script(log.run(&event)) }
        };
        let quarantined = Arc::clone(&self.quarantined);
        let quarantine = move |message| {
            quarantined.lock().unwrap().push(message);
            async { Ok(()) }
        };
        Flow::new(&receiver(Arc::clone(store)), "test", config, handler, quarantine).unwrap()
    }
}
