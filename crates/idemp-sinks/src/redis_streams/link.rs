//! The one connection of a sink, and when it is made anew.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idemp_core::Failure;
use redis::aio::ConnectionLike;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates, Value};
use tokio::time::{Instant, timeout, timeout_at};

use super::classify;
use super::config::RedisStreamsConfig;
use super::dial::{Dialed, Dialer};
use super::error::{RedisStreamsError, RedisStreamsErrorKind as Kind};

/// How many attempts may run out of time with no answer between them before the connection is given up.
const SILENCE: u32 = 2;

/// The client waits for an answer for as long as the attempt does, and that is less.
const FOR_EVER: Duration = Duration::from_secs(24 * 60 * 60);

/// Connects when there is need, and hands the connection to everybody who sends.
pub(super) struct Link {
    client: Client,
    pub(super) cluster: bool,
    connect_timeout: Duration,
    state: Mutex<State>,
    /// Held by the one who connects.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    line: Option<Arc<Line>>,
    /// Tries to connect that failed.
    failures: u64,
    last: Option<Failure>,
}

/// One connection. Clones of what is in it share one socket, and what they send at once is written together.
pub(super) struct Line {
    connection: Connection,
    /// Attempts that ran out of time since the last answer.
    silent: AtomicU32,
}

enum Client {
    Single(Box<Dialer>),
    Cluster(Box<ClusterClient>),
}

enum Connection {
    Single(Dialed),
    Cluster(ClusterConnection),
}

impl Link {
    pub(super) fn new(config: &RedisStreamsConfig) -> Result<Self, RedisStreamsError> {
        Ok(Self {
            client: Client::new(config)?,
            cluster: config.cluster,
            connect_timeout: config.connect_timeout,
            state: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
        })
    }

    /// The connection, which is made if there is none. Those who wait for it share one try.
    pub(super) async fn line(&self, deadline: Instant) -> Result<Arc<Line>, Failure> {
        let before = {
            let state = self.state();
            if let Some(line) = state.usable() {
                return Ok(line);
            }
            state.failures
        };
        let Ok(_connecting) = timeout_at(deadline, self.connecting.lock()).await else {
            return Err(classify::not_sent("no connection before the end of the attempt"));
        };
        {
            // Somebody else may have tried meanwhile.
            let state = self.state();
            if let Some(line) = state.usable() {
                return Ok(line);
            }
            if let Some(failure) = state.last.as_ref().filter(|_| state.failures != before) {
                return Err(failure.clone());
            }
        }
        let connecting = timeout(self.connect_timeout, self.client.connect());
        let failure = match timeout_at(deadline, connecting).await {
            Ok(Ok(Ok(connection))) => {
                let line = Arc::new(Line {
                    connection,
                    silent: AtomicU32::new(0),
                });
                self.state().line = Some(Arc::clone(&line));
                return Ok(line);
            }
            Ok(Ok(Err(failure))) => failure,
            Ok(Err(_)) | Err(_) => classify::not_sent("no connection within connect_timeout"),
        };
        // A try that its own attempt cut short says nothing to the others.
        if Instant::now() < deadline {
            let mut state = self.state();
            state.failures += 1;
            state.last = Some(failure.clone());
        }
        Err(failure)
    }

    /// Takes note that an answer came.
    pub(super) fn heard(line: &Line) {
        line.silent.store(0, Ordering::Relaxed);
    }

    /// Takes note that an attempt ran out of time: a link that went dead says nothing, and its socket stays open.
    pub(super) fn unheard(&self, line: &Arc<Line>) {
        if line.silent.fetch_add(1, Ordering::Relaxed) + 1 >= SILENCE {
            self.renew(line);
        }
    }

    /// Lets go of this connection, unless another has taken its place already.
    pub(super) fn renew(&self, line: &Arc<Line>) {
        let mut state = self.state();
        if state.line.as_ref().is_some_and(|current| Arc::ptr_eq(current, line)) {
            state.line = None;
        }
    }

    /// Lets go of the connection.
    pub(super) fn close(&self) {
        self.state().line = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn usable(&self) -> Option<Arc<Line>> {
        let line = self.line.as_ref();
        line.filter(|line| !line.has_ended()).map(Arc::clone)
    }
}

impl Line {
    fn has_ended(&self) -> bool {
        match &self.connection {
            Connection::Single(dialed) => dialed.has_ended(),
            // It connects to its nodes by itself.
            Connection::Cluster(_) => false,
        }
    }

    /// Sends one command and waits for its answer.
    pub(super) async fn send(&self, command: Cmd) -> Result<Value, RedisError> {
        match &self.connection {
            Connection::Single(dialed) => dialed.batches.send(command).await,
            Connection::Cluster(cluster) => cluster.clone().req_packed_command(&command).await?.extract_error(),
        }
    }
}

impl Client {
    fn new(config: &RedisStreamsConfig) -> Result<Self, RedisStreamsError> {
        let servers = config.checked_servers()?;
        if config.cluster {
            return cluster(config, servers).map(|client| Self::Cluster(Box::new(client)));
        }
        let server = servers
            .first()
            .ok_or_else(|| RedisStreamsError::new(Kind::Url, "is missing"))?;
        Dialer::new(server, &config.root_certificates).map(|dialer| Self::Single(Box::new(dialer)))
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        match self {
            Self::Single(dialer) => dialer.dial().await.map(Connection::Single),
            Self::Cluster(client) => match client.get_async_connection().await {
                Ok(cluster) => Ok(Connection::Cluster(cluster)),
                Err(error) => Err(classify::connecting(&error)),
            },
        }
    }
}

fn cluster(config: &RedisStreamsConfig, servers: Vec<ConnectionInfo>) -> Result<ClusterClient, RedisStreamsError> {
    let is_tls = |server: &ConnectionInfo| matches!(server.addr(), ConnectionAddr::TcpTls { .. });
    if servers.iter().any(is_tls) {
        provide_ring();
    }
    let tcp = servers.first().map(|server| server.tcp_settings().clone());
    let mut builder = ClusterClientBuilder::new(servers)
        // The schedule has one owner. The default is 16, also after a connection broke.
        .retries(0)
        .connection_timeout(config.connect_timeout)
        .response_timeout(FOR_EVER);
    builder = tcp.into_iter().fold(builder, ClusterClientBuilder::tcp_settings);
    let mut kind = Kind::Client;
    if !config.root_certificates.is_empty() {
        kind = Kind::RootCertificates;
        builder = builder.certs(TlsCertificates {
            client_tls: None,
            root_cert: Some(config.root_certificates.clone()),
        });
    }
    builder
        .build()
        .map_err(|error| RedisStreamsError::new(kind, "the client could not be set up").with_source(error))
}

/// The client of a cluster asks for the process-wide cryptography of rustls. Where the application has chosen none, it
/// is ring.
fn provide_ring() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails if somebody else was faster, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
