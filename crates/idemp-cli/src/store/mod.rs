//! `--dlq STORE`: where dead letters lie.

mod lazy;
mod object;
mod redis;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use idemp_dlq::{DeadLetterStore, MemoryStore, StoreError};

use crate::address::Address;
use crate::config::Config;
use crate::exit::{Failure, chain, complain};
use crate::shell::Line;
use lazy::LazyStore;

const DEFAULT: &str = "sqlite:idemp-dlq.db";

/// The name of a store that is gone with its process.
pub(crate) const MEMORY: &str = "memory:";

/// Beside the store lies the file that takes dead letters when the store does not.
const FALLBACK_SUFFIX: &str = ".fallback";

/// The dead-letter store of a command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DlqArg {
    /// The dead-letter store: sqlite:PATH, s3://BUCKET/PREFIX or redis://HOST:PORT/DB?stream=NAME (default: that of
    /// --config, else sqlite:idemp-dlq.db in the current folder)
    #[arg(long = "dlq", value_name = "STORE", value_parser = StoreArg::parse)]
    store: Option<StoreArg>,
}

/// Where dead letters are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StoreArg {
    /// In memory, gone with the process.
    Memory,
    /// In an SQLite file.
    Sqlite(PathBuf),
    /// On a server.
    Remote(Address),
}

impl StoreArg {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            Some(("s3" | "redis" | "rediss", _)) => Address::parse(text).map(Self::Remote),
            _ => Err(
                "neither sqlite:PATH, s3://BUCKET/PREFIX nor redis://HOST:PORT/DB?stream=NAME; send also takes memory:"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for StoreArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str(MEMORY),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Remote(address) => {
                f.write_str(&address.shown())?;
                let given = WHERE.iter().filter_map(|name| Some((name, address.options.get(name)?)));
                // What a client may take a login from stays away, as it does from the place.
                for (index, (name, value)) in given.filter(|(_, value)| !value.contains('@')).enumerate() {
                    let mark = if index == 0 { '?' } else { '&' };
                    write!(f, "{mark}{name}={}", Encoded(value))?;
                }
                Ok(())
            }
        }
    }
}

/// Options that say where a store is, so that its name leads there again.
const WHERE: [&str; 6] = ["stream", "cluster", "ca", "endpoint", "region", "allow_http"];

/// The value of an option, percent-encoded where it would be read as something else.
struct Encoded<'v>(&'v str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if character.is_ascii_alphanumeric() || "-._~:/{}[],".contains(character) {
                write!(f, "{character}")?;
                continue;
            }
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// An open store, and the one beside it that takes what it does not.
pub(crate) struct Letters {
    pub(crate) name: String,
    pub(crate) primary: Arc<dyn DeadLetterStore>,
    pub(crate) fallback: Option<Fallback>,
}

pub(crate) struct Fallback {
    pub(crate) path: PathBuf,
    pub(crate) store: Arc<dyn DeadLetterStore>,
}

impl Fallback {
    fn made_when_needed(path: PathBuf) -> Self {
        Self {
            store: Arc::new(LazyStore::new(path.clone())),
            path,
        }
    }
}

impl DlqArg {
    /// Whether `--config` names the store, and nothing else does.
    pub(crate) fn is_of(&self, config: Option<&Config>) -> bool {
        self.store.is_none() && config.is_some_and(|config| config.dlq.is_some())
    }

    /// Adds a store that `--config` does not name to a command that comes next.
    pub(crate) fn say_again(&self, line: &mut Line) {
        let Some(store) = &self.store else {
            return line.option("--dlq", DEFAULT);
        };
        let name = store.to_string();
        // A login is not shown, and without it the name does not lead there.
        if StoreArg::parse(&name).as_ref() == Ok(store) {
            line.option("--dlq", &name);
        } else {
            line.option_to_fill_in("--dlq", "STORE");
        }
    }

    /// The store, and whether somebody has named it.
    fn store(&self, config: Option<&Config>) -> Result<(StoreArg, bool), Failure> {
        if let Some(store) = &self.store {
            return Ok((store.clone(), true));
        }
        let (text, is_named) = match config.and_then(|config| config.dlq.as_deref()) {
            Some(text) => (text, true),
            None => (DEFAULT, false),
        };
        let store = StoreArg::parse(text).map_err(|why| Failure::usage(format_args!("dlq: {why}")))?;
        Ok((store, is_named))
    }

    /// Opens it to put letters in, and says where it is if there `may_be` letters. The fallback is made when it is
    /// needed.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) async fn open_to_send(&self, config: Option<&Config>, may_be: bool) -> Result<Letters, Failure> {
        let (store, _) = self.store(config)?;
        let (primary, fallback): (Arc<dyn DeadLetterStore>, _) = match &store {
            StoreArg::Memory => (Arc::new(MemoryStore::new()), None),
            StoreArg::Sqlite(path) => (
                open_at_start(path, Missing::Make)?,
                Some(Fallback::made_when_needed(fallback_path(path))),
            ),
            StoreArg::Remote(address) => {
                let fallback = cfg!(feature = "sqlite").then(|| Fallback::made_when_needed(remote_fallback(address)));
                (open_remote(address, Missing::Make).await?, fallback)
            }
        };
        if may_be {
            complain(format_args!("dead letters go to {store}"));
        }
        if may_be && store == StoreArg::Memory {
            complain("warning: dead letters in memory are lost when this command ends");
        }
        Ok(Letters {
            name: store.to_string(),
            primary,
            fallback,
        })
    }

    /// Opens what is there already, with the fallback if there is one. Says where it is if that was not given.
    ///
    /// # Errors
    /// If it is not there, or cannot be opened.
    pub(crate) async fn open_existing(&self, config: Option<&Config>) -> Result<Letters, Failure> {
        let (store, is_named) = self.store(config)?;
        if !is_named {
            complain(format_args!("dead letters are read from {store}"));
        }
        let fallback_path = match &store {
            StoreArg::Memory => {
                return Err(Failure::usage(
                    "a dead-letter store in memory is gone with the command that filled it",
                ));
            }
            StoreArg::Sqlite(path) => fallback_path(path),
            StoreArg::Remote(address) => remote_fallback(address),
        };
        let has_fallback = fallback_path.exists();
        let primary = match &store {
            StoreArg::Remote(address) => open_remote(address, Missing::Refuse).await,
            StoreArg::Sqlite(path) => open_at_start(path, Missing::Refuse),
            StoreArg::Memory => Ok(Arc::new(MemoryStore::new()) as _),
        };
        let primary = primary.inspect_err(|_| {
            if has_fallback {
                let fallback = fallback_path.display();
                complain(format_args!(
                    "dead letters lie also in {fallback}: --dlq sqlite:{fallback} reads it alone"
                ));
            }
        })?;
        let fallback = match has_fallback {
            true => Some(Fallback {
                store: open_at_start(&fallback_path, Missing::Refuse)?,
                path: fallback_path,
            }),
            false => None,
        };
        Ok(Letters {
            name: store.to_string(),
            primary,
            fallback,
        })
    }
}

impl Letters {
    /// The store, then the fallback if there is one.
    pub(crate) fn all(&self) -> impl Iterator<Item = &dyn DeadLetterStore> {
        let fallback = self.fallback.as_ref().map(|fallback| &*fallback.store);
        std::iter::once(&*self.primary).chain(fallback)
    }

    /// Finishes what was asked for.
    pub(crate) async fn close(&self) {
        for store in self.all() {
            store.close().await;
        }
    }
}

fn fallback_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(FALLBACK_SUFFIX);
    name.into()
}

/// Longest name of a file that is made for a store on a server, without its ending: names end at 255 bytes.
const LONGEST_NAME: usize = 200;

/// In the current folder, one for each store: what one store did not take must not be replayed as if it were another's.
fn remote_fallback(address: &Address) -> PathBuf {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => character,
        _ => '-',
    };
    let mut name = address.shown().replace("://", "-");
    for option in ["stream", "endpoint"] {
        if let Some(value) = address.options.get(option) {
            name.push('-');
            name.push_str(value);
        }
    }
    let name: String = name.chars().map(plain).take(LONGEST_NAME).collect();
    format!("idemp-dlq.{name}{FALLBACK_SUFFIX}").into()
}

async fn open_remote(address: &Address, missing: Missing) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    let opened = match address.scheme.as_str() {
        "s3" => object::open(address.clone()).await,
        _ => redis::open(address.clone(), missing).await,
    };
    opened.map_err(|failure| failure.within(format_args!("dead-letter store {}", StoreArg::Remote(address.clone()))))
}

/// Whether a store that is not there is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Make,
    Refuse,
}

fn open_at_start(path: &Path, missing: Missing) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    // The error names the path.
    open(path, missing).map_err(|error| Failure::usage(format_args!("dead-letter store {}", chain(&error))))
}

#[cfg(feature = "sqlite")]
fn open(path: &Path, missing: Missing) -> Result<Arc<dyn DeadLetterStore>, StoreError> {
    use idemp_dlq::SqliteStore;

    Ok(Arc::new(match missing {
        Missing::Make => SqliteStore::open(path)?,
        Missing::Refuse => SqliteStore::open_existing(path)?,
    }))
}

#[cfg(not(feature = "sqlite"))]
fn open(path: &Path, _missing: Missing) -> Result<Arc<dyn DeadLetterStore>, StoreError> {
    let path = path.display();
    let why = format!("{path}: this build has no SQLite: build idemp-cli with the feature sqlite");
    Err(StoreError::new(idemp_dlq::StoreErrorKind::CannotOpen, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_on_a_server_has_a_fallback_of_its_own() {
        for (text, expected) in [
            ("redis://me@h:6379/0", "idemp-dlq.redis-h-6379-0.fallback"),
            ("redis://h:6379/0?stream=a:b", "idemp-dlq.redis-h-6379-0-a-b.fallback"),
            (
                "s3://bucket/a/b?endpoint=http://127.0.0.1:9000&allow_http=true",
                "idemp-dlq.s3-bucket-a-b-http---127.0.0.1-9000.fallback",
            ),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(remote_fallback(&address), Path::new(expected), "{text}");
        }
        let long = Address::parse(&format!("s3://bucket/{}", "é".repeat(300))).unwrap();
        assert!(remote_fallback(&long).as_os_str().len() <= 255);
    }

    #[test]
    fn stores_are_named_by_scheme() {
        assert_eq!(StoreArg::parse("memory:"), Ok(StoreArg::Memory));
        assert_eq!(StoreArg::parse("memory"), Ok(StoreArg::Memory));
        assert_eq!(StoreArg::parse("sqlite:a:b.db"), Ok(StoreArg::Sqlite("a:b.db".into())));
        for text in [
            "", "sqlite:", "sqlite", "a.db", "memory:x", "s3", "http://h", "SQLITE:a",
        ] {
            assert!(StoreArg::parse(text).is_err(), "{text}");
        }
    }
    #[test]
    fn the_name_of_a_store_leads_to_it_again_and_shows_no_login() {
        for text in [
            "redis://h:6379/0",
            "redis://h:6379/0?stream=a:b",
            "redis://h:6379/0?stream={a}%26b%20%C3%A9%3F%25",
            "rediss://h:6379/0?stream=s&cluster=true&ca=/etc/ca.pem",
            "s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-west-1&allow_http=true",
        ] {
            let store = StoreArg::parse(text).unwrap();
            assert_eq!(store.to_string(), text);
            assert_eq!(StoreArg::parse(&store.to_string()), Ok(store));
        }
        for (text, shown) in [
            ("redis://me:hunter2@h:6379/0?stream=s", "redis://h:6379/0?stream=s"),
            (
                "redis://h/0?password=hunter2&password_env=hunter2&stream=s",
                "redis://h/0?stream=s",
            ),
            ("s3://b/p?endpoint=http://me:hunter2@h&region=r", "s3://b/p?region=r"),
        ] {
            assert_eq!(StoreArg::parse(text).unwrap().to_string(), shown);
        }
    }
}
