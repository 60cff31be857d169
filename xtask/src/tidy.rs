//! Rules of the repository that no compiler knows.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::cargo;
use crate::metadata::Metadata;
use crate::process;

/// Text that no file may hold, in which files, and why. Each pattern is put together here so that this file passes.
const FORBIDDEN: &[(&str, Files, &str)] = &[
    (concat!("todo", "!("), Files::Rust, "unfinished code"),
    (concat!("unimplemented", "!("), Files::Rust, "unfinished code"),
    (
        concat!("#[", "ignore"),
        Files::Rust,
        "slow tests are chosen by environment variable",
    ),
    (concat!("/wo", "rk/"), Files::All, "an absolute path of one machine"),
    (concat!("/ro", "ot/"), Files::All, "an absolute path of one machine"),
    (concat!("../", "shared"), Files::All, "a path outside the repository"),
];

/// Features that change how JSON behaves in every crate of a program.
const JSON_CHANGING: &[&str] = &["arbitrary_precision", "preserve_order"];

/// May carry lints of its own.
const OWN_LINTS: &str = "idemp-bench";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    Rust,
    All,
}

/// Checks the whole repository; the error lists every breach.
pub(crate) fn check(metadata: &Metadata) -> anyhow::Result<()> {
    let root = &metadata.workspace_root;
    let mut breaches = Vec::new();

    let listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let files = process::read(Command::new("git").args(listed).current_dir(root)).context("tidy reads git's list")?;
    for name in files.split_terminator('\0').filter(|name| *name != "Cargo.lock") {
        // A file that is removed but still listed, or is not text, has nothing to check.
        if let Ok(text) = fs::read_to_string(root.join(name)) {
            breaches.extend(forbidden_text(name, &text));
        }
    }

    // A source file that git ignores is in nobody else's clone.
    let ignored = [
        "ls-files",
        "-z",
        "--others",
        "--ignored",
        "--exclude-standard",
        "--",
        "*.rs",
        ":!target",
    ];
    let files = process::read(Command::new("git").args(ignored).current_dir(root)).context("tidy reads git's list")?;
    breaches.extend(
        files
            .split_terminator('\0')
            .map(|name| format!("{name}: git ignores it")),
    );

    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    breaches.extend(workspace_dependencies(&manifest));
    for package in &metadata.packages {
        let manifest = fs::read_to_string(&package.manifest_path)?;
        if !takes_workspace_lints(&manifest) && package.name != OWN_LINTS {
            breaches.push(format!("{}: no `[lints] workspace = true`", package.name));
        }
    }

    let mut tree = cargo(["tree", "--locked", "--workspace", "--all-features", "--target", "all"]);
    tree.args(["--edges", "normal,build", "--prefix", "none", "--format", "{p} {f}"]);
    for package in metadata.packages.iter().filter(|package| !package.is_published()) {
        tree.args(["--exclude", &package.name]);
    }
    breaches.extend(json_changing(&process::read(&mut tree)?));

    if breaches.is_empty() {
        Ok(())
    } else {
        bail!("{}", breaches.join("\n"))
    }
}

fn forbidden_text(name: &str, text: &str) -> Vec<String> {
    let is_rust = Path::new(name).extension().is_some_and(|extension| extension == "rs");
    let rules = FORBIDDEN.iter().filter(|(_, files, _)| *files == Files::All || is_rust);
    let mut breaches = Vec::new();
    for (pattern, _, why) in rules {
        for (number, line) in text.lines().enumerate() {
            if line.contains(pattern) {
                breaches.push(format!("{name}:{}: {pattern}: {why}", number + 1));
            }
        }
    }
    breaches
}

/// In `[workspace.dependencies]` each line has a comment above it that says why the crate is there; crates of one
/// family, whose names begin alike, may stand together under one. Crates from outside come without default features.
fn workspace_dependencies(manifest: &str) -> Vec<String> {
    let section = manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1);
    let mut breaches = Vec::new();
    let mut above = "";
    for line in section.take_while(|line| !line.starts_with('[')) {
        if let Some((name, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            let name = name.trim();
            if !above.starts_with('#') && family(above) != family(name) {
                breaches.push(format!("Cargo.toml: no comment says why {name} is there"));
            }
            if !value.contains("path =") && !value.contains("default-features = false") {
                breaches.push(format!("Cargo.toml: {name} comes with its default features"));
            }
        }
        above = line;
    }
    breaches
}

fn family(line: &str) -> &str {
    line.split(['-', '_', ' ', '=']).next().unwrap_or(line)
}

fn takes_workspace_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().skip_while(|line| *line != "[lints]").skip(1);
    lines.next() == Some("workspace = true")
}

/// `tree` has a package, its version and the features that are on in each line.
fn json_changing(tree: &str) -> Vec<String> {
    let lines = tree.lines().filter(|line| line.starts_with("serde_json "));
    let features = lines.flat_map(|line| line.split([' ', ',']));
    let mut breaches: Vec<String> = features
        .filter(|feature| JSON_CHANGING.contains(feature))
        .map(|feature| format!("a dependency switches on serde_json's {feature} for every user"))
        .collect();
    breaches.dedup();
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_text_is_found_with_its_line() {
        let unfinished = concat!("fn main() {\n    to", "do!()\n}\n");
        assert_eq!(
            forbidden_text("src/main.rs", unfinished),
            [concat!("src/main.rs:2: to", "do!(: unfinished code")]
        );
        assert!(forbidden_text("README.md", unfinished).is_empty());

        let path = concat!("see /ro", "ot/x");
        let expected = concat!("README.md:1: /ro", "ot/: an absolute path of one machine");
        assert_eq!(forbidden_text("README.md", path), [expected]);
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let manifest = "\
[workspace.dependencies]
# Ours.
a-core = { path = \"a\" }
a-dlq = { path = \"b\" }

# Why.
tower-layer = { version = \"1\", default-features = false }
tower-service = { version = \"1\", default-features = false }
uuid = { version = \"1\", default-features = false }

zmij = \"1\"

[workspace.lints.rust]
unsafe_code = \"deny\"
";
        assert_eq!(
            workspace_dependencies(manifest),
            [
                "Cargo.toml: no comment says why uuid is there",
                "Cargo.toml: no comment says why zmij is there",
                "Cargo.toml: zmij comes with its default features",
            ]
        );
    }

    #[test]
    fn lints_come_from_the_workspace() {
        assert!(takes_workspace_lints(
            "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"
        ));
        assert!(!takes_workspace_lints(
            "[package]\nname = \"a\"\nversion.workspace = true\n"
        ));
        assert!(!takes_workspace_lints("[lints]\n\n[dependencies]\nworkspace = true\n"));
    }

    #[test]
    fn features_that_change_json_are_found() {
        let tree = "jiter v0.19.0 default\nserde_json v1.0.1 arbitrary_precision,std\nserde_json v1.0.1 std (*)\n";
        assert_eq!(
            json_changing(tree),
            ["a dependency switches on serde_json's arbitrary_precision for every user"]
        );
        assert!(json_changing("serde_json v1.0.1 raw_value,std\nother v1.0.0 preserve_order\n").is_empty());
    }
}
