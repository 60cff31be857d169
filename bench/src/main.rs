//! Benchmarks as ratios from one run: ours and the other side in turns, so that whatever the machine does hits both.
//!
//! It prints and never judges: the exit status is 0 whatever the figures are.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for a person at a terminal"
)]

mod allocator;
mod canonical;
mod claims;
mod corpus;
mod cpython;
mod fastapi;
mod hmac;
mod load;
mod local;
mod machine;
mod measure;
mod memory;
mod receiver;
mod report;
mod serialize;
mod sinks;
mod webhook;

use std::process::ExitCode;

use anyhow::bail;

use crate::report::{Bench, Report};

/// Every benchmark, in the order in which they run.
const BENCHES: &[(&str, Run)] = &[
    ("canonical", canonical::run),
    ("serialize", serialize::run),
    ("hmac", hmac::run),
    ("webhook", webhook::run),
    ("receiver", receiver::run),
    ("sinks", sinks::run),
    ("memory", memory::run),
];

type Run = fn() -> anyhow::Result<Bench>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let json = arguments.iter().any(|argument| argument == "--json");
    let names: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|name| *name != "--json")
        .collect();
    if let Some(unknown) = names
        .iter()
        .find(|name| BENCHES.iter().all(|(known, _)| known != *name))
    {
        let known: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
        bail!(
            "no benchmark is called {unknown}; there are {}, and the flag --json",
            known.join(", ")
        );
    }
    if cfg!(debug_assertions) {
        eprintln!("THIS IS NOT A RELEASE BUILD: the figures mean nothing");
    }

    let mut report = Report::new();
    if !json {
        print!("{}", report.head());
    }
    for (name, bench) in BENCHES {
        if names.is_empty() || names.contains(name) {
            eprintln!("running {name} ...");
            let bench = bench()?;
            if !json {
                print!("{bench}");
            }
            report.benches.push(bench);
        }
    }
    report.end();
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.foot());
    }
    Ok(())
}
