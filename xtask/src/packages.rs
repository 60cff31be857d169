//! What a user of one crate gets: each published crate is packed, unpacked elsewhere, and checked beside the others'
//! packages.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::cargo::cargo;
use crate::metadata::{Metadata, Package};
use crate::process;

/// Files that no package may be without.
const EXPECTED: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Packs all published crates; an error if one lacks a file or does not compile from its package.
pub(crate) fn check(metadata: &Metadata) -> anyhow::Result<()> {
    let packages: Vec<&Package> = metadata
        .packages
        .iter()
        .filter(|package| package.is_published())
        .collect();
    let mut missing = Vec::new();
    for package in &packages {
        let mut list = cargo(["package", "--locked", "--offline", "--allow-dirty", "--list"]);
        let files = process::read(list.args(["--package", &package.name]))?;
        missing.extend(absent(&files).map(|file| format!("{}: its package has no {file}", package.name)));
    }
    if !missing.is_empty() {
        bail!("{}", missing.join("\n"));
    }
    // Together, so that each finds the others without a registry that has them.
    let mut pack = cargo(["package", "--locked", "--offline", "--allow-dirty", "--no-verify"]);
    for package in &packages {
        pack.args(["--package", &package.name]);
    }
    process::run(&mut pack)?;

    // cargo would build them itself, but takes a package of the same version for the one that it built the last time.
    let packed = metadata.target_directory.join("package");
    let folder = packed.join("unpacked");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for package in &packages {
        let file = packed.join(format!("{}.crate", file_stem(package)));
        // As new: cargo looks at the times of files, and those in a package are all the same.
        let mut unpack = Command::new("tar");
        process::run(unpack.arg("-xmzf").arg(file).arg("-C").arg(&folder))?;
    }
    build(metadata, &packages, &folder)
}

fn build(metadata: &Metadata, packages: &[&Package], folder: &Path) -> anyhow::Result<()> {
    let mut manifest = "[workspace]\nresolver = \"3\"\nmembers = [\"*-*\"]\n\n[patch.crates-io]\n".to_owned();
    for package in packages {
        writeln!(manifest, "{} = {{ path = \"{}\" }}", package.name, file_stem(package))?;
    }
    fs::write(folder.join("Cargo.toml"), manifest)?;
    // The versions that everything else is built with, as far as they are needed.
    fs::copy(metadata.workspace_root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut check = cargo(["check", "--offline", "--workspace", "--manifest-path"]);
    check.arg(folder.join("Cargo.toml"));
    process::run(check.env("CARGO_TARGET_DIR", &metadata.target_directory))
}

fn file_stem(package: &Package) -> String {
    format!("{}-{}", package.name, package.version)
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
