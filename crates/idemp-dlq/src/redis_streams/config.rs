//! Which stream, on which server, as plain data.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::{StoreError, StoreErrorKind};

/// Where dead letters lie in Redis. Start from [`RedisStreamsConfig::new`] and change what differs.
///
/// `Debug` shows host and port of the servers, and neither user name nor password.
#[derive(Clone)]
pub struct RedisStreamsConfig {
    /// The server: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS. User name and password
    /// are percent-encoded. Port 6379 and database 0 by default; a cluster has database 0 alone.
    pub url: String,
    /// Key of the stream, 1 to 256 bytes without control characters, and without braces unless they are a hash tag.
    /// `webhooks:dlq` by default. The index beside it is `{webhooks:dlq}:index`.
    pub stream: String,
    /// User name (ACL), in place of the one in the URL. None by default: the server's default user.
    pub username: Option<String>,
    /// Password, in place of the one in the URL. None by default.
    pub password: Option<String>,
    /// Whether the server is a node of a Redis Cluster. False by default.
    pub cluster: bool,
    /// URLs of further nodes of the cluster, to start from where the first one is down. Their user names, passwords
    /// and databases do not count. None by default.
    pub startup_nodes: Vec<String>,
    /// Longest time to resolve the name, connect, shake hands and log in, above zero. 5 s by default.
    pub connect_timeout: Duration,
    /// Longest time for one answer, above zero. 5 s by default.
    pub response_timeout: Duration,
    /// Certificates of authorities to trust **in place of** those that the system trusts, as PEM. None by default.
    pub root_certificates: Vec<u8>,
}

impl RedisStreamsConfig {
    /// The stream `webhooks:dlq` of this server.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            stream: "webhooks:dlq".to_owned(),
            username: None,
            password: None,
            cluster: false,
            startup_nodes: Vec::new(),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(5),
            root_certificates: Vec::new(),
        }
    }

    /// The keys of stream and index, which lie in one slot of a cluster.
    pub(super) fn checked_keys(&self) -> Result<[String; 2], StoreError> {
        let name = &self.stream;
        if !(1..=256).contains(&name.len()) || name.chars().any(char::is_control) {
            return Err(fault("stream: must be 1 to 256 bytes without control characters"));
        }
        let index = match tag(name) {
            Some(_) => format!("{name}:index"),
            None if name.contains(['{', '}']) => {
                return Err(fault("stream: has braces that are no hash tag"));
            }
            None => format!("{{{name}}}:index"),
        };
        Ok([name.clone(), index])
    }

    /// Every server, the first one first, all with the same login.
    pub(super) fn checked_servers(&self) -> Result<Vec<ConnectionInfo>, StoreError> {
        if self.connect_timeout.is_zero() {
            return Err(fault("connect_timeout: must be above zero"));
        }
        if self.response_timeout.is_zero() {
            return Err(fault("response_timeout: must be above zero"));
        }
        if !self.cluster && !self.startup_nodes.is_empty() {
            return Err(fault("startup_nodes: only a cluster has further nodes"));
        }
        let first = server(&self.url)?;
        let mut login = first.redis_settings().clone();
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        if self.cluster && login.db() != 0 {
            return Err(fault("url: a cluster has database 0 alone"));
        }
        let more = self.startup_nodes.iter().map(|url| server(url));
        std::iter::once(Ok(first))
            .chain(more)
            .map(|server| {
                let tcp = TcpSettings::default().set_nodelay(true);
                Ok(server?.set_redis_settings(login.clone()).set_tcp_settings(tcp))
            })
            .collect()
    }
}

impl fmt::Debug for RedisStreamsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |url: &String| server(url).map_or("?".to_owned(), |server| server.addr().to_string());
        f.debug_struct("RedisStreamsConfig")
            .field("server", &place(&self.url))
            .field("stream", &self.stream)
            .field("cluster", &self.cluster)
            .field(
                "startup_nodes",
                &self.startup_nodes.iter().map(place).collect::<Vec<_>>(),
            )
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}

/// What is between the first `{` and the next `}`, if that is anything (Redis Cluster specification, hash tags).
fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

fn server(url: &str) -> Result<ConnectionInfo, StoreError> {
    if !url.starts_with("redis://") && !url.starts_with("rediss://") {
        return Err(fault("url: must begin with redis:// or rediss://"));
    }
    if url.contains(['?', '#']) {
        return Err(fault(
            "url: must end with the database, options are fields of their own",
        ));
    }
    // The client's error may hold parts of the URL.
    let server = url
        .into_connection_info()
        .map_err(|_| fault("url: is no URL of a Redis server"))?;
    match server.addr() {
        ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. } => Ok(server),
        _ => Err(fault("url: is no URL of a Redis server")),
    }
}

fn fault(why: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::CannotOpen, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(stream: &str) -> Result<[String; 2], StoreErrorKind> {
        let config = RedisStreamsConfig {
            stream: stream.to_owned(),
            ..RedisStreamsConfig::new("redis://h")
        };
        config.checked_keys().map_err(|error| error.kind())
    }

    #[test]
    fn stream_and_index_have_one_hash_tag() {
        for (stream, index) in [
            ("webhooks:dlq", "{webhooks:dlq}:index"),
            ("{a}:dlq", "{a}:dlq:index"),
            ("x{a}{b}", "x{a}{b}:index"),
        ] {
            assert_eq!(keys(stream), Ok([stream.to_owned(), index.to_owned()]));
        }
        for stream in ["", "a{b", "a}b", "{}a", "a\nb"] {
            assert_eq!(keys(stream), Err(StoreErrorKind::CannotOpen), "{stream:?}");
        }
    }

    #[test]
    fn each_rule_is_checked() {
        type Change = fn(&mut RedisStreamsConfig);
        let rules: [(&str, Change); 4] = [
            ("connect_timeout: must be above zero", |config| {
                config.connect_timeout = Duration::ZERO;
            }),
            ("response_timeout: must be above zero", |config| {
                config.response_timeout = Duration::ZERO;
            }),
            ("startup_nodes: only a cluster has further nodes", |config| {
                config.startup_nodes = vec!["redis://h2".to_owned()];
            }),
            ("url: a cluster has database 0 alone", |config| {
                (config.cluster, config.url) = (true, "redis://h/1".to_owned());
            }),
        ];
        for (expected, change) in rules {
            let mut config = RedisStreamsConfig::new("redis://h");
            assert!(config.checked_servers().is_ok());
            change(&mut config);
            assert_eq!(config.checked_servers().unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn nothing_shows_a_login() {
        let config = RedisStreamsConfig {
            username: Some("hidden1".into()),
            password: Some("hidden2".into()),
            ..RedisStreamsConfig::new("redis://hidden3:hidden4@h:7/2")
        };
        let error = server("redis://hidden5:hidden6@h:7/two").unwrap_err();
        let shown = format!("{config:?} {error} {error:?}");
        assert!(shown.contains("h:7") && !shown.contains("hidden"), "{shown}");
    }
}
