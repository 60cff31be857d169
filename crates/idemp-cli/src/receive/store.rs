//! `--store`: where claims are kept.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use idemp_receiver::{ClaimStore, MemoryStore};

use crate::address::Address;
use crate::exit::Failure;
#[cfg(feature = "sqlite")]
use crate::exit::chain;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreArg {
    /// In memory, gone with the process.
    Memory,
    /// In an SQLite file.
    Sqlite(PathBuf),
    /// On a server: Redis or Postgres.
    Remote(Address),
}

impl StoreArg {
    /// Reads `sqlite:PATH`, a URL, or `memory`, with or without a colon.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            Some(("redis" | "rediss" | "postgres", _)) => Address::parse(text).map(Self::Remote),
            _ => Err("neither memory, sqlite:PATH, redis://HOST:PORT/DB nor postgres://HOST:PORT/DATABASE".to_owned()),
        }
    }

    /// Opens it. A server is asked whether it is there.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(super) async fn open(&self) -> Result<Arc<dyn ClaimStore>, Failure> {
        let opened = match self {
            Self::Memory => return Ok(Arc::new(MemoryStore::new())),
            // The error names the path.
            Self::Sqlite(path) => return sqlite(path),
            Self::Remote(address) if address.scheme == "postgres" => postgres(address.clone()).await,
            Self::Remote(address) => redis(address.clone()).await,
        };
        opened.map_err(|failure| failure.within(format_args!("cannot open {self}")))
    }
}

impl fmt::Display for StoreArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            // Without what may be secret.
            Self::Remote(address) => f.write_str(&address.shown()),
        }
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(path: &std::path::Path) -> Result<Arc<dyn ClaimStore>, Failure> {
    use std::error::Error;

    let opened = idemp_receiver::SqliteStore::open(path);
    // What is behind it says more than that the store is not available.
    let store = opened.map_err(|error| {
        let why = error.source().map_or_else(|| error.to_string(), chain);
        Failure::usage(format_args!("cannot open sqlite:{why}"))
    })?;
    Ok(Arc::new(store))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_path: &std::path::Path) -> Result<Arc<dyn ClaimStore>, Failure> {
    Err(Failure::not_built("SQLite", "sqlite"))
}

#[cfg(feature = "redis")]
async fn redis(address: Address) -> Result<Arc<dyn ClaimStore>, Failure> {
    let store = redis_store(address)?;
    store
        .ping()
        .await
        .map_err(|error| Failure::usage("claims").because(&error))?;
    Ok(Arc::new(store))
}

/// A store at this address; nothing is connected yet.
///
/// # Errors
/// If something about the address is wrong.
#[cfg(feature = "redis")]
pub(crate) fn redis_store(address: Address) -> Result<idemp_receiver::RedisStore, Failure> {
    use idemp_receiver::{RedisConfig, RedisStore};

    use crate::redis_address::RedisAddress;

    let mut address = RedisAddress::take(address)?;
    let config = RedisConfig {
        username: address.login.username.take(),
        password: address.login.password.take().map(|password| password.to_string()),
        cluster: address.cluster,
        root_certificates: address.root_certificates()?,
        ..RedisConfig::new(address.url.as_str())
    };
    address.options.finish()?;
    RedisStore::new(config).map_err(|error| Failure::usage("claims").because(&error))
}

#[cfg(not(feature = "redis"))]
async fn redis(_address: Address) -> Result<Arc<dyn ClaimStore>, Failure> {
    Err(Failure::not_built("Redis", "redis"))
}

/// Rows whose time is up are deleted every so often, so many at a time.
#[cfg(feature = "postgres")]
const PURGE: (std::time::Duration, u32) = (std::time::Duration::from_secs(60), 1_000);

#[cfg(feature = "postgres")]
async fn postgres(mut address: Address) -> Result<Arc<dyn ClaimStore>, Failure> {
    use idemp_receiver::PostgresStore;

    let login = address.take_login()?;
    // What is left are the server's own options, such as `sslmode`.
    let options = address.options.take_all()?;
    let store = PostgresStore::open(&login.url("postgres", &options))
        .map_err(|error| Failure::usage("claims").because(&error))?;
    store
        .migrate()
        .await
        .map_err(|error| Failure::usage("claims").because(&error))?;
    let purged = store.clone();
    tokio::spawn(async move {
        let (every, most) = PURGE;
        loop {
            tokio::time::sleep(every).await;
            while let Ok(gone) = purged.purge(most).await {
                if gone < u64::from(most) {
                    break;
                }
            }
        }
    });
    Ok(Arc::new(store))
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_address: Address) -> Result<Arc<dyn ClaimStore>, Failure> {
    Err(Failure::not_built("Postgres", "postgres"))
}
