//! Logs on standard error. They name keys, sinks and reasons, never payloads or secrets.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Which variable says what is logged, in the syntax of tracing's `EnvFilter`, such as `info` or `idemp_dispatch=debug`.
const VARIABLE: &str = "IDEMP_LOG";

/// Starts logging for the rest of the process, from `default` on unless the variable says otherwise.
pub(crate) fn start(default: LevelFilter) {
    let filter = EnvFilter::builder()
        .with_default_directive(default.into())
        .with_env_var(VARIABLE)
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
