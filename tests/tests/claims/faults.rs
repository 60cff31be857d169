//! A network that loses answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use idemp_receiver::{Claim, ClaimStore, Completed, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Effects, LEASE, Signed, copy, day, patient_config, pool, postgres, receiver, redis, store};

/// A proxy that, when told so, swallows an answer and cuts its connection.
struct Swallower {
    address: SocketAddr,
    /// Which of the answers to come; 0 for none.
    nth: Arc<AtomicUsize>,
    swallowed: Arc<AtomicUsize>,
}

impl Swallower {
    async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let swallower = Self {
            address: listener.local_addr().unwrap(),
            nth: Arc::default(),
            swallowed: Arc::default(),
        };
        let (nth, swallowed) = (Arc::clone(&swallower.nth), Arc::clone(&swallower.swallowed));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (nth, swallowed) = (Arc::clone(&nth), Arc::clone(&swallowed));
                tokio::spawn(async move { pass(client, server, &nth, &swallowed).await });
            }
        });
        swallower
    }

    fn swallow_next(&self) {
        self.nth.store(1, SeqCst);
    }

    fn swallow_second(&self) {
        self.nth.store(2, SeqCst);
    }

    fn swallowed(&self) -> usize {
        assert_eq!(self.nth.load(SeqCst), 0, "an answer was to be swallowed and none came");
        self.swallowed.load(SeqCst)
    }
}

async fn pass(mut client: TcpStream, server: SocketAddr, nth: &AtomicUsize, swallowed: &AtomicUsize) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let (mut request, mut answer) = (vec![0; 16_384], vec![0; 16_384]);
    loop {
        tokio::select! {
            read = client.read(&mut request) => match read {
                Ok(count @ 1..) => if server.write_all(&request[..count]).await.is_err() { return },
                _ => return,
            },
            read = server.read(&mut answer) => match read {
                Ok(1..) if nth.fetch_update(SeqCst, SeqCst, |nth| nth.checked_sub(1)) == Ok(1) => {
                    swallowed.fetch_add(1, SeqCst);
                    return;
                }
                Ok(count @ 1..) => if client.write_all(&answer[..count]).await.is_err() { return },
                _ => return,
            },
        }
    }
}

#[tokio::test]
async fn the_handler_runs_once_though_the_first_answer_of_every_claim_is_lost() {
    let Some(server) = redis() else { return };
    let proxy = Swallower::before(server.address()).await;
    let over_proxy = store(proxy.address);
    over_proxy.ping().await.unwrap();
    let receiver = receiver(over_proxy, patient_config());
    let effects = Effects::default();
    for n in 1..=200 {
        let key = format!("r1:tool_end:{n}");
        let event = Signed::new(&key);
        for (expected, runs) in [(Reply::Ok, 1), (Reply::Duplicate, 1)] {
            proxy.swallow_next();
            let handled = effects.clone();
            let reply = receiver.receive(event.incoming(), move |event| async move {
                handled.add(event.key());
                Ok(())
            });
            assert_eq!(reply.await, expected);
            assert_eq!(effects.of(&key), runs);
        }
    }
    assert_eq!(proxy.swallowed(), 400);
}

#[tokio::test]
async fn a_lost_answer_to_any_other_operation_does_no_harm() {
    let Some(server) = redis() else { return };
    let proxy = Swallower::before(server.address()).await;
    let store = store(proxy.address);
    store.ping().await.unwrap();

    let who = copy("k1");
    assert_eq!(store.claim(&who, LEASE).await.unwrap(), Claim::Claimed);
    proxy.swallow_next();
    assert!(store.renew(&who, LEASE).await.unwrap());
    proxy.swallow_next();
    assert_eq!(store.complete(&who, day()).await.unwrap(), Completed::Done);
    assert_eq!(store.claim(&copy("k1"), LEASE).await.unwrap(), Claim::Duplicate);

    let who = copy("k2");
    assert_eq!(store.claim(&who, LEASE).await.unwrap(), Claim::Claimed);
    proxy.swallow_next();
    // What it says does not matter, what it does is done.
    store.release(&who).await.unwrap();
    assert_eq!(store.claim(&copy("k2"), LEASE).await.unwrap(), Claim::Claimed);

    // Sent again it would call its own mark a duplicate: better an error.
    proxy.swallow_next();
    store.mark_seen(&crate::support::key("k3"), day()).await.unwrap_err();
    assert_eq!(proxy.swallowed(), 4);
    assert!(!store.mark_seen(&crate::support::key("k3"), day()).await.unwrap());
}

/// The mark is committed and the answer to the commit is lost: 503, and the copy finds it done.
#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_no_second_effect() {
    use idemp_receiver::{HandlerError, PostgresInbox, Unavailable};

    let Some(server) = postgres() else { return };
    let direct = pool(&server.url()).await;
    sqlx::query("CREATE TABLE effects (event_key text NOT NULL)")
        .execute(&direct)
        .await
        .unwrap();
    let proxy = Arc::new(Swallower::before(server.address()).await);
    let over_proxy = pool(&format!("postgres://postgres@{}/postgres", proxy.address)).await;
    let inbox = Arc::new(PostgresInbox::new(over_proxy));
    let receiver = receiver(Arc::clone(&inbox), patient_config());
    let mut unknown = 0;
    for n in 1..=50 {
        let event = Signed::new(&format!("r1:tool_end:{n}"));
        let mut first = true;
        loop {
            let (inbox, proxy) = (Arc::clone(&inbox), Arc::clone(&proxy));
            let swallow = std::mem::replace(&mut first, false);
            let reply = receiver.receive(event.incoming(), move |event| async move {
                let mut transaction = inbox.transaction(&event).await?;
                sqlx::query("INSERT INTO effects VALUES ($1)")
                    .bind(event.key())
                    .execute(&mut **transaction)
                    .await?;
                if swallow && n % 2 == 0 {
                    // The answer to the statement that looks whether all is well, and so the commit does not come about.
                    proxy.swallow_next();
                } else if swallow {
                    proxy.swallow_second();
                }
                Ok::<(), HandlerError>(())
            });
            match reply.await {
                Reply::Ok | Reply::Duplicate => break,
                Reply::Unavailable(Unavailable::Store) => unknown += 1,
                // The server has not heard yet that the connection is gone.
                Reply::InProgress { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(unknown, 50);
    let (rows, keys): (i64, i64) = sqlx::query_as("SELECT count(*), count(DISTINCT event_key) FROM effects")
        .fetch_one(&direct)
        .await
        .unwrap();
    assert_eq!((rows, keys), (50, 50));
}
