//! `cargo xtask bench`.

use crate::cargo::cargo;
use crate::process;

/// Runs the benchmark program; without names, all of it.
pub(crate) fn run(names: &[&str]) -> anyhow::Result<()> {
    process::run(cargo(["run", "--release", "--package", "idemp-bench", "--"]).args(names))
}
