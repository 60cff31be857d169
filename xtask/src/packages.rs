//! What a user of one crate gets: each published crate is packed, unpacked elsewhere, and built with the others' packages.

use anyhow::bail;

use crate::cargo::cargo;
use crate::metadata::Metadata;
use crate::process;

/// Files that no package may be without.
const EXPECTED: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Packs all published crates; an error if one lacks a file or does not build from its package.
pub(crate) fn check(metadata: &Metadata) -> anyhow::Result<()> {
    let published = || metadata.packages.iter().filter(|package| package.is_published());
    let mut missing = Vec::new();
    for package in published() {
        let mut list = cargo(["package", "--locked", "--offline", "--allow-dirty", "--list"]);
        let files = process::read(list.args(["--package", &package.name]))?;
        missing.extend(absent(&files).map(|file| format!("{}: its package has no {file}", package.name)));
    }
    if !missing.is_empty() {
        bail!("{}", missing.join("\n"));
    }
    // Together, so that each finds the others without a registry that has them.
    let mut pack = cargo(["package", "--locked", "--offline", "--allow-dirty"]);
    for package in published() {
        pack.args(["--package", &package.name]);
    }
    process::run(&mut pack)
}

/// `files` has a path in each line.
fn absent(files: &str) -> impl Iterator<Item = &'static str> {
    EXPECTED
        .into_iter()
        .filter(|expected| files.lines().all(|file| file != *expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_package_lacks_is_found() {
        let files = "Cargo.toml\nLICENSE-APACHE\nLICENSE-MIT\nREADME.md\nsrc/lib.rs\n";
        assert_eq!(absent(files).next(), None);
        let files = "Cargo.toml\nLICENSE-MIT\ndocs/README.md\nsrc/lib.rs\n";
        assert_eq!(absent(files).collect::<Vec<_>>(), ["LICENSE-APACHE", "README.md"]);
    }
}
