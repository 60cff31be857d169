//! Which stream, on which server, as plain data, and the checks that turn it into a client.

use std::fmt;
use std::time::Duration;

use idemp_core::Secret;
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::error::{RedisStreamsError, RedisStreamsErrorKind as Kind};

/// Which stream events go to, and how. Start from [`RedisStreamsConfig::new`] and change what differs.
///
/// `Debug` shows host and port of the servers, and neither user name nor password nor secret.
#[derive(Clone)]
pub struct RedisStreamsConfig {
    /// The server: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS. User name and password
    /// are percent-encoded. Port 6379 and database 0 by default; a cluster has database 0 alone.
    pub url: String,
    /// Key of the stream, which the first event makes if it is not there. 1 to 512 bytes without control characters.
    pub stream: String,
    /// What bodies are signed with.
    pub secret: Secret,
    /// User name (ACL), in place of the one in the URL. None by default: the server's default user.
    pub username: Option<String>,
    /// Password, in place of the one in the URL. None by default.
    pub password: Option<String>,
    /// About how many entries the stream keeps (`MAXLEN ~`), at least 1: the oldest ones go, **whether they were read
    /// or not**. None by default: the stream grows until its readers trim it.
    pub maxlen: Option<u64>,
    /// Whether the server is a node of a Redis Cluster. False by default.
    pub cluster: bool,
    /// URLs of further nodes of the cluster, to start from where the first one is down. Their user names, passwords
    /// and databases do not count. None by default.
    pub startup_nodes: Vec<String>,
    /// Longest time to resolve the name, connect, shake hands and log in, above zero. It should be less than an
    /// attempt's time. 3 s by default.
    pub connect_timeout: Duration,
    /// Certificates of authorities to trust **in place of** those that the system trusts, as PEM. None by default.
    pub root_certificates: Vec<u8>,
}

impl RedisStreamsConfig {
    /// The defaults, for this server, stream and secret.
    #[must_use]
    pub fn new(url: impl Into<String>, stream: impl Into<String>, secret: Secret) -> Self {
        Self {
            url: url.into(),
            stream: stream.into(),
            secret,
            username: None,
            password: None,
            maxlen: None,
            cluster: false,
            startup_nodes: Vec::new(),
            connect_timeout: Duration::from_secs(3),
            root_certificates: Vec::new(),
        }
    }

    pub(super) fn checked(&self) -> Result<(), RedisStreamsError> {
        if !(1..=512).contains(&self.stream.len()) || self.stream.chars().any(char::is_control) {
            let why = "must be 1 to 512 bytes without control characters";
            return Err(RedisStreamsError::new(Kind::Stream, why));
        }
        if self.maxlen == Some(0) {
            return Err(RedisStreamsError::new(Kind::Maxlen, "must be at least 1"));
        }
        if self.connect_timeout.is_zero() {
            return Err(RedisStreamsError::new(Kind::ConnectTimeout, "must be above zero"));
        }
        if !self.cluster && !self.startup_nodes.is_empty() {
            return Err(RedisStreamsError::new(
                Kind::StartupNodes,
                "only a cluster has further nodes",
            ));
        }
        Ok(())
    }

    /// Every server, the first one first, all with the same login.
    pub(super) fn checked_servers(&self) -> Result<Vec<ConnectionInfo>, RedisStreamsError> {
        let first = server(&self.url, Kind::Url)?;
        let mut login = first.redis_settings().clone();
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        if self.cluster && login.db() != 0 {
            return Err(RedisStreamsError::new(Kind::Url, "a cluster has database 0 alone"));
        }
        let more = self.startup_nodes.iter().map(|url| server(url, Kind::StartupNodes));
        std::iter::once(Ok(first))
            .chain(more)
            .map(|server| {
                // Without it a lone event may wait for the acknowledgement of the one before.
                let tcp = TcpSettings::default().set_nodelay(true);
                Ok(server?.set_redis_settings(login.clone()).set_tcp_settings(tcp))
            })
            .collect()
    }
}

impl fmt::Debug for RedisStreamsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |url: &String| server(url, Kind::Url).map_or("?".to_owned(), |server| server.addr().to_string());
        f.debug_struct("RedisStreamsConfig")
            .field("server", &place(&self.url))
            .field("stream", &self.stream)
            .field("maxlen", &self.maxlen)
            .field("cluster", &self.cluster)
            .field(
                "startup_nodes",
                &self.startup_nodes.iter().map(place).collect::<Vec<_>>(),
            )
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

fn server(url: &str, kind: Kind) -> Result<ConnectionInfo, RedisStreamsError> {
    if !url.starts_with("redis://") && !url.starts_with("rediss://") {
        let why = "must begin with redis:// or rediss://";
        return Err(RedisStreamsError::new(kind, why));
    }
    if url.contains(['?', '#']) {
        let why = "must end with the database: options are fields of their own";
        return Err(RedisStreamsError::new(kind, why));
    }
    // The client's error may hold parts of the URL.
    let server = url
        .into_connection_info()
        .map_err(|_| RedisStreamsError::new(kind, "is no URL of a Redis server"))?;
    match server.addr() {
        ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. } => Ok(server),
        _ => Err(RedisStreamsError::new(kind, "is no URL of a Redis server")),
    }
}
