//! The dead-letter store fails while `send` is at work.

use std::fs::{self, OpenOptions};

use idemp_testkit::gate::Gate;
use idemp_testkit::peer::{Answer, Peer};
use serde_json::json;

use crate::support::{Finished, Place, Running, lines};

/// Sends two events that are rejected after the store's files were overwritten.
async fn send_with_broken_store(place: &Place) -> Finished {
    place.write("in.jsonl", lines(2));
    let gate = Gate::shut();
    let behind = gate.clone();
    let peer = Peer::start(move |_| Answer::status(400).behind(&behind)).await;
    let to = peer.url("/hook");
    let words = format!("send in.jsonl --to {to} --secret-env SECRET --dlq sqlite:d.db --json");
    let send = Running::start(place.idemp(&words));
    peer.received(2).await;
    for file in ["d.db", "d.db-wal", "d.db-shm"] {
        let path = place.path(file);
        let len = fs::metadata(&path).unwrap().len().max(4096);
        let mut opened = OpenOptions::new().write(true).open(path).unwrap();
        std::io::Write::write_all(&mut opened, &vec![b'#'; usize::try_from(len).unwrap()]).unwrap();
    }
    gate.open();
    send.finish().await
}

#[tokio::test]
async fn the_fallback_takes_what_the_store_does_not() {
    let place = Place::new();
    let sent = send_with_broken_store(&place).await.exits(3);
    assert!(
        sent.stderr.contains("warning: dead letters go to d.db.fallback now\n"),
        "{sent:?}"
    );
    let summary = sent.json();
    assert_eq!(
        (&summary["dead_lettered"], &summary["dlq_fallback"]),
        (&json!(2), &json!("d.db.fallback"))
    );
    let letters = place
        .run("dlq list --dlq sqlite:d.db.fallback --json")
        .await
        .exits(0)
        .jsonl();
    assert_eq!(letters.len(), 2);
    let hint = place.run("dlq list --dlq sqlite:d.db").await.exits(2).stderr;
    assert!(hint.contains("--dlq sqlite:d.db.fallback reads it alone"), "{hint}");
}

#[tokio::test]
async fn what_no_store_takes_is_named() {
    let place = Place::new();
    fs::create_dir(place.path("d.db.fallback")).unwrap();
    let sent = send_with_broken_store(&place).await.exits(1);
    assert_eq!(sent.json()["unsaved"], 2);
    for step in [1, 2] {
        let named = format!("idemp: error: event r:tool_end:{step} (in.jsonl:{step}) is saved nowhere: ");
        assert!(sent.stderr.contains(&named), "{sent:?}");
    }
}
