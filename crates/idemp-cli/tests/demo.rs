//! `idemp demo`, run as a person runs it.

#![cfg(all(feature = "webhook", feature = "sqlite"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// The bundled events.
const EVENTS: &str = include_str!("../src/demo/events.jsonl");

fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_idemp"))
        .arg("demo")
        .args(arguments)
        .output()
        .expect("the demo runs")
}

/// The number in the row of this name.
fn row(table: &str, name: &str) -> u64 {
    let rows: Vec<_> = table.lines().filter_map(|line| line.strip_prefix(name)).collect();
    let [row] = rows[..] else {
        panic!("not one row {name}: {table}")
    };
    row.split_whitespace()
        .next()
        .expect("a number")
        .parse()
        .expect("a number")
}

#[test]
fn nothing_is_lost_and_nothing_is_processed_twice() {
    let output = demo(&[]);
    let (text, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    assert_eq!(errors, "", "there is no terminal and nothing to complain about");

    let (story, table) = text.split_once("\nevents ").expect("a table");
    let table = format!("events {table}");
    let events = EVENTS.lines().count() as u64;
    let goes_out = |line: &str| -> Option<u64> {
        let (before, _) = line.split_once(" go out").or_else(|| line.split_once(" goes out"))?;
        before.split_whitespace().rev().find_map(|word| word.parse().ok())
    };
    let told: u64 = story.lines().filter_map(goes_out).sum();
    assert_eq!(told, events, "the story adds up: {story}");
    assert_eq!(row(&table, "events"), events);
    assert_eq!(row(&table, "processed once"), events);
    assert_eq!(row(&table, "lost"), 0);
    assert_eq!(row(&table, "processed twice"), 0);

    // The receiver is down for the last nineteen events, and four before have no chance.
    let dead_lettered = row(&table, "dead-lettered");
    assert!(dead_lettered >= 23, "{table}");
    assert_eq!(row(&table, "replayed"), dead_lettered);
    // Three of each of four kinds of fault leave a copy behind that the receiver has seen, as do two cut replays.
    assert!(row(&table, "duplicates received") >= 14, "{table}");
    // Ten events are tried four times while the receiver is down, nine are not tried, and all dead letters are replayed.
    assert!(
        row(&table, "attempts") > (events - 19) + 10 * 4 + dead_lettered,
        "{table}"
    );

    for said in ["a fifth", "0.2, 1 and 6 s", "lease is 2 s", "seed 36", "--seed N"] {
        assert!(story.contains(said), "{said}: {story}");
    }
    assert!(table.contains("idemp send --help"), "{table}");
    assert!(!text.contains(['{', '"']), "no payload: {text}");
}

#[test]
fn an_interrupted_demo_accounts_for_what_it_has_sent() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_idemp"))
        .arg("demo")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the demo starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("its output"));
    let mut text = String::new();
    while !text.contains("60 events go out") {
        assert!(stdout.read_line(&mut text).unwrap() > 0, "{text}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");

    let (_, table) = text.split_once("\nevents ").expect("a table");
    let table = format!("events {table}");
    assert!(row(&table, "events") < EVENTS.lines().count() as u64, "{table}");
    assert_eq!(row(&table, "replayed"), 0);
    assert_eq!(row(&table, "lost"), 0);
    assert_eq!(row(&table, "processed twice"), 0);
}

#[test]
fn wrong_usage_is_said_before_anything_runs() {
    let output = demo(&["--seed", "soon"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}
