//! Letters by their numbers.

use std::time::{Duration, SystemTime};

use idemp_core::{EventType, IdempotencyKey, Message, Reason, RunId, SinkName, StepIndex};
use idemp_dlq::DeadLetter;
use serde_json::json;

/// 2026-11-30T00:00:00Z.
pub(crate) const MIDNIGHT: Duration = Duration::from_secs(1_795_996_800);
pub(crate) const DAY: u64 = 24 * 60 * 60;

/// The letter of a number, below ten thousand: no two are alike in what filters look at.
pub(crate) fn made(n: u64) -> DeadLetter {
    DeadLetter {
        sink: sink(n),
        message: Message::new(key(n), &json!({"n": n, "text": "x".repeat(n as usize % 500)})).unwrap(),
        reason: reason(n),
        class: reason(n).class(),
        maybe_delivered: false,
        attempts: Vec::new(),
        accepted_at: SystemTime::UNIX_EPOCH + MIDNIGHT + Duration::from_secs(n % 3 * DAY),
        dead_at: dead_at(n),
        not_before: None,
        replay_count: 0,
    }
}

pub(crate) fn sink(n: u64) -> SinkName {
    SinkName::parse(&format!("sink-{}", n % 4)).unwrap()
}

pub(crate) fn event(n: u64) -> EventType {
    EventType::parse(["tool_end", "chain_end", "llm_end"][n as usize % 3]).unwrap()
}

pub(crate) fn reason(n: u64) -> Reason {
    [
        Reason::RetriesExhausted,
        Reason::CircuitOpen,
        Reason::EventRejected,
        Reason::ConfigurationRejected,
        Reason::Shutdown,
    ][n as usize % 5]
}

pub(crate) fn run(n: u64) -> RunId {
    RunId::parse(&format!("run-{}", n % 50)).unwrap()
}

pub(crate) fn key(n: u64) -> IdempotencyKey {
    IdempotencyKey::new(&run(n), &event(n), StepIndex::new(n / 50 + 1).unwrap())
}

pub(crate) fn number_of(key: &IdempotencyKey) -> u64 {
    let run: u64 = key.run_id().strip_prefix("run-").unwrap().parse().unwrap();
    (key.step_index().as_u64() - 1) * 50 + run
}

pub(crate) fn dead_at(n: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + MIDNIGHT + Duration::from_secs(4 * DAY + n)
}
