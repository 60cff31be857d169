//! `--store`: where claims are kept.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoreArg {
    /// In memory, gone with the process.
    Memory,
    /// In an SQLite file.
    Sqlite(PathBuf),
}

impl StoreArg {
    /// Reads `sqlite:PATH` or `memory`, with or without a colon.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
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
