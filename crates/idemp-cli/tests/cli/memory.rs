//! A stream needs no more memory than a part of it.

use std::fmt::Write;

use idemp_testkit::peer::{Answer, Peer};
use tokio::io::AsyncWriteExt;

use crate::support::{Place, Running};

/// Events of 10 KB: together four times what the process may use.
const EVENTS: u32 = 20_000;
const BOUND_KB: u64 = 50_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_long_stream_is_not_held_in_memory() {
    let place = Place::new();
    let peer = Peer::always(Answer::status(200)).await;
    let to = peer.url("/hook");
    let mut send = Running::start(place.idemp(&format!("send --to {to} --secret-env SECRET --json")));
    let data = format!("\"{}\"", "x".repeat(10_000));
    let mut text = String::new();
    for step in 1..=EVENTS {
        text.clear();
        write!(
            text,
            r#"{{"run_id":"r","event":"e","step_index":{step},"data":{data}}}"#
        )
        .unwrap();
        text.push('\n');
        send.stdin().write_all(text.as_bytes()).await.unwrap();
    }
    peer.received(EVENTS as usize).await;
    // Standard input is still open, and so the process still there.
    let status = std::fs::read_to_string(format!("/proc/{}/status", send.pid())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"))
        .unwrap();
    let peak: u64 = peak.trim().parse().unwrap();
    assert!(peak < BOUND_KB, "{peak} kB for {} MB of input", EVENTS / 100);
    assert_eq!(send.finish().await.exits(0).json()["delivered"], EVENTS);
}
