//! `cargo xtask bench`.

use crate::cargo::cargo;
use crate::{e2e, process};

/// Runs the benchmark program; without names, all of it.
pub(crate) fn run(names: &[&str]) -> anyhow::Result<()> {
    if let Err(error) = e2e::make_environments() {
        eprintln!("no Python to compare with: {error:#}");
    }
    process::run(cargo(["run", "--release", "--package", "idemp-bench", "--"]).args(names))
}
