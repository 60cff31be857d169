//! Scripts that judge what arrived.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::Process;

/// Only a guard against hanging for ever.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a Python script and takes the one JSON value that it prints.
///
/// # Panics
///
/// When the script fails, or prints something else.
#[must_use]
pub fn json_of(command: &mut Command) -> Value {
    let finished = Process::run("a Python script", command, LIMIT);
    assert!(finished.status.success(), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stdout))
}
