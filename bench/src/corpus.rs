//! The recorded events (tests/data/langchain-events.jsonl), 585 of 87 real runs.

use anyhow::{Context, ensure};
use idemp_core::{EventType, IdempotencyKey, Message, RunId, StepIndex};
use serde::Deserialize;
use serde_json::Value;

const FILE: &str = include_str!("../../tests/data/langchain-events.jsonl");

/// One recorded event.
pub(crate) struct Event {
    pub(crate) key: IdempotencyKey,
    /// The payload as it stands in the file.
    pub(crate) text: &'static str,
    /// The payload.
    pub(crate) data: Value,
}

#[derive(Deserialize)]
struct Line<'l> {
    run_id: &'l str,
    event: &'l str,
    step_index: u64,
    data: Value,
}

/// All of them. Lines end at `\n` alone: the data holds raw U+2028 and U+0085.
pub(crate) fn events() -> anyhow::Result<Vec<Event>> {
    FILE.split_terminator('\n')
        .enumerate()
        .map(|(index, line)| event(line).with_context(|| format!("line {} of the recorded events", index + 1)))
        .collect()
}

/// Bodies as they are sent.
pub(crate) fn messages() -> anyhow::Result<Vec<Message>> {
    let message = |event: Event| Ok(Message::from_json(event.key, event.text.as_bytes())?);
    events()?.into_iter().map(message).collect()
}

fn event(line: &'static str) -> anyhow::Result<Event> {
    let Line {
        run_id,
        event,
        step_index,
        data,
    } = serde_json::from_str(line)?;
    let (_, text) = line.split_once(r#""data": "#).context("no data")?;
    let text = text.strip_suffix('}').context("the data does not come last")?;
    ensure!(
        serde_json::from_str::<Value>(text)? == data,
        "this text is not the data"
    );
    let key = IdempotencyKey::new(
        &RunId::parse(run_id)?,
        &EventType::parse(event)?,
        StepIndex::new(step_index)?,
    );
    Ok(Event { key, text, data })
}
