//! `idemp dlq`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::replay::{letter, put};
use crate::support::{Place, answering, keys, line};

/// Two letters of run a, one of them of another event type, and one of run b, rejected in another way.
async fn filled() -> Place {
    let place = Place::new();
    let peer = answering(400).await;
    let other_type = line("a", 2, "1").replace("tool_end", "llm_end");
    place.write(
        "in.jsonl",
        [line("a", 1, r#"{"password":"hunter2"}"#), other_type].concat(),
    );
    place.send(&peer, "in.jsonl --dlq sqlite:d.db").await.exits(3);
    let misconfigured = answering(404).await;
    place.write("in.jsonl", line("b", 1, "1"));
    place.send(&misconfigured, "in.jsonl --dlq sqlite:d.db").await.exits(3);
    place
}

async fn listed(place: &Place, filter: &str) -> Vec<Value> {
    let letters = place
        .run(&format!("dlq list --dlq sqlite:d.db --json {filter}"))
        .await
        .exits(0)
        .jsonl();
    letters.into_iter().map(|letter| letter["key"].clone()).collect()
}

#[tokio::test]
async fn list_goes_by_filters() {
    let place = filled().await;
    let (a1, a2, b1) = ("a:tool_end:1", "a:llm_end:2", "b:tool_end:1");
    for (filter, expected) in [
        ("", vec![a1, a2, b1]),
        ("--run a", vec![a1, a2]),
        ("--event tool_end", vec![a1, b1]),
        ("--reason configuration_rejected", vec![b1]),
        ("--key a:llm_end:2", vec![a2]),
        ("--key a:llm_end:2 --run b", vec![]),
        ("--key a:tool_end:9", vec![]),
        ("--reason event_rejected --event llm_end", vec![a2]),
        ("--sink webhook", vec![a1, a2, b1]),
        ("--sink other", vec![]),
        ("--since 1h", vec![a1, a2, b1]),
        ("--until 1h", vec![]),
        ("--since 2020-01-01T00:00:00Z --until 2021-01-01T00:00:00Z", vec![]),
    ] {
        assert_eq!(listed(&place, filter).await, expected, "{filter}");
    }
    let table = place.run("dlq list --dlq sqlite:d.db").await.exits(0).stdout;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("DEAD AT"), "{table}");
    assert!(
        lines[1].contains("event_rejected") && lines[1].ends_with("400      a:tool_end:1"),
        "{table}"
    );
}

#[tokio::test]
async fn show_tells_all_but_the_payload_unless_asked() {
    let place = filled().await;
    let shown = place
        .run("dlq show a:tool_end:1 --dlq sqlite:d.db")
        .await
        .exits(0)
        .stdout;
    for part in [
        "a:tool_end:1\n",
        "event_rejected (class event)\n",
        "maybe delivered  no\n",
        "bytes, sha256 ",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("hunter2"), "{shown}");
    let body = r#"{"data": {"password": "hunter2"}, "event": "tool_end"}"#;
    let shown = place
        .run("dlq show a:tool_end:1 --body --dlq sqlite:d.db")
        .await
        .exits(0)
        .stdout;
    assert!(shown.ends_with(&format!("{body}\n")), "{shown}");

    let json = place
        .run("dlq show a:tool_end:1 --dlq sqlite:d.db --json")
        .await
        .exits(0)
        .json();
    assert_eq!(json.get("body"), None);
    assert_eq!(json["attempts"][0]["status"], 400);
    assert_eq!(json["body_len"], body.len());
    let json = place
        .run("dlq show a:tool_end:1 --body --dlq sqlite:d.db --json")
        .await
        .exits(0)
        .json();
    assert_eq!(json["body"], body);

    let missing = place.run("dlq show a:tool_end:9 --dlq sqlite:d.db").await.exits(1);
    assert_eq!(
        missing.complaint(),
        "idemp: error: no dead letter a:tool_end:9 in sqlite:d.db"
    );
    place.run("dlq show nonsense --dlq sqlite:d.db").await.exits(2);
}

#[tokio::test]
async fn stats_count_and_alarm() {
    let place = filled().await;
    let stats = place.run("dlq stats --dlq sqlite:d.db --json").await.exits(0).json();
    assert_eq!(
        (&stats["depth"], &stats["by_sink"]),
        (&json!(3), &json!({"webhook": 3}))
    );
    assert_eq!(
        stats["by_reason"],
        json!({"event_rejected": 2, "configuration_rejected": 1})
    );
    place.run("dlq stats --dlq sqlite:d.db --fail-above 3").await.exits(0);
    let alarm = place.run("dlq stats --dlq sqlite:d.db --fail-above 2").await.exits(1);
    assert!(alarm.stdout.contains("  event_rejected"), "{alarm:?}");
    place
        .run("dlq stats --dlq sqlite:d.db --fail-above 2 --run a")
        .await
        .exits(0);
}

#[tokio::test]
async fn purge_wants_clear_words() {
    let place = filled().await;
    let purge = async |words: &str| place.run(&format!("dlq purge --dlq sqlite:d.db {words}")).await;
    assert_eq!(
        purge("").await.exits(2).complaint(),
        "idemp: error: purge wants a filter, or --all"
    );
    assert_eq!(
        purge("--yes").await.exits(2).complaint(),
        "idemp: error: purge wants a filter, or --all"
    );
    purge("--all --run a --yes").await.exits(2);
    let asked = purge("--run a").await.exits(2);
    assert_eq!(
        asked.complaint(),
        "idemp: error: 2 dead letters in sqlite:d.db would be deleted: add --yes"
    );
    assert_eq!(listed(&place, "").await.len(), 3);

    assert_eq!(
        purge("--event llm_end --yes --json").await.exits(0).json(),
        json!({"purged": 1})
    );
    assert_eq!(listed(&place, "").await, ["a:tool_end:1", "b:tool_end:1"]);
    assert_eq!(purge("--all --yes").await.exits(0).stdout, "2 dead letters deleted\n");
    assert_eq!(listed(&place, "").await.len(), 0);
}

#[tokio::test]
async fn show_prints_a_line_for_each_letter_of_a_key() {
    let place = Place::new();
    let letters = ["audit", "webhook"].map(|sink| letter(1, sink, Duration::ZERO));
    put(&place, "d.db", letters).await;
    let words = "dlq show r:tool_end:1 --dlq sqlite:d.db --json --body";
    let shown = place.run(words).await.exits(0).jsonl();
    let sinks: Vec<_> = shown.iter().map(|letter| &letter["sink"]).collect();
    assert_eq!(sinks, ["audit", "webhook"]);
    // The fields of docs/dlq.md.
    let fields: BTreeSet<_> = shown[0].as_object().unwrap().keys().map(String::as_str).collect();
    let expected = "key sink event reason class maybe_delivered attempts accepted_at dead_at not_before replay_count \
                    body_len body_sha256 body";
    assert_eq!(fields, expected.split_whitespace().collect());
    let filtered = place.run(&format!("{words} --sink audit")).await.exits(0);
    assert_eq!(filtered.json()["sink"], "audit");
}

#[tokio::test]
async fn a_time_that_is_empty_is_refused() {
    let place = filled().await;
    for words in [
        "dlq list",
        "dlq stats --fail-above 0",
        "dlq purge --yes",
        "replay --dry-run",
    ] {
        let refused = place
            .run(&format!("{words} --dlq sqlite:d.db --since 1h --until 2h"))
            .await
            .exits(2);
        let complaint = refused.complaint();
        assert!(
            complaint.contains("--since") && complaint.contains("--until"),
            "{complaint}"
        );
        place
            .run(&format!("{words} --dlq sqlite:d.db --since 2h --until 1h"))
            .await
            .exits(0);
    }
}

#[tokio::test]
async fn a_store_that_is_not_there_is_not_made() {
    let place = Place::new();
    for words in ["list", "stats", "show a:b:1", "purge --all --yes"] {
        let refused = place.run(&format!("dlq {words}")).await.exits(2);
        assert!(
            refused
                .stderr
                .starts_with("idemp: dead letters are read from sqlite:idemp-dlq.db\n"),
            "{refused:?}"
        );
        assert!(
            refused
                .stderr
                .contains("idemp: error: dead-letter store idemp-dlq.db: "),
            "{refused:?}"
        );
    }
    assert!(!place.path("idemp-dlq.db").exists());
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_is_named_once_with_one_cause() {
    let place = Place::new();
    place.write(
        "text.db",
        "this is a text and no database, and long enough to have a header".repeat(20),
    );
    let complaint = |words: &str| {
        let words = format!("dlq stats --dlq {words}");
        let place = &place;
        async move { place.run(&words).await.exits(2).complaint().to_owned() }
    };
    assert_eq!(
        complaint("sqlite:nosuch.db").await,
        "idemp: error: dead-letter store nosuch.db: the dead-letter file does not exist"
    );
    let tape = complaint("tape:0").await;
    assert!(
        tape.ends_with("redis://HOST:PORT/DB?stream=NAME; send also takes memory:"),
        "{tape}"
    );
    let text = complaint("sqlite:text.db").await;
    assert_eq!(text.matches("file is not a database").count(), 1, "{text}");
    place.write("in.jsonl", line("a", 1, "1"));
    for (path, expected) in [
        ("none/a.db", "the folder of the dead-letter file does not exist"),
        #[cfg(target_os = "linux")]
        ("/proc/a.db", "the folder takes no dead-letter file"),
    ] {
        let words = format!("send in.jsonl --to http://127.0.0.1:1/ --secret-env SECRET --dlq sqlite:{path}");
        let refused = place.run(&words).await.exits(2);
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
}

#[tokio::test]
async fn one_key_is_counted_deleted_and_replayed() {
    let place = filled().await;
    let stats = "dlq stats --dlq sqlite:d.db --json";
    let one = place.run(&format!("{stats} --key a:llm_end:2")).await.exits(0).json();
    assert_eq!(one["depth"], 1);

    let well = answering(200).await;
    let to = format!("--dlq sqlite:d.db --to {} --secret-env SECRET", well.url("/hook"));
    place.run(&format!("replay {to} --key a:llm_end:2")).await.exits(0);
    assert_eq!(keys(&well), ["a:llm_end:2"]);

    // It is a filter, as good as any other.
    let purge = "dlq purge --dlq sqlite:d.db --key b:tool_end:1";
    let both = place.run(&format!("{purge} --all --yes")).await.exits(2);
    assert_eq!(
        both.complaint(),
        "idemp: error: purge takes a filter or --all, not both"
    );
    let done = place.run(&format!("{purge} --yes")).await.exits(0);
    assert_eq!(done.stdout, "1 dead letters deleted\n");
    assert_eq!(listed(&place, "").await, ["a:tool_end:1"]);
}

#[tokio::test]
async fn a_key_that_is_none_is_wrong_usage() {
    let place = filled().await;
    for command in ["dlq list", "dlq stats", "dlq purge --yes", "replay --dry-run"] {
        let words = format!("{command} --dlq sqlite:d.db --key a:tool_end:07");
        let refused = place.run(&words).await.exits(2);
        assert_eq!(
            refused.complaint(),
            "idemp: error: invalid value 'a:tool_end:07' for '--key <KEY>': step index has leading zeros"
        );
    }
    // What is shown has its key already.
    let two = place
        .run("dlq show a:tool_end:1 --dlq sqlite:d.db --key b:tool_end:1")
        .await
        .exits(2);
    assert!(two.complaint().contains("cannot be used with"), "{two:?}");
    assert_eq!(listed(&place, "").await.len(), 3);
}
