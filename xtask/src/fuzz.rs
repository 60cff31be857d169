//! `cargo xtask fuzz`, and what of it needs no fuzzer.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::{cargo, has_subcommand};
use crate::metadata::Metadata;
use crate::process;

const SECONDS: &str = "60";

/// Lets the fuzzer work at each target of these names, or at all, for a minute or for `seconds`. It goes on from what
/// it found before.
pub(crate) fn run(metadata: &Metadata, names: &[&str], seconds: Option<&str>) -> anyhow::Result<()> {
    let folder = folder(metadata);
    let seconds = seconds.unwrap_or(SECONDS);
    if seconds.parse::<u32>().is_err() {
        bail!("{seconds} is no number of seconds");
    }
    let mut targets = process::read(&mut nightly(&["fuzz", "list"], &folder))
        .context("cargo-fuzz and a nightly toolchain have to be there: `cargo install --locked cargo-fuzz`")?;
    if let Some(unknown) = names.iter().find(|name| targets.lines().all(|target| target != **name)) {
        bail!(
            "there is no target {unknown}, only {}",
            targets.trim_end().replace('\n', ", ")
        );
    }
    if !names.is_empty() {
        targets = names.join("\n");
    }
    for target in targets.lines() {
        println!("\n==== {target}");
        // The first folder takes what is found.
        let corpus = folder.join("corpus").join(target);
        std::fs::create_dir_all(&corpus)?;
        let mut fuzz = nightly(&["fuzz", "run", target], &folder);
        fuzz.arg(corpus).arg(folder.join("seeds").join(target));
        fuzz.args(["--", &format!("-max_total_time={seconds}"), "-print_final_stats=1"]);
        process::run(&mut fuzz)?;
    }
    Ok(())
}

/// The targets over their seeds, on the toolchain of everything else.
pub(crate) fn check(metadata: &Metadata) -> anyhow::Result<()> {
    let manifest = folder(metadata).join("Cargo.toml");
    let fuzz = |command| {
        let mut cargo = cargo([command, "--locked", "--manifest-path"]);
        // The dependencies are those of the workspace, and built already.
        cargo.arg(&manifest).env("CARGO_TARGET_DIR", &metadata.target_directory);
        cargo
    };
    if has_subcommand("fmt") {
        process::run(cargo(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    }
    if has_subcommand("clippy") {
        process::run(fuzz("clippy").args(["--all-targets", "--", "--deny", "warnings"]))?;
    }
    process::run(&mut fuzz("test"))
}

fn folder(metadata: &Metadata) -> PathBuf {
    metadata.workspace_root.join("fuzz")
}

/// libFuzzer's instrumentation is not in stable Rust.
fn nightly(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(arguments);
    command.env("RUSTUP_AUTO_INSTALL", "0").current_dir(folder);
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command
}
