//! A receiver in a process of its own, which takes one connection at a time and kills itself when its fate says so.
//!
//! It is this test program, started once more for [`child_receiver`] alone.

use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use axum::serve::Listener;
use idemp_receiver::{Event, HandlerError, PostgresInbox, ReceiverConfig, ReceiverLayer};
use redis::aio::MultiplexedConnection;
use rustix::process::{Signal, getpid, kill_process};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::support::{Chance, client, patient_config, receiver, store};

/// `redis ADDRESS` or `postgres URL`. Set for a child alone.
const STORE: &str = "IDEMP_TEST_CHILD_STORE";
/// What happens to the events of a child: the seed of a chance, or the name of a fate for all of them.
const FATES: &str = "IDEMP_TEST_CHILD_FATES";
/// Its lease, in milliseconds.
const LEASE: &str = "IDEMP_TEST_CHILD_LEASE";
/// The file in which it writes what happens.
const LEDGER: &str = "IDEMP_TEST_CHILD_LEDGER";

/// What happens to one event in its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fate {
    Succeeds,
    /// The handler fails before its effect, or, with an inbox, after it.
    Fails,
    /// After the claim.
    KilledBeforeEffect,
    /// Between the effect and its mark.
    KilledBeforeMark,
}

impl Fate {
    const ALL: [Self; 4] = [
        Self::Succeeds,
        Self::Fails,
        Self::KilledBeforeEffect,
        Self::KilledBeforeMark,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Succeeds => "succeeds",
            Self::Fails => "fails",
            Self::KilledBeforeEffect => "killed-before-effect",
            Self::KilledBeforeMark => "killed-before-mark",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fate| fate.name() == name)
    }
}

/// What a child is told.
pub(super) struct Orders {
    pub(super) store: String,
    pub(super) lease: Duration,
    pub(super) ledger: PathBuf,
}

impl Orders {
    /// A command that serves what comes to this listener, which children may share.
    pub(super) fn command(&self, listener: &TcpListener, fates: &str) -> Command {
        let listener = OwnedFd::from(listener.try_clone().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "kills::child::child_receiver",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(STORE, &self.store)
            .env(FATES, fates)
            .env(LEASE, self.lease.as_millis().to_string())
            .env(LEDGER, &self.ledger)
            .stdin(Stdio::from(listener));
        command
    }
}

/// Not a test: the receiver that the tests start and kill.
#[test]
fn child_receiver() {
    let Ok(named) = std::env::var(STORE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let site = Arc::new(Site::new());
        let app = match named.split_once(' ').unwrap() {
            ("redis", address) => over_redis(address.parse().unwrap(), site).await,
            (_, url) => over_the_inbox(url, site).await,
        };
        let close = async |mut response: Response| {
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
            response
        };
        let app = Router::new().route("/", app).layer(map_response(close));
        axum::serve(OneAtATime::inherited(), app).await.unwrap();
    });
}

async fn over_redis(address: SocketAddr, site: Arc<Site>) -> MethodRouter {
    let client = client(address).await;
    let layer = ReceiverLayer::new(receiver(store(address), config()));
    let handle = move |event: Event| {
        let (client, site) = (client.clone(), Arc::clone(&site));
        async move { push_effect(client, &site, event.key()).await }
    };
    post(handle).route_layer(layer)
}

async fn push_effect(mut client: MultiplexedConnection, site: &Site, key: &str) -> Result<(), HandlerError> {
    let fate = site.draw(key);
    before_effect(fate);
    if fate == Fate::Fails {
        return Err(HandlerError::Failed);
    }
    let mut push = redis::cmd("RPUSH");
    push.arg("effects").arg(key);
    push.exec_async(&mut client).await.map_err(|_| HandlerError::Failed)?;
    site.before_mark(fate, key);
    Ok(())
}

async fn over_the_inbox(url: &str, site: Arc<Site>) -> MethodRouter {
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(2)
        .connect(url)
        .await
        .unwrap();
    let inbox = Arc::new(PostgresInbox::new(pool));
    let layer = ReceiverLayer::new(receiver(Arc::clone(&inbox), config()));
    let handle = move |event: Event| {
        let (inbox, site) = (Arc::clone(&inbox), Arc::clone(&site));
        async move { insert_effect(&inbox, &site, &event).await }
    };
    post(handle).route_layer(layer)
}

/// A handler that fails does so after its effect: the inbox undoes it.
async fn insert_effect(inbox: &PostgresInbox, site: &Site, event: &Event) -> Result<(), HandlerError> {
    let fate = site.draw(event.key());
    before_effect(fate);
    let mut transaction = inbox.transaction(event).await?;
    sqlx::query("INSERT INTO effects VALUES ($1)")
        .bind(event.key())
        .execute(&mut **transaction)
        .await?;
    site.before_mark(fate, event.key());
    match fate {
        Fate::Fails => Err(HandlerError::Failed),
        _ => Ok(()),
    }
}

fn config() -> ReceiverConfig {
    let lease = std::env::var(LEASE).unwrap().parse().unwrap();
    ReceiverConfig {
        lease: Duration::from_millis(lease),
        ..patient_config()
    }
}

fn before_effect(fate: Fate) {
    if fate == Fate::KilledBeforeEffect {
        die();
    }
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("killed")
}

/// What decides over events, and where it is written.
struct Site {
    always: Option<Fate>,
    chance: Mutex<Chance>,
    ledger: Ledger,
}

impl Site {
    fn new() -> Self {
        let fates = std::env::var(FATES).unwrap();
        let always = Fate::named(&fates);
        let seed = always.map_or_else(|| fates.parse().unwrap(), |_| 0);
        Self {
            always,
            chance: Mutex::new(Chance(seed)),
            ledger: Ledger::open(Path::new(&std::env::var_os(LEDGER).unwrap())),
        }
    }

    /// Draws a fate and writes it down, but for a kill before the mark, which has not come about yet.
    fn draw(&self, key: &str) -> Fate {
        let fate = self
            .always
            .unwrap_or_else(|| match self.chance.lock().unwrap().below(100) {
                0..30 => Fate::Fails,
                30..34 => Fate::KilledBeforeEffect,
                34..38 => Fate::KilledBeforeMark,
                _ => Fate::Succeeds,
            });
        if fate != Fate::KilledBeforeMark {
            self.ledger.write(fate, key);
        }
        fate
    }

    fn before_mark(&self, fate: Fate, key: &str) {
        if fate == Fate::KilledBeforeMark {
            self.ledger.write(fate, key);
            die();
        }
    }
}

/// What has happened, in a file, which outlives those who write it: a line for each run of a handler.
pub(super) struct Ledger(File);

impl Ledger {
    fn open(path: &Path) -> Self {
        Self(File::options().append(true).create(true).open(path).unwrap())
    }

    fn write(&self, fate: Fate, key: &str) {
        // In one write, so that lines of several processes do not mix.
        let line = format!("{} {key}\n", fate.name());
        (&self.0).write_all(line.as_bytes()).unwrap();
    }

    pub(super) fn read(path: &Path) -> Vec<(Fate, String)> {
        let text = std::fs::read_to_string(path).unwrap();
        let entry = |line: &str| {
            let (fate, key) = line.split_once(' ').unwrap();
            (Fate::named(fate).unwrap(), key.to_owned())
        };
        text.lines().map(entry).collect()
    }
}

/// A listener that takes a connection when the one before it is closed. Further ones wait for this process or another.
struct OneAtATime {
    listener: tokio::net::TcpListener,
    free: Arc<Semaphore>,
}

impl OneAtATime {
    /// The one that the parent has put in the place of standard input.
    fn inherited() -> Self {
        let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
        listener.set_nonblocking(true).unwrap();
        Self {
            listener: tokio::net::TcpListener::from_std(listener).unwrap(),
            free: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Listener for OneAtATime {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = Arc::clone(&self.free).acquire_owned().await.unwrap();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let connection = Connection {
            stream,
            _permit: permit,
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The only one of its process.
struct Connection {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
