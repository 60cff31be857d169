//! What `cargo metadata` says about the workspace's own packages.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use serde::Deserialize;

use crate::cargo::cargo;
use crate::process;

#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) target_directory: PathBuf,
    pub(crate) workspace_root: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) targets: Vec<Target>,
    /// The registries it may go to; an empty list is `publish = false`.
    publish: Option<Vec<String>>,
}

impl Package {
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    #[serde(default, deserialize_with = "kind_or_normal")]
    pub(crate) kind: Kind,
    pub(crate) optional: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// `null` in the text.
    #[default]
    Normal,
    Dev,
    Build,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

fn kind_or_normal<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The members of the workspace, without what lies outside it.
pub(crate) fn members() -> anyhow::Result<Metadata> {
    let text = process::read(&mut cargo(["metadata", "--no-deps", "--format-version", "1"]))?;
    serde_json::from_str(&text).context("cannot read what cargo metadata says")
}
