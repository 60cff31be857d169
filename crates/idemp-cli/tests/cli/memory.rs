//! A stream needs no more memory than a part of it.

use std::fmt::Write;
use std::time::Duration;

use idemp_testkit::peer::{Answer, Peer};
use tokio::io::AsyncWriteExt;

use crate::support::{Place, Running};

/// Length of one event's data, in bytes.
const DATA: usize = 400_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_long_stream_takes_no_more_memory_than_a_short_one() {
    let (short, long) = tokio::join!(peak_kb(10), peak_kb(100));
    let more_input_kb = 90 * DATA as u64 / 1_000;
    assert!(
        long < short + more_input_kb / 2,
        "{short} kB, and {long} kB with {more_input_kb} kB more of input"
    );
}

/// Sends so many events to a peer that is slower than the input, and tells the most memory that took, in kB.
async fn peak_kb(events: usize) -> u64 {
    let place = Place::new();
    let peer = Peer::always(Answer::status(200).delayed(Duration::from_millis(60))).await;
    let to = peer.url("/hook");
    let words = format!("send --to {to} --secret-env SECRET --concurrency 1 --lane-bytes 2000000 --json");
    let mut send = Running::start(place.idemp(&words));
    let data = "x".repeat(DATA);
    let mut text = String::new();
    for step in 1..=events {
        text.clear();
        writeln!(
            text,
            r#"{{"run_id":"r","event":"e","step_index":{step},"data":"{data}"}}"#
        )
        .unwrap();
        send.stdin().write_all(text.as_bytes()).await.unwrap();
    }
    peer.received(events).await;
    // Standard input is still open, and so the process still there.
    let status = std::fs::read_to_string(format!("/proc/{}/status", send.pid())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"))
        .unwrap();
    assert_eq!(send.finish().await.exits(0).json()["delivered"], events);
    peak.trim().parse().unwrap()
}
