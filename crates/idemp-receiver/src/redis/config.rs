//! Where the server is, and how long it may take.

use std::fmt;
use std::time::Duration;

/// How a [`RedisStore`](super::RedisStore) finds its server.
///
/// ```
/// use std::time::Duration;
/// use idemp_receiver::{RedisConfig, RedisStore};
///
/// let config = RedisConfig {
///     response_timeout: Duration::from_millis(500),
///     ..RedisConfig::new("redis://127.0.0.1:6379")
/// };
/// let store = RedisStore::new(config)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS. It may hold a password, so it is in
    /// no log and no error.
    pub url: String,
    /// User name (ACL), in place of the one in the URL. Default: none, which is the server's default user.
    pub username: Option<String>,
    /// Password, in place of the one in the URL. Default: none.
    pub password: Option<String>,
    /// The server is a node of a cluster: its other nodes are found through it. Default: `false`.
    pub cluster: bool,
    /// URLs of further nodes of the cluster, to start from where the first one is down. Their user names, passwords
    /// and databases do not count. Default: none.
    pub startup_nodes: Vec<String>,
    /// Certificates of authorities to trust with `rediss://` **in place of** those that the system trusts, as PEM.
    /// Default: none.
    pub root_certificates: Vec<u8>,
    /// How long connecting may take. Default: 800 ms. Keep it below
    /// [`ReceiverConfig::store_timeout`](crate::ReceiverConfig::store_timeout), at which the receiver stops waiting.
    pub connect_timeout: Duration,
    /// How long an answer may take. Default: 800 ms, likewise. After two operations in a row without an answer the
    /// connection is replaced.
    pub response_timeout: Duration,
    /// A value that is not ours is a plain peer's, and counts as pending while no more than this of its time is left,
    /// else as done. Longer than the `EX` with which such peers claim, and much shorter than the TTL of their marks.
    /// Default: 12 s. Zero if no peer claims first.
    pub peer_lease: Duration,
}

impl RedisConfig {
    /// The server at this URL, with defaults for the rest.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            username: None,
            password: None,
            cluster: false,
            startup_nodes: Vec::new(),
            root_certificates: Vec::new(),
            connect_timeout: Duration::from_millis(800),
            response_timeout: Duration::from_millis(800),
            peer_lease: Duration::from_secs(12),
        }
    }
}

/// Leaves the addresses out.
impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("cluster", &self.cluster)
            .field("startup_nodes", &self.startup_nodes.len())
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("peer_lease", &self.peer_lease)
            .finish_non_exhaustive()
    }
}
