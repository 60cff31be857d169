//! SNS, SQS and S3: the endpoints that `IDEMP_E2E_SNS` and `IDEMP_E2E_S3` name, and the program of a server for all
//! three, with which tests start their own.

use std::path::PathBuf;
use std::process::Command;

use super::{Provided, Setup, python};
use crate::process;

/// URL of an endpoint for SNS and SQS where tests may make and delete topics and queues. Tests that stop and start a
/// server do not run on it.
const SNS: &str = "IDEMP_E2E_SNS";

/// URL of an endpoint for S3 where tests may make and delete buckets.
const S3: &str = "IDEMP_E2E_S3";

/// The server's program.
const SERVER: &str = "IDEMP_E2E_MINISTACK";

/// An interpreter with boto3.
const PYTHON: &str = "IDEMP_E2E_AWS_PYTHON";

/// The server takes any. They are given to the tests themselves, since a process does not set its own variables.
const CREDENTIALS: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", "test"),
    ("AWS_SECRET_ACCESS_KEY", "test-secret"),
    ("AWS_DEFAULT_REGION", "us-east-1"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
];

pub(super) fn sns(setup: &Setup) -> anyhow::Result<Provided> {
    endpoint(setup, SNS, "SNS")
}

pub(super) fn s3(setup: &Setup) -> anyhow::Result<Provided> {
    endpoint(setup, S3, "S3")
}

fn endpoint(setup: &Setup, variable: &'static str, name: &str) -> anyhow::Result<Provided> {
    let python = python::environment(setup, "requirements-aws.txt")?;
    let external = std::env::var(variable).ok();
    let version = match &external {
        Some(_) => format!("an external {name}"),
        None => {
            let program = "import importlib.metadata; print('MiniStack', importlib.metadata.version('ministack'))";
            let version = process::read(Command::new(&python).args(["-c", program]))?;
            version.trim_end().to_owned()
        }
    };
    let server: PathBuf = python.with_file_name("ministack");
    let mut environment = vec![
        (PYTHON, python.display().to_string()),
        (SERVER, server.display().to_string()),
    ];
    match external {
        // With the credentials that the environment has for it.
        Some(url) => environment.push((variable, url)),
        None => environment.extend(CREDENTIALS.map(|(name, value)| (name, value.to_owned()))),
    }
    Ok(Provided {
        version,
        environment,
        service: None,
    })
}
