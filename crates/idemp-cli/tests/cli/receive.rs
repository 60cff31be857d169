//! `idemp receive` by itself.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::support::{LIMIT, Place, Running, line};

async fn get(url: &str, path: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn it_is_healthy_and_serves_one_path() {
    let place = Place::new();
    let (receiver, url) = place.receive("--path /in").await;
    let health = get(&url, "/healthz").await;
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    assert!(health.ends_with("\r\n\r\n{\"status\":\"ok\"}"), "{health}");
    assert!(get(&url, "/in").await.starts_with("HTTP/1.1 405 "));
    assert!(get(&url, "/webhooks/langchain").await.starts_with("HTTP/1.1 404 "));

    // Without --out, events go to standard output.
    place.write("in.jsonl", line("r", 1, r#"{"b":[1.0],"a":"é"}"#));
    place
        .run(&format!("send in.jsonl --to {url}/in --secret-env SECRET"))
        .await
        .exits(0);
    receiver.terminate();
    let done = receiver.finish().await.exits(0);
    let expected = r#"{"key":"r:tool_end:1","event":"tool_end","data":{"a": "\u00e9", "b": [1.0]}}"#;
    assert_eq!(done.stdout, format!("{expected}\n"));
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_listening() {
    let place = Place::new();
    place.write("no-folder", "");
    place.write(
        "text",
        "this is a text and no database, and long enough to have a header",
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("--listen {} --secret-env SECRET", taken.local_addr().unwrap());
    let free = "--listen 127.0.0.1:0 --secret-env SECRET";
    for (words, expected) in [
        (
            "--listen 127.0.0.1:0 --secret-env UNSET".to_owned(),
            "no secret: variable UNSET is not set",
        ),
        (
            format!("{free} --out no-folder/out.jsonl"),
            "cannot write to no-folder/out.jsonl",
        ),
        (format!("{free} --out ."), "cannot write to ."),
        (
            format!("{free} --store sqlite:no-folder/claims.db"),
            "cannot open sqlite:no-folder/claims.db: the file cannot be opened: ",
        ),
        (
            format!("{free} --store sqlite:text"),
            "cannot open sqlite:text: the file is no SQLite file: ",
        ),
        (format!("{free} --ttl 10s"), "configuration"),
        (format!("{free} --lease 13s"), "configuration"),
        (taken, "cannot listen on 127.0.0.1:"),
    ] {
        let refused = place.run(&format!("receive {words}")).await.exits(2);
        assert!(
            refused.complaint().starts_with(&format!("idemp: error: {expected}")),
            "{words}: {refused:?}"
        );
    }
    for (words, why) in [
        ("--path x", "--path"),
        ("--path /healthz", "--path"),
        ("--store redis://h", ""),
        // They would be looked at by nobody.
        ("--group x", "--kafka <BROKERS>|--redis-stream <URL>"),
        ("--signature optional", "--kafka <BROKERS>|--redis-stream <URL>"),
        ("--quarantine q", "--kafka <BROKERS>|--redis-stream <URL>"),
        ("--topic t", "not provided: --kafka <BROKERS>; "),
    ] {
        let refused = place.run(&format!("receive {free} {words}")).await.exits(2);
        assert!(refused.complaint().contains(why), "{refused:?}");
    }
    for (words, why) in [
        (
            "",
            "in place of --listen <ADDR> also --kafka <BROKERS> or --redis-stream <URL>",
        ),
        ("--topic t", "not provided: --kafka <BROKERS>; "),
        ("--listen localhost:8080", "not IP:PORT, such as 127.0.0.1:8080"),
        ("--listen :8080", "not IP:PORT, such as 127.0.0.1:8080"),
    ] {
        let refused = place
            .run(&format!("receive --secret-env SECRET {words}"))
            .await
            .exits(2);
        assert!(refused.complaint().contains(why), "{refused:?}");
    }
    place.write("not-base64", "%");
    let words = "receive --listen 127.0.0.1:0 --secret-file not-base64 --require-standard-webhooks";
    place.run(words).await.exits(2);
}

#[tokio::test]
async fn a_torn_last_line_is_ended() {
    let place = Place::new();
    place.write("out.jsonl", "{\"key\":\"r:tool_end:1\",\"ev");
    let (mut receiver, url) = {
        let mut receiver =
            Running::start(place.idemp("receive --listen 127.0.0.1:0 --secret-env SECRET --out out.jsonl"));
        receiver
            .stderr_line("idemp: warning: the last line of out.jsonl is not complete")
            .await;
        let url = receiver.stderr_line("listening on ").await;
        (receiver, url)
    };
    place.write("in.jsonl", line("r", 2, "2"));
    place
        .run(&format!(
            "send in.jsonl --to {url}/webhooks/langchain --secret-env SECRET"
        ))
        .await
        .exits(0);
    let expected = "{\"key\":\"r:tool_end:1\",\"ev\n{\"key\":\"r:tool_end:2\",\"event\":\"tool_end\",\"data\":2}\n";
    assert_eq!(place.read("out.jsonl"), expected);
    receiver.stdin().flush().await.unwrap();
    receiver.terminate();
    receiver.finish().await.exits(0);
}

#[tokio::test]
async fn an_event_that_cannot_be_written_is_not_taken() {
    let place = Place::new();
    // Every write to it fails for want of room.
    let (_receiver, url) = place.receive("--out /dev/full").await;
    place.write("in.jsonl", line("r", 1, "1"));
    let words = format!("send in.jsonl --to {url}/webhooks/langchain --secret-env SECRET --schedule-scale 0.01 --json");
    place.run(&words).await.exits(3);
    let letters = place.run("dlq list --json").await.exits(0).jsonl();
    let statuses: Vec<_> = letters[0]["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| &attempt["status"])
        .collect();
    assert_eq!(statuses, [500, 500, 500, 500], "the claim is released each time");
}

#[tokio::test]
async fn two_secrets_are_accepted_while_one_is_replaced() {
    let place = Place::new();
    place.write("old", "old secret");
    place.write("new", "new secret");
    place.write("other", "other secret");
    let mut receiver =
        Running::start(place.idemp("receive --listen 127.0.0.1:0 --secret-file old --secret-file new --out out.jsonl"));
    let url = receiver.stderr_line("listening on ").await;
    for (step, secret, code) in [(1, "old", 0), (2, "new", 0), (3, "other", 3)] {
        place.write("in.jsonl", line("r", step, "1"));
        let words = format!("send in.jsonl --to {url}/webhooks/langchain --secret-file {secret}");
        place.run(&words).await.exits(code);
    }
    assert_eq!(place.read("out.jsonl").lines().count(), 2);
}

/// A pipe in the file system: a handler that writes more than it holds waits until somebody reads.
fn pipe(place: &Place) -> PathBuf {
    let path = place.path("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Reads the first byte, which comes when a handler has begun to write.
async fn first_byte(path: PathBuf) -> std::fs::File {
    let read = move || {
        let mut pipe = std::fs::File::open(path).unwrap();
        let mut first = [0];
        pipe.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"{");
        pipe
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

/// Larger than a pipe holds.
fn large() -> String {
    line("r", 1, &format!("\"{}\"", "x".repeat(300_000)))
}

fn address(url: &str) -> String {
    url.strip_prefix("http://").unwrap().to_owned()
}

/// An address that stays the same while receivers come and go, each on a port of its own: a port that was free once
/// may be somebody else's when it is wanted again.
async fn front(url: &str) -> (String, watch::Sender<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = format!("http://{}", listener.local_addr().unwrap());
    let (target, current) = watch::channel(address(url));
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let address = current.borrow().clone();
            tokio::spawn(async move {
                if let Ok(mut far) = TcpStream::connect(address).await {
                    // A side that is killed ends it.
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
    });
    (front, target)
}

#[tokio::test]
async fn killed_right_after_a_claim_the_event_still_gets_through() {
    let place = Place::new();
    let store = "--store sqlite:claims.db --lease 2s";
    let (first, first_url) = place
        .receive(&format!("{store} --out {}", pipe(&place).display()))
        .await;
    let (url, target) = front(&first_url).await;
    place.write("in.jsonl", large());
    let send = format!("send in.jsonl --to {url}/webhooks/langchain --secret-env SECRET --json");
    let send = Running::start(place.idemp(&send));
    let pipe = first_byte(place.path("pipe")).await;
    // The key is claimed and its handler at work.
    first.kill().await;
    drop(pipe);

    let (_second, second_url) = place.receive(&format!("{store} --out out.jsonl")).await;
    target.send_replace(address(&second_url));
    let summary = send.finish().await.exits(0).json();
    assert_eq!(
        (&summary["delivered"], &summary["dead_lettered"]),
        (&json!(1), &json!(0))
    );
    let written: Value = serde_json::from_str(&place.read("out.jsonl")).unwrap();
    assert_eq!(written["key"], "r:tool_end:1");
}

/// What the receiver logs when it cuts a handler.
const CUT: &str = "ran over its cap";

#[tokio::test]
async fn sigterm_lets_handlers_finish() {
    // A handler has 4 s. On a machine that is too busy for that, we try again.
    for _ in 0..5 {
        let place = Place::new();
        let (mut receiver, url) = place.receive(&format!("--out {}", pipe(&place).display())).await;
        place.write("in.jsonl", large());
        let send = format!("send in.jsonl --to {url}/webhooks/langchain --secret-env SECRET --timeout 60s --json");
        let send = Running::start(place.idemp(&send));
        let mut pipe = first_byte(place.path("pipe")).await;
        receiver.terminate();
        receiver.stderr_line("idemp: stopping").await;
        let rest = tokio::task::spawn_blocking(move || {
            let mut rest = String::new();
            pipe.read_to_string(&mut rest).unwrap();
            rest
        });
        let received = receiver.finish().await.exits(0);
        if received.stderr.contains(CUT) {
            continue;
        }
        assert!(rest.await.unwrap().ends_with("x\"}\n"));
        let summary = send.finish().await.exits(0).json();
        assert_eq!(summary["delivered"], 1, "the answer came before the end");
        return;
    }
    panic!("its handler was cut each time");
}

#[tokio::test]
async fn a_line_that_is_finished_after_its_handler_was_cut_stands_there_once() {
    let place = Place::new();
    let (mut receiver, url) = place.receive(&format!("--out {}", pipe(&place).display())).await;
    place.write("in.jsonl", large());
    let send = format!("send in.jsonl --to {url}/webhooks/langchain --secret-env SECRET --timeout 60s --json");
    let send = Running::start(place.idemp(&send));
    let mut pipe = first_byte(place.path("pipe")).await;
    receiver.stderr_line_with(CUT).await;
    let written = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        pipe.read_to_string(&mut rest).unwrap();
        format!("{{{rest}")
    });
    let summary = send.finish().await.exits(0).json();
    assert_eq!(
        (&summary["delivered"], &summary["dead_lettered"]),
        (&json!(1), &json!(0))
    );
    receiver.terminate();
    receiver.finish().await.exits(0);
    let written = written.await.unwrap();
    let keys: Vec<_> = written
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone())
        .collect();
    assert_eq!(keys, ["r:tool_end:1"]);
}

/// As `--store` is: what is wrong at the start is most likely the address.
#[cfg(all(feature = "redis", feature = "kafka"))]
#[tokio::test]
async fn a_broker_that_is_not_there_is_told_at_the_start() {
    let place = Place::new();
    // Nobody listens there any more.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    for (words, place_of) in [
        (
            format!("--redis-stream redis://{address}/0?stream=s"),
            format!("--redis-stream: cannot consume from redis://{address}/0"),
        ),
        (
            format!("--kafka {address} --topic t"),
            format!("--kafka: cannot consume from kafka://{address}"),
        ),
    ] {
        let refused = place
            .run(&format!("receive --secret-env SECRET {words}"))
            .await
            .exits(2);
        let complaint = refused.complaint();
        assert!(
            complaint.starts_with(&format!("idemp: error: {place_of}: ")),
            "{complaint}"
        );
        assert!(complaint.contains("Connection refused"), "{complaint}");
    }
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_quarantine_that_cannot_be_written_to_is_told_at_the_start() {
    let place = Place::new();
    place.write("no-folder", "");
    let words = "receive --secret-env SECRET --kafka 127.0.0.1:1 --topic t --quarantine no-folder/q.jsonl";
    let refused = place.run(words).await.exits(2);
    let expected = "idemp: error: --kafka: --quarantine: cannot write to no-folder/q.jsonl: ";
    assert!(refused.complaint().starts_with(expected), "{refused:?}");
}

/// As with `| head -1`: answers of 500 for ever would help nobody.
#[tokio::test]
async fn it_ends_when_nobody_reads_its_output_any_more() {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut receiver = place
        .idemp("receive --listen 127.0.0.1:0 --secret-env SECRET")
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(receiver.stderr.take().unwrap());
    let mut listening = String::new();
    stderr.read_line(&mut listening).await.unwrap();
    let url = listening.trim_end().strip_prefix("listening on ").unwrap();
    drop(reader);
    place.write("in.jsonl", line("r", 1, "1"));
    let words = format!("send in.jsonl --to {url}/webhooks/langchain --secret-env SECRET --schedule-scale 0.01");
    place.run(&words).await.exits(3);
    let status = timeout(LIMIT, receiver.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(1));
    let mut told = String::new();
    stderr.read_to_string(&mut told).await.unwrap();
    assert_eq!(
        told.lines().last().unwrap(),
        "idemp: error: nobody reads standard output any more: what could not be written there is not taken"
    );
    assert_eq!(told.matches("written").count(), 1, "{told}");
}

#[tokio::test]
async fn a_new_file_of_events_is_for_its_owner_alone() {
    let place = Place::new();
    let (receiver, _) = place.receive("--out out.jsonl").await;
    let mode = place.path("out.jsonl").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    receiver.terminate();
    receiver.finish().await.exits(0);
}
