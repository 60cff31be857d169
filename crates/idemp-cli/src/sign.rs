//! `idemp sign`: prints `sha256=<hex>` over the raw bytes.

use idemp_core::Signer;

use crate::exit::{Exit, Failure};
use crate::io::{Input, print_line};
use crate::secret::SigningSecret;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    secret: SigningSecret,

    #[command(flatten)]
    input: Input,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let signer = Signer::new(&args.secret.load()?);
    print_line(signer.header(&args.input.read()?).as_str())?;
    Ok(Exit::Done)
}
