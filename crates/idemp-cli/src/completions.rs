//! `idemp completions`: what a shell needs to complete our words.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::{Exit, Failure};
use crate::io::print_bytes;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "idemp", &mut script);
    print_bytes(&script)?;
    Ok(Exit::Done)
}
