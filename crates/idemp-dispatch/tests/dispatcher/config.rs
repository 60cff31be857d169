//! What a lane may be told, up to the edge of each rule.

use idemp_core::Mode;
use idemp_dispatch::ConfigError;
use idemp_testkit::sink::{Reply, ScriptedSink};

use super::*;

type Change = fn(&mut LaneConfig);

fn lane() -> LaneConfig {
    let sink = ScriptedSink::always(Reply::delivered());
    LaneConfig::new(name("hook"), Arc::new(sink), Arc::new(MemoryStore::new()))
}

fn made(change: Change) -> Result<Dispatcher, ConfigError> {
    let mut lane = lane();
    change(&mut lane);
    Dispatcher::new(vec![lane])
}

#[test]
fn there_is_a_lane_and_no_two_have_one_name() {
    for (lanes, says) in [
        (vec![], "a dispatcher needs at least one lane"),
        (vec![lane(), lane()], "two lanes are called hook"),
    ] {
        assert_eq!(Dispatcher::new(lanes).unwrap_err().to_string(), says);
    }
}

#[test]
fn what_is_just_within_a_rule_is_taken() {
    let within: [(&str, Change); 10] = [
        ("no store, at most once", |lane| {
            (lane.mode, lane.dead_letters) = (Mode::AtMostOnce, None);
        }),
        ("shortest attempt", |lane| {
            lane.attempt_timeout = Duration::from_nanos(1);
        }),
        ("longest attempt", |lane| lane.attempt_timeout = secs(3_600)),
        ("shortest write", |lane| lane.store_timeout = Duration::from_nanos(1)),
        ("longest write", |lane| lane.store_timeout = secs(3_600)),
        ("smallest lane", |lane| {
            (lane.concurrency, lane.max_events, lane.max_bytes) = (1, 1, 1);
        }),
        ("no limit of attempts", |lane| lane.concurrency = usize::MAX),
        ("most events", |lane| lane.max_events = usize::MAX >> 3),
        ("most bytes", |lane| lane.max_bytes = 4_294_967_295),
        ("quickest breaker", |lane| {
            (lane.breaker.exhausted_in_a_row, lane.breaker.letters_per_second) = (1, 1);
        }),
    ];
    for (what, change) in within {
        assert!(made(change).is_ok(), "{what}");
    }
}

#[test]
fn what_is_just_beyond_a_rule_is_refused_by_the_names_of_lane_and_field() {
    let zero = "lane hook: concurrency, max_events or max_bytes: none may be zero";
    let large = "lane hook: max_events or max_bytes: it is too large";
    let attempt = "lane hook: attempt_timeout: it must be above zero and at most an hour";
    let store = "lane hook: store_timeout: it must be above zero and at most an hour";
    let breaker = "lane hook: breaker: its limits must be above zero";
    let beyond: [(Change, &str); 12] = [
        (
            |lane| lane.dead_letters = None,
            "lane hook: dead_letters: a lane that delivers at least once needs a dead-letter store",
        ),
        (|lane| lane.attempt_timeout = Duration::ZERO, attempt),
        (
            |lane| lane.attempt_timeout = secs(3_600) + Duration::from_nanos(1),
            attempt,
        ),
        (|lane| lane.store_timeout = Duration::ZERO, store),
        (|lane| lane.store_timeout = secs(3_600) + Duration::from_nanos(1), store),
        (|lane| lane.concurrency = 0, zero),
        (|lane| lane.max_events = 0, zero),
        (|lane| lane.max_bytes = 0, zero),
        (|lane| lane.max_events = (usize::MAX >> 3) + 1, large),
        (|lane| lane.max_bytes = 4_294_967_296, large),
        (|lane| lane.breaker.exhausted_in_a_row = 0, breaker),
        (|lane| lane.breaker.letters_per_second = 0, breaker),
    ];
    for (index, (change, says)) in beyond.into_iter().enumerate() {
        assert_eq!(made(change).unwrap_err().to_string(), says, "row {index}");
    }
}
