//! `--dlq STORE`: where dead letters lie.

mod lazy;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use idemp_dlq::{DeadLetterStore, MemoryStore, StoreError};

use crate::exit::{Failure, complain};
use lazy::LazyStore;

const DEFAULT: &str = "sqlite:idemp-dlq.db";

/// Beside the store lies the file that takes dead letters when the store does not.
const FALLBACK_SUFFIX: &str = ".fallback";

/// The dead-letter store of a command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DlqArg {
    /// The dead-letter store: sqlite:PATH (default: sqlite:idemp-dlq.db in the current folder)
    #[arg(long = "dlq", value_name = "STORE", value_parser = StoreArg::parse)]
    store: Option<StoreArg>,
}

/// Where dead letters, or claims, are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreArg {
    /// In memory, gone with the process.
    Memory,
    /// In an SQLite file.
    Sqlite(PathBuf),
}

impl StoreArg {
    /// Reads `sqlite:PATH` or `memory`, with or without a colon.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            _ => Err("neither sqlite:PATH nor memory:".to_owned()),
        }
    }
}

impl fmt::Display for StoreArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
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

impl DlqArg {
    fn store(&self) -> StoreArg {
        self.store
            .clone()
            .unwrap_or_else(|| StoreArg::Sqlite(DEFAULT.trim_start_matches("sqlite:").into()))
    }

    /// Opens it to put letters in, and says where it is. The fallback is made when it is needed.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) fn open_to_send(&self) -> Result<Letters, Failure> {
        let store = self.store();
        complain(format_args!("dead letters go to {store}"));
        let (primary, fallback): (Arc<dyn DeadLetterStore>, _) = match &store {
            StoreArg::Memory => {
                complain("warning: dead letters in memory are lost when this command ends");
                (Arc::new(MemoryStore::new()), None)
            }
            StoreArg::Sqlite(path) => {
                let fallback_path = fallback_path(path);
                let fallback = Fallback {
                    path: fallback_path.clone(),
                    store: Arc::new(LazyStore::new(fallback_path)),
                };
                (open_at_start(path, Missing::Make)?, Some(fallback))
            }
        };
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
    pub(crate) fn open_existing(&self) -> Result<Letters, Failure> {
        let store = self.store();
        if self.store.is_none() {
            complain(format_args!("dead letters are read from {store}"));
        }
        let StoreArg::Sqlite(path) = &store else {
            return Err(Failure::usage(
                "a dead-letter store in memory is gone with the command that filled it",
            ));
        };
        let fallback_path = fallback_path(path);
        let has_fallback = fallback_path.exists();
        let primary = open_at_start(path, Missing::Refuse).inspect_err(|_| {
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

/// Whether a file that is not there is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Make,
    Refuse,
}

fn open_at_start(path: &Path, missing: Missing) -> Result<Arc<dyn DeadLetterStore>, Failure> {
    let cannot =
        |error: StoreError| Failure::usage(format_args!("dead-letter store {}", path.display())).because(&error);
    open(path, missing).map_err(cannot)
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
fn open(_path: &Path, _missing: Missing) -> Result<Arc<dyn DeadLetterStore>, StoreError> {
    let why = "this build has no SQLite: build idemp-cli with the feature sqlite";
    Err(StoreError::new(idemp_dlq::StoreErrorKind::CannotOpen, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_named_by_scheme() {
        assert_eq!(StoreArg::parse("memory:"), Ok(StoreArg::Memory));
        assert_eq!(StoreArg::parse("memory"), Ok(StoreArg::Memory));
        assert_eq!(StoreArg::parse("sqlite:a:b.db"), Ok(StoreArg::Sqlite("a:b.db".into())));
        for text in ["", "sqlite:", "sqlite", "a.db", "memory:x", "redis://h", "SQLITE:a"] {
            assert!(StoreArg::parse(text).is_err(), "{text}");
        }
    }
}
