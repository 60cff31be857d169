//! Servers that go away in mid-run and come back, and one that is emptied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use idemp_receiver::{
    ClaimStore, HandlerError, PostgresInbox, PostgresStore, Receiver, ReceiverConfig, RedisConfig, RedisStore, Reply,
    Unavailable,
};
use idemp_testkit::until;

use crate::support::{Effects, Signed, client, pool, postgres, receiver, redis};

/// Eight senders that try each event until it is taken, for as long as they are told to go on.
struct Stream {
    going: Arc<AtomicBool>,
    taken: Arc<AtomicUsize>,
    put_off: Arc<AtomicUsize>,
    senders: Vec<tokio::task::JoinHandle<()>>,
}

impl Stream {
    fn start<H, F>(receiver: &Receiver, handler: H) -> Self
    where
        H: Fn(idemp_receiver::Event) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let mut stream = Self {
            going: Arc::new(AtomicBool::new(true)),
            taken: Arc::default(),
            put_off: Arc::default(),
            senders: Vec::new(),
        };
        for sender in 0..8 {
            let (going, taken, put_off) = (
                Arc::clone(&stream.going),
                Arc::clone(&stream.taken),
                Arc::clone(&stream.put_off),
            );
            let (receiver, handler) = (receiver.clone(), handler.clone());
            stream.senders.push(tokio::spawn(async move {
                let mut step = 0;
                while going.load(SeqCst) {
                    step += 1;
                    let event = Signed::new(&format!("r{sender}:tool_end:{step}"));
                    loop {
                        match receiver.receive(event.incoming(), handler.clone()).await {
                            Reply::Ok | Reply::Duplicate => break,
                            Reply::Unavailable(Unavailable::Store) => put_off.fetch_add(1, SeqCst),
                            // A claim whose answer was lost with the server.
                            Reply::InProgress { .. } | Reply::Failed => 0,
                            other => panic!("{other:?}"),
                        };
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    taken.fetch_add(1, SeqCst);
                }
            }));
        }
        stream
    }

    /// Waits until a hundred more were taken.
    async fn goes_on(&self) {
        let before = self.taken.load(SeqCst);
        until("a hundred more events are taken", || {
            self.taken.load(SeqCst) >= before + 100
        })
        .await;
    }

    /// Waits until some more were put off.
    async fn stands(&self) {
        let before = self.put_off.load(SeqCst);
        until("events are put off", || self.put_off.load(SeqCst) >= before + 16).await;
    }

    async fn end(self) -> usize {
        self.going.store(false, SeqCst);
        for sender in self.senders {
            sender.await.unwrap();
        }
        self.taken.load(SeqCst)
    }
}

fn count(
    effects: &Effects,
) -> impl Fn(idemp_receiver::Event) -> std::future::Ready<Result<(), HandlerError>> + Clone + use<> {
    let effects = effects.clone();
    move |event| {
        effects.add(event.key());
        std::future::ready(Ok(()))
    }
}

/// A short lease, so that a claim whose answer was lost is soon over.
fn config() -> ReceiverConfig {
    ReceiverConfig {
        lease: Duration::from_millis(500),
        ..ReceiverConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_goes_and_comes_back_and_is_flushed() {
    let Some(mut server) = redis() else { return };
    let store = RedisStore::new(RedisConfig::new(format!("redis://{}", server.address()))).unwrap();
    let effects = Effects::default();
    let stream = Stream::start(&receiver(store, config()), count(&effects));
    stream.goes_on().await;
    for _ in 0..2 {
        server.stop();
        stream.stands().await;
        server.start_again();
        stream.goes_on().await;
    }
    server.kill();
    stream.stands().await;
    server.start_again();
    stream.goes_on().await;
    // Emptied, with its scripts.
    let mut client = client(server.address()).await;
    for words in [["FLUSHALL", "SYNC"], ["SCRIPT", "FLUSH"]] {
        redis::cmd(words[0])
            .arg(words[1])
            .exec_async(&mut client)
            .await
            .unwrap();
    }
    stream.goes_on().await;
    let taken = stream.end().await;
    // Nobody was at two copies of an event at once, so none ran twice but for a mark that the outage swallowed.
    let (keys, runs) = effects.counts();
    assert_eq!(keys, taken);
    assert_eq!(runs, taken, "each was sent until it was taken, and no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_goes_and_comes_back_under_the_store() {
    let Some(mut server) = postgres() else { return };
    let store = PostgresStore::new(pool(&server.url()).await);
    let effects = Effects::default();
    let stream = Stream::start(&receiver(store, config()), count(&effects));
    stream.goes_on().await;
    for _ in 0..2 {
        server.stop();
        stream.stands().await;
        server.start_again();
        stream.goes_on().await;
    }
    let taken = stream.end().await;
    assert_eq!(effects.counts(), (taken, taken));
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_goes_and_comes_back_under_the_inbox() {
    let Some(mut server) = postgres() else { return };
    let pool = pool(&server.url()).await;
    sqlx::query("CREATE TABLE effects (event_key text NOT NULL)")
        .execute(&pool)
        .await
        .unwrap();
    let inbox = Arc::new(PostgresInbox::new(pool.clone()));
    let handler = {
        let inbox = Arc::clone(&inbox);
        move |event: idemp_receiver::Event| {
            let inbox = Arc::clone(&inbox);
            async move {
                let mut transaction = inbox.transaction(&event).await?;
                sqlx::query("INSERT INTO effects VALUES ($1)")
                    .bind(event.key())
                    .execute(&mut **transaction)
                    .await?;
                Ok(())
            }
        }
    };
    let stream = Stream::start(&receiver(Arc::clone(&inbox), config()), handler);
    stream.goes_on().await;
    for _ in 0..2 {
        server.stop();
        stream.stands().await;
        server.start_again();
        stream.goes_on().await;
    }
    let taken = i64::try_from(stream.end().await).unwrap();
    let (rows, keys): (i64, i64) = sqlx::query_as("SELECT count(*), count(DISTINCT event_key) FROM effects")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!((rows, keys), (taken, taken), "none lost and none twice");
    inbox.close().await;
}
