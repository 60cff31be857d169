//! The commands that need no network.

use idemp_testkit::vectors;
use serde_json::{Value, json};

use crate::support::Place;

#[tokio::test]
async fn canonicalize_prints_the_canonical_bytes_and_nothing_else() {
    let place = Place::new();
    let done = place
        .run_with("canonicalize", br#" {"b": 1.0,"a":[1E2,"\u00e9"]} "#)
        .await
        .exits(0);
    assert_eq!(done.stdout, r#"{"a": [100.0, "\u00e9"], "b": 1.0}"#);
    assert_eq!(done.stderr, "");

    place.write("in.json", "[1e16]");
    assert_eq!(place.run("canonicalize in.json").await.exits(0).stdout, "[1e+16]");
    assert_eq!(place.run_with("canonicalize -", b"2").await.exits(0).stdout, "2");
}

#[tokio::test]
async fn canonicalize_names_file_and_place() {
    let place = Place::new();
    place.write("in.json", "{\n NaN}");
    let failed = place.run("canonicalize in.json").await.exits(1);
    assert_eq!(
        failed.complaint(),
        "idemp: error: in.json: expected a string as key at line 2 column 2 (byte 3)"
    );
    assert_eq!(failed.stdout, "");

    let failed = place.run("canonicalize missing.json").await.exits(2);
    assert!(
        failed
            .complaint()
            .starts_with("idemp: error: cannot open missing.json: "),
        "{failed:?}"
    );
    let failed = place.run("canonicalize .").await.exits(2);
    assert!(
        failed.complaint().starts_with("idemp: error: cannot open .: "),
        "{failed:?}"
    );
}

#[tokio::test]
async fn sign_and_verify_agree_with_the_vectors() {
    let place = Place::new();
    let vectors: Vec<Value> = vectors::load("x-signature-256.jsonl");
    let text = |vector: &Value, field: &str| vector[field].as_str().unwrap().to_owned();
    let good = vectors
        .iter()
        .filter(|vector| vector["valid"] == true && !text(vector, "body_hex").is_empty());
    for vector in good.take(3) {
        let body = vectors::unhex(&text(vector, "body_hex"));
        place.write("secret", vectors::unhex(&text(vector, "secret_hex")));
        let header = text(vector, "header").to_lowercase();
        let signed = place.run_with("sign --secret-file secret", &body).await.exits(0);
        assert_eq!(signed.stdout, format!("{header}\n"), "{vector}");

        let words = format!("verify --secret-file secret --signature {header}");
        let verified = place.run_with(&words, &body).await.exits(0);
        assert_eq!(verified.stdout, "good: signed with secret\n");
        let refused = place.run_with(&words, &[&body[..], b"\n"].concat()).await.exits(1);
        assert!(
            refused
                .complaint()
                .starts_with("idemp: error: bad signature over stdin: "),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn verify_takes_several_secrets() {
    let place = Place::new();
    place.write("old", "old secret\n");
    place.write("new", "new secret\r\n");
    place.write("body", "{}");
    let signature = place.run("sign --secret-file new body").await.exits(0).stdout;
    let words = format!(
        "verify --secret-file old --secret-file new --signature {} body",
        signature.trim()
    );
    assert_eq!(place.run(&words).await.exits(0).stdout, "good: signed with new\n");
    let words = format!("verify --secret-file old --signature {} body", signature.trim());
    place.run(&words).await.exits(1);
    place
        .run("verify --secret-file old --signature sha256= body")
        .await
        .exits(1);
}

#[tokio::test]
async fn a_secret_is_named_and_never_shown() {
    let place = Place::new();
    place.write("empty", "\n");
    place.write("in", "x");
    for (words, expected) in [
        ("--secret-env NOT_SET", "no secret: variable NOT_SET is not set"),
        ("--secret-env EMPTY", "no secret: variable EMPTY is empty"),
        ("--secret-file empty", "no secret: file empty is empty"),
        (
            "--secret-env whsec_c2VjcmV0",
            "--secret-env takes the name of an environment variable, not the secret",
        ),
        (
            "--secret-env c2Vj/cmV0",
            "--secret-env takes the name of an environment variable, not the secret",
        ),
    ] {
        let mut command = place.idemp(&format!("sign {words} in"));
        let output = command.env("EMPTY", "").output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert_eq!(
            String::from_utf8(output.stderr).unwrap(),
            format!("idemp: error: {expected}\n")
        );
    }
    let failed = place.run("sign --secret-file missing in").await.exits(2);
    assert!(
        failed
            .complaint()
            .starts_with("idemp: error: cannot read secret file missing: "),
        "{failed:?}"
    );
    // Exactly one secret signs.
    place.run("sign in").await.exits(2);
    place
        .run("sign --secret-env SECRET --secret-file empty in")
        .await
        .exits(2);
}

/// They are hard to see, and the other side most likely does without them.
#[tokio::test]
async fn a_secret_with_blanks_or_a_byte_order_mark_at_its_ends_is_told_once() {
    let place = Place::new();
    place.write("in", "x");
    let (mark, begin, end) = (
        "begins with a byte order mark",
        "begins with a blank or a line end",
        "ends with a blank or a line end",
    );
    for (secret, what) in [
        (&b"\xef\xbb\xbfhunter2\n"[..], Some(mark)),
        (b"\xff\xfeh\0", Some(mark)),
        (b" hunter2", Some(begin)),
        (b"hunter2 \n", Some(end)),
        (b"hunter2\n\n", Some(end)),
        (b"hun ter2\r\n", None),
    ] {
        place.write("secret", secret);
        let signed = place.run("sign --secret-file secret in").await.exits(0);
        let warning = |what| format!("idemp: warning: the secret in file secret {what}, taken as a part of it\n");
        assert_eq!(signed.stderr, what.map_or_else(String::new, warning));
    }
    let mut command = place.idemp("sign --secret-env BLANK in");
    let output = command.env("BLANK", "hunter2\n").output().await.unwrap();
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!("idemp: warning: the secret in variable BLANK {end}, taken as a part of it\n")
    );

    let sink = |name| format!("[sinks.{name}]\nto = \"http://127.0.0.1:1/\"\nsecret_file = \"secret\"\n");
    place.write("secret", "hunter2 ");
    place.write("idemp.toml", [sink("a"), sink("b")].concat());
    let sent = place.run("send --config idemp.toml --dlq memory:").await.exits(0);
    assert_eq!(sent.stderr.matches(end).count(), 1, "{sent:?}");
    assert!(!sent.stderr.contains("hunter2"), "{sent:?}");
}

#[tokio::test]
async fn key_makes_keys_and_takes_them_apart() {
    let place = Place::new();
    assert_eq!(
        place.run("key req-42 tool_end 7").await.exits(0).stdout,
        "req-42:tool_end:7\n"
    );
    assert_eq!(
        place.run("key --parse req-42:tool_end:7").await.exits(0).stdout,
        "run_id: req-42\nevent: tool_end\nstep_index: 7\n"
    );
    let failed = place.run("key --parse req-42:tool_end:07").await.exits(1);
    assert_eq!(
        failed.complaint(),
        "idemp: error: not a key: step index has leading zeros"
    );
    let failed = place.run("key req-42 tool:end 7").await.exits(2);
    assert_eq!(
        failed.complaint(),
        "idemp: error: no key: event type has a character at byte 4 that is not one of A-Z a-z 0-9 _ . -"
    );
    place.run("key req-42 tool_end").await.exits(2);
    place.run("key req-42 tool_end -- -1").await.exits(2);
    place.run("key").await.exits(2);
}

#[tokio::test]
async fn classify_tells_what_follows() {
    let place = Place::new();
    let json = place
        .run("classify 429 --retry-after 40 --now 2026-11-30T12:00:00Z --json")
        .await
        .exits(0)
        .json();
    assert_eq!(
        json,
        json!({
            "status": 429, "verdict": "retry", "maybe_delivered": false, "retry_after_seconds": 40,
            "wait_seconds": null, "reason": "retry_after_exceeds_budget", "class": "exhausted",
            "not_before": "2026-11-30T12:00:40Z",
        })
    );
    let told = place.run("classify 503").await.exits(0);
    assert_eq!(told.stdout, "503: retry, next attempt after 1 s, maybe delivered\n");
    place.run("classify 99").await.exits(2);
    place.run("classify 1000").await.exits(2);
    place.run("classify 429 --now yesterday").await.exits(2);
}

#[tokio::test]
async fn completions_know_the_commands() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.run(&format!("completions {shell}")).await.exits(0).stdout;
        for word in ["send", "receive", "dlq", "replay", "canonicalize", "secret-file"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    place.run("completions cmd.exe").await.exits(2);
}

#[tokio::test]
async fn help_is_no_error_and_wrong_words_are() {
    let place = Place::new();
    assert!(place.run("--help").await.exits(0).stdout.contains("Exit codes"));
    assert!(place.run("--version").await.exits(0).stdout.starts_with("idemp "));
    // Nothing asked for: the commands there are.
    assert!(place.run("").await.exits(2).stderr.contains("Commands:"));
    for (words, parts) in [
        ("sned", &["'sned'; did you mean send? --help"][..]),
        (
            "send --secert-env A",
            &["'--secert-env' found; did you mean --secret-env? --help"],
        ),
        ("dlq lst", &["'lst'; did you mean list?"]),
        ("receive --cadence daly", &["did you mean daily?"]),
        (
            "send",
            &[
                "--to <URL>",
                "--config <FILE>",
                "--secret-env <NAME>",
                "--secret-file <PATH>",
            ],
        ),
        ("classify abc", &["'abc' for '<STATUS>': not a status from 100 to 999"]),
        ("classify 99", &["'99' for '<STATUS>': not a status from 100 to 999"]),
        (
            "replay --dry-run --limit 0",
            &["'0' for '--limit <N>': not a whole number from 1"],
        ),
        ("classify 503 --colour", &["'--colour' found; --help"]),
        ("classify 503 --now yesterday", &["'yesterday'", "--now"]),
        ("completions cmd.exe", &["'cmd.exe'", "fish"]),
    ] {
        let failed = place.run(words).await.exits(2);
        let complaint = failed.complaint();
        assert!(complaint.starts_with("idemp: error: "), "{complaint}");
        assert!(!complaint.contains("error: error:"), "{complaint}");
        assert!(parts.iter().all(|part| complaint.contains(part)), "{complaint}");
    }
}

#[tokio::test]
async fn a_version_that_cannot_be_written_is_no_success() {
    let place = Place::new();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for word in ["--version", "--help"] {
        let mut command = place.idemp(word);
        let started = command.stdout(full()).stderr(std::process::Stdio::piped()).spawn();
        let ended = started.unwrap().wait_with_output().await.unwrap();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let told = String::from_utf8(ended.stderr).unwrap();
        assert!(
            told.starts_with("idemp: error: cannot write to standard output"),
            "{told}"
        );
    }
}

#[tokio::test]
async fn what_idemp_log_says_wrong_is_told_by_its_name() {
    let place = Place::new();
    for (asked, told) in [("!!bad", 1), ("idemp_core=loud", 1), ("idemp_core=debug,warn", 0)] {
        let mut command = place.idemp("key --parse a:b:1");
        let ended = command.env("IDEMP_LOG", asked).output().await.unwrap();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(stderr.lines().count(), told, "{stderr}");
        assert!(
            stderr
                .lines()
                .all(|line| line.starts_with("idemp: warning: IDEMP_LOG ")),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn a_doctor_tells_every_rule_that_is_broken() {
    let place = Place::new();
    let words = "doctor --lease 20s --handler-cap 9s --ttl 30s --json";
    let told = place.run(words).await.exits(1).json();
    assert_eq!(
        told["checks"][0]["finding"],
        "a lease of 20s is longer than a third of the retry budget, 12s; \
         a handler cap of 9s is not below the sender's attempt timeout, 5s; \
         a key would be remembered for 30s, but at least twice the retry budget is needed, 72s"
    );
    place.run("doctor").await.exits(0);
}
