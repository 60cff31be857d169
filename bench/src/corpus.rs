//! The recorded events (tests/data/langchain-events.jsonl), 585 of 87 real runs.

use anyhow::{Context, ensure};
use bytes::Bytes;
use idemp_core::{EventType, IdempotencyKey, Message, Run, RunId, StepIndex};
use serde::Deserialize;
use serde_json::{Value, json};

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

/// Events without end under keys of their own, in the bodies of a few.
pub(crate) struct Numbered {
    run: Run,
    bodies: Vec<(EventType, Bytes)>,
}

impl Numbered {
    /// In the bodies of the recorded events.
    pub(crate) fn recorded() -> anyhow::Result<Self> {
        let body = |message: Message| {
            let event_type = EventType::parse(message.key().event_type())?;
            Ok((event_type, message.body().clone()))
        };
        Ok(Self::new(
            messages()?.into_iter().map(body).collect::<anyhow::Result<_>>()?,
        ))
    }

    /// In one body of this many bytes.
    pub(crate) fn of_length(bytes: usize) -> anyhow::Result<Self> {
        let event = |padding: usize| {
            let data = json!({"output": "x".repeat(padding), "tags": ["seq:step:1"], "usage": {"tokens": 12}});
            Run::new().event(EventType::TOOL_END, &data)
        };
        let padding = bytes.checked_sub(event(0)?.body().len()).context("too short a body")?;
        Ok(Self::new(vec![(EventType::TOOL_END, event(padding)?.body().clone())]))
    }

    fn new(bodies: Vec<(EventType, Bytes)>) -> Self {
        Self {
            run: Run::new(),
            bodies,
        }
    }

    /// New events; their bodies are the same ones each time.
    pub(crate) fn take(&self, count: usize) -> anyhow::Result<Vec<Message>> {
        let next = |(event_type, body): &(EventType, Bytes)| {
            Ok(Message::from_stored(self.run.next_key(event_type)?, body.clone())?)
        };
        self.bodies.iter().cycle().take(count).map(next).collect()
    }
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
