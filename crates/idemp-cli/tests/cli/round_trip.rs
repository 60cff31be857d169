//! `send` into `receive`.

use std::collections::BTreeMap;

use idemp_testkit::vectors;
use serde_json::{Value, json};

use crate::support::Place;

const CORPUS: &str = "langchain-events.jsonl";

#[tokio::test]
async fn the_corpus_arrives_once_and_unchanged() {
    let place = Place::new();
    let (receiver, url) = place.receive("--store sqlite:claims.db --out out.jsonl").await;
    let corpus = vectors::path(CORPUS).display().to_string();
    let words = format!("send {corpus} --to {url}/webhooks/langchain --secret-env SECRET --json");

    let sent = place.run(&words).await.exits(0).json();
    assert_eq!((&sent["read"], &sent["delivered"]), (&json!(585), &json!(585)));
    let first = place.read("out.jsonl");
    let mut wanted = BTreeMap::new();
    for event in vectors::load::<Value>(CORPUS) {
        let (run_id, name) = (event["run_id"].as_str().unwrap(), event["event"].as_str().unwrap());
        let key = format!("{run_id}:{name}:{}", event["step_index"]);
        let line = json!({"key": key.clone(), "event": name, "data": event["data"].clone()});
        assert!(wanted.insert(key, line).is_none(), "the corpus has each key once");
    }
    let mut found = BTreeMap::new();
    for line in first.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let key = event["key"].as_str().unwrap().to_owned();
        assert!(found.insert(key.clone(), event).is_none(), "{key} was processed twice");
    }
    assert!(found == wanted, "something is missing or changed");

    let again = place.run(&words).await.exits(0).json();
    assert_eq!(again["delivered"], 585, "a duplicate is delivered");
    assert!(place.read("out.jsonl") == first, "a duplicate was processed");

    receiver.terminate();
    receiver.finish().await.exits(0);

    // The claims survive a restart.
    let (receiver, url) = place.receive("--store sqlite:claims.db --out out.jsonl").await;
    let words = format!("send {corpus} --to {url}/webhooks/langchain --secret-env SECRET --json");
    place.run(&words).await.exits(0);
    assert!(
        place.read("out.jsonl") == first,
        "a duplicate was processed after a restart"
    );
    receiver.interrupt();
    receiver.finish().await.exits(0);
}

#[tokio::test]
async fn a_body_of_300_kb_passes_and_one_of_2_mb_becomes_a_dead_letter() {
    let place = Place::new();
    let (_receiver, url) = place.receive("--out out.jsonl").await;
    let line = |step: u32, len: usize| crate::support::line("r", step, &format!("\"{}\"", "x".repeat(len)));
    place.write("in.jsonl", [line(1, 300_000), line(2, 2_000_000), line(3, 1)].concat());

    let words = format!("send in.jsonl --to {url}/webhooks/langchain --secret-env SECRET --json");
    let sent = place.run(&words).await.exits(3).json();
    assert_eq!((&sent["delivered"], &sent["dead_lettered"]), (&json!(2), &json!(1)));
    let letters = place.run("dlq list --json").await.exits(0).jsonl();
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (&letters[0]["key"], &letters[0]["reason"]),
        (&json!("r:tool_end:2"), &json!("event_rejected"))
    );
    assert_eq!(letters[0]["attempts"][0]["status"], 413);
    let keys: Vec<Value> = place
        .read("out.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone())
        .collect();
    assert_eq!(keys.len(), 2);
    assert!(keys.contains(&json!("r:tool_end:1")) && keys.contains(&json!("r:tool_end:3")));
}
