//! The dead-letter store fails while `send` is at work.

use std::fs::{self, OpenOptions};

use idemp_testkit::gate::Gate;
use idemp_testkit::peer::{Answer, Peer};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::{Finished, Place, Running, answering, keys, keys_of, lines};

/// Overwrites the files of the store `d.db`, which is open.
fn break_store(place: &Place) {
    for file in ["d.db", "d.db-wal", "d.db-shm"] {
        let path = place.path(file);
        let len = fs::metadata(&path).unwrap().len().max(4096);
        let mut opened = OpenOptions::new().write(true).open(path).unwrap();
        std::io::Write::write_all(&mut opened, &vec![b'#'; usize::try_from(len).unwrap()]).unwrap();
    }
}

/// Sends two events that are rejected after the store's files were overwritten.
async fn send_with_broken_store(place: &Place) -> Finished {
    place.write("in.jsonl", lines(2));
    let gate = Gate::shut();
    let behind = gate.clone();
    let peer = Peer::start(move |_| Answer::status(400).behind(&behind)).await;
    let to = peer.url("/hook");
    let words = format!("send in.jsonl --to {to} --secret-env SECRET --timeout 60s --dlq sqlite:d.db --json");
    let send = Running::start(place.idemp(&words));
    peer.received(2).await;
    break_store(place);
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
    let summary = sent.json();
    assert_eq!(summary["unsaved"], 2);
    for step in [1, 2] {
        let named = format!("idemp: error: event r:tool_end:{step} (in.jsonl:{step}) is saved nowhere: ");
        assert!(sent.stderr.contains(&named), "{sent:?}");
    }
    // The input was read to its end, and yet there is something to go back for.
    assert_eq!(
        (&summary["unsaved_lines"], &summary["resume_from_line"]),
        (&json!([1, 2]), &json!(1))
    );
}

#[tokio::test]
async fn the_line_to_resume_from_is_not_after_one_that_no_store_took() {
    let place = Place::new();
    place.write("in.jsonl", lines(4));
    fs::create_dir(place.path("d.db.fallback")).unwrap();
    let gate = Gate::shut();
    let behind = gate.clone();
    let peer = Peer::start(move |request| {
        let is_first = request.header("Idempotency-Key") == "r:tool_end:1";
        Answer::status(if is_first { 200 } else { 400 }).behind(&behind)
    })
    .await;
    let to = peer.url("/hook");
    let words = format!("send --to {to} --secret-env SECRET --timeout 60s --dlq sqlite:d.db --json");
    let mut send = Running::start(place.idemp(&words));
    let input = place.read("in.jsonl");
    let (before, after) = input.split_at(lines(2).len());
    send.stdin().write_all(before.as_bytes()).await.unwrap();
    peer.received(2).await;
    break_store(&place);
    gate.open();
    send.stderr_line("idemp: error: event r:tool_end:2 ").await;
    // It may have ended by now: the next line is not taken.
    let _ = send.stdin().write_all(after.as_bytes()).await;
    let summary = send.finish().await.exits(1).json();
    assert_eq!(
        (&summary["read"], &summary["delivered"], &summary["unsaved_lines"]),
        (&json!(2), &json!(1), &json!([2]))
    );
    assert_eq!(summary["resume_from_line"], 2);

    let rest = answering(200).await;
    place.send(&rest, "in.jsonl --dlq memory: --from-line 2").await.exits(0);
    assert_eq!(keys(&rest), keys_of(2..=4));
}
