//! The recorded events that most suites send.

use idemp_core::{IdempotencyKey, Message};
use serde_json::Value;

use crate::data;

/// Lines of `langchain-events.jsonl`, each with a key of its own.
pub const EVENTS: u64 = 585;

/// The events of `langchain-events.jsonl`, in the order of its lines, with their payloads as they stand there.
///
/// # Panics
///
/// When the file is not as it was recorded.
#[must_use]
pub fn corpus() -> Vec<Message> {
    let text = std::fs::read_to_string(data("langchain-events.jsonl")).expect("the corpus can be read");
    // Only `\n` ends a line: the data holds raw U+2028 and U+0085.
    let messages: Vec<Message> = text.split_terminator('\n').map(message).collect();
    assert_eq!(messages.len() as u64, EVENTS);
    messages
}

/// A number in the payload keeps its spelling.
fn message(line: &str) -> Message {
    let (head, rest) = line.split_once(", \"data\": ").expect("an event has data");
    let head: Value = serde_json::from_str(&format!("{head}}}")).expect("an event is JSON");
    let text = |name: &str| head[name].as_str().expect("an event has a run and a type").to_owned();
    let key = format!("{}:{}:{}", text("run_id"), text("event"), head["step_index"]);
    let key = IdempotencyKey::parse(&key).expect("an event has a key");
    let data = rest.strip_suffix('}').expect("data comes last");
    Message::from_json(key, data.as_bytes()).expect("an event is JSON")
}
