//! `cargo xtask bench`.

use crate::cargo::cargo;
use crate::{e2e, process};

/// Runs the benchmark program; without names, all of it.
pub(crate) fn run(names: &[&str]) -> anyhow::Result<()> {
    let servers = e2e::servers()?;
    let mut bench = cargo(["run", "--release", "--package", "idemp-bench", "--"]);
    process::run(bench.args(names).envs(servers))
}
