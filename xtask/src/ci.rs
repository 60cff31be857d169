//! `cargo xtask ci`: every check, all of them even after one has failed, and a table at the end.

use std::time::{Duration, Instant};

use anyhow::bail;

use crate::cargo::{cargo, has_subcommand};
use crate::metadata::{self, Metadata};
use crate::{e2e, features, fuzz, layers, lean, packages, process, table, tidy};

/// How a step ended, other than by an error.
enum Done {
    Passed,
    /// With what was missing.
    Skipped(String),
}

type Check = fn(&Metadata) -> anyhow::Result<Done>;

/// Quick ones first. The tests include those that drive the binary; `e2e` runs the suites that need services.
const STEPS: [(&str, Check); 12] = [
    ("format", format),
    ("layers", layer_edges),
    ("tidy", tidy_repository),
    ("lean", lean_builds),
    ("licences", licences),
    ("clippy", clippy_workspace),
    ("alone", each_feature_alone),
    ("packages", pack),
    ("docs", docs),
    ("tests", tests),
    ("fuzz", seeds),
    ("e2e", services),
];

/// Runs the steps of these names, or all; an error if any failed.
pub(crate) fn run(names: &[&str]) -> anyhow::Result<()> {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|(step, _)| step != *name)) {
        bail!(
            "there is no step {unknown}, only {}",
            STEPS.map(|(step, _)| step).join(", ")
        );
    }
    let metadata = metadata::members()?;
    let mut rows = Vec::new();
    let mut failed = 0;
    let begin = Instant::now();
    for (name, check) in STEPS
        .iter()
        .filter(|(step, _)| names.is_empty() || names.contains(step))
    {
        println!("\n==== {name}");
        let start = Instant::now();
        let (verdict, remark) = match check(&metadata) {
            Ok(Done::Passed) => ("passed", String::new()),
            Ok(Done::Skipped(what)) => ("SKIPPED", what),
            Err(error) => {
                failed += 1;
                eprintln!("error: {error:#}");
                (
                    "FAILED",
                    error.to_string().lines().next().unwrap_or_default().to_owned(),
                )
            }
        };
        let took = seconds(start.elapsed());
        println!("==== {name}: {verdict} in {took} {remark}");
        rows.push(vec![(*name).to_owned(), verdict.to_owned(), took, remark]);
    }
    rows.push(vec![
        "all".to_owned(),
        String::new(),
        seconds(begin.elapsed()),
        String::new(),
    ]);
    table::print(&["step", "verdict", "time", ""], &rows);
    if failed > 0 {
        bail!("{failed} steps failed");
    }
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// A missing tool is said loudly. Only cargo-deny in CI is an error, where it can be installed from its source.
fn missing(what: &str) -> anyhow::Result<Done> {
    let message = format!("{} IS NOT INSTALLED", what.to_uppercase());
    println!("!!!! {message}: THIS STEP CHECKS NOTHING");
    Ok(Done::Skipped(message))
}

fn format(_: &Metadata) -> anyhow::Result<Done> {
    if !has_subcommand("fmt") {
        return missing("rustfmt");
    }
    process::run(&mut cargo(["fmt", "--all", "--check"]))?;
    Ok(Done::Passed)
}

fn layer_edges(metadata: &Metadata) -> anyhow::Result<Done> {
    let violations = layers::violations(metadata);
    if !violations.is_empty() {
        bail!("{}", violations.join("\n"));
    }
    Ok(Done::Passed)
}

fn tidy_repository(metadata: &Metadata) -> anyhow::Result<Done> {
    tidy::check(metadata)?;
    Ok(Done::Passed)
}

fn lean_builds(_: &Metadata) -> anyhow::Result<Done> {
    lean::check()?;
    Ok(Done::Passed)
}

fn licences(_: &Metadata) -> anyhow::Result<Done> {
    if !has_subcommand("deny") {
        let skipped = missing("cargo-deny")?;
        if std::env::var_os("CI").is_some() {
            bail!("cargo-deny is not installed: `cargo install --locked cargo-deny`");
        }
        return Ok(skipped);
    }
    fetch()?;
    let mut deny = cargo(["deny", "--offline", "--all-features", "check", "--hide-inclusion-graph"]);
    process::run(deny.args(["licenses", "bans", "sources"]))?;
    Ok(Done::Passed)
}

/// Without the network cargo-deny and cargo want every crate of the lock file on disk.
fn fetch() -> anyhow::Result<()> {
    process::run(&mut cargo(["fetch", "--locked"]))
}

fn clippy_workspace(_: &Metadata) -> anyhow::Result<Done> {
    if !has_subcommand("clippy") {
        return missing("clippy");
    }
    let mut clippy = cargo(["clippy", "--locked", "--workspace", "--all-features", "--all-targets"]);
    process::run(clippy.args(["--", "--deny", "warnings"]))?;
    Ok(Done::Passed)
}

/// As a user builds it: without the features that tests and the rest of the workspace switch on in shared dependencies.
/// Tries every set, and names those that failed.
fn each_feature_alone(metadata: &Metadata) -> anyhow::Result<Done> {
    let has_clippy = has_subcommand("clippy");
    let mut failed = Vec::new();
    for package in metadata.packages.iter().filter(|package| package.is_published()) {
        for feature in features::sets_alone(package) {
            let mut check = cargo([
                if has_clippy { "clippy" } else { "check" },
                "--locked",
                "--no-default-features",
            ]);
            check.args(["--package", &package.name, "--features", &feature]);
            if has_clippy {
                check.args(["--", "--deny", "warnings"]);
            }
            if let Err(error) = process::run(&mut check) {
                eprintln!("error: {error:#}");
                failed.push(format!("{} [{feature}]", package.name));
            }
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join(", "));
    }
    if has_clippy {
        Ok(Done::Passed)
    } else {
        missing("clippy")
    }
}

fn pack(metadata: &Metadata) -> anyhow::Result<Done> {
    fetch()?;
    packages::check(metadata)?;
    Ok(Done::Passed)
}

fn docs(_: &Metadata) -> anyhow::Result<Done> {
    let mut doc = cargo(["doc", "--locked", "--workspace", "--all-features", "--no-deps"]);
    process::run(doc.env("RUSTDOCFLAGS", "--deny warnings"))?;
    Ok(Done::Passed)
}

fn tests(metadata: &Metadata) -> anyhow::Result<Done> {
    let binary = e2e::build_binary(metadata)?;
    let mut test = cargo(["test", "--locked", "--workspace", "--all-features", "--no-fail-fast"]);
    process::run(test.env("IDEMP_BIN", binary))?;
    Ok(Done::Passed)
}

fn seeds(metadata: &Metadata) -> anyhow::Result<Done> {
    fuzz::check(metadata)?;
    Ok(Done::Passed)
}

fn services(_: &Metadata) -> anyhow::Result<Done> {
    e2e::run_those_with_services()?;
    Ok(Done::Passed)
}
