//! The command `idemp`: sends events, receives them, looks after dead letters and replays them.
//!
//! Each command is a module with its arguments and a `run`. What they share: exit codes and one-line errors
//! ([`exit`]), secrets ([`secret`]), times ([`times`]), input and output ([`io`]).

#![cfg_attr(
    not(all(
        feature = "webhook",
        feature = "sqlite",
        feature = "kafka",
        feature = "redis",
        feature = "sns",
        feature = "object",
        feature = "postgres"
    )),
    allow(dead_code, reason = "what only a missing feature uses; the full build has it all")
)]

mod address;
mod args;
mod canonicalize;
mod classify;
mod completions;
mod config;
#[cfg(all(feature = "webhook", feature = "sqlite"))]
mod demo;
mod dlq;
mod doctor;
mod exit;
mod filter;
mod io;
mod jsonl;
mod key;
mod log;
mod progress;
mod receive;
#[cfg(feature = "redis")]
mod redis_address;
mod replay;
mod secret;
mod send;
mod shell;
mod sign;
mod signals;
mod store;
mod target;
mod times;
mod verify;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::exit::{Exit, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage_or_help(&error).into(),
    };
    log::start(cli.command.log_level());
    match run(cli.command) {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report().into(),
    }
}

fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        #[cfg(all(feature = "webhook", feature = "sqlite"))]
        Command::Demo(args) => demo::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Dlq(args) => dlq::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Canonicalize(args) => canonicalize::run(&args),
        Command::Sign(args) => sign::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Classify(args) => classify::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}

/// The runtime of a command that waits for something.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Runtime::new().map_err(|error| Failure::failed("cannot start the runtime").because(&error))
}
