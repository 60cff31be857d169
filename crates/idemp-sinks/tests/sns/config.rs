//! How a sink is set up: credentials and endpoints as the environment says.

use std::path::Path;
use std::process::{Output, Stdio};

use idemp_core::Sink;
use idemp_sinks::sns::{SnsConfig, SnsErrorKind, SnsSink};
use idemp_testkit::peer::Peer;

use crate::{AMPLE, DELIVERED, TOPIC, attempt, config, message, taken};

/// By which a test knows that it is the child.
const CHILD: &str = "IDEMP_SNS_CHILD";
/// What a child prints when it is through.
const DONE: &str = "the child is through";

/// Runs one test of this program in a process of its own, with these variables and none of AWS's: setting variables in
/// this process would be unsafe beside other tests.
async fn in_child(test: &str, home: &Path, variables: &[(&str, &str)]) -> String {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command.env("HOME", home).env("AWS_EC2_METADATA_DISABLED", "true");
    command.envs(variables.iter().copied()).env(CHILD, "1");
    let Output { status, stdout, stderr } = command.output().await.unwrap();
    let printed = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success(), "{printed}");
    assert!(printed.contains(DONE), "the child has done nothing: {printed}");
    printed
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn done() {
    println!("{DONE}");
}

#[tokio::test]
async fn without_credentials_there_is_no_sink() {
    if is_child() {
        let error = SnsSink::new(config(TOPIC)).await.unwrap_err();
        assert_eq!(error.kind(), SnsErrorKind::Credentials);
        assert!(error.to_string().contains("AWS_ACCESS_KEY_ID"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
        done();
        return;
    }
    let nothing = Path::new("/nonexistent");
    in_child("config::without_credentials_there_is_no_sink", nothing, &[]).await;
}

#[tokio::test]
async fn the_environment_gives_credentials_and_no_retries() {
    if is_child() {
        let url = std::env::var("PEER").unwrap();
        let sink = SnsSink::new(SnsConfig {
            endpoint_url: Some(url),
            region: Some("us-east-2".to_owned()),
            ..config(TOPIC)
        });
        let sink = sink.await.unwrap();
        assert_eq!(sink.deliver(&message(), attempt(AMPLE)).await, DELIVERED);
        // The second answer, and no third request for it.
        crate::failed(sink.deliver(&message(), attempt(AMPLE)).await);
        done();
        return;
    }
    let peer = Peer::start(|request| match request.index {
        0 => taken(),
        _ => crate::refused(500, "InternalError"),
    })
    .await;
    let variables = [
        ("PEER", &*peer.url("/")),
        ("AWS_ACCESS_KEY_ID", "AKIDOFENVIRONMENT"),
        ("AWS_SECRET_ACCESS_KEY", "never-printed"),
        ("AWS_MAX_ATTEMPTS", "5"),
        ("AWS_RETRY_MODE", "standard"),
    ];
    let test = "config::the_environment_gives_credentials_and_no_retries";
    let printed = in_child(test, Path::new("/nonexistent"), &variables).await;
    assert!(!printed.contains("never-printed"));
    let requests = peer.received(2).await;
    assert_eq!(requests.len(), 2);
    let authorization = requests[0].header("authorization");
    assert!(authorization.contains("AKIDOFENVIRONMENT/"), "{authorization}");
    assert!(authorization.contains("/us-east-2/sns/"), "{authorization}");
}

#[tokio::test]
async fn what_is_no_topic_makes_no_sink() {
    let error = SnsSink::new(config("arn:aws:sqs:eu-west-1:1:queue")).await.unwrap_err();
    assert_eq!(error.kind(), SnsErrorKind::TopicArn);
    assert!(error.to_string().starts_with("sns topic_arn: "), "{error}");
}
