//! `cargo xtask e2e`: the integration tests, suite by suite, with the services that each needs.
//!
//! A new service is a module with a `start` function and a [`Need`]; a new suite is a row in [`SUITES`].

mod kafka;
mod ministack;
mod postgres;
mod python;
mod redis;
mod service;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::bail;

use crate::cargo::cargo;
use crate::metadata::{self, Metadata};
use crate::{process, table};
use service::Service;

/// The packages whose integration tests are divided among the suites.
const PACKAGES: &[&str] = &["idemp-cli", "idemp-tests"];

/// A set of test programs that are run together.
struct Suite {
    name: &'static str,
    /// Their names; an empty list stands for all that no other suite has.
    programs: &'static [&'static str],
    needs: &'static [Need],
}

const SUITES: &[Suite] = &[
    Suite {
        name: "cli",
        programs: &[],
        needs: &[],
    },
    Suite {
        name: "python",
        programs: &["python"],
        needs: &[PYTHON, REDIS],
    },
    Suite {
        name: "claims",
        programs: &["claims"],
        needs: &[PYTHON, REDIS_PROGRAMS, POSTGRES],
    },
    Suite {
        name: "kafka",
        programs: &["kafka"],
        needs: &[KAFKA],
    },
    Suite {
        name: "redis",
        programs: &["redis"],
        needs: &[PYTHON, REDIS_PROGRAMS],
    },
    Suite {
        name: "consumers",
        programs: &["consumers"],
        needs: &[REDIS_PROGRAMS, KAFKA],
    },
    Suite {
        name: "dead-letters",
        programs: &["dead_letters", "dead_letters_s3", "dead_letters_s3_many"],
        needs: &[REDIS_PROGRAMS, S3],
    },
    Suite {
        name: "sns",
        programs: &["sns"],
        needs: &[SNS],
    },
    Suite {
        name: "command",
        programs: &["command"],
        needs: &[KAFKA, REDIS_PROGRAMS, SNS, POSTGRES],
    },
    Suite {
        name: "fan-out",
        programs: &["fan_out"],
        needs: &[KAFKA, REDIS_PROGRAMS, SNS],
    },
];

/// Something outside this repository that a suite needs.
struct Need {
    name: &'static str,
    start: fn(&Setup) -> anyhow::Result<Provided>,
}

const PYTHON: Need = Need {
    name: "python",
    start: python::start,
};
const KAFKA: Need = Need {
    name: "kafka",
    start: kafka::start,
};
const POSTGRES: Need = Need {
    name: "postgres",
    start: postgres::start,
};
const S3: Need = Need {
    name: "s3",
    start: ministack::s3,
};
const SNS: Need = Need {
    name: "sns",
    start: ministack::sns,
};
const REDIS: Need = Need {
    name: "redis",
    start: redis::start,
};

const REDIS_PROGRAMS: Need = Need {
    name: "redis programs",
    start: redis::programs,
};

/// A need that is met.
struct Provided {
    /// What it is, for the table.
    version: String,
    /// How tests find it.
    environment: Vec<(&'static str, String)>,
    /// What to stop afterwards, where xtask started something.
    service: Option<Service>,
}

/// Where services keep their things.
struct Setup {
    workspace_root: PathBuf,
    /// Under the target folder; what is in it may be kept from run to run.
    dir: PathBuf,
}

impl Setup {
    fn new(metadata: &Metadata) -> Self {
        Self {
            workspace_root: metadata.workspace_root.clone(),
            dir: metadata.target_directory.join("e2e"),
        }
    }
}

/// What to do when a need cannot be met here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Fails,
    IsSkipped,
}

/// Runs the suites of these names, or all.
pub(crate) fn run(names: &[&str], missing: Missing) -> anyhow::Result<()> {
    if let Some(unknown) = names
        .iter()
        .find(|name| SUITES.iter().all(|suite| suite.name != **name))
    {
        let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("there is no suite {unknown}, only {}", known.join(", "));
    }
    run_suites(&|suite| names.is_empty() || names.contains(&suite.name), missing)
}

/// Runs the suites that plain `cargo test` cannot run.
pub(crate) fn run_those_with_services() -> anyhow::Result<()> {
    run_suites(&|suite| !suite.needs.is_empty(), Missing::Fails)
}

/// Builds the binary as it is released, though unoptimised, and hands back its path.
pub(crate) fn build_binary(metadata: &Metadata) -> anyhow::Result<PathBuf> {
    process::run(&mut cargo([
        "build",
        "--locked",
        "--package",
        "idemp-cli",
        "--features",
        "full",
    ]))?;
    let binary = metadata.target_directory.join("debug").join("idemp");
    if !binary.is_file() {
        bail!("the build made no {}", binary.display());
    }
    Ok(binary)
}

/// Where programs of servers are that can be had here, for benchmarks, which start them themselves. What cannot be had
/// is told.
pub(crate) fn servers() -> anyhow::Result<Vec<(&'static str, String)>> {
    let setup = Setup::new(&metadata::members()?);
    let mut environment = Vec::new();
    for need in [PYTHON, REDIS_PROGRAMS, KAFKA, POSTGRES] {
        match (need.start)(&setup) {
            Ok(provided) => environment.extend(provided.environment),
            Err(error) => eprintln!("!!!! {} IS MISSING: {error:#}", need.name.to_uppercase()),
        }
    }
    Ok(environment)
}

fn run_suites(chosen: &dyn Fn(&Suite) -> bool, missing: Missing) -> anyhow::Result<()> {
    let metadata = metadata::members()?;
    let binary = build_binary(&metadata)?;
    let setup = Setup::new(&metadata);
    let mut needs: BTreeMap<&str, anyhow::Result<Provided>> = BTreeMap::new();
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for suite in SUITES.iter().filter(|suite| chosen(suite)) {
        println!("\n==== e2e {}", suite.name);
        for need in suite.needs {
            needs.entry(need.name).or_insert_with(|| (need.start)(&setup));
        }
        let provided: Result<Vec<&Provided>, (&str, &anyhow::Error)> = suite
            .needs
            .iter()
            .map(|need| needs[need.name].as_ref().map_err(|error| (need.name, error)))
            .collect();
        let row = match provided {
            Ok(provided) => {
                let counted = run_suite(suite, &metadata, &binary, &provided);
                if let Err(error) = &counted {
                    eprintln!("error: {error:#}");
                }
                let passed = counted.as_ref().is_ok_and(Counted::is_passed);
                if !passed {
                    failed.push(suite.name);
                    provided
                        .iter()
                        .filter_map(|provided| provided.service.as_ref())
                        .for_each(Service::keep_log);
                }
                let versions: Vec<&str> = provided.iter().map(|provided| provided.version.as_str()).collect();
                let counted = counted.unwrap_or_default();
                [
                    versions.join(", "),
                    counted.run.to_string(),
                    counted.passed.to_string(),
                    verdict(passed).to_owned(),
                ]
            }
            Err((need, error)) => {
                println!("!!!! {} IS MISSING: {error:#}", need.to_uppercase());
                if missing == Missing::Fails {
                    failed.push(suite.name);
                }
                let verdict = if missing == Missing::Fails { "FAILED" } else { "SKIPPED" };
                [
                    format!("NO {}", need.to_uppercase()),
                    "0".to_owned(),
                    "0".to_owned(),
                    verdict.to_owned(),
                ]
            }
        };
        rows.push([vec![suite.name.to_owned()], row.to_vec()].concat());
    }
    drop(needs);
    table::print(&["suite", "with", "tests run", "passed", "verdict"], &rows);
    if !failed.is_empty() {
        bail!("e2e failed: {}", failed.join(", "));
    }
    Ok(())
}

fn verdict(passed: bool) -> &'static str {
    if passed { "passed" } else { "FAILED" }
}

/// Runs the suite's programs. All features of the whole workspace are on, as in `cargo test --workspace
/// --all-features`, so that nothing is built twice.
fn run_suite(suite: &Suite, metadata: &Metadata, binary: &PathBuf, needs: &[&Provided]) -> anyhow::Result<Counted> {
    let mut test = cargo(["test", "--locked", "--workspace", "--all-features", "--no-fail-fast"]);
    for program in programs(suite, metadata)? {
        test.args(["--test", program]);
    }
    test.env("IDEMP_BIN", binary).env("IDEMP_E2E", suite.name);
    test.envs(
        needs
            .iter()
            .flat_map(|provided| provided.environment.iter().map(|(name, value)| (name, value))),
    );
    let (status, text) = process::run_and_read(&mut test)?;
    let counted = Counted::from_output(&text);
    if !status.success() && counted.is_passed() {
        bail!("cargo test: {status}");
    }
    Ok(counted)
}

fn programs<'a>(suite: &Suite, metadata: &'a Metadata) -> anyhow::Result<Vec<&'a str>> {
    let packages = metadata
        .packages
        .iter()
        .filter(|package| PACKAGES.contains(&package.name.as_str()));
    let targets = packages.flat_map(|package| &package.targets);
    let all = targets.filter(|target| target.kind.iter().any(|kind| kind == "test"));
    let taken = |name: &str| SUITES.iter().any(|suite| suite.programs.contains(&name));
    let is_ours = |name: &str| suite.programs.contains(&name) || suite.programs.is_empty() && !taken(name);
    let programs: Vec<&str> = all
        .map(|target| target.name.as_str())
        .filter(|name| is_ours(name))
        .collect();
    if programs.is_empty() {
        // Without a name cargo would run every test there is.
        bail!("the suite {} has no test program", suite.name);
    }
    Ok(programs)
}

/// What the test programs said at their end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    run: u64,
    passed: u64,
}

impl Counted {
    /// Sums up the lines `test result: ok. 3 passed; 0 failed; ...`.
    fn from_output(text: &str) -> Self {
        let mut counted = Self::default();
        for line in text.lines().filter_map(|line| line.strip_prefix("test result: ")) {
            let counts = line.split_once(". ").map_or(line, |(_, counts)| counts).split("; ");
            for (number, what) in counts.filter_map(|count| count.split_once(' ')) {
                let number: u64 = number.parse().unwrap_or(0);
                match what {
                    "passed" => (counted.run, counted.passed) = (counted.run + number, counted.passed + number),
                    "failed" => counted.run += number,
                    _ => {}
                }
            }
        }
        counted
    }

    /// A suite without a test has shown nothing.
    fn is_passed(&self) -> bool {
        self.run > 0 && self.run == self.passed
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_suite_without_programs_of_its_own_has_those_of_no_other() {
        let package = |name: &str, programs: &[&str]| {
            let mut targets: Vec<_> = programs
                .iter()
                .map(|name| json!({"name": name, "kind": ["test"]}))
                .collect();
            targets.push(json!({"name": "idemp", "kind": ["bin"]}));
            json!({
                "name": name, "version": "0.1.0", "manifest_path": "Cargo.toml", "dependencies": [],
                "features": {}, "targets": targets, "publish": null,
            })
        };
        let (core, cli, tests) = (
            package("idemp-core", &["keys"]),
            package("idemp-cli", &["demo"]),
            package("idemp-tests", &["python"]),
        );
        let metadata = json!({
            "packages": [core, cli, tests], "target_directory": "target", "workspace_root": ".",
        });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        let of = |name: &str| programs(SUITES.iter().find(|suite| suite.name == name).unwrap(), &metadata).unwrap();
        assert_eq!(of("cli"), ["demo"]);
        assert_eq!(of("python"), ["python"]);
    }

    #[test]
    fn the_closing_lines_of_test_programs_are_summed_up() {
        let text = "
running 3 tests
test a ... ok
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.10s

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";
        let counted = Counted::from_output(text);
        assert_eq!(counted, Counted { run: 6, passed: 4 });
        assert!(!counted.is_passed());
    }

    #[test]
    fn no_test_is_not_a_pass() {
        let text = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.00s\n";
        assert!(!Counted::from_output(text).is_passed());
        assert!(!Counted::from_output("").is_passed());
    }
}
