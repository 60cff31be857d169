//! Events through the webhook sender, and a bare reqwest loop that posts ready-made bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::ensure;
use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use idemp_core::headers::{IDEMPOTENCY_KEY, X_EVENT_TYPE, X_SIGNATURE_256};
use idemp_core::{Attempt, Message, Secret, Signer, Sink, SinkName, StatusPolicy, Verdict};
use idemp_dispatch::{Dispatcher, LaneConfig};
use idemp_dlq::MemoryStore;
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Url};
use tokio::runtime::Runtime;

use crate::corpus::Numbered;
use crate::local::{self, Server};
use crate::measure::{Both, Pairs};
use crate::report::{Bench, Target, Unit};

const ROUNDS: usize = 15;
const IN_FLIGHT: usize = 64;
const EVENTS: usize = 10_000;

/// The default of a lane.
const LANE: usize = 10_000;

const SECRET: &str = "whsec_benchmark_secret";
const PATH: &str = "/webhooks/langchain";

/// A server that reads the body and answers 200 with this text.
struct Peer {
    url: Url,
    received: Arc<AtomicUsize>,
    _server: Server,
}

impl Peer {
    async fn start(answer: &'static str) -> anyhow::Result<Self> {
        let received = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&received);
        let handler = move |body: Bytes| {
            count.fetch_add(usize::from(!body.is_empty()), Ordering::Relaxed);
            async move { answer }
        };
        let server = Server::start(Router::new().route(PATH, post(handler))).await?;
        Ok(Self {
            url: Url::parse(&format!("http://{}{PATH}", server.address))?,
            received,
            _server: server,
        })
    }
}

pub(crate) fn run() -> anyhow::Result<Bench> {
    let runtime = local::runtime()?;
    let about = format!("{IN_FLIGHT} in flight to axum in this process, {EVENTS} events a sample; other: bare reqwest");
    let mut bench = Bench::new("webhook", about);
    let quiet = runtime.block_on(Peer::start(""))?;
    let talking = runtime.block_on(Peer::start(r#"{"status":"ok"}"#))?;
    let target = Some(Target::SpeedAtLeast(0.85));
    for (name, events) in [
        ("600-byte body", Numbered::of_length(600)?),
        ("recorded bodies", Numbered::recorded()?),
    ] {
        let events = Arc::new(events.take(EVENTS)?);
        let mut compare = |what: &str, peer: &Peer, ours: Ours, bare: Bare, target| {
            let pairs = Pairs::take(
                ROUNDS,
                || sample(&runtime, peer, events.len(), ours.send(&events)),
                || sample(&runtime, peer, events.len(), bare.send(&peer.url, &events)),
            )?;
            let unit = Unit::EventsPerSecond(events.len());
            bench.compare(format!("{name}: {what}"), &pairs.clock(), unit, target);
            bench.compare("  the same, in processor time", &pairs.processor(), unit, None);
            anyhow::Ok(())
        };
        compare("sink and classify", &quiet, Ours::sink(&quiet)?, Bare::new()?, target)?;
        compare(
            "other signs by hand",
            &quiet,
            Ours::sink(&quiet)?,
            Bare::signing()?,
            None,
        )?;
        compare(
            "dispatcher",
            &quiet,
            Ours::dispatcher(&quiet, LANE)?,
            Bare::new()?,
            target,
        )?;
        compare(
            "dispatcher, lane of 256",
            &quiet,
            Ours::dispatcher(&quiet, 256)?,
            Bare::new()?,
            None,
        )?;
        compare(
            "sink, a reply to read",
            &talking,
            Ours::sink(&talking)?,
            Bare::new()?,
            None,
        )?;
    }
    Ok(bench)
}

/// Runs `work`, and checks that `events` requests came of it.
fn sample(
    runtime: &Runtime,
    peer: &Peer,
    events: usize,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Both> {
    let before = peer.received.load(Ordering::Relaxed);
    let both = local::timed(runtime, work)?;
    let came = peer.received.load(Ordering::Relaxed) - before;
    ensure!(came == events, "the server has seen {came} of {events} events");
    Ok(both)
}

/// Our side: what is signed and classified.
enum Ours {
    Sink(Arc<WebhookSink>),
    Dispatcher(Dispatcher),
}

impl Ours {
    fn sink(peer: &Peer) -> anyhow::Result<Self> {
        Ok(Self::Sink(Arc::new(sink(peer)?)))
    }

    /// With a lane that holds this many events.
    fn dispatcher(peer: &Peer, max_events: usize) -> anyhow::Result<Self> {
        let name = SinkName::parse("webhook")?;
        let lane = LaneConfig {
            concurrency: IN_FLIGHT,
            max_events,
            ..LaneConfig::new(name, Arc::new(sink(peer)?), Arc::new(MemoryStore::new()))
        };
        Ok(Self::Dispatcher(Dispatcher::new(vec![lane])?))
    }

    async fn send(&self, events: &Arc<Vec<Message>>) -> anyhow::Result<()> {
        match self {
            Self::Sink(sink) => {
                let sink = Arc::clone(sink);
                local::in_flight(IN_FLIGHT, Arc::clone(events), move |event| {
                    deliver(Arc::clone(&sink), event)
                })
                .await
            }
            Self::Dispatcher(dispatcher) => {
                let (dispatcher, events) = (dispatcher.clone(), Arc::clone(events));
                // In a task, as in an application: a thread outside of the runtime's would be woken for each free place.
                let submitting = async move {
                    for event in events.iter() {
                        let _handle = dispatcher.submit(event.clone()).await?;
                    }
                    let left = dispatcher.flush(Duration::from_secs(60)).await;
                    ensure!(left == 0, "{left} events were not settled in a minute");
                    Ok(())
                };
                local::all([submitting]).await
            }
        }
    }
}

fn sink(peer: &Peer) -> anyhow::Result<WebhookSink> {
    let secret = Secret::new(SECRET)?;
    Ok(WebhookSink::new(WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(peer.url.as_str(), secret)
    })?)
}

async fn deliver(sink: Arc<WebhookSink>, event: Message) -> anyhow::Result<()> {
    let attempt = Attempt {
        number: 1,
        now: SystemTime::now(),
        deadline: Instant::now() + Duration::from_secs(5),
    };
    let outcome = sink.deliver(&event, attempt).await;
    let verdict = StatusPolicy::default().classify(&outcome);
    ensure!(verdict == Verdict::Delivered, "{outcome:?}");
    Ok(())
}

/// A loop over the client, which is set up as the sink sets it up.
struct Bare {
    client: Client,
    /// Whether it also signs and sets the headers that the sink sets.
    signer: Option<Signer>,
}

impl Bare {
    fn new() -> anyhow::Result<Self> {
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .user_agent("bare/0.1.0")
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(Duration::from_secs(3))
            .pool_max_idle_per_host(100)
            .pool_idle_timeout(Duration::from_secs(4))
            .no_proxy()
            .build()?;
        Ok(Self { client, signer: None })
    }

    fn signing() -> anyhow::Result<Self> {
        Ok(Self {
            signer: Some(Signer::new(&Secret::new(SECRET)?)),
            ..Self::new()?
        })
    }

    async fn send(&self, url: &Url, events: &Arc<Vec<Message>>) -> anyhow::Result<()> {
        let (client, signer, url) = (self.client.clone(), self.signer.clone(), url.clone());
        local::in_flight(IN_FLIGHT, Arc::clone(events), move |event| {
            let mut request = client.post(url.clone()).body(event.body().clone());
            if let Some(signer) = &signer {
                request = request
                    .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                    .header(IDEMPOTENCY_KEY, event.key().as_str())
                    .header(X_EVENT_TYPE, event.key().event_type())
                    .header(X_SIGNATURE_256, signer.header(event.body()).as_bytes());
            }
            async move {
                let response = request.send().await?.error_for_status()?;
                // Frees the connection.
                response.bytes().await?;
                Ok(())
            }
        })
        .await
    }
}
