//! Who may import whom (ARCHITECTURE.md), as data and a check.

use crate::metadata::{Kind, Metadata, Package};

/// What each crate may import of ours, apart from tests.
const OURS: &[(&str, &[&str])] = &[
    ("idemp-core", &[]),
    ("idemp-sinks", &["idemp-core"]),
    ("idemp-dlq", &["idemp-core"]),
    ("idemp-receiver", &["idemp-core"]),
    ("idemp-dispatch", &["idemp-core", "idemp-dlq"]),
    (
        "idemp-cli",
        &[
            "idemp-core",
            "idemp-sinks",
            "idemp-dlq",
            "idemp-receiver",
            "idemp-dispatch",
        ],
    ),
    ("idemp-testkit", &["idemp-core"]),
    ("idemp-bench", ALL),
    ("idemp-tests", ALL),
    ("xtask", &[]),
];
const ALL: &[&str] = &[
    "idemp-core",
    "idemp-sinks",
    "idemp-dlq",
    "idemp-receiver",
    "idemp-dispatch",
    "idemp-cli",
    "idemp-testkit",
    "idemp-tests",
];

/// Any crate's tests may use this.
const TEST_SUPPORT: &str = "idemp-testkit";

/// The crates of vendors, by their name or the start of it, and the published crates with an adapter for them. There
/// they are optional; in programs ([`PROGRAMS`]) they need not be.
const VENDORS: &[(&str, &[&str])] = &[
    ("reqwest", &["idemp-sinks", "idemp-dlq"]),
    ("rdkafka", &["idemp-sinks", "idemp-receiver"]),
    ("redis", &["idemp-sinks", "idemp-dlq", "idemp-receiver"]),
    ("aws-", &["idemp-sinks"]),
    ("axum", &["idemp-receiver", "idemp-cli"]),
    ("rusqlite", &["idemp-dlq", "idemp-receiver", "idemp-dispatch"]),
    ("sqlx", &["idemp-dlq", "idemp-receiver", "idemp-dispatch"]),
    ("object_store", &["idemp-dlq"]),
];
const PROGRAMS: &[&str] = &["idemp-cli"];

/// One sentence for each edge that should not be.
pub(crate) fn violations(metadata: &Metadata) -> Vec<String> {
    metadata.packages.iter().flat_map(violations_of).collect()
}

fn violations_of(package: &Package) -> Vec<String> {
    let name = &package.name;
    let Some((_, allowed)) = OURS.iter().find(|(ours, _)| ours == name) else {
        return vec![format!("{name} is not in the table of layers")];
    };
    let mut found = Vec::new();
    for dependency in &package.dependencies {
        let (import, kind) = (&dependency.name, dependency.kind);
        let is_ours = OURS.iter().any(|(ours, _)| ours == import);
        // A crate may import itself for its tests, to switch on its own features there.
        let is_for_tests = kind == Kind::Dev && (import == TEST_SUPPORT || import == name);
        if is_ours && !is_for_tests && !allowed.contains(&import.as_str()) {
            found.push(format!("{name} must not import {import}"));
        }
        if kind == Kind::Dev || !package.is_published() {
            continue;
        }
        if let Some((_, adapters)) = VENDORS.iter().find(|(vendor, _)| is_of(import, vendor)) {
            if !adapters.contains(&name.as_str()) {
                found.push(format!("{name} has no adapter for {import} and must not import it"));
            } else if !dependency.optional && !PROGRAMS.contains(&name.as_str()) {
                found.push(format!("{import} must be optional in {name}"));
            }
        }
    }
    found
}

/// `aws-` stands for a family, any other name for itself.
fn is_of(import: &str, vendor: &str) -> bool {
    if vendor.ends_with('-') {
        import.starts_with(vendor)
    } else {
        import == vendor
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, published: bool, dependencies: serde_json::Value) -> serde_json::Value {
        json!({
            "name": name, "version": "0.1.0", "manifest_path": "Cargo.toml", "dependencies": dependencies,
            "features": {}, "targets": [], "publish": if published { json!(null) } else { json!([]) },
        })
    }

    fn check(packages: serde_json::Value, expected: &[&str]) {
        let graph = json!({"packages": packages, "target_directory": "target", "workspace_root": "."});
        assert_eq!(violations(&serde_json::from_value(graph).unwrap()), expected);
    }

    #[test]
    fn the_layers_as_they_should_be_pass() {
        check(
            json!([
                package(
                    "idemp-core",
                    true,
                    json!([{"name": "idemp-testkit", "kind": "dev", "optional": false}])
                ),
                package(
                    "idemp-sinks",
                    true,
                    json!([
                        {"name": "idemp-core", "kind": null, "optional": false},
                        {"name": "reqwest", "kind": null, "optional": true},
                        {"name": "axum", "kind": "dev", "optional": false},
                    ])
                ),
                package(
                    "idemp-bench",
                    false,
                    json!([{"name": "reqwest", "kind": null, "optional": false}])
                ),
            ]),
            &[],
        );
    }

    #[test]
    fn each_edge_that_should_not_be_is_named() {
        check(
            json!([
                package(
                    "idemp-core",
                    true,
                    json!([{"name": "idemp-dlq", "kind": null, "optional": true}])
                ),
                package(
                    "idemp-sinks",
                    true,
                    json!([{"name": "idemp-dlq", "kind": "dev", "optional": false}])
                ),
                package(
                    "idemp-dlq",
                    true,
                    json!([{"name": "idemp-testkit", "kind": null, "optional": false}])
                ),
                package(
                    "idemp-receiver",
                    true,
                    json!([{"name": "idemp-core", "kind": "build", "optional": false}])
                ),
                package(
                    "idemp-dispatch",
                    true,
                    json!([{"name": "idemp-sinks", "kind": null, "optional": false}])
                ),
                package(
                    "xtask",
                    false,
                    json!([{"name": "idemp-core", "kind": null, "optional": false}])
                ),
                package("idemp-extra", true, json!([])),
            ]),
            &[
                "idemp-core must not import idemp-dlq",
                "idemp-sinks must not import idemp-dlq",
                "idemp-dlq must not import idemp-testkit",
                "idemp-dispatch must not import idemp-sinks",
                "xtask must not import idemp-core",
                "idemp-extra is not in the table of layers",
            ],
        );
    }

    #[test]
    fn vendors_stay_in_their_adapters_and_optional() {
        check(
            json!([
                package(
                    "idemp-core",
                    true,
                    json!([{"name": "aws-sdk-sns", "kind": null, "optional": true}])
                ),
                package(
                    "idemp-sinks",
                    true,
                    json!([{"name": "reqwest", "kind": null, "optional": false}])
                ),
                package(
                    "idemp-receiver",
                    true,
                    json!([{"name": "axum-core", "kind": null, "optional": false}])
                ),
                package(
                    "idemp-cli",
                    true,
                    json!([{"name": "axum", "kind": null, "optional": false}])
                ),
            ]),
            &[
                "idemp-core has no adapter for aws-sdk-sns and must not import it",
                "reqwest must be optional in idemp-sinks",
            ],
        );
    }
}
