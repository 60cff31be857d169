//! Calling cargo.

use std::process::{Command, Stdio};

/// The cargo that runs xtask, without what it told xtask about itself, so that its builds are the same as without
/// xtask. rustup is kept from adding toolchains and components.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command.env("RUSTUP_AUTO_INSTALL", "0").args(arguments);
    command
}

/// Whether `cargo NAME` can be run here.
pub(crate) fn has_subcommand(name: &str) -> bool {
    let mut version = cargo([name, "--version"]);
    version.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}
