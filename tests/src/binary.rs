//! The binary `idemp` that the tests drive.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The path of the binary: `IDEMP_BIN` if that is set, else what `cargo build -p idemp-cli --features full` makes, in
/// the target folder and profile of the running test. Building once per test program keeps a test from
/// meeting an outdated binary; when nothing has changed it takes a moment.
///
/// # Panics
///
/// When `IDEMP_BIN` names no file, or the build fails.
#[must_use]
pub fn idemp_bin() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("IDEMP_BIN") {
        Some(path) => {
            let path = PathBuf::from(path);
            assert!(path.is_file(), "IDEMP_BIN names no file: {}", path.display());
            path
        }
        None => build(),
    })
}

/// A command that runs `idemp`, with no standard input and no proxy between it and the local peers.
#[must_use]
pub fn idemp() -> Command {
    let mut command = Command::new(idemp_bin());
    command.stdin(Stdio::null());
    for variable in [
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ] {
        command.env_remove(variable);
    }
    command
}

fn build() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    // TARGET/PROFILE/deps/TEST
    let profile_dir = test.ancestors().nth(2).expect("a test lies in TARGET/PROFILE/deps");
    let target_dir = profile_dir.parent().expect("a test lies in TARGET/PROFILE/deps");

    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([
            "build",
            "--quiet",
            "--package",
            "idemp-cli",
            "--features",
            "full",
            "--target-dir",
        ])
        .arg(target_dir);
    if profile_dir.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo starts");
    assert!(status.success(), "cargo build -p idemp-cli --features full: {status}");
    profile_dir.join(format!("idemp{}", std::env::consts::EXE_SUFFIX))
}
