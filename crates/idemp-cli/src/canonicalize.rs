//! `idemp canonicalize`: JSON text in, canonical bytes out, nothing added.

use idemp_core::canonical;

use crate::exit::{Exit, Failure};
use crate::io::{Input, print_bytes};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let text = args.input.read()?;
    let canonical = canonical::from_json(&text).map_err(|error| Failure::failed(args.input.name()).because(&error))?;
    print_bytes(&canonical)?;
    Ok(Exit::Done)
}
