//! One connection that all operations share, and how it is replaced.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{PoisonError, RwLock};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, RedisResult,
    ServerErrorKind, TlsCertificates, Value,
};
use tokio::sync::Mutex;

use super::config::RedisConfig;

/// Operations in a row that may go without an answer.
const SILENCES: u32 = 2;

/// Operations that wait to be written before further ones wait for room.
const QUEUE: usize = 1_024;

/// When an operation may be sent a second time.
#[derive(Clone, Copy)]
pub(super) enum Resend<'n> {
    /// Also after its answer may have been lost.
    Always,
    /// The same, and a note is taken of it.
    Noting(&'n AtomicBool),
    /// Only if the server has said that it did nothing.
    IfRefused,
}

pub(super) struct Link {
    server: Server,
    connected: RwLock<Option<Connected>>,
    /// One connects at a time. What came of the last time, if it failed.
    connecting: Mutex<Option<RedisError>>,
    attempts: AtomicU64,
    silences: AtomicU32,
}

#[derive(Clone)]
struct Connected {
    connection: Connection,
    number: u64,
}

impl Link {
    pub(super) fn new(config: RedisConfig) -> RedisResult<Self> {
        Ok(Self {
            server: Server::new(config)?,
            connected: RwLock::default(),
            connecting: Mutex::default(),
            attempts: AtomicU64::new(0),
            silences: AtomicU32::new(0),
        })
    }

    /// Sends a command and waits for the answer; once more where `resend` allows it.
    pub(super) async fn ask(&self, cmd: &Cmd, resend: Resend<'_>) -> RedisResult<Value> {
        let connected = self.connected().await?;
        let error = match self.ask_over(connected, cmd).await {
            Err(error) => error,
            answer => return answer,
        };
        if !is_untouched(&error) {
            match resend {
                Resend::Always if is_lost(&error) => {}
                Resend::Noting(note) if is_lost(&error) => note.store(true, SeqCst),
                _ => return Err(error),
            }
        }
        let connected = self.connected().await?;
        self.ask_over(connected, cmd).await
    }

    async fn ask_over(&self, connected: Connected, cmd: &Cmd) -> RedisResult<Value> {
        let Connected { mut connection, number } = connected;
        let waiting = Waiting {
            link: self,
            number,
            over: false,
        };
        let answer = connection.ask(cmd).await.and_then(Value::extract_error);
        waiting.over(&answer);
        if let Err(error) = &answer
            && self.server.must_be_left(error)
        {
            self.leave(number);
        }
        answer
    }

    async fn connected(&self) -> RedisResult<Connected> {
        if let Some(connected) = self.current() {
            return Ok(connected);
        }
        let attempts = self.attempts.load(SeqCst);
        let mut failed = self.connecting.lock().await;
        if let Some(connected) = self.current() {
            return Ok(connected);
        }
        // Whoever waited for an attempt that failed does not make another one: many waiters would add up.
        if self.attempts.load(SeqCst) != attempts
            && let Some(error) = &*failed
        {
            return Err(error.clone());
        }
        let connection = self.server.connect().await;
        let number = self.attempts.fetch_add(1, SeqCst);
        match connection {
            Ok(connection) => {
                *failed = None;
                self.silences.store(0, SeqCst);
                let connected = Connected { connection, number };
                *self.connected.write().unwrap_or_else(PoisonError::into_inner) = Some(connected.clone());
                Ok(connected)
            }
            Err(error) => {
                *failed = Some(error.clone());
                Err(error)
            }
        }
    }

    fn current(&self) -> Option<Connected> {
        self.connected.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets the connection of this number go, unless it was replaced meanwhile. Those who wait on it go on waiting.
    fn leave(&self, number: u64) {
        let mut connected = self.connected.write().unwrap_or_else(PoisonError::into_inner);
        if connected.as_ref().is_some_and(|connected| connected.number == number) {
            *connected = None;
        }
    }
}

/// An operation without an answer yet. One that is given up from outside counts as unanswered, too.
struct Waiting<'l> {
    link: &'l Link,
    number: u64,
    over: bool,
}

impl Waiting<'_> {
    fn over<T>(mut self, answer: &RedisResult<T>) {
        self.over = !matches!(answer, Err(error) if error.is_timeout());
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.over {
            self.link.silences.store(0, SeqCst);
        } else if self.link.silences.fetch_add(1, SeqCst) + 1 >= SILENCES {
            // The other side may be gone without a word: it would keep the connection silent for ever.
            self.link.leave(self.number);
        }
    }
}

enum Server {
    Single(Box<(Client, AsyncConnectionConfig)>),
    Cluster(Box<ClusterClient>),
}

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Server {
    fn new(config: RedisConfig) -> RedisResult<Self> {
        let info = info(&config.url)?;
        let mut login = info.redis_settings().clone();
        if let Some(username) = &config.username {
            login = login.set_username(username);
        }
        if let Some(password) = &config.password {
            login = login.set_password(password);
        }
        let info = info.set_redis_settings(login.clone());
        if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            provide_tls();
        }
        let certificates = (!config.root_certificates.is_empty()).then_some(TlsCertificates {
            client_tls: None,
            root_cert: Some(config.root_certificates),
        });
        if !config.cluster {
            if !config.startup_nodes.is_empty() {
                let what = "startup_nodes: only a cluster has further nodes";
                return Err((ErrorKind::InvalidClientConfig, what).into());
            }
            let client = match certificates {
                Some(certificates) => Client::build_with_tls(info, certificates)?,
                None => Client::open(info)?,
            };
            let settings = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(config.connect_timeout))
                .set_response_timeout(Some(config.response_timeout))
                .set_pipeline_buffer_size(QUEUE);
            return Ok(Self::Single(Box::new((client, settings))));
        }
        let mut nodes = vec![info];
        for url in &config.startup_nodes {
            nodes.push(self::info(url)?.set_redis_settings(login.clone()));
        }
        let mut builder = ClusterClientBuilder::new(nodes)
            .connection_timeout(config.connect_timeout)
            .response_timeout(config.response_timeout)
            .overall_response_timeout(Some(config.response_timeout))
            .tcp_settings(TcpSettings::default().set_nodelay(true))
            // It would send again what must not be sent twice.
            .retries(0);
        if let Some(certificates) = certificates {
            builder = builder.certs(certificates);
        }
        Ok(Self::Cluster(Box::new(builder.build()?)))
    }

    async fn connect(&self) -> RedisResult<Connection> {
        match self {
            Self::Single(single) => {
                let (client, settings) = &**single;
                let connection = client.get_multiplexed_async_connection_with_config(settings);
                Ok(Connection::Single(connection.await?))
            }
            Self::Cluster(client) => Ok(Connection::Cluster(client.get_async_connection().await?)),
        }
    }

    /// Whether nothing good comes over this connection any more.
    fn must_be_left(&self, error: &RedisError) -> bool {
        match self {
            // It has become a replica, or its passwords have changed: after a failover the name leads elsewhere.
            Self::Single(_) => {
                is_lost(error)
                    || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
                    || error.code() == Some("NOAUTH")
            }
            // It looks after its nodes by itself, as long as there is one.
            Self::Cluster(_) => error.kind() == ErrorKind::ClusterConnectionNotFound,
        }
    }
}

impl Connection {
    async fn ask(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let asked: std::pin::Pin<Box<dyn Future<Output = RedisResult<Value>> + Send + '_>> = match self {
            Self::Single(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        };
        asked.await
    }
}

fn info(url: &str) -> RedisResult<ConnectionInfo> {
    // Small packets must not wait for each other.
    Ok(url
        .into_connection_info()?
        .set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// The client takes the process's provider, and there is none in a program that links several and has not chosen one.
fn provide_tls() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails if somebody was faster, who then has chosen.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// The connection is gone, and with it perhaps an answer.
fn is_lost(error: &RedisError) -> bool {
    error.is_connection_dropped() || error.kind() == ErrorKind::Parse
}

/// The node has done nothing, and says who would.
fn is_untouched(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::Moved)
}
