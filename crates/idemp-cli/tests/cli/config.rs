//! `--config idemp.toml`: several sinks, each under its own name.

use idemp_testkit::peer::{Answer, Peer};
use serde_json::json;

use crate::support::{Place, Running, keys, lines};

/// Two webhooks, one of which takes another event type and counts 409 as delivered.
fn configure(place: &Place, first: &Peer, second: &Peer, more: &str) {
    let (first, second) = (first.url("/a"), second.url("/b"));
    place.write(
        "idemp.toml",
        format!(
            r#"
dlq = "sqlite:letters.db"

[sinks.audit]
to = "{first}"
secret_env = "SECRET"
headers = {{ X-Team = "audit" }}

[sinks.billing]
to = "{second}"
secret_env = "SECRET"
events = ["llm_end"]
status = {{ "409" = "delivered" }}
{more}
"#
        ),
    );
}

#[tokio::test]
async fn every_sink_gets_what_it_asks_for_and_fails_alone() {
    let place = Place::new();
    let audit = Peer::start(|_| Answer::status(400)).await;
    let billing = Peer::start(|_| Answer::status(409)).await;
    configure(&place, &audit, &billing, "");
    let other = r#"{"run_id":"x","event":"llm_end","step_index":1,"data":{}}"#;
    place.write("in.jsonl", format!("{}{other}\n", lines(2)));

    let sent = place
        .run("send in.jsonl --config idemp.toml --json")
        .await
        .exits(3)
        .json();
    assert_eq!(sent["read"], 3);
    assert_eq!(sent["dlq"], "sqlite:letters.db");
    assert_eq!(sent["sinks"]["audit"]["dead_lettered"], 3);
    assert_eq!(sent["sinks"]["billing"]["delivered"], 1);
    assert_eq!((&sent["delivered"], &sent["dead_lettered"]), (&json!(1), &json!(3)));
    assert_eq!(billing.requests().len(), 1);
    assert_eq!(audit.requests()[0].header("x-team"), "audit");

    let stats = place.run("dlq stats --config idemp.toml --json").await.exits(0).json();
    assert_eq!(stats["by_sink"], json!({"audit": 3}));
}

#[tokio::test]
async fn a_replay_sends_each_letter_to_the_sink_that_it_names() {
    let place = Place::new();
    let refusing = Peer::start(|_| Answer::status(400)).await;
    configure(&place, &refusing, &refusing, "");
    let other = r#"{"run_id":"x","event":"llm_end","step_index":1,"data":{}}"#;
    place.write("in.jsonl", format!("{}{other}\n", lines(2)));
    place.run("send in.jsonl --config idemp.toml").await.exits(3);

    let audit = Peer::start(|_| Answer::status(200)).await;
    let billing = Peer::start(|_| Answer::status(409)).await;
    configure(&place, &audit, &billing, "");
    let mixed = format!(
        "replay --dlq sqlite:letters.db --to {} --secret-env SECRET",
        audit.url("/a")
    );
    let refused = place.run(&mixed).await.exits(2);
    assert!(
        refused.stderr.contains("over several sinks (audit, billing)"),
        "{refused:?}"
    );

    let replayed = place
        .run("replay --config idemp.toml --rate 1000 --json")
        .await
        .exits(0)
        .json();
    assert_eq!(replayed["replayed"], 4, "{replayed}");
    assert_eq!(keys(&audit), ["r:tool_end:1", "x:llm_end:1", "r:tool_end:2"], "by step");
    assert_eq!(keys(&billing), ["x:llm_end:1"]);
}

#[tokio::test]
async fn a_letter_of_a_sink_that_is_no_longer_there_is_left_alone() {
    let place = Place::new();
    let refusing = Peer::start(|_| Answer::status(400)).await;
    configure(&place, &refusing, &refusing, "");
    place.write("in.jsonl", lines(1));
    place.run("send in.jsonl --config idemp.toml").await.exits(3);
    let to = refusing.url("/b");
    place.write(
        "idemp.toml",
        format!("dlq = \"sqlite:letters.db\"\n[sinks.billing]\nto = \"{to}\"\nsecret_env = \"SECRET\"\n"),
    );
    let replayed = place.run("replay --config idemp.toml").await.exits(3);
    assert!(
        replayed.stderr.contains("there is no target for its sink"),
        "{replayed:?}"
    );
    let stats = place.run("dlq stats --config idemp.toml --json").await.exits(0).json();
    assert_eq!(stats["depth"], 1);
}

#[tokio::test]
async fn lines_that_no_sink_wants_are_counted() {
    let place = Place::new();
    let peer = Peer::start(|_| Answer::status(200)).await;
    let to = peer.url("/");
    place.write(
        "idemp.toml",
        format!("[sinks.a]\nto = \"{to}\"\nsecret_env = \"SECRET\"\nevents = [\"llm_end\"]\n"),
    );
    place.write("in.jsonl", lines(2));
    let sent = place
        .run("send in.jsonl --config idemp.toml --json")
        .await
        .exits(0)
        .json();
    assert_eq!((&sent["unwanted"], &sent["delivered"]), (&json!(2), &json!(0)));
    assert_eq!(peer.requests().len(), 0);
    // A typo in `events` must not look like a success.
    let told = place.run("send in.jsonl --config idemp.toml").await.exits(0);
    let expected = "idemp: warning: no sink takes any of the 2 events that were read: compare `events` in idemp.toml";
    assert!(told.stderr.contains(expected), "{told:?}");
    assert!(told.stdout.contains("unwanted               2"), "{told:?}");

    // One of them is enough: then the others are not asked for.
    place.write(
        "in.jsonl",
        format!(
            "{}{}",
            lines(2),
            r#"{"run_id":"x","event":"llm_end","step_index":1,"data":{}}"#
        ),
    );
    let told = place.run("send in.jsonl --config idemp.toml").await.exits(0);
    assert!(!told.stderr.contains("no sink takes"), "{told:?}");
}

#[tokio::test]
async fn a_sink_that_gets_nothing_is_told_beside_the_others() {
    let place = Place::new();
    let peer = Peer::start(|_| Answer::status(200)).await;
    configure(&place, &peer, &peer, "");
    place.write("in.jsonl", lines(2));
    let sent = place.run("send in.jsonl --config idemp.toml").await.exits(0);
    assert!(
        sent.stdout.contains("audit: 2 delivered") && sent.stdout.contains("billing: 0 delivered"),
        "{sent:?}"
    );
}

#[tokio::test]
async fn what_is_lost_at_most_once_is_counted_and_not_kept() {
    let place = Place::new();
    let peer = Peer::start(|_| Answer::status(503)).await;
    configure(&place, &peer, &peer, "mode = \"at-most-once\"");
    place.write(
        "in.jsonl",
        r#"{"run_id":"x","event":"llm_end","step_index":1,"data":{}}"#,
    );
    let sent = place
        .run("send in.jsonl --config idemp.toml --schedule-scale 0.001 --json")
        .await
        .exits(3)
        .json();
    assert_eq!(
        sent["sinks"]["billing"]["dropped_by_reason"],
        json!({"retries_exhausted": 1})
    );
    assert_eq!(sent["sinks"]["audit"]["dead_lettered"], 1);
    // Four attempts at one sink, one at the other.
    assert_eq!(peer.requests().len(), 5);

    // Where nothing is kept, no place for it is named.
    let told = place.send(&peer, "in.jsonl --mode at-most-once").await.exits(3);
    assert_eq!(told.stderr, "");
}

#[tokio::test]
async fn a_wrong_configuration_is_refused_at_the_start() {
    let place = Place::new();
    place.write("in.jsonl", lines(1));
    let sink = "[sinks.a]\nto = \"https://h\"\n";
    for (text, expected) in [
        ("dlq = 1", "idemp.toml:1: "),
        (
            "[sinks.a]\nto = \"https://h\"\nsecret = \"hunter2\"\n",
            "idemp.toml:3: unknown field `secret`",
        ),
        (sink, "sink a: no secret: give secret_env or secret_file"),
        (
            &format!("{sink}secret_env = \"UNSET\"\n"),
            "sink a: no secret: variable UNSET is not set",
        ),
        (
            &format!("{sink}secret_env = \"SECRET\"\nevents = [\"a:b\"]\n"),
            "sink a: events: \"a:b\"",
        ),
        (
            &format!("{sink}secret_env = \"SECRET\"\ntimeout = \"0s\"\n"),
            "sink a: timeout: an attempt has no time",
        ),
        (
            &format!("{sink}secret_env = \"SECRET\"\nstatus = {{ \"9\" = \"retry\" }}\n"),
            "sink a: status \"9\"",
        ),
        (
            &format!("{sink}secret_env = \"SECRET\"\nevents = []\n"),
            "sink a: events: the list is empty",
        ),
        (
            &format!("{sink}secret_env = \"SECRET\"\nproxy = \"http://me:hunter2@h\"\n"),
            "sink a: proxy: a user name or password in it would lie open: give proxy_env",
        ),
        (
            &format!("{sink}secret_env = \"SECRET\"\nproxy_env = \"UNSET\"\n"),
            "sink a: no secret: variable UNSET",
        ),
        (
            &format!("{sink}secret_env = \"SECRET\"\nconcurrency = 0\n"),
            "sink a: concurrency: it must be at least 1",
        ),
        (
            "[sinks.a]\nto = \"redis://h/0?stream=s\"\nsecret_env = \"SECRET\"\nstatus = { \"409\" = \"delivered\" }\n",
            "sink a: status: only a webhook answers with one",
        ),
        (
            &format!("{sink}secret_env = \"SECRET\"\noptions = {{ x = 1 }}\n"),
            "sink a: options: a webhook has none",
        ),
        (
            &format!("{sink}secret_env = \"SECRET\"\nheaders_env = {{ A = \"UNSET\" }}\n"),
            "sink a: no secret: variable UNSET",
        ),
        (
            "[sinks.a]\nto = \"ftp://h\"\nsecret_env = \"SECRET\"\n",
            "sink a: unknown scheme",
        ),
        (
            "[sinks.a]\nto = \"h\"\nsecret_env = \"SECRET\"\n",
            "sink a: to: has no scheme such as http://",
        ),
        ("dlq = \"memory:\"\n", "idemp.toml: no sink"),
        (
            &format!("dlq = \"tape:0\"\n{sink}secret_env = \"SECRET\"\n"),
            "dlq: neither sqlite:PATH",
        ),
    ] {
        place.write("idemp.toml", text);
        let refused = place.run("send in.jsonl --config idemp.toml").await.exits(2);
        let last = refused.stderr.lines().last().unwrap();
        let expected = expected.replace("sink a: ", "idemp.toml: sink a: ");
        assert!(
            last.starts_with(&format!("idemp: error: {expected}")),
            "{text}: {refused:?}"
        );
        assert!(!refused.stderr.contains("hunter2"), "{refused:?}");
    }
    let refused = place.run("send in.jsonl --config missing.toml").await.exits(2);
    assert!(
        refused.stderr.contains("--config: cannot read missing.toml"),
        "{refused:?}"
    );
    let both = place
        .run("send in.jsonl --config idemp.toml --to http://h")
        .await
        .exits(2);
    assert!(both.stderr.contains("--to"), "{both:?}");
}

#[tokio::test]
async fn a_proxy_with_a_password_comes_from_a_variable() {
    let place = Place::new();
    let proxy = Peer::start(|_| Answer::status(200)).await;
    place.write(
        "idemp.toml",
        "[sinks.a]\nto = \"http://receiver.invalid/hook\"\nsecret_env = \"SECRET\"\nproxy_env = \"PROXY\"\n",
    );
    place.write("in.jsonl", lines(1));
    let mut send = place.idemp("send in.jsonl --config idemp.toml");
    send.env("PROXY", proxy.url("/").replace("http://", "http://me:word@"));
    Running::start(send).finish().await.exits(0);
    let requests = proxy.requests();
    // RFC 7617: `me:word` in base64.
    assert_eq!(requests[0].header("Proxy-Authorization"), "Basic bWU6d29yZA==");
}
