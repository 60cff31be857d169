//! `cargo xtask`: everything that the project does to itself, in one program without shell scripts.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for a person at a terminal"
)]

mod bench;
mod cargo;
mod ci;
mod e2e;
mod features;
mod fuzz;
mod layers;
mod lean;
mod metadata;
mod packages;
mod process;
mod table;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask ci [STEP..]                     every check, then the end-to-end tests
       cargo xtask e2e [--allow-missing] [NAME..]  end-to-end tests, with the services that they need
       cargo xtask bench [NAME..]                  benchmarks, in release mode
       cargo xtask fuzz [--seconds=N] [TARGET..]   the fuzzer at each target, for a minute or so long

--allow-missing skips, in capitals, the suites whose services cannot be had here";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = process::stop_children_on_signals().and_then(|()| match arguments.as_slice() {
        ["ci", steps @ ..] => ci::run(steps),
        ["e2e", rest @ ..] => {
            let (flags, names): (Vec<&str>, Vec<&str>) = rest.iter().partition(|word| word.starts_with("--"));
            match flags.as_slice() {
                [] => e2e::run(&names, e2e::Missing::Fails),
                ["--allow-missing"] => e2e::run(&names, e2e::Missing::IsSkipped),
                _ => usage(),
            }
        }
        ["bench", names @ ..] => bench::run(names),
        ["fuzz", rest @ ..] => {
            let (flags, names): (Vec<&str>, Vec<&str>) = rest.iter().partition(|word| word.starts_with("--"));
            let seconds = match flags.as_slice() {
                [] => None,
                [flag] if flag.starts_with("--seconds=") => flag.strip_prefix("--seconds="),
                _ => return usage(),
            };
            fuzz::run(&metadata::members()?, &names, seconds)
        }
        _ => usage(),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> anyhow::Result<()> {
    eprintln!("{USAGE}");
    std::process::exit(2)
}
