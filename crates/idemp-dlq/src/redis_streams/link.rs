//! The one connection of a store, and when it is made anew.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, RedisError, RedisResult, ServerErrorKind,
    TlsCertificates, Value,
};
use tokio::time::timeout;

use super::config::RedisStreamsConfig;
use super::fault;
use super::scripts::Lua;
use crate::{StoreError, StoreErrorKind};

/// How many answers may fail to come in time, with none between them, before the connection is given up.
const SILENCE: u32 = 2;

/// The client waits for an answer for as long as this store does, and that is less.
const FOR_EVER: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether a script may run once more if it is not known whether it ran.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// The second run finds what the first one did.
    Harmless,
    /// The second run would take the first one for somebody else's.
    Misleading,
}

/// Runs scripts on the two keys of a store.
pub(super) struct Link {
    client: RedisClient,
    keys: [String; 2],
    cluster: bool,
    connect_timeout: Duration,
    response_timeout: Duration,
    line: Mutex<Place>,
    /// Held by the one who connects.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Place {
    line: Option<Arc<Line>>,
    closed: bool,
}

struct Line {
    connection: Connection,
    /// Answers that did not come in time since the last that did.
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

/// Why there is no answer.
enum Lost {
    InTime,
    Error(RedisError),
}

impl Link {
    pub(super) fn new(config: &RedisStreamsConfig) -> Result<Self, StoreError> {
        let keys = config.checked_keys()?;
        let servers = config.checked_servers()?;
        let is_tls = |server: &ConnectionInfo| matches!(server.addr(), ConnectionAddr::TcpTls { .. });
        if servers.iter().any(is_tls) {
            provide_ring();
        }
        Ok(Self {
            client: RedisClient::new(config, servers)?,
            keys,
            cluster: config.cluster,
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
            line: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
        })
    }

    pub(super) fn close(&self) {
        *self.place() = Place {
            line: None,
            closed: true,
        };
    }

    /// Runs a script. A connection that turns out to be dead, or to lead to the wrong server, is replaced once.
    pub(super) async fn run<T: redis::FromRedisValue>(
        &self,
        script: &Lua,
        arguments: &[&[u8]],
        again: Again,
    ) -> Result<T, StoreError> {
        let value = match self.try_to_run(script, arguments).await {
            Err((_, true)) if again == Again::Harmless => self.try_to_run(script, arguments).await,
            Err((Lost::Error(error), true)) if self.refused(&error) => self.try_to_run(script, arguments).await,
            tried => tried,
        };
        let value = value.map_err(|(lost, _)| match lost {
            Lost::InTime => StoreError::new(StoreErrorKind::Unavailable, "the dead-letter server does not answer"),
            Lost::Error(error) => fault::of(error),
        })?;
        T::from_redis_value(value).map_err(|error| {
            StoreError::new(
                StoreErrorKind::Unavailable,
                "the dead-letter server answers what nobody asked",
            )
            .with_source(error)
        })
    }

    /// As above, and says whether another connection may do better.
    async fn try_to_run(&self, script: &Lua, arguments: &[&[u8]]) -> Result<Value, (Lost, bool)> {
        let line = match timeout(self.connect_timeout, self.connected()).await {
            Ok(line) => line.map_err(|error| (error, false))?,
            Err(_) => return Err((Lost::InTime, false)),
        };
        let keys = [self.keys[0].as_str(), self.keys[1].as_str()];
        let mut answer = self.ask(&line, &script.by_hash(keys, arguments)).await;
        if matches!(&answer, Err(Lost::Error(error)) if error.kind() == ServerErrorKind::NoScript.into()) {
            answer = self.ask(&line, &script.by_source(keys, arguments)).await;
        }
        answer.map_err(|lost| match &lost {
            Lost::Error(error) if error.code().is_none() || self.refused(error) => {
                self.renew(&line);
                (lost, true)
            }
            Lost::InTime if line.silent.load(Ordering::Relaxed) >= SILENCE => {
                self.renew(&line);
                (lost, false)
            }
            _ => (lost, false),
        })
    }

    async fn ask(&self, line: &Line, command: &Cmd) -> Result<Value, Lost> {
        let reply = async {
            match line.connection.clone() {
                Connection::Single(mut single) => single.send_packed_command(command).await,
                Connection::Cluster(mut cluster) => cluster.req_packed_command(command).await,
            }
        };
        let Ok(reply) = timeout(self.response_timeout, reply).await else {
            line.silent.fetch_add(1, Ordering::Relaxed);
            return Err(Lost::InTime);
        };
        line.silent.store(0, Ordering::Relaxed);
        reply.and_then(Value::extract_error).map_err(Lost::Error)
    }

    /// Whether this server did nothing, and another is the one to ask.
    fn refused(&self, error: &RedisError) -> bool {
        match error.code() {
            Some("READONLY" | "NOAUTH") => true,
            Some("MOVED" | "ASK" | "CLUSTERDOWN" | "TRYAGAIN") => self.cluster,
            _ => false,
        }
    }

    async fn connected(&self) -> Result<Arc<Line>, Lost> {
        if let Some(line) = self.current()? {
            return Ok(line);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(line) = self.current()? {
            return Ok(line);
        }
        let connection = self.client.connect(self.connect_timeout).await.map_err(Lost::Error)?;
        let line = Arc::new(Line {
            connection,
            silent: AtomicU32::new(0),
        });
        let mut place = self.place();
        if !place.closed {
            place.line = Some(Arc::clone(&line));
        }
        Ok(line)
    }

    fn current(&self) -> Result<Option<Arc<Line>>, Lost> {
        let place = self.place();
        if place.closed {
            return Err(Lost::Error(fault::closed()));
        }
        Ok(place.line.clone())
    }

    /// Lets go of this connection, unless another has taken its place already.
    fn renew(&self, line: &Arc<Line>) {
        let mut place = self.place();
        if place.line.as_ref().is_some_and(|current| Arc::ptr_eq(current, line)) {
            place.line = None;
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        // Nothing panics while it is held.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisClient {
    fn new(config: &RedisStreamsConfig, servers: Vec<ConnectionInfo>) -> Result<Self, StoreError> {
        let unfit = |error: RedisError| {
            StoreError::new(
                StoreErrorKind::CannotOpen,
                "the client of the dead-letter server cannot be set up",
            )
            .with_source(error)
        };
        let certificates = (!config.root_certificates.is_empty()).then(|| TlsCertificates {
            client_tls: None,
            root_cert: Some(config.root_certificates.clone()),
        });
        if config.cluster {
            let tcp = servers.first().map(|server| server.tcp_settings().clone());
            let mut builder = ClusterClientBuilder::new(servers)
                // What may be done again is known here.
                .retries(0)
                .connection_timeout(config.connect_timeout)
                .response_timeout(FOR_EVER);
            builder = tcp.into_iter().fold(builder, ClusterClientBuilder::tcp_settings);
            builder = certificates.into_iter().fold(builder, ClusterClientBuilder::certs);
            return builder
                .build()
                .map(|client| Self::Cluster(Box::new(client)))
                .map_err(unfit);
        }
        let server = servers
            .into_iter()
            .next()
            .ok_or_else(|| StoreError::new(StoreErrorKind::CannotOpen, "url: is missing"))?;
        match certificates {
            Some(certificates) if matches!(server.addr(), ConnectionAddr::TcpTls { .. }) => {
                Client::build_with_tls(server, certificates)
            }
            _ => Client::open(server),
        }
        .map(|client| Self::Single(Box::new(client)))
        .map_err(unfit)
    }

    async fn connect(&self, timeout: Duration) -> RedisResult<Connection> {
        match self {
            Self::Single(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(timeout))
                    .set_response_timeout(None);
                let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
                Ok(Connection::Single(connection))
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
