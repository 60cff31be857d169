//! Who sends webhooks alone builds neither librdkafka nor an SDK: what each feature must not pull in.

use anyhow::bail;

use crate::cargo::cargo;
use crate::process;

/// Libraries of sinks and stores that only their own features bring along.
const HEAVY: &[&str] = &[
    "aws-config",
    "aws-sdk-sns",
    "object_store",
    "openssl-sys",
    "rdkafka-sys",
    "redis",
    "sqlx-core",
];

/// A build that a user may make, and what it must be free of.
struct Build {
    package: &'static str,
    features: &'static str,
    without: &'static [&'static str],
}

const BUILDS: &[Build] = &[
    Build {
        package: "idemp-cli",
        features: "default",
        without: HEAVY,
    },
    Build {
        package: "idemp-sinks",
        features: "webhook",
        without: HEAVY,
    },
    Build {
        package: "idemp-sinks",
        features: "kafka",
        without: &["aws-sdk-sns", "openssl-sys", "redis", "reqwest"],
    },
    Build {
        package: "idemp-sinks",
        features: "redis-streams",
        without: &["aws-sdk-sns", "rdkafka-sys", "reqwest"],
    },
    Build {
        package: "idemp-sinks",
        features: "sns",
        without: &["rdkafka-sys", "redis", "reqwest"],
    },
    Build {
        package: "idemp-dlq",
        features: "sqlite",
        without: HEAVY,
    },
    Build {
        package: "idemp-receiver",
        features: "axum sqlite",
        without: HEAVY,
    },
];

pub(crate) fn check() -> anyhow::Result<()> {
    let mut found = Vec::new();
    for build in BUILDS {
        let mut tree = cargo(["tree", "--locked", "--no-default-features", "--prefix", "none"]);
        tree.args(["--edges", "normal,build", "--package", build.package]);
        let text = process::read(tree.args(["--features", build.features]))?;
        let heavy = heavy_in(&text, build.without);
        if !heavy.is_empty() {
            found.push(format!(
                "{} [{}] pulls in {}",
                build.package,
                build.features,
                heavy.join(", ")
            ));
        }
    }
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

/// Those packages of the list that a tree of `NAME VERSION ...` lines has.
fn heavy_in<'n>(tree: &str, names: &[&'n str]) -> Vec<&'n str> {
    let has = |name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    names.iter().copied().filter(|name| has(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_by_their_whole_name() {
        let tree = "idemp-sinks v0.1.0 (/x)\nredis v1.8.1\nrdkafka-sys v4.10.0+2.12.1\nredis v1.8.1 (*)\n";
        assert_eq!(
            heavy_in(tree, &["redis", "rdkafka", "rdkafka-sys"]),
            ["redis", "rdkafka-sys"]
        );
        assert!(heavy_in("redis-protocol v1.0.0\n", &["redis"]).is_empty());
    }
}
