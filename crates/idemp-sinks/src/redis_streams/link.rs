//! The one connection of a sink, and when it is made anew.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idemp_core::Failure;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult,
    TlsCertificates, Value,
};
use tokio::time::{Instant, timeout_at};

use super::classify;
use super::config::RedisStreamsConfig;
use super::error::{RedisStreamsError, RedisStreamsErrorKind as Kind};

/// How many attempts may run out of time with no answer between them before the connection is given up.
const SILENCE: u32 = 2;

/// Commands that wait for the connection's task; whoever comes then waits for a place. What waits is written at once.
const QUEUE: usize = 1024;

/// The client waits for an answer for as long as the attempt does, and that is less.
const FOR_EVER: Duration = Duration::from_secs(24 * 60 * 60);

/// Connects when there is need, and hands the connection to everybody who sends.
pub(super) struct Link {
    client: RedisClient,
    pub(super) cluster: bool,
    tls: bool,
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

enum RedisClient {
    Single(Box<Client>),
    Cluster(Box<ClusterClient>),
}

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Link {
    pub(super) fn new(config: &RedisStreamsConfig) -> Result<Self, RedisStreamsError> {
        let servers = config.checked_servers()?;
        let tls = servers
            .iter()
            .any(|server| matches!(server.addr(), ConnectionAddr::TcpTls { .. }));
        if tls {
            provide_ring();
        }
        Ok(Self {
            client: RedisClient::new(config, servers)?,
            cluster: config.cluster,
            tls,
            connect_timeout: config.connect_timeout,
            state: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
        })
    }

    /// The connection, which is made if there is none. Those who wait for it share one try.
    pub(super) async fn line(&self, deadline: Instant) -> Result<Arc<Line>, Failure> {
        let before = {
            let state = self.state();
            if let Some(line) = &state.line {
                return Ok(Arc::clone(line));
            }
            state.failures
        };
        let Ok(_connecting) = timeout_at(deadline, self.connecting.lock()).await else {
            return Err(classify::not_sent("no connection before the end of the attempt"));
        };
        {
            // Somebody else may have tried meanwhile.
            let state = self.state();
            if let Some(line) = &state.line {
                return Ok(Arc::clone(line));
            }
            if let Some(failure) = state.last.as_ref().filter(|_| state.failures != before) {
                return Err(failure.clone());
            }
        }
        let until = Instant::now() + self.connect_timeout;
        let failure = match timeout_at(until.min(deadline), self.client.connect(self.connect_timeout)).await {
            Ok(Ok(connection)) => {
                let line = Arc::new(Line {
                    connection,
                    silent: AtomicU32::new(0),
                });
                self.state().line = Some(Arc::clone(&line));
                return Ok(line);
            }
            Ok(Err(error)) => classify::connecting(&error, self.tls),
            Err(_) => classify::not_sent("no connection within connect_timeout"),
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

impl Line {
    /// Sends one command and waits for its answer.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let reply = match self.connection.clone() {
            Connection::Single(mut single) => single.send_packed_command(command).await,
            Connection::Cluster(mut cluster) => cluster.req_packed_command(command).await,
        };
        reply.and_then(Value::extract_error)
    }
}

impl RedisClient {
    fn new(config: &RedisStreamsConfig, servers: Vec<ConnectionInfo>) -> Result<Self, RedisStreamsError> {
        let root_cert = (!config.root_certificates.is_empty()).then(|| config.root_certificates.clone());
        let certificates = root_cert.map(|root_cert| TlsCertificates {
            client_tls: None,
            root_cert: Some(root_cert),
        });
        let unfit = |error: RedisError| {
            let kind = if certificates.is_some() {
                Kind::RootCertificates
            } else {
                Kind::Client
            };
            RedisStreamsError::new(kind, "the client could not be set up").with_source(error)
        };
        if config.cluster {
            let tcp = servers.first().map(|server| server.tcp_settings().clone());
            let mut builder = ClusterClientBuilder::new(servers)
                // The schedule has one owner. The default is 16, also after a connection broke.
                .retries(0)
                .connection_timeout(config.connect_timeout)
                .response_timeout(FOR_EVER);
            builder = tcp.into_iter().fold(builder, ClusterClientBuilder::tcp_settings);
            if let Some(certificates) = certificates.clone() {
                builder = builder.certs(certificates);
            }
            return builder
                .build()
                .map(|client| Self::Cluster(Box::new(client)))
                .map_err(unfit);
        }
        let server = servers
            .into_iter()
            .next()
            .ok_or_else(|| RedisStreamsError::new(Kind::Url, "is missing"))?;
        match certificates.clone() {
            Some(certificates) if matches!(server.addr(), ConnectionAddr::TcpTls { .. }) => {
                Client::build_with_tls(server, certificates)
            }
            _ => server.into_connection_info().and_then(Client::open),
        }
        .map(|client| Self::Single(Box::new(client)))
        .map_err(unfit)
    }

    async fn connect(&self, timeout: Duration) -> RedisResult<Connection> {
        match self {
            Self::Single(client) => {
                // An attempt has its own limit, which covers the answer.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(timeout))
                    .set_response_timeout(None)
                    .set_pipeline_buffer_size(QUEUE);
                let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
                // Without a login the server would find fault with the length of XADD, and say nothing of the login.
                let pong = connection.send_packed_command(&redis::cmd("PING")).await?;
                match pong.extract_error() {
                    Err(error) if error.code() == Some("NOAUTH") => Err(error),
                    _ => Ok(Connection::Single(connection)),
                }
            }
            Self::Cluster(client) => client.get_async_connection().await.map(Connection::Cluster),
        }
    }
}

/// The client asks for the process-wide cryptography of rustls. Where the application has chosen none, it is ring.
fn provide_ring() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails if somebody else was faster, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
