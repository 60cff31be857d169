//! Copies at once, slow owners, clients that hang up, and the end of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use idemp_receiver::{
    Claim, ClaimKey, ClaimStore, Claimant, Event, HandlerError, MemoryStore, Receiver, ReceiverConfig, ReceiverLayer,
    Reply, Scope, Unavailable,
};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{
    BODY, Fault, Faulty, KEY, Runs, Signed, behind, by_default, connect, head, receiver, reply, request, send, serve,
};

/// A handler that says when it has begun and ends when it is told how.
struct Held {
    begun: oneshot::Receiver<()>,
    end: oneshot::Sender<Result<(), HandlerError>>,
    reply: JoinHandle<Reply>,
    lost: Arc<AtomicBool>,
}

impl Held {
    fn start(receiver: &Receiver) -> Self {
        let ((began, begun), (end, ended)) = (oneshot::channel(), oneshot::channel());
        let (receiver, lost) = (receiver.clone(), Arc::new(AtomicBool::new(false)));
        let saw_loss = Arc::clone(&lost);
        let reply = tokio::spawn(async move {
            let signed = Signed::new(KEY, BODY);
            let handler = async move |event: Event| {
                let _ = began.send(());
                let result = ended.await.unwrap();
                saw_loss.store(event.claim_lost(), SeqCst);
                result
            };
            receiver.receive(signed.incoming(), handler).await
        });
        Self {
            begun,
            end,
            reply,
            lost,
        }
    }
}

async fn receive(receiver: &Receiver, result: Result<(), HandlerError>) -> Reply {
    let signed = Signed::new(KEY, BODY);
    receiver.receive(signed.incoming(), async move |_| result).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_copies_at_once_run_the_handler_once() {
    let (runs, go_on) = (Runs::default(), Arc::new(Notify::new()));
    let handler = {
        let (runs, go_on) = (runs.clone(), Arc::clone(&go_on));
        async move |_: Event| {
            runs.add();
            go_on.notified().await;
        }
    };
    let app = behind(by_default(), handler);
    let started = std::time::Instant::now();
    let mut copies = JoinSet::new();
    for _ in 0..50 {
        let app = app.clone();
        copies.spawn(async move { send(&app, request(KEY, BODY)).await });
    }
    // The one that runs cannot end before the others are answered.
    for _ in 0..49 {
        let answer = copies.join_next().await.unwrap().unwrap();
        answer.is(503, r#"{"status":"in_progress"}"#);
        // What is left of 6 s that began after we did, in whole seconds, rounded up.
        let rest: u64 = answer.retry_after().unwrap().parse().unwrap();
        assert!((6 - started.elapsed().as_secs()..=6).contains(&rest), "{rest}");
    }
    go_on.notify_one();
    copies.join_next().await.unwrap().unwrap().is(200, r#"{"status":"ok"}"#);
    send(&app, request(KEY, BODY))
        .await
        .is(200, r#"{"status":"duplicate"}"#);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn after_a_failure_the_next_copy_runs() {
    let receiver = by_default();
    assert_eq!(receive(&receiver, Err(HandlerError::Failed)).await, Reply::Failed);
    assert_eq!(receive(&receiver, Err(HandlerError::Rejected)).await, Reply::Rejected);
    assert_eq!(receive(&receiver, Ok(())).await, Reply::Ok);
    assert_eq!(receive(&receiver, Err(HandlerError::Failed)).await, Reply::Duplicate);
}

/// A lease shorter than the handler is renewed: a copy never gets in.
#[tokio::test(start_paused = true)]
async fn the_lease_holds_while_the_handler_runs() {
    let config = ReceiverConfig {
        lease: Duration::from_millis(600),
        ..ReceiverConfig::default()
    };
    let receiver = receiver(MemoryStore::new(), config);
    let owner = Held::start(&receiver);
    owner.begun.await.unwrap();
    for _ in 0..38 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let reply = receive(&receiver, Ok(())).await;
        assert!(matches!(reply, Reply::InProgress { .. }), "{reply:?}");
    }
    owner.end.send(Ok(())).unwrap();
    assert_eq!(owner.reply.await.unwrap(), Reply::Ok);
    assert!(!owner.lost.load(SeqCst));
    assert_eq!(receive(&receiver, Ok(())).await, Reply::Duplicate);
}

/// Two receivers over one store; the first cannot renew.
fn owner_that_cannot_renew() -> (Receiver, Receiver, Arc<MemoryStoreBehind>) {
    let store = Arc::new(Faulty {
        renew: Fault::Down,
        ..Faulty::default()
    });
    let config = ReceiverConfig {
        lease: Duration::from_secs(1),
        ..ReceiverConfig::default()
    };
    let slow = receiver(Arc::clone(&store), config.clone());
    let next = receiver(Arc::new(MemoryStoreBehind(Arc::clone(&store))), config);
    (slow, next, Arc::new(MemoryStoreBehind(store)))
}

/// The store behind a faulty one, without its faults.
struct MemoryStoreBehind(Arc<Faulty>);

#[async_trait::async_trait]
impl ClaimStore for MemoryStoreBehind {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, idemp_receiver::StoreError> {
        self.0.inner.claim(claimant, lease).await
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, idemp_receiver::StoreError> {
        self.0.inner.renew(claimant, lease).await
    }

    async fn complete(
        &self,
        claimant: &Claimant,
        ttl: idemp_core::Ttl,
    ) -> Result<idemp_receiver::Completed, idemp_receiver::StoreError> {
        self.0.inner.complete(claimant, ttl).await
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, idemp_receiver::StoreError> {
        self.0.inner.release(claimant).await
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: idemp_core::Ttl) -> Result<bool, idemp_receiver::StoreError> {
        self.0.inner.mark_seen(key, ttl).await
    }
}

/// What a third copy finds.
async fn third(store: &MemoryStoreBehind) -> Claim {
    let key = ClaimKey::new(&Scope::default(), KEY).unwrap();
    let who = Claimant::new(key, BODY.as_bytes());
    store.claim(&who, Duration::from_secs(1)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_slow_owner_cannot_complete_over_the_next_one() {
    let (slow, next, store) = owner_that_cannot_renew();
    let slow = Held::start(&slow);
    slow.begun.await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let next = Held::start(&next);
    next.begun.await.unwrap();

    slow.end.send(Ok(())).unwrap();
    // Its effect is taken, so its sender is told so; the key stays with the next owner.
    assert_eq!(slow.reply.await.unwrap(), Reply::Ok);
    assert!(slow.lost.load(SeqCst));
    assert!(matches!(third(&store).await, Claim::InProgress { .. }));

    next.end.send(Err(HandlerError::Failed)).unwrap();
    assert_eq!(next.reply.await.unwrap(), Reply::Failed);
    assert_eq!(third(&store).await, Claim::Claimed);
}

#[tokio::test(start_paused = true)]
async fn a_slow_owner_cannot_release_the_next_ones_claim() {
    let (slow, next, store) = owner_that_cannot_renew();
    let slow = Held::start(&slow);
    slow.begun.await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let next = Held::start(&next);
    next.begun.await.unwrap();

    slow.end.send(Err(HandlerError::Failed)).unwrap();
    assert_eq!(slow.reply.await.unwrap(), Reply::Failed);
    assert!(matches!(third(&store).await, Claim::InProgress { .. }));

    next.end.send(Ok(())).unwrap();
    assert_eq!(next.reply.await.unwrap(), Reply::Ok);
    assert_eq!(third(&store).await, Claim::Duplicate);
}

#[tokio::test(start_paused = true)]
async fn a_late_completion_that_nobody_contested_counts() {
    let (slow, _, store) = owner_that_cannot_renew();
    let slow = Held::start(&slow);
    slow.begun.await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    slow.end.send(Ok(())).unwrap();
    assert_eq!(slow.reply.await.unwrap(), Reply::Ok);
    assert_eq!(third(&store).await, Claim::Duplicate);
}

/// The answer to the claim is lost, and the claim with it: the next copy does not wait for the lease.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_is_given_back() {
    for fault in [Fault::AnswerLost, Fault::AnswerHangs] {
        let store = Arc::new(Faulty {
            claim: fault,
            ..Faulty::default()
        });
        let receiver = receiver(Arc::clone(&store), ReceiverConfig::default());
        let reply = receive(&receiver, Ok(())).await;
        assert_eq!(reply, Reply::Unavailable(Unavailable::Store));
        // It is given back beside the reply; draining waits for that.
        receiver.drain().await;
        assert_eq!(third(&MemoryStoreBehind(store)).await, Claim::Claimed);
    }
}

/// The receiving side of one request over TCP, and what can be seen of it.
struct Served {
    runs: Runs,
    begun: Arc<Notify>,
    go_on: Arc<Notify>,
    hung_up: Arc<Notify>,
    receiver: Receiver,
    address: std::net::SocketAddr,
}

impl Served {
    /// `status` is the handler's answer on its first run; later ones succeed.
    async fn start(status: StatusCode) -> Self {
        let served = Self {
            runs: Runs::default(),
            begun: Arc::default(),
            go_on: Arc::default(),
            hung_up: Arc::default(),
            receiver: by_default(),
            address: ([127, 0, 0, 1], 0).into(),
        };
        let handler = {
            let (runs, begun, go_on) = (
                served.runs.clone(),
                Arc::clone(&served.begun),
                Arc::clone(&served.go_on),
            );
            async move |_: Event| {
                if runs.add() > 1 {
                    return StatusCode::OK;
                }
                begun.notify_one();
                go_on.notified().await;
                status
            }
        };
        // Tells when the server drops the request's future.
        let hung_up = Arc::clone(&served.hung_up);
        let watch = from_fn(move |request: Request, next: Next| {
            let guard = Guard(Arc::clone(&hung_up));
            async move {
                let response = next.run(request).await;
                std::mem::forget(guard);
                response
            }
        });
        let handler = post(handler).route_layer(ReceiverLayer::new(served.receiver.clone()));
        let address = serve(Router::new().route("/", handler).layer(watch)).await;
        Self { address, ..served }
    }

    async fn post(&self) -> tokio::net::TcpStream {
        let head = head(KEY, BODY.as_bytes()) + &format!("content-length: {}\r\n\r\n", BODY.len());
        connect(self.address, &head, BODY.as_bytes()).await
    }
}

struct Guard(Arc<Notify>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_cuts_nothing_in_half() {
    let served = Served::start(StatusCode::OK).await;
    let client = served.post().await;
    served.begun.notified().await;
    drop(client);
    served.hung_up.notified().await;
    served.go_on.notify_one();
    // Done only once the mark is written.
    let done = reply_when_not_in_progress(&served).await;
    assert!(done.ends_with(r#"{"status":"duplicate"}"#), "{done}");
    assert_eq!(served.runs.count(), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_keep_a_failure_claimed() {
    let served = Served::start(StatusCode::INTERNAL_SERVER_ERROR).await;
    let client = served.post().await;
    served.begun.notified().await;
    drop(client);
    served.hung_up.notified().await;
    served.go_on.notify_one();
    let done = reply_when_not_in_progress(&served).await;
    assert!(done.ends_with(r#"{"status":"ok"}"#), "{done}");
    assert_eq!(served.runs.count(), 2);
}

async fn reply_when_not_in_progress(served: &Served) -> String {
    loop {
        let reply = reply(served.post().await).await;
        if !reply.ends_with(r#"{"status":"in_progress"}"#) {
            return reply;
        }
    }
}

#[tokio::test]
async fn draining_waits_for_handlers_whose_clients_are_gone() {
    let served = Served::start(StatusCode::OK).await;
    let client = served.post().await;
    served.begun.notified().await;
    drop(client);
    served.hung_up.notified().await;

    let receiver = served.receiver.clone();
    let drained = tokio::spawn(async move { receiver.drain().await });
    // New requests are put off from now on.
    let put_off = loop {
        let reply = reply(served.post().await).await;
        if !reply.ends_with(r#"{"status":"in_progress"}"#) {
            break reply;
        }
    };
    assert!(put_off.starts_with("HTTP/1.1 503"), "{put_off}");
    assert!(put_off.contains("retry-after: 1\r\n"), "{put_off}");
    assert!(
        put_off.ends_with(r#"{"detail":"receiver is shutting down"}"#),
        "{put_off}"
    );
    assert!(!drained.is_finished());

    served.go_on.notify_one();
    drained.await.unwrap();
    assert_eq!(served.runs.count(), 1);
    // Draining again has nothing to wait for.
    served.receiver.drain().await;
}
