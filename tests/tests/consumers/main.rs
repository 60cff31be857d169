//! The consumers of Kafka and Redis Streams on real servers, which come and go; and consumers that are killed.
//!
//! `cargo xtask e2e consumers` brings up what this needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails loudly"
)]

mod kafka;
mod redis;
mod together;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idemp_core::{Secret, Signer};
use idemp_receiver::consume::Quarantined;
use idemp_receiver::{ClaimStore, Event, HandlerError, Receiver, ReceiverConfig};

const SECRET: &str = "of the test";
/// Only a guard against hanging for ever.
const LIMIT: Duration = Duration::from_secs(60);

fn secret() -> Secret {
    Secret::new(SECRET).unwrap()
}

fn sign(body: &str) -> String {
    Signer::new(&secret()).header(body.as_bytes()).as_str().to_owned()
}

fn key(step: usize) -> String {
    format!("r1:tool_end:{step}")
}

fn body(step: usize) -> String {
    format!(r#"{{"data": {step}, "event": "tool_end"}}"#)
}

/// Every key of these steps with a count of 1.
fn once_each(steps: impl IntoIterator<Item = usize>) -> BTreeMap<String, usize> {
    steps.into_iter().map(|step| (key(step), 1)).collect()
}

/// Short leases, so that what a killed consumer held is soon free; no store is given up on a busy machine.
fn receiver(store: impl ClaimStore) -> Receiver {
    let config = ReceiverConfig {
        lease: Duration::from_secs(1),
        store_timeout: Duration::from_secs(5),
        ..ReceiverConfig::default()
    };
    Receiver::new(store, &secret().into(), config).unwrap()
}

/// What handlers and the quarantine did.
#[derive(Clone, Default)]
struct Effects {
    runs: Arc<Mutex<BTreeMap<String, usize>>>,
    quarantined: Arc<Mutex<Vec<Quarantined>>>,
}

impl Effects {
    /// Notes a run and gives its number for this key, from 1.
    fn run(&self, event: &Event) -> usize {
        let mut runs = self.runs.lock().unwrap();
        let run = runs.entry(event.key().to_owned()).or_default();
        *run += 1;
        *run
    }

    fn runs(&self) -> BTreeMap<String, usize> {
        self.runs.lock().unwrap().clone()
    }

    fn distinct(&self) -> usize {
        self.runs.lock().unwrap().len()
    }

    /// Position and reason of what came to quarantine.
    fn quarantined(&self) -> Vec<(String, &'static str)> {
        let all = self.quarantined.lock().unwrap();
        all.iter()
            .map(|message| (message.position.to_string(), message.reason.code()))
            .collect()
    }

    /// A handler that takes the effect.
    fn handler(&self) -> impl Fn(Event) -> std::future::Ready<Result<(), HandlerError>> + Send + Sync + use<> {
        let effects = self.clone();
        move |event| {
            effects.run(&event);
            std::future::ready(Ok(()))
        }
    }

    fn quarantine(
        &self,
    ) -> impl Fn(Quarantined) -> std::future::Ready<Result<(), idemp_receiver::consume::QuarantineError>> + Send + Sync + use<>
    {
        let quarantined = Arc::clone(&self.quarantined);
        move |message| {
            quarantined.lock().unwrap().push(message);
            std::future::ready(Ok(()))
        }
    }
}

/// Looks again and again until the condition holds.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
