//! The receiver over real HTTP, with the real sender in front of it: copies, failures, races and hang-ups.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Router};
use idemp_core::{
    Attempt, Cause, EventType, Message, Outcome, RetrySchedule, Run, RunId, Secret, Signer, Sink, SinkName,
};
use idemp_dispatch::{Dispatcher, LaneConfig};
use idemp_dlq::MemoryStore as Letters;
use idemp_receiver::{ClaimStore, Event, MemoryStore, Receiver, ReceiverConfig, ReceiverLayer, SqliteStore};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_testkit::gate::Gate;
use idemp_testkit::until;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

const SECRET: &str = "of the test";

/// What a handler does with the n-th run of a key, from 1.
type Script = Arc<dyn Fn(usize) -> StatusCode + Send + Sync>;

/// What handlers did.
#[derive(Clone)]
struct Effects {
    script: Script,
    gate: Option<Gate>,
    runs: Arc<Mutex<HashMap<String, usize>>>,
    finished: Arc<watch::Sender<usize>>,
}

impl Effects {
    fn runs_of(&self, key: &str) -> usize {
        self.runs.lock().unwrap().get(key).copied().unwrap_or_default()
    }
}

async fn handle(Extension(effects): Extension<Effects>, event: Event) -> StatusCode {
    let run = {
        let mut runs = effects.runs.lock().unwrap();
        let run = runs.entry(event.key().to_owned()).or_default();
        *run += 1;
        *run
    };
    if let Some(gate) = &effects.gate {
        gate.pass().await;
    }
    let status = (effects.script)(run);
    effects.finished.send_modify(|count| *count += 1);
    status
}

/// A receiver on loopback, and what its handlers did.
struct Site {
    address: SocketAddr,
    effects: Effects,
}

impl Site {
    async fn start(
        store: Arc<dyn ClaimStore>,
        gate: Option<Gate>,
        script: impl Fn(usize) -> StatusCode + Send + Sync + 'static,
    ) -> Self {
        let effects = Effects {
            script: Arc::new(script),
            gate,
            runs: Arc::default(),
            finished: Arc::new(watch::Sender::new(0)),
        };
        let secrets = Secret::new(SECRET).unwrap().into();
        // Limits that a busy machine does not run into.
        let config = ReceiverConfig {
            attempt_timeout: Duration::from_secs(120),
            handler_cap: Duration::from_secs(100),
            store_timeout: Duration::from_secs(60),
            ..ReceiverConfig::default()
        };
        let receiver = Receiver::new(store, &secrets, config).unwrap();
        let app = Router::new()
            .route("/hook", post(handle))
            .layer(ReceiverLayer::new(receiver))
            .layer(Extension(effects.clone()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, effects }
    }

    fn sink(&self) -> WebhookSink {
        let config = WebhookConfig {
            proxy: WebhookProxy::None,
            ..WebhookConfig::new(format!("http://{}/hook", self.address), Secret::new(SECRET).unwrap())
        };
        WebhookSink::new(config).unwrap()
    }
}

/// Every store that is embedded, with a folder that lives as long as the test.
fn stores() -> (tempfile::TempDir, Vec<Arc<dyn ClaimStore>>) {
    let folder = idemp_tests::temp_dir();
    let sqlite = SqliteStore::open(folder.path().join("claims.db")).unwrap();
    (folder, vec![Arc::new(MemoryStore::new()), Arc::new(sqlite)])
}

fn message() -> Message {
    let run = Run::with_id(RunId::parse("r1").unwrap());
    run.event(EventType::TOOL_END, &"x").unwrap()
}

/// The status of one attempt.
async fn send(sink: &WebhookSink, message: &Message) -> u16 {
    let deadline = Instant::now() + Duration::from_secs(60);
    match sink
        .deliver(
            message,
            Attempt {
                number: 1,
                now: SystemTime::now(),
                deadline,
            },
        )
        .await
    {
        Outcome::Delivered { status } => status.unwrap(),
        Outcome::Failed(failure) => match failure.cause {
            Cause::Status(status) => status,
            other => panic!("{other:?}"),
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_copies_at_once_run_the_handler_once() {
    let (_folder, stores) = stores();
    for store in stores {
        let gate = Gate::shut();
        let site = Site::start(store, Some(gate.clone()), |_| StatusCode::OK).await;
        let sink = Arc::new(site.sink());
        let copies: Vec<_> = (0..50)
            .map(|_| {
                let sink = Arc::clone(&sink);
                tokio::spawn(async move { send(&sink, &message()).await })
            })
            .collect();
        // The handler is held until every other copy has its answer.
        gate.arrived(1).await;
        until("49 copies have their answers", || {
            copies.iter().filter(|copy| copy.is_finished()).count() == 49
        })
        .await;
        gate.open();
        let mut statuses = Vec::new();
        for copy in copies {
            statuses.push(copy.await.unwrap());
        }
        statuses.sort_unstable();
        assert_eq!(statuses[0], 200);
        assert!(
            statuses[1..].iter().all(|status| *status == 503),
            "never 2xx for a live claim: {statuses:?}"
        );
        assert_eq!(site.effects.runs_of("r1:tool_end:1"), 1);
        assert_eq!(send(&sink, &message()).await, 200, "a duplicate from now on");
        assert_eq!(site.effects.runs_of("r1:tool_end:1"), 1);
    }
}

#[tokio::test]
async fn the_handler_fails_and_the_next_copy_runs() {
    let (_folder, stores) = stores();
    for store in stores {
        let site = Site::start(store, None, |run| {
            if run == 1 {
                StatusCode::INTERNAL_SERVER_ERROR
            } else {
                StatusCode::OK
            }
        })
        .await;
        let sink = site.sink();
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(send(&sink, &message()).await);
        }
        assert_eq!(statuses, [500, 200, 200]);
        assert_eq!(site.effects.runs_of("r1:tool_end:1"), 2, "the third was a duplicate");
    }
}

#[tokio::test]
async fn the_sender_gets_through_handlers_that_fail_and_every_effect_happens_once() {
    let (_folder, stores) = stores();
    for store in stores {
        let succeeded = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&succeeded);
        let site = Site::start(store, None, move |run| {
            if run < 3 {
                return StatusCode::INTERNAL_SERVER_ERROR;
            }
            counting.fetch_add(1, Ordering::SeqCst);
            StatusCode::OK
        })
        .await;
        let mut lane = LaneConfig::new(
            SinkName::parse("webhook").unwrap(),
            Arc::new(site.sink()),
            Arc::new(Letters::new()),
        );
        lane.schedule = RetrySchedule::default().scaled(0.01).unwrap();
        lane.attempt_timeout = Duration::from_secs(60);
        let dispatcher = Dispatcher::new(vec![lane]).unwrap();
        let run = Run::new();
        let handles: Vec<_> = (0..100)
            .map(|number| {
                dispatcher
                    .try_submit(run.event(EventType::TOOL_END, &number).unwrap())
                    .unwrap()
            })
            .collect();
        for handle in handles {
            assert!(handle.settled().await.all_delivered());
        }
        assert_eq!(succeeded.load(Ordering::SeqCst), 100);
        assert_eq!(dispatcher.stats().lanes[0].attempts, 300);
    }
}

#[tokio::test]
async fn the_client_hangs_up_and_the_effect_and_the_mark_still_happen_once() {
    let (_folder, stores) = stores();
    for store in stores {
        let gate = Gate::shut();
        let site = Site::start(store, Some(gate.clone()), |_| StatusCode::OK).await;
        let (message, secret) = (message(), Secret::new(SECRET).unwrap());
        let signature = Signer::new(&secret).header(message.body());
        let head = format!(
            "POST /hook HTTP/1.1\r\nhost: x\r\nidempotency-key: {}\r\nx-signature-256: {}\r\ncontent-length: {}\r\n\r\n",
            message.key(),
            signature.as_str(),
            message.body().len(),
        );
        let mut client = tokio::net::TcpStream::connect(site.address).await.unwrap();
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(message.body()).await.unwrap();
        gate.arrived(1).await;
        drop(client);
        // While the handler runs a copy is put off, whether or not anybody waits for the first one's reply.
        assert_eq!(send(&site.sink(), &message).await, 503);
        let mut finished = site.effects.finished.subscribe();
        gate.open();
        finished.wait_for(|count| *count == 1).await.unwrap();
        while send(&site.sink(), &message).await != 200 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(site.effects.runs_of("r1:tool_end:1"), 1, "the copies were duplicates");
    }
}

#[tokio::test]
async fn a_forged_copy_changes_nothing() {
    let (_folder, stores) = stores();
    for store in stores {
        let site = Site::start(store, None, |_| StatusCode::OK).await;
        let forged = WebhookConfig {
            proxy: WebhookProxy::None,
            ..WebhookConfig::new(format!("http://{}/hook", site.address), Secret::new("a guess").unwrap())
        };
        assert_eq!(send(&WebhookSink::new(forged).unwrap(), &message()).await, 401);
        assert_eq!(site.effects.runs_of("r1:tool_end:1"), 0);
        assert_eq!(send(&site.sink(), &message()).await, 200);
        let other = Message::new(message().key().clone(), &"other bytes").unwrap();
        assert_eq!(send(&site.sink(), &other).await, 422, "the key stands for another body");
        assert_eq!(site.effects.runs_of("r1:tool_end:1"), 1);
    }
}
