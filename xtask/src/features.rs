//! The sets of features under which a crate has to build alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::metadata::Package;

/// Features that only name others; no code asks for them.
const NAMES_FOR_OTHERS: &[&str] = &["default", "full"];

/// No feature, then each feature by itself. Left out: a feature that switches on what another set has already, and one
/// that switches on everything, since all features together are checked with the whole workspace.
pub(crate) fn sets_alone(package: &Package) -> Vec<String> {
    let mut seen = BTreeSet::from([closure(&package.features, package.features.keys())]);
    let mut sets = Vec::new();
    for feature in std::iter::once(None).chain(package.features.keys().map(Some)) {
        if seen.insert(closure(&package.features, feature)) {
            sets.push(feature.cloned().unwrap_or_default());
        }
    }
    sets
}

/// The features of this crate that `roots` switch on.
fn closure<'a>(
    features: &'a BTreeMap<String, Vec<String>>,
    roots: impl IntoIterator<Item = &'a String>,
) -> BTreeSet<&'a str> {
    let mut on = BTreeSet::new();
    let mut open: Vec<&str> = roots.into_iter().map(String::as_str).collect();
    while let Some(feature) = open.pop() {
        // What is not a feature of this crate is `dep:NAME` or `NAME/FEATURE`.
        if let Some(switched_on) = features.get(feature)
            && on.insert(feature)
        {
            open.extend(switched_on.iter().map(String::as_str));
        }
    }
    on.retain(|feature| !NAMES_FOR_OTHERS.contains(feature));
    on
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(features: serde_json::Value, expected: &[&str]) {
        let package = json!({
            "name": "a", "version": "0.1.0", "manifest_path": "Cargo.toml", "dependencies": [], "features": features,
            "targets": [], "publish": null,
        });
        assert_eq!(sets_alone(&serde_json::from_value(package).unwrap()), expected);
    }

    #[test]
    fn a_crate_without_features_is_checked_with_the_workspace() {
        check(json!({}), &[]);
        check(json!({"default": []}), &[]);
    }

    #[test]
    fn one_feature_alone_is_all_features() {
        check(json!({"default": [], "webhook": ["dep:reqwest"]}), &[""]);
    }

    #[test]
    fn each_of_several_features_is_checked_alone() {
        check(
            json!({"default": [], "redis": ["dep:redis"], "sqlite": ["dep:rusqlite", "b?/x"]}),
            &["", "redis", "sqlite"],
        );
    }

    #[test]
    fn what_would_be_the_same_again_is_left_out() {
        check(
            json!({"default": ["a", "b"], "a": [], "b": ["dep:b"], "c": ["b"], "full": ["a", "c"]}),
            &["", "a", "b", "c", "default"],
        );
        check(
            json!({"default": ["a", "b"], "a": [], "b": [], "full": ["a", "b"]}),
            &["", "a", "b"],
        );
    }
}
