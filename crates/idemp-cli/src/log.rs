//! Logs on standard error. They name keys, sinks and reasons, never payloads or secrets.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::exit::complain;

/// Which variable says what is logged, in the syntax of tracing's `EnvFilter`, such as `info` or `idemp_dispatch=debug`.
const VARIABLE: &str = "IDEMP_LOG";

/// Starts logging for the rest of the process, from `default` on unless the variable says otherwise.
pub(crate) fn start(default: LevelFilter) {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let builder = || EnvFilter::builder().with_default_directive(default.into());
    // Every place where there are no credentials is a warning there; that there are none at all is our error.
    let by_default = || builder().parse_lossy(format!("{default},aws_config=error"));
    let filter = match asked.as_str() {
        "" => by_default(),
        asked => builder().parse(asked).unwrap_or_else(|_| {
            complain(format_args!(
                "warning: {VARIABLE} is not understood, and {default} holds: write it as info or idemp_dispatch=debug"
            ));
            by_default()
        }),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
