//! The command with the sinks, stores and consumers that need a server.
//!
//! `cargo xtask e2e command` brings up what this needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use idemp_tests::{
    Finished, Kafka, Postgres, Process, Redis, RedisReply, Suite, data, free_address, idemp, make_topic, ministack,
    redis_programs, selected, temp_dir,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const EVENTS: usize = 585;
/// Only a guard against hanging for ever.
const LIMIT: Duration = Duration::from_secs(300);

/// A folder in which the command runs.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(temp_dir())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = idemp();
        command
            .args(words.split(' ').filter(|word| !word.is_empty()))
            .current_dir(self.0.path())
            .env("SECRET", "of the test")
            .env("REDIS_PASSWORD", "hunter2")
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    fn run(&self, words: &str) -> Finished {
        Process::run("idemp", &mut self.command(words), LIMIT)
    }

    /// Runs it to the end with this exit code, and reads what it printed as JSON.
    fn json(&self, words: &str, code: i32) -> Value {
        let finished = self.run(words);
        assert_eq!(finished.status.code(), Some(code), "{words}: {finished:?}");
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
    }

    /// The last line on standard error of a command that ends with this exit code.
    fn complaint(&self, words: &str, code: i32) -> String {
        let finished = self.run(words);
        assert_eq!(finished.status.code(), Some(code), "{words}: {finished:?}");
        assert!(!finished.stderr.contains("hunter2"), "{finished:?}");
        finished.stderr.lines().last().unwrap_or_default().to_owned()
    }

    /// Starts a receiver and waits until it says this.
    fn receive(&self, words: &str, ready: &str) -> (Process, Option<SocketAddr>) {
        let mut receiver = Process::start("idemp receive", &mut self.command(&format!("receive {words}")));
        let address = receiver.wait_until("it is ready", LIMIT, |receiver| {
            let stderr = receiver.stderr();
            let is_ready = stderr.lines().any(|line| line.starts_with(ready));
            let address = stderr
                .lines()
                .find_map(|line| line.strip_prefix("listening on http://"));
            is_ready.then(|| address.map(|address| address.parse().unwrap()))
        });
        (receiver, address)
    }

    /// Keys of the events in a file of `receive --out`, each of which stands there once.
    fn keys(&self, name: &str) -> BTreeSet<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        // The last line may be only half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let keys: Vec<String> = whole
            .lines()
            .map(|line| {
                let event: Value = serde_json::from_str(line).unwrap();
                event["key"].as_str().unwrap().to_owned()
            })
            .collect();
        let distinct: BTreeSet<String> = keys.iter().cloned().collect();
        assert_eq!(keys.len(), distinct.len(), "an event stands there twice");
        distinct
    }

    fn until_received(&self, receiver: &mut Process, name: &str, events: usize) {
        receiver.wait_until("all events are written", LIMIT, |_| {
            (self.keys(name).len() >= events).then_some(())
        });
    }
}

fn stop(receiver: Process) {
    receiver.terminate();
    let ended = receiver.finish(LIMIT);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

fn corpus() -> String {
    data("langchain-events.jsonl").display().to_string()
}

fn redis(options: &[&str]) -> Redis {
    Redis::start(&redis_programs()[0], options)
}

#[test]
fn the_corpus_goes_through_a_stream_once_also_when_it_is_sent_twice() {
    if !selected(Suite::Command) {
        return;
    }
    let (place, server) = (Place::new(), redis(&[]));
    let (url, stream) = (server.url(), format!("{}/0?stream=events", server.url()));
    let consume =
        format!("--redis-stream {stream} --secret-env SECRET --store {url}/1 --out out.jsonl --retry-scale 0.01");
    let (mut receiver, _) = place.receive(&consume, "consuming");
    for _ in 0..2 {
        let sent = place.json(
            &format!("send {} --to {stream} --secret-env SECRET --json", corpus()),
            0,
        );
        assert_eq!(sent["delivered"], EVENTS, "{sent}");
    }
    place.until_received(&mut receiver, "out.jsonl", EVENTS);
    receiver.wait_until("everything is acknowledged", LIMIT, |_| {
        let group = format!("{:?}", server.client().call(&["XINFO", "GROUPS", "events"]));
        let is_done = [r#"Text("pending"), Integer(0)"#, r#"Text("lag"), Integer(0)"#]
            .iter()
            .all(|part| group.contains(part));
        is_done.then_some(())
    });
    assert_eq!(place.keys("out.jsonl").len(), EVENTS);
    stop(receiver);
    // It is made at the start.
    assert_eq!(fs::read_to_string(place.path("idemp-quarantine.jsonl")).unwrap(), "");
}

#[test]
fn the_corpus_goes_through_a_topic_and_over_http_once() {
    if !selected(Suite::Command) {
        return;
    }
    let (place, broker) = (Place::new(), Kafka::start());
    let brokers = match &broker {
        Some(broker) => broker.address().to_string(),
        None => std::env::var("IDEMP_E2E_KAFKA").unwrap(),
    };
    let topic = format!("idemp-command-{}", std::process::id());
    make_topic(&brokers, &topic, &[]);
    let sent = place.json(
        &format!(
            "send {} --to kafka://{brokers}/{topic} --secret-env SECRET --json",
            corpus()
        ),
        0,
    );
    assert_eq!(
        (&sent["delivered"], &sent["sinks"]["kafka"]["delivered"]),
        (&json!(EVENTS), &json!(EVENTS))
    );

    let (mut receiver, address) = place.receive(
        &format!(
            "--listen 127.0.0.1:0 --kafka {brokers} --topic {topic} --secret-env SECRET --store sqlite:claims.db \
             --out out.jsonl"
        ),
        "consuming",
    );
    place.until_received(&mut receiver, "out.jsonl", EVENTS);
    // The same events over HTTP are copies: one store, one scope.
    let to = format!("http://{}/webhooks/langchain", address.unwrap());
    let sent = place.json(&format!("send {} --to {to} --secret-env SECRET --json", corpus()), 0);
    assert_eq!(sent["delivered"], EVENTS);
    assert_eq!(place.keys("out.jsonl").len(), EVENTS);
    stop(receiver);
}

/// What one receiver has done is known to the next one, which has nothing but the server.
#[test]
fn claims_on_servers_outlive_their_receivers_and_go_by_the_cadence() {
    if !selected(Suite::Command) {
        return;
    }
    let (place, server, database) = (Place::new(), redis(&[]), Postgres::start());
    let text = fs::read_to_string(data("langchain-events.jsonl")).unwrap();
    let few: Vec<&str> = text.split_inclusive('\n').take(20).collect();
    fs::write(place.path("in.jsonl"), few.concat()).unwrap();
    let stores = [
        Some(format!("{}/0", server.url())),
        database.as_ref().map(Postgres::url),
    ];
    for (n, store) in stores.into_iter().flatten().enumerate() {
        for out in [format!("first-{n}.jsonl"), format!("second-{n}.jsonl")] {
            let receive =
                format!("--listen 127.0.0.1:0 --secret-env SECRET --store {store} --cadence sub-hour --out {out}");
            let (receiver, address) = place.receive(&receive, "listening on");
            let to = format!("http://{}/webhooks/langchain", address.unwrap());
            let sent = place.json(&format!("send in.jsonl --to {to} --secret-env SECRET --json"), 0);
            assert_eq!(sent["delivered"], 20, "{sent}");
            stop(receiver);
        }
        assert_eq!(place.keys(&format!("first-{n}.jsonl")).len(), 20, "{store}");
        assert_eq!(place.keys(&format!("second-{n}.jsonl")).len(), 0, "{store}");
    }
    let week = 7 * 24 * 60 * 60;
    for key in place.keys("first-0.jsonl") {
        match server.client().call(&["TTL", &format!("idemp:{key}")]) {
            RedisReply::Integer(left) => assert!((week - 600..=week).contains(&left), "{key}: {left}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn messages_that_cannot_be_taken_lie_in_quarantine_with_all_their_bytes() {
    if !selected(Suite::Command) {
        return;
    }
    let (place, server) = (Place::new(), redis(&[]));
    let stream = format!("{}/0?stream=events", server.url());
    let mut client = server.client();
    let fields = [
        "idempotency_key",
        "r:tool_end:1",
        "event_type",
        "tool_end",
        "payload",
        "{}",
    ];
    client.call(&[&["XADD", "events", "*"], &fields[..]].concat());
    client.call(&["XADD", "events", "*", "what", "no event"]);

    let strict = format!("--redis-stream {stream} --secret-env SECRET --out out.jsonl --retry-scale 0.01");
    let (mut receiver, _) = place.receive(&strict, "consuming");
    let quarantined = || fs::read_to_string(place.path("idemp-quarantine.jsonl")).unwrap_or_default();
    receiver.wait_until("both are there", LIMIT, |_| {
        (quarantined().lines().count() == 2).then_some(())
    });
    stop(receiver);
    let lines: Vec<Value> = quarantined()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // They are at work at the same time.
    let of = |reason: &str| lines.iter().find(|line| line["reason"] == reason).unwrap();
    assert_eq!(of("bad_signature")["body"], r#"{"data": {}, "event": "tool_end"}"#);
    assert_eq!(of("not_an_event")["fields"], json!([["what", "no event"]]));

    // Producers of the companion pages do not sign.
    let lenient = format!(
        "--redis-stream {stream} --group other --signature optional --secret-env SECRET --out other.jsonl \
         --retry-scale 0.01"
    );
    let (mut receiver, _) = place.receive(&lenient, "consuming");
    place.until_received(&mut receiver, "other.jsonl", 1);
    stop(receiver);
    assert!(place.keys("other.jsonl").contains("r:tool_end:1"));
}

#[test]
fn dead_letters_on_servers_are_listed_counted_and_replayed() {
    if !selected(Suite::Command) {
        return;
    }
    let (place, server, cloud) = (Place::new(), redis(&["--appendfsync", "always"]), ministack());
    let s3 = format!("http://{}", cloud.address());
    let made = Command::new(std::env::var_os("IDEMP_E2E_AWS_PYTHON").unwrap())
        .args([
            "-c",
            "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1]).create_bucket(Bucket='letters')",
            &s3,
        ])
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .status();
    assert!(made.unwrap().success());
    let nobody = free_address();
    let text = fs::read_to_string(data("langchain-events.jsonl")).unwrap();
    let few: Vec<&str> = text.split_inclusive('\n').take(20).collect();
    fs::write(place.path("in.jsonl"), few.concat()).unwrap();

    for store in [
        format!("{}/0?stream=letters", server.url()),
        format!("s3://letters/here?endpoint={s3}&allow_http=true"),
    ] {
        let sent = place.json(
            &format!(
                "send in.jsonl --to http://{nobody}/ --secret-env SECRET --dlq {store} --schedule-scale 0.001 --json"
            ),
            3,
        );
        assert_eq!(
            (&sent["dead_lettered"], &sent["dlq_fallback"]),
            (&json!(20), &Value::Null),
            "{sent}"
        );
        let stats = place.json(&format!("dlq stats --dlq {store} --json"), 0);
        assert_eq!(
            (&stats["depth"], &stats["by_sink"]),
            (&json!(20), &json!({"webhook": 20})),
            "{stats}"
        );
        let listed = place.run(&format!("dlq list --dlq {store} --json --event llm_end"));
        assert!(
            listed.status.success() && listed.stdout.lines().count() > 0,
            "{listed:?}"
        );

        // Sent again, to somewhere else.
        let stream = store
            .replace("letters", "replayed")
            .replace("s3://replayed/here", &format!("{}/0", server.url()));
        let stream = match store.starts_with("s3") {
            true => format!("{}/0?stream=from-s3", server.url()),
            false => stream,
        };
        let replayed = place.json(
            &format!("replay --dlq {store} --to {stream} --secret-env SECRET --rate 1000 --json"),
            0,
        );
        assert_eq!(replayed["replayed"], 20, "{replayed}");
        let name = stream.rsplit('=').next().unwrap();
        assert_eq!(server.client().entries(name).len(), 20);
        let stats = place.json(&format!("dlq stats --dlq {store} --json"), 0);
        assert_eq!(stats["depth"], 0);
    }
}

#[test]
fn a_doctor_finds_what_does_not_suit_claims() {
    if !selected(Suite::Command) {
        return;
    }
    let place = Place::new();
    let sound = redis(&[]);
    let healthy = place.json(&format!("doctor --store {} --json", sound.url()), 0);
    assert_eq!(healthy["healthy"], true, "{healthy}");
    let checks: Vec<&str> = healthy["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["check"].as_str().unwrap())
        .collect();
    assert_eq!(
        checks,
        [
            "times",
            "redis version",
            "redis eviction",
            "redis persistence",
            "redis role",
            "redis scripts",
            "redis clock"
        ]
    );

    let sick = redis(&["--maxmemory-policy", "allkeys-lru"]);
    sick.client().call(&["CONFIG", "SET", "appendonly", "no"]);
    sick.client().call(&[
        "ACL",
        "SETUSER",
        "idemp",
        "on",
        ">hunter2",
        "~idemp*",
        "+@all",
        "-@scripting",
    ]);
    let address = sick.url().replace("redis://", "redis://idemp@");
    let found = place.json(
        &format!("doctor --store {address}?password_env=REDIS_PASSWORD --handler-cap 5s --json"),
        1,
    );
    let findings: Vec<&str> = found["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| !check["finding"].is_null())
        .map(|check| check["check"].as_str().unwrap())
        .collect();
    assert_eq!(
        findings,
        ["times", "redis eviction", "redis persistence", "redis scripts"],
        "{found}"
    );
    assert!(!found.to_string().contains("hunter2"));

    let away = place.run(&format!("doctor --store redis://{}", free_address()));
    assert_eq!(away.status.code(), Some(1), "{away:?}");
    assert!(away.stdout.contains("FINDING  redis server"), "{away:?}");
}

#[test]
fn what_cannot_work_is_refused_at_the_start_and_named() {
    if !selected(Suite::Command) {
        return;
    }
    let place = Place::new();
    let text = fs::read_to_string(data("langchain-events.jsonl")).unwrap();
    fs::write(place.path("in.jsonl"), text.lines().next().unwrap()).unwrap();
    let (server, cloud, nobody) = (redis(&[]), ministack(), free_address());
    let (redis, s3) = (server.url(), format!("http://{}", cloud.address()));
    let send = "send in.jsonl --secret-env SECRET --to";
    for (words, expected) in [
        (format!("{send} gopher://h/"), "cannot send to --to: unknown scheme"),
        (
            format!("{send} kafka://h:9092"),
            "not of the form kafka://BROKERS/TOPIC",
        ),
        (
            format!("{send} kafka://h:9092/t?sasl.password_env=UNSET"),
            "variable UNSET is not set",
        ),
        (format!("{send} {redis}/0"), "no stream"),
        (
            format!("{send} redis://me:hunter2@h/0?stream=s"),
            "a password in an address is seen by all",
        ),
        (
            format!("{send} sns:arn:aws:sqs:us-east-1:1:t"),
            "cannot send to --to: sns",
        ),
        (
            format!("{send} {redis}/0?stream=s --dlq s3://none/x?endpoint={s3}&allow_http=true"),
            "there is no such bucket",
        ),
        (
            format!("{send} {redis}/0?stream=s --dlq redis://{nobody}/0"),
            "dead-letter store redis://",
        ),
        (format!("{send} {redis}/0?stream=s --dlq tape:x"), "neither sqlite:PATH"),
        (
            format!("receive --redis-stream {redis}/0 --secret-env SECRET"),
            "no stream",
        ),
        (format!("receive --kafka {nobody} --secret-env SECRET"), "--topic"),
        (
            format!("receive --listen 127.0.0.1:0 --secret-env SECRET --store redis://{nobody}/0"),
            "cannot open redis://",
        ),
        (
            "receive --listen 127.0.0.1:0 --secret-env SECRET --lease 13s".to_owned(),
            "a lease of 13s is longer than a third of the retry budget, 12s",
        ),
        (
            "receive --listen 127.0.0.1:0 --secret-env SECRET --ttl 71s".to_owned(),
            "remembered for 71s, but at least twice the retry budget is needed, 72s",
        ),
        ("doctor --store memory".to_owned(), "only a Redis is looked at"),
    ] {
        let complaint = place.complaint(&words, 2);
        assert!(complaint.contains(expected), "{words}: {complaint}");
    }
    let mut without = place.command(&format!("dlq stats --dlq s3://letters/x?endpoint={s3}&allow_http=true"));
    without
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY");
    let refused = Process::run("idemp", &mut without, LIMIT);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("no credentials for the object store"),
        "{refused:?}"
    );

    // A broker that is away is no wrong configuration: the event becomes a dead letter.
    let sent = place.json(
        &format!("{send} redis://{nobody}/0?stream=s --schedule-scale 0.001 --json"),
        3,
    );
    assert_eq!(sent["dead_lettered_by_reason"], json!({"retries_exhausted": 1}));
}
