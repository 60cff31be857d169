//! SIGINT and SIGTERM: the first asks for an orderly end, the second ends the process at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, complain};

/// A token that is cancelled by the first signal, of which standard error is told that we are `stopping`, in that word.
/// Must be called within a runtime.
///
/// The second signal ends the process with exit code 1: then not everything is accounted for.
///
/// # Errors
/// If the operating system does not let us watch for signals.
pub(crate) fn watch(stopping: &'static str) -> Result<CancellationToken, Failure> {
    let cannot = |error: io::Error| Failure::failed("cannot watch for signals").because(&error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let asked = CancellationToken::new();
    let ask = asked.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        next().await;
        complain(format_args!("{stopping}: ending in order; once more ends at once"));
        ask.cancel();
        next().await;
        complain("interrupted again: ending at once, what is under way is not accounted for");
        std::process::exit(Exit::Failed as i32);
    });
    Ok(asked)
}
