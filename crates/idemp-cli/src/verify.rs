//! `idemp verify`: checks an `X-Signature-256` against the raw bytes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use idemp_core::Verifier;

use crate::exit::{Exit, Failure};
use crate::io::{Input, print_line};
use crate::secret::AcceptedSecrets;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    secrets: AcceptedSecrets,

    /// The value of the header: sha256= and 64 hex digits
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    signature: OsString,

    #[command(flatten)]
    input: Input,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let verifier = Verifier::new(&args.secrets.load()?);
    let body = args.input.read()?;
    match verifier.verify([args.signature.as_bytes()], &body) {
        Ok(label) => {
            print_line(format_args!("good: signed with {label}"))?;
            Ok(Exit::Done)
        }
        Err(error) => Err(Failure::failed(format_args!("bad signature over {}", args.input.name())).because(&error)),
    }
}
