//! What `send` does with bad input, and what it refuses at the start.

use idemp_testkit::peer::{Answer, Peer};
use serde_json::json;

use crate::support::{Place, answering, keys, keys_of, line, lines};

#[tokio::test]
async fn bad_lines_are_named_and_the_good_ones_delivered() {
    let place = Place::new();
    let good = |step| line("r", step, "1").into_bytes();
    let over_long = [
        br#"{"run_id":"r","event":"e","step_index":1,"data":""#,
        &vec![b'x'; 17 << 20][..],
        b"\"}\n",
    ]
    .concat();
    let input = [
        good(1),
        b"{\"run_id\":\"r\"\n".to_vec(),
        good(2),
        line("r", 1, "1").replace("tool_end", "tool:end").into_bytes(),
        line("r", 0, "1").into_bytes(),
        b"{\"run_id\":\"r\",\"event\":\"e\",\"step_index\":1}\n".to_vec(),
        over_long,
        b"{\"run_id\":\"r\",\"event\":\"e\",\"step_index\":1,\"data\":\"\xff\"}\n".to_vec(),
        good(3),
        line("r", 4, "1").replace(":4,", ":4.0,").into_bytes(),
        line("r", 4, "1e400").into_bytes(),
        line("r", 4, "1,\"extra\":2").into_bytes(),
        b"\r\n\n".to_vec(),
        // No line end at the end.
        good(4).strip_suffix(b"\n").unwrap().to_vec(),
    ]
    .concat();
    place.write("in.jsonl", input);

    let peer = answering(200).await;
    let sent = place.send(&peer, "in.jsonl --dlq memory: --json").await.exits(1);
    assert_eq!(keys(&peer), keys_of(1..=4));
    let complaints: Vec<_> = sent
        .stderr
        .lines()
        .filter(|line| line.starts_with("in.jsonl:"))
        .collect();
    assert_eq!(
        complaints,
        [
            "in.jsonl:2: expected `,` or `}` at column 14",
            "in.jsonl:4: event type has a character at byte 4 that is not one of A-Z a-z 0-9 _ . -",
            "in.jsonl:5: step index is not between 1 and 9223372036854775807",
            "in.jsonl:6: no data",
            "in.jsonl:7: longer than 16 MiB",
            "in.jsonl:8: not UTF-8 at column 50",
            "in.jsonl:10: step index has a character at byte 1 that is not a digit",
            "in.jsonl:11: data: number out of range at column 56",
            "in.jsonl:12: a field that is none of run_id, event, step_index and data at column 58",
        ]
    );
    let summary = sent.json();
    assert_eq!(summary["read"], 13);
    assert_eq!(summary["delivered"], 4);
    assert_eq!(summary["invalid"], 9);
    assert_eq!(summary["invalid_lines"], json!([2, 4, 5, 6, 7, 8, 10, 11, 12]));
}

#[tokio::test]
async fn copies_in_the_input_are_sent_once() {
    let place = Place::new();
    let same = line("r", 1, r#"{"a":1,"b":2}"#);
    let same_bytes = line("r", 1, r#"{"b":2, "a":1}"#);
    let other = line("r", 1, r#"{"a":1,"b":3}"#);
    place.write(
        "in.jsonl",
        [same.clone(), same_bytes, line("r", 2, "1"), other, same].concat(),
    );

    let peer = answering(200).await;
    let sent = place.send(&peer, "in.jsonl --json").await.exits(1);
    assert_eq!(keys(&peer), keys_of([1, 2]));
    assert!(
        sent.stderr
            .contains("in.jsonl:4: key r:tool_end:1 stood in the input before, with other data\n"),
        "{sent:?}"
    );
    let summary = sent.json();
    assert_eq!(
        (&summary["duplicates"], &summary["invalid_lines"]),
        (&json!(2), &json!([4]))
    );
}

#[tokio::test]
async fn the_data_is_sent_with_its_digits() {
    let place = Place::new();
    let peer = answering(200).await;
    let to = peer.url("/hook");
    let input = line("r", 1, r#"{ "n" : [123456789012345678901234567890, 1.0, 1e2, -0] }"#).replace('\n', "\r\n");
    place
        .run_with(&format!("send - --to {to} --secret-env SECRET"), input.as_bytes())
        .await
        .exits(0);
    let body = br#"{"data": {"n": [123456789012345678901234567890, 1.0, 100.0, 0]}, "event": "tool_end"}"#;
    assert_eq!(peer.requests()[0].body, body);
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_the_start() {
    let place = Place::new();
    place.write("in.jsonl", lines(1));
    place.write("not-pem", "x");
    let peer = answering(200).await;
    let good = format!("--to {} --secret-env SECRET", peer.url("/hook"));
    for (words, expected) in [
        (
            "in.jsonl --to http://h --secret-env UNSET".to_owned(),
            "no secret: variable UNSET is not set",
        ),
        (
            "in.jsonl --to http://h --secret-file /dev/null".to_owned(),
            "no secret: file /dev/null is empty",
        ),
        (format!("missing.jsonl {good}"), "cannot open missing.jsonl"),
        (
            format!("in.jsonl {good} --dlq sqlite:no/such/folder/dlq.db"),
            "dead-letter store no/such/folder/dlq.db",
        ),
        (
            format!("in.jsonl {good} --dlq sqlite:in.jsonl"),
            "dead-letter store in.jsonl",
        ),
        (
            "in.jsonl --to ftp://h --secret-env SECRET".to_owned(),
            "cannot send to --to",
        ),
        (
            "in.jsonl --to 127.0.0.1:18090/webhooks --secret-env SECRET".to_owned(),
            "--to: has no scheme such as http://",
        ),
        (
            "in.jsonl --to https:/h --secret-env SECRET".to_owned(),
            "--to: https: wants // after it",
        ),
        (
            "in.jsonl --to http://me:hunter2@h --secret-env SECRET".to_owned(),
            "cannot send to --to",
        ),
        (
            format!("in.jsonl {good} --header X-A"),
            "--header: no colon between name and value",
        ),
        (
            format!("in.jsonl {good} --header Idempotency-Key:hunter2"),
            "cannot send to --to",
        ),
        (format!("in.jsonl {good} --proxy socks5://h"), "cannot send to --to"),
        (
            format!("in.jsonl {good} --proxy http://me:hunter2@h"),
            "--proxy: a user name or password in it is seen by all",
        ),
        (
            format!("in.jsonl {good} --proxy me:hunter2@h:1"),
            "--proxy: a user name or password in it is seen by all",
        ),
        (format!("in.jsonl {good} --ca not-pem"), "cannot send to --to"),
        (
            format!("in.jsonl {good} --timeout 0s"),
            "--timeout: an attempt has no time",
        ),
        (
            format!("in.jsonl {good} --concurrency 0"),
            "invalid value '0' for '--concurrency <N>': not a whole number from 1",
        ),
    ] {
        let refused = place.run(&format!("send {words}")).await.exits(2);
        let last = refused.stderr.lines().last().unwrap();
        assert!(
            last.starts_with(&format!("idemp: error: {expected}")),
            "{words}: {refused:?}"
        );
        assert!(!refused.stderr.contains("hunter2"), "{refused:?}");
        assert!(
            !refused.stderr.contains("dead letters go to"),
            "they go nowhere: {refused:?}"
        );
        assert_eq!(refused.stdout, "");
    }
    assert_eq!(peer.requests().len(), 0);
    // Refused by the grammar of the command line.
    for words in [
        "--dlq redis://h",
        "--timeout 5",
        "--from-line 0",
        "--concurrency x",
        "--dlq redis://me:hunter2@h/0?stream",
        "--dlq ftp://me:hunter2@h",
        "redis://me:hunter2@h",
        "--dlq=redis://h/0?password=hunter2&stream",
    ] {
        let refused = place.run(&format!("send in.jsonl {good} {words}")).await.exits(2);
        assert!(!refused.stderr.contains("hunter2"), "{refused:?}");
    }
}

#[tokio::test]
async fn headers_and_standard_webhooks_go_along() {
    let place = Place::new();
    place.write("in.jsonl", [line("r", 1, "1"), line("with.dot", 1, "1")].concat());
    let peer = answering(200).await;
    let sent = place
        .send(&peer, "in.jsonl --standard-webhooks --header X-Tenant:acme")
        .await
        .exits(1);
    assert!(
        sent.stderr.contains("in.jsonl:2: "),
        "a key with a dot cannot be signed so: {sent:?}"
    );
    let requests = peer.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].header("X-Tenant"), "acme");
    assert_eq!(requests[0].header("webhook-id"), "r:tool_end:1");
    assert_eq!(requests[0].header("X-Event-Type"), "tool_end");
}

#[tokio::test]
async fn dead_letters_are_told_by_reason_and_with_exit_code_3() {
    let place = Place::new();
    place.write("in.jsonl", lines(2));
    let peer = answering(400).await;
    let sent = place.send(&peer, "in.jsonl --json").await.exits(3);
    let list = "dlq list --dlq sqlite:idemp-dlq.db";
    assert_eq!(
        sent.stderr,
        format!(
            "idemp: dead letters go to sqlite:idemp-dlq.db\n\
             idemp: 2 dead letters lie in sqlite:idemp-dlq.db: `idemp {list}` lists them\n"
        )
    );
    let summary = sent.json();
    assert_eq!(summary["dead_lettered_by_reason"], json!({"event_rejected": 2}));
    assert_eq!(
        summary["dead_lettered_causes"],
        json!({"event_rejected": ["status 400"]})
    );
    assert_eq!(place.run(list).await.exits(0).stdout.lines().count(), 3);
    assert!(place.path("idemp-dlq.db").exists());
    assert!(
        !place.path("idemp-dlq.db.fallback").exists(),
        "it is made when it is needed"
    );

    let told = place.send(&peer, "in.jsonl --dlq memory:").await.exits(3);
    assert!(
        told.stderr.contains("warning: dead letters in memory are lost"),
        "{told:?}"
    );
    assert!(
        told.stdout
            .contains("dead-lettered          2  event_rejected 2 (status 400)\n"),
        "{told:?}"
    );
    assert!(
        !told.stderr.contains("dlq list"),
        "there is nothing to look at: {told:?}"
    );
}

#[tokio::test]
async fn why_events_were_given_up_is_told_in_codes_and_not_in_the_words_of_the_peer() {
    let place = Place::new();
    place.write("in.jsonl", lines(1));
    let peer = Peer::always(Answer::status(404).body("hunter2 is no hook")).await;
    for (mode, row, field) in [
        ("at-least-once", "dead-lettered", "dead_lettered_causes"),
        ("at-most-once", "dropped      ", "dropped_causes"),
    ] {
        let words = format!("in.jsonl --mode {mode} --dlq sqlite:{mode}.db");
        let told = place.send(&peer, &words).await.exits(3);
        let expected = format!("{row}          1  configuration_rejected 1 (status 404)\n");
        assert!(told.stdout.contains(&expected), "{told:?}");
        assert_eq!(
            told.stderr
                .contains(&format!("`idemp dlq list --dlq sqlite:{mode}.db`")),
            mode == "at-least-once",
            "{told:?}"
        );
        let json = place.send(&peer, &format!("{words} --json")).await.exits(3);
        let causes = json!({"configuration_rejected": ["status 404"]});
        assert_eq!(json.json()[field], causes);
        assert_eq!(json.json()["sinks"]["webhook"][field], causes);
        for text in [told.stdout, told.stderr, json.stdout, json.stderr] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    // Nobody listens there: the listener is gone with its port.
    let gone = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let to = format!("send in.jsonl --to http://{gone}/ --secret-env SECRET --schedule-scale 0.001");
    let told = place.run(&to).await.exits(3);
    assert!(told.stdout.contains("  retries_exhausted 1 (connect)\n"), "{told:?}");
}

#[tokio::test]
async fn from_line_skips_what_was_sent_before() {
    let place = Place::new();
    // The copy of line 1 is known although line 1 is not sent.
    place.write("in.jsonl", [lines(4), line("r", 1, r#"{"x":1}"#)].concat());
    let peer = answering(200).await;
    let sent = place.send(&peer, "in.jsonl --from-line 3 --json").await.exits(0);
    assert_eq!(keys(&peer), keys_of([3, 4]));
    let summary = sent.json();
    assert_eq!((&summary["read"], &summary["duplicates"]), (&json!(3), &json!(1)));
}

#[tokio::test]
async fn an_input_without_events_is_told_and_is_no_error() {
    let place = Place::new();
    let peer = answering(200).await;
    let to = format!("send --to {} --secret-env SECRET", peer.url("/hook"));
    for text in ["", "\n  \n"] {
        place.write("in.jsonl", text);
        let sent = place.run(&format!("{to} in.jsonl")).await.exits(0);
        assert!(sent.stderr.ends_with("idemp: no events in in.jsonl\n"), "{sent:?}");
    }
    let sent = place.run(&to).await.exits(0);
    assert!(sent.stderr.ends_with("idemp: no events in stdin\n"), "{sent:?}");
    place.write("in.jsonl", lines(1));
    let sent = place.run(&format!("{to} in.jsonl")).await.exits(0);
    assert!(!sent.stderr.contains("no events"), "{sent:?}");
}

#[tokio::test]
async fn what_is_no_json_lines_at_all_is_told_what_is_expected() {
    let place = Place::new();
    let peer = answering(200).await;
    let hint = ": send expects one JSON object per line\n";
    for text in [
        "run_id,event,step_index\nr,tool_end,1\n",
        "[\n{},\n{}\n]\n",
        "\n{\n  \"run_id\": \"r\"\n}\n",
    ] {
        place.write("in.jsonl", text);
        let sent = place.send(&peer, "in.jsonl").await.exits(1);
        assert_eq!(sent.stderr.matches(hint).count(), 1, "{sent:?}");
        let first = sent.stderr.lines().find(|line| line.starts_with("in.jsonl:")).unwrap();
        assert!(first.ends_with(hint.trim_end()), "{sent:?}");
    }
    for text in [lines(1) + "x\n", line("r", 0, "1")] {
        place.write("in.jsonl", text);
        let sent = place.send(&peer, "in.jsonl").await.exits(1);
        assert!(!sent.stderr.contains(hint), "one line is wrong, not the file: {sent:?}");
    }
}
