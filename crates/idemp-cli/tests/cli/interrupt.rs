//! Signals: nothing that was accepted is lost, and the line to resume from is exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use idemp_testkit::gate::Gate;
use idemp_testkit::peer::{Answer, Peer};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::{Place, Running, answering, keys, keys_of, lines};

#[tokio::test]
async fn sigterm_with_50_events_in_back_off_dead_letters_them_all() {
    let place = Place::new();
    place.write("in.jsonl", lines(50));
    let sick = answering(503).await;
    let to = sick.url("/hook");
    let send = Running::start(place.idemp(&format!("send in.jsonl --to {to} --secret-env SECRET --json")));
    // Every event has had its second attempt: the next one is 5 s away.
    sick.received(100).await;
    let asked = Instant::now();
    send.terminate();
    let sent = send.finish().await.exits(130);
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    let summary = sent.json();
    assert_eq!(summary["read"], 50);
    assert_eq!(summary["dead_lettered_by_reason"], json!({"shutdown": 50}));
    assert_eq!(
        (&summary["interrupted"], &summary["resume_from_line"]),
        (&json!(true), &json!(null))
    );

    let letters = place.run("dlq list --json").await.exits(0).jsonl();
    assert_eq!(letters.len(), 50);
    assert!(
        letters
            .iter()
            .all(|letter| letter["reason"] == "shutdown" && letter["maybe_delivered"] == true)
    );

    let well = answering(200).await;
    let words = format!(
        "replay --to {} --secret-env SECRET --rate 1000 --json",
        well.url("/hook")
    );
    let replayed = place.run(&words).await.exits(0).json();
    assert_eq!((&replayed["selected"], &replayed["replayed"]), (&json!(50), &json!(50)));
    assert_eq!(keys(&well), keys_of(1..=50));
    assert_eq!(place.run("dlq stats --json").await.exits(0).json()["depth"], 0);
}

#[tokio::test]
async fn the_line_to_resume_from_is_the_first_that_was_not_taken() {
    let place = Place::new();
    place.write("in.jsonl", lines(200));
    let gate = Gate::shut();
    let behind = gate.clone();
    let peer = Peer::start(move |_| Answer::status(200).behind(&behind)).await;
    let to = peer.url("/hook");
    // Standard input stays open, so there is always more to come.
    let mut send = Running::start(place.idemp(&format!("send --to {to} --secret-env SECRET --timeout 60s --json")));
    send.stdin().write_all(lines(5).as_bytes()).await.unwrap();
    peer.received(5).await;
    send.interrupt();
    send.stderr_line("idemp: interrupted").await;
    gate.open();
    let sent = send.wait().await.exits(130);
    let summary = sent.json();
    assert_eq!(
        (&summary["delivered"], &summary["resume_from_line"]),
        (&json!(5), &json!(6))
    );

    let rest = answering(200).await;
    place.send(&rest, "in.jsonl --from-line 6").await.exits(0);
    assert_eq!(keys(&rest), keys_of(6..=200));
}

#[tokio::test]
async fn what_was_taken_and_what_was_not_are_each_named_with_the_way_to_send_them() {
    let place = Place::new();
    let gate = Gate::shut();
    let behind = gate.clone();
    let peer = Peer::start(move |_| Answer::status(200).behind(&behind)).await;
    let to = peer.url("/hook");
    let words = format!("send --to {to} --secret-env SECRET --timeout 60s --concurrency 1 --json");
    let mut send = Running::start(place.idemp(&words));
    // The last one is refused, which is told when the five before it are accepted.
    let input = format!("{}{{\n", lines(5));
    send.stdin().write_all(input.as_bytes()).await.unwrap();
    send.stderr_line("stdin:6: ").await;
    peer.received(1).await;
    send.interrupt();
    send.stderr_line("idemp: interrupted").await;
    gate.open();
    let sent = send.wait().await.exits(130);
    let summary = sent.json();
    assert_eq!(summary["dead_lettered_by_reason"], json!({"shutdown": 4}));
    let replay = "replay --reason shutdown --dlq sqlite:idemp-dlq.db --to URL --secret-env SECRET";
    for expected in [
        &format!(
            "idemp: 4 events were accepted and not delivered yet: they are dead letters in sqlite:idemp-dlq.db, \
             and `idemp {replay} --timeout 60000ms` sends them\n",
        ),
        "idemp: from line 7 on nothing was taken yet: `--from-line 7` sends that\n",
    ] {
        assert!(sent.stderr.contains(expected), "{sent:?}");
    }

    let well = answering(200).await;
    let words = replay.replace("URL", &well.url("/hook"));
    place.run(&format!("{words} --rate 1000")).await.exits(0);
    // Which of them was tried first is not settled.
    let mut all = [keys(&peer), keys(&well)].concat();
    all.sort();
    assert_eq!(all, keys_of(1..=5));
}

#[tokio::test]
async fn a_line_to_begin_with_after_the_end_is_told() {
    let place = Place::new();
    place.write("in.jsonl", lines(3));
    let peer = answering(200).await;
    let told = "in.jsonl has 3 lines: there is nothing from line 99 on";
    let sent = place.send(&peer, "in.jsonl --from-line 99").await.exits(0);
    assert!(sent.stderr.contains(&format!("idemp: warning: {told}\n")), "{sent:?}");
    let sent = place.send(&peer, "in.jsonl --from-line 3").await.exits(0);
    assert!(!sent.stderr.contains("there is nothing"), "{sent:?}");
    assert_eq!(keys(&peer), keys_of([3]));
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let place = Place::new();
    place.write("in.jsonl", lines(1));
    let peer = Peer::always(Answer::hold()).await;
    let to = peer.url("/hook");
    let mut send = Running::start(place.idemp(&format!("send in.jsonl --to {to} --secret-env SECRET --timeout 60s")));
    peer.received(1).await;
    send.terminate();
    send.stderr_line("idemp: interrupted").await;
    send.terminate();
    let ended = send.finish().await.exits(1);
    assert!(ended.stderr.contains("interrupted again"), "{ended:?}");
    assert_eq!(ended.stdout, "");
}

/// The command that an interrupted `send` with these words names, without `idemp`.
async fn named_after(place: &Place, sick: &Peer, words: &str) -> String {
    let before = sick.requests().len();
    let send = Running::start(place.idemp(&format!("send in.jsonl {words}")));
    // All three wait for their next attempt, or for what comes of this one.
    sick.received(before + 3).await;
    send.interrupt();
    let sent = send.wait().await.exits(130);
    assert!(!sent.stderr.contains("hunter2"), "{sent:?}");
    let (_, after) = sent.stderr.split_once("and `idemp ").unwrap();
    after.split_once("` sends them").unwrap().0.to_owned()
}

#[tokio::test]
async fn the_command_to_go_on_with_is_whole_and_shows_nothing_secret() {
    let place = Place::new();
    let is_well = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&is_well);
    let peer = Peer::start(move |_| Answer::status(if answers.load(Ordering::SeqCst) { 200 } else { 503 })).await;
    place.write("in.jsonl", lines(3));
    let url = peer.url("/hook");
    let root = peer.url("/");
    for (words, expected) in [
        (
            format!("--to {root} --secret-env SECRET --dlq sqlite:a.db --header X-Token:hunter2 --standard-webhooks"),
            format!("--dlq sqlite:a.db --to {root} --secret-env SECRET --standard-webhooks --header 'X-Token: VALUE'"),
        ),
        // A token may stand in the path, and in the query.
        (
            format!("--to {} --secret-env SECRET --dlq sqlite:b.db", peer.url("/hunter2")),
            "--dlq sqlite:b.db --to URL --secret-env SECRET".to_owned(),
        ),
        (
            format!("--to {root}?token=hunter2 --secret-env SECRET --dlq sqlite:d.db"),
            "--dlq sqlite:d.db --to URL --secret-env SECRET".to_owned(),
        ),
    ] {
        assert_eq!(
            named_after(&place, &peer, &words).await,
            format!("replay --reason shutdown {expected}")
        );
    }

    let toml = format!("dlq = \"sqlite:c.db\"\n[sinks.a]\nto = \"{url}?token=hunter2\"\nsecret_env = \"SECRET\"\n");
    place.write("idemp.toml", toml);
    let named = named_after(&place, &peer, "--config idemp.toml").await;
    assert_eq!(named, "replay --reason shutdown --config idemp.toml");
    is_well.store(true, Ordering::SeqCst);
    place.run(&named).await.exits(0);
    assert_eq!(
        place.run("dlq stats --dlq sqlite:c.db --json").await.exits(0).json()["depth"],
        0
    );
}
