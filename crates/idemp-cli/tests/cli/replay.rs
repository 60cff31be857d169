//! `idemp replay`.

use std::time::{Duration, SystemTime};

use idemp_core::{AttemptRecord, Cause, Detail, IdempotencyKey, Message, Reason, SinkName};
use idemp_dlq::{DeadLetter, DeadLetterStore, SqliteStore};
use idemp_testkit::gate::Gate;
use idemp_testkit::peer::{Answer, Peer};
use serde_json::json;

use crate::support::{Finished, Place, Running, answering, keys, keys_of, lines};

const DAY: Duration = Duration::from_secs(86_400);

/// A letter of run `r` that was given up so long ago after one attempt with status 503.
pub(crate) fn letter(step: u32, sink: &str, ago: Duration) -> DeadLetter {
    let key = IdempotencyKey::parse(&format!("r:tool_end:{step}")).unwrap();
    let then = SystemTime::now() - ago;
    DeadLetter {
        sink: SinkName::parse(sink).unwrap(),
        message: Message::from_json(key, b"1").unwrap(),
        reason: Reason::RetriesExhausted,
        class: Reason::RetriesExhausted.class(),
        maybe_delivered: true,
        attempts: vec![AttemptRecord {
            number: 1,
            started: then,
            elapsed: Duration::from_millis(7),
            cause: Some(Cause::Status(503)),
            detail: Detail::new("busy"),
        }],
        accepted_at: then,
        dead_at: then,
        not_before: None,
        replay_count: 0,
    }
}

pub(crate) async fn put(place: &Place, file: &str, letters: impl IntoIterator<Item = DeadLetter>) {
    let store = SqliteStore::open(place.path(file)).unwrap();
    for letter in letters {
        store.put(letter).await.unwrap();
    }
    store.close().await;
}

async fn replay(place: &Place, peer: &Peer, words: &str) -> Finished {
    let to = peer.url("/hook");
    place
        .run(&format!(
            "replay --to {to} --secret-env SECRET --rate 1000 --json {words}"
        ))
        .await
}

#[tokio::test]
async fn killed_in_the_middle_and_run_again_it_skips_none() {
    let place = Place::new();
    put(
        &place,
        "idemp-dlq.db",
        (1..=30).map(|step| letter(step, "webhook", Duration::ZERO)),
    )
    .await;
    let gate = Gate::shut();
    let behind = gate.clone();
    // The first five are delivered; no other has its answer before the kill.
    let peer = Peer::start(move |request| match request.index {
        ..5 => Answer::status(200),
        _ => Answer::status(200).behind(&behind),
    })
    .await;
    let to = peer.url("/hook");
    // The shortest lease that its attempts allow.
    let words = format!("replay --to {to} --secret-env SECRET --timeout 4s --lease 6s --rate 1000");
    let first = Running::start(place.idemp(&words));
    peer.received(6).await;
    first.kill().await;
    let before = peer.requests().len();
    gate.open();

    let second = place.run(&format!("{words} --json")).await.exits(0).json();
    assert_eq!(
        (&second["selected"], &second["replayed"]),
        (&json!(25), &json!(25)),
        "one goes out after the one before is marked: {second}"
    );
    let mut delivered = keys(&peer);
    delivered.dedup();
    assert_eq!(delivered, keys_of(1..=30));
    assert_eq!(
        peer.requests().len(),
        before + 25,
        "only what was in flight goes out twice"
    );
    assert_eq!(place.run("dlq stats --json").await.exits(0).json()["depth"], 0);
}

#[tokio::test]
async fn a_dry_run_prints_the_order_and_sends_nothing() {
    let place = Place::new();
    let mut early = letter(1, "webhook", Duration::ZERO);
    early.not_before = Some(SystemTime::now() + DAY);
    put(
        &place,
        "idemp-dlq.db",
        [
            letter(3, "webhook", Duration::ZERO),
            letter(2, "webhook", DAY * 2),
            early,
        ],
    )
    .await;
    let peer = answering(200).await;
    let listed = replay(&place, &peer, "--dry-run").await.exits(0).jsonl();
    let listed: Vec<_> = listed
        .iter()
        .map(|letter| (&letter["key"], &letter["refused"]))
        .collect();
    assert_eq!(
        listed,
        [
            (&json!("r:tool_end:2"), &json!("receiver_ttl")),
            (&json!("r:tool_end:1"), &json!("not_before")),
            (&json!("r:tool_end:3"), &json!(null)),
        ]
    );
    assert_eq!(peer.requests().len(), 0);
    assert_eq!(place.run("dlq stats --json").await.exits(0).json()["depth"], 3);

    // It needs neither target nor secret. What has no target in a configuration is told.
    assert_eq!(place.run("replay --dry-run --json").await.exits(0).jsonl().len(), 3);
    let config = "[sinks.audit]\nto = \"http://127.0.0.1:1/\"\nsecret_env = \"UNSET\"\n";
    place.write("idemp.toml", config);
    let listed = place.run("replay --dry-run --json --config idemp.toml").await.exits(0);
    for letter in listed.jsonl() {
        assert_eq!(letter["refused"], "no_target");
    }
    let sent = place.run("replay").await.exits(2);
    assert!(sent.complaint().contains("--to <URL>"), "{sent:?}");
    place.run("replay --config idemp.toml").await.exits(2);
}

#[tokio::test]
async fn a_limit_counts_what_is_sent_and_a_dry_run_agrees() {
    let place = Place::new();
    let early = |step| DeadLetter {
        not_before: Some(SystemTime::now() + DAY),
        ..letter(step, "webhook", Duration::ZERO)
    };
    let good = |step| letter(step, "webhook", Duration::ZERO);
    put(&place, "idemp-dlq.db", (1..=6).map(early).chain([good(7), good(8)])).await;
    put(&place, "idemp-dlq.db.fallback", [early(9), good(10), good(11)]).await;
    let peer = answering(200).await;

    let planned = replay(&place, &peer, "--dry-run --limit 3").await.exits(0).jsonl();
    let planned: Vec<_> = planned
        .iter()
        .filter(|letter| letter["refused"].is_null())
        .map(|letter| letter["key"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(planned, ["r:tool_end:7", "r:tool_end:8", "r:tool_end:10"]);
    assert_eq!(peer.requests().len(), 0);

    let summary = replay(&place, &peer, "--limit 3").await.exits(3).json();
    assert_eq!(keys(&peer), keys_of([7, 8, 10]));
    assert_eq!(
        (&summary["selected"], &summary["refused_not_before"], &summary["left"]),
        (&json!(10), &json!(7), &json!(0))
    );
}

#[tokio::test]
async fn what_would_be_processed_twice_or_too_early_wants_force() {
    let place = Place::new();
    let mut early = letter(1, "webhook", Duration::ZERO);
    early.not_before = Some(SystemTime::now() + DAY);
    put(
        &place,
        "idemp-dlq.db",
        [
            early,
            letter(2, "webhook", DAY * 2),
            letter(3, "webhook", Duration::ZERO),
        ],
    )
    .await;
    let peer = answering(200).await;

    let summary = replay(&place, &peer, "").await.exits(3).json();
    assert_eq!(keys(&peer), keys_of([3]));
    assert_eq!(
        (&summary["refused_not_before"], &summary["refused_receiver_ttl"]),
        (&json!(1), &json!(1))
    );

    replay(&place, &peer, "--receiver-ttl 7d").await.exits(3);
    assert_eq!(keys(&peer), keys_of([2, 3]));
    replay(&place, &peer, "--force").await.exits(0);
    assert_eq!(keys(&peer), keys_of([1, 2, 3]));
}

#[tokio::test]
async fn failures_stay_in_the_store_and_exit_3() {
    let place = Place::new();
    put(
        &place,
        "idemp-dlq.db",
        (1..=12).map(|step| letter(step, "webhook", Duration::ZERO)),
    )
    .await;
    let peer = answering(503).await;
    let failed = replay(&place, &peer, "").await.exits(3);
    let summary = failed.json();
    assert_eq!(
        (&summary["failed_retry"], &summary["left"]),
        (&json!(10), &json!(2)),
        "10 in a row are enough"
    );
    assert_eq!(summary["stopped"], "failures");
    assert!(
        failed.stderr.contains("r:tool_end:1: not delivered: 503 (retry)\n"),
        "{failed:?}"
    );
    assert_eq!(place.run("dlq stats --json").await.exits(0).json()["depth"], 12);

    let rejecting = answering(400).await;
    replay(&place, &rejecting, "--limit 2").await.exits(3);
    assert_eq!(keys(&rejecting), keys_of([1, 2]));
    let rejected = place
        .run("dlq list --json --reason event_rejected")
        .await
        .exits(0)
        .jsonl();
    assert_eq!(rejected.len(), 2);
    assert_eq!(rejected[0]["attempts"].as_array().unwrap().len(), 3);
    assert_eq!(rejected[0]["replay_count"], 2);
}

#[tokio::test]
async fn a_selection_over_several_sinks_wants_a_name() {
    let place = Place::new();
    put(
        &place,
        "idemp-dlq.db",
        [letter(1, "webhook", Duration::ZERO), letter(2, "audit", Duration::ZERO)],
    )
    .await;
    let peer = answering(200).await;
    let refused = replay(&place, &peer, "").await.exits(2);
    assert!(
        refused
            .stderr
            .ends_with("the selection is over several sinks (audit, webhook): add --sink\n"),
        "{refused:?}"
    );
    replay(&place, &peer, "--dry-run").await.exits(2);
    assert_eq!(peer.requests().len(), 0);
    replay(&place, &peer, "--sink audit").await.exits(0);
    assert_eq!(keys(&peer), keys_of([2]));
}

#[tokio::test]
async fn the_fallback_is_replayed_too() {
    let place = Place::new();
    put(&place, "d.db", [letter(1, "webhook", Duration::ZERO)]).await;
    put(
        &place,
        "d.db.fallback",
        [
            letter(2, "webhook", Duration::ZERO),
            letter(3, "webhook", Duration::ZERO),
        ],
    )
    .await;
    assert_eq!(
        place
            .run("dlq list --json --dlq sqlite:d.db")
            .await
            .exits(0)
            .jsonl()
            .len(),
        3
    );
    assert_eq!(
        place.run("dlq stats --json --dlq sqlite:d.db").await.exits(0).json()["depth"],
        3
    );
    let peer = answering(200).await;
    replay(&place, &peer, "--dlq sqlite:d.db --limit 2").await.exits(0);
    assert_eq!(keys(&peer), keys_of([1, 2]));
    replay(&place, &peer, "--dlq sqlite:d.db").await.exits(0);
    assert_eq!(keys(&peer), keys_of([1, 2, 3]));
}

#[tokio::test]
async fn interrupted_it_finishes_the_attempt_and_keeps_the_rest() {
    let place = Place::new();
    put(
        &place,
        "idemp-dlq.db",
        (1..=20).map(|step| letter(step, "webhook", Duration::ZERO)),
    )
    .await;
    let peer = answering(200).await;
    let to = peer.url("/hook");
    let replay = Running::start(place.idemp(&format!("replay --to {to} --secret-env SECRET --rate 5 --json")));
    peer.received(2).await;
    replay.interrupt();
    let summary = replay.finish().await.exits(130).json();
    let replayed = summary["replayed"].as_u64().unwrap();
    assert_eq!(replayed, peer.requests().len() as u64);
    assert_eq!(summary["left"], 20 - replayed);
    assert_eq!(
        place.run("dlq stats --json").await.exits(0).json()["depth"],
        20 - replayed
    );
}

#[tokio::test]
async fn wrong_usage_is_refused() {
    let place = Place::new();
    let to = "--to http://127.0.0.1:1/ --secret-env SECRET";
    let missing = place
        .run(&format!("replay {to} --dlq sqlite:missing.db"))
        .await
        .exits(2);
    assert!(
        missing
            .complaint()
            .starts_with("idemp: error: dead-letter store missing.db: "),
        "{missing:?}"
    );
    assert!(!place.path("missing.db").exists());
    place.run(&format!("replay {to} --dlq memory:")).await.exits(2);
    place.write("in.jsonl", lines(1));
    put(&place, "idemp-dlq.db", []).await;
    place.run(&format!("replay {to} --rate 0")).await.exits(2);
    place.run(&format!("replay {to} --reason because")).await.exits(2);
    assert_eq!(
        place.run(&format!("replay {to} --json")).await.exits(0).json()["selected"],
        0
    );
}
