//! A private Python environment with pinned packages, for the peers in `tests/python/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::{Provided, Setup};
use crate::process;

/// The environment for the peers.
pub(super) fn start(setup: &Setup) -> anyhow::Result<Provided> {
    let python = environment(setup, "requirements.txt")?;
    let version =
        "import platform, fastapi; print(f'CPython {platform.python_version()}, FastAPI {fastapi.__version__}')";
    let version = process::read(Command::new(&python).args(["-c", version]))?;
    Ok(Provided {
        version: version.trim_end().to_owned(),
        environment: vec![("IDEMP_E2E_PYTHON", python.display().to_string())],
        service: None,
    })
}

/// The interpreter of an environment that has exactly what `requirements`, a file in `tests/python/`, asks for. It is
/// made once, and anew when that file or the interpreter below it has changed.
pub(super) fn environment(setup: &Setup, requirements: &str) -> anyhow::Result<PathBuf> {
    let requirements = setup.workspace_root.join("tests").join("python").join(requirements);
    let wanted =
        fs::read_to_string(&requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let base = process::read(Command::new("python3").args(["-c", "import sys; print(sys.version, sys.executable)"]))?;
    let wanted = base + &wanted;

    let name = requirements.file_stem().unwrap_or_default();
    let dir = setup.dir.join("venv").join(name);
    let python = dir.join("bin").join("python");
    let stamp = dir.join("made-from.txt");
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) {
        return Ok(python);
    }
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    process::run(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
    process::run(
        pip(&python)
            .args(["install", "--quiet", "--disable-pip-version-check", "--requirement"])
            .arg(&requirements),
    )?;
    // Last, so that an interrupted run is made anew.
    fs::write(&stamp, wanted)?;
    Ok(python)
}

fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip"]);
    pip
}
