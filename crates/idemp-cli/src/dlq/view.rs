//! How a dead letter is shown.

use std::fmt::Write;
use std::time::SystemTime;

use idemp_core::{AttemptRecord, Cause};
use idemp_dlq::{Letterhead, Loaded};
use serde::Serialize;

use crate::times::rfc3339;

/// A dead letter for a machine. Field names are stable (docs/cli.md).
#[derive(Debug, Serialize)]
pub(crate) struct LetterJson<'l> {
    key: &'l str,
    sink: &'l str,
    event: &'l str,
    reason: &'static str,
    class: &'static str,
    maybe_delivered: bool,
    attempts: Vec<AttemptJson<'l>>,
    accepted_at: String,
    dead_at: String,
    not_before: Option<String>,
    replay_count: u32,
    body_len: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<&'l str>,
    /// Why a replay would refuse it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct AttemptJson<'l> {
    n: u32,
    started: String,
    elapsed_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'l str>,
    detail: &'l str,
}

impl<'l> LetterJson<'l> {
    pub(crate) fn new(head: &'l Letterhead) -> Self {
        Self {
            key: head.key.as_str(),
            sink: head.sink.as_str(),
            event: head.key.event_type(),
            reason: head.reason.code(),
            class: head.class.code(),
            maybe_delivered: head.maybe_delivered,
            attempts: head.attempts.iter().map(AttemptJson::new).collect(),
            accepted_at: rfc3339(head.accepted_at),
            dead_at: rfc3339(head.dead_at),
            not_before: head.not_before.map(rfc3339),
            replay_count: head.replay_count,
            body_len: head.body_len,
            held_until: None,
            body_sha256: None,
            body: None,
            refused: None,
        }
    }
}

impl<'l> AttemptJson<'l> {
    fn new(attempt: &'l AttemptRecord) -> Self {
        let (status, error, code) = match &attempt.cause {
            Some(Cause::Status(status)) => (Some(*status), None, None),
            Some(Cause::Transport(transport)) => (None, Some(transport.code()), None),
            Some(Cause::Code { class, code }) => (None, Some(class.code()), Some(code.as_str())),
            _ => (None, None, None),
        };
        Self {
            n: attempt.number,
            started: rfc3339(attempt.started),
            elapsed_ms: u64::try_from(attempt.elapsed.as_millis()).unwrap_or(u64::MAX),
            status,
            error,
            code,
            detail: attempt.detail.as_str(),
        }
    }
}

/// The first line of a list.
pub(crate) fn heading() -> String {
    row("DEAD AT", "REASON", "SINK", "TRIES", "LAST", "KEY")
}

/// One line of a list.
pub(crate) fn line(head: &Letterhead) -> String {
    let tries = head.attempts.last().map_or(0, |last| last.number).to_string();
    let last = head.attempts.last().map_or_else(String::new, |last| cause(last.cause));
    row(
        &rfc3339(head.dead_at),
        head.reason.code(),
        head.sink.as_str(),
        &tries,
        &last,
        head.key.as_str(),
    )
}

fn row(dead_at: &str, reason: &str, sink: &str, tries: &str, last: &str, key: &str) -> String {
    format!("{dead_at:<20}  {reason:<26}  {sink:<13}  {tries:>5}  {last:<7}  {key}\n")
}

/// All of one letter, but for the body.
pub(crate) fn whole(head: &Letterhead, loaded: &Loaded, sha256: &str) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<17}{value}");
    };
    field("key", head.key.as_str());
    field("sink", head.sink.as_str());
    field("reason", &format!("{} (class {})", head.reason, head.class));
    field("maybe delivered", if head.maybe_delivered { "yes" } else { "no" });
    field("accepted", &rfc3339(head.accepted_at));
    field("dead", &rfc3339(head.dead_at));
    if let Some(not_before) = head.not_before {
        field("not before", &rfc3339(not_before));
    }
    if let Some(until) = loaded.held_until.filter(|until| *until > SystemTime::now()) {
        field("held until", &rfc3339(until));
    }
    field("failed replays", &head.replay_count.to_string());
    field("body", &format!("{} bytes, sha256 {sha256}", head.body_len));
    field("attempts", &head.attempts.len().to_string());
    for attempt in &head.attempts {
        let AttemptRecord {
            number,
            started,
            elapsed,
            detail,
            ..
        } = attempt;
        let (started, cause, elapsed) = (rfc3339(*started), cause(attempt.cause), elapsed.as_millis());
        let row = format!(
            "  {number:>4}  {started}  {cause:<8}{elapsed:>6} ms  {}",
            detail.as_str()
        );
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

/// A status, or the code of a transport's failure.
pub(crate) fn cause(cause: Option<Cause>) -> String {
    match cause {
        Some(Cause::Status(status)) => status.to_string(),
        Some(Cause::Transport(transport)) => transport.code().to_owned(),
        Some(Cause::Code { class, code }) if code.as_str().is_empty() => class.code().to_owned(),
        Some(Cause::Code { code, .. }) => code.to_string(),
        _ => String::new(),
    }
}

/// Lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
