//! Whole inputs, and output to standard output.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::exit::Failure;

/// An input: a file, or standard input for `-` or nothing.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Input {
    /// The file to read; standard input without it or for `-`
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Input {
    /// The file's path, unless it is standard input.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.file.as_deref().filter(|path| *path != Path::new("-"))
    }

    /// What it is called in messages.
    pub(crate) fn name(&self) -> String {
        self.path()
            .map_or_else(|| "stdin".to_owned(), |path| path.display().to_string())
    }

    /// Opens it.
    ///
    /// # Errors
    /// If the file cannot be opened, or is a folder.
    pub(crate) fn open(&self) -> Result<Box<dyn Read + Send>, Failure> {
        let Some(path) = self.path() else {
            return Ok(Box::new(io::stdin()));
        };
        let cannot = |error: io::Error| Failure::usage(format_args!("cannot open {}", self.name())).because(&error);
        let file = File::open(path).map_err(cannot)?;
        if file.metadata().map_err(cannot)?.is_dir() {
            return Err(cannot(io::ErrorKind::IsADirectory.into()));
        }
        Ok(Box::new(file))
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// If it cannot be opened or read.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let mut input = self.open()?;
        input
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::failed(format_args!("cannot read {}", self.name())).because(&error))?;
        Ok(bytes)
    }
}

/// Writes bytes to standard output, with nothing added.
///
/// # Errors
/// If they cannot be written. A reader that has gone away is no error: it has seen enough.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed("cannot write to standard output").because(&error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a line to standard output.
///
/// # Errors
/// As [`print_bytes`].
pub(crate) fn print_line(line: impl Display) -> Result<(), Failure> {
    print_bytes(format!("{line}\n").as_bytes())
}

/// Writes a value to standard output, as JSON on one line.
///
/// # Errors
/// As [`print_bytes`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(value).map_err(|error| Failure::failed("cannot write JSON").because(&error))?;
    line.push(b'\n');
    print_bytes(&line)
}
