//! Why last attempts failed: statuses and codes. What a peer said in words stays in the dead letter.

use std::collections::BTreeMap;

use idemp_core::{Cause, Reason};
use serde::{Serialize, Serializer};

use crate::dlq;

/// How many causes are kept of one reason.
const KEPT: usize = 8;
/// How many of them a person wants to see.
const SHOWN: usize = 2;

/// Different causes of one reason, the first few in the order in which they came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Causes(Vec<Cause>);

impl Causes {
    /// Takes down the cause of one more event.
    pub(super) fn add(&mut self, cause: Cause) {
        if self.0.len() < KEPT && !self.0.contains(&cause) {
            self.0.push(cause);
        }
    }

    /// For a person: ` (status 503, connect and others)`.
    fn shown(&self) -> String {
        let shown: Vec<_> = self.0.iter().take(SHOWN).copied().map(in_words).collect();
        let others = if self.0.len() > SHOWN { " and others" } else { "" };
        format!(" ({}{others})", shown.join(", "))
    }
}

impl Serialize for Causes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().copied().map(in_words))
    }
}

/// Causes by the code of the reason. A reason without an attempt, such as `lane_full`, has none.
pub(super) type ByReason = BTreeMap<&'static str, Causes>;

/// Takes down why an event was given up.
pub(super) fn add(causes: &mut ByReason, reason: Reason, cause: Option<Cause>) {
    if let Some(cause) = cause {
        causes.entry(reason.code()).or_default().add(cause);
    }
}

/// Counts by reason for a person, each with its causes.
pub(super) fn by_reason(counts: &BTreeMap<&'static str, u64>, causes: &ByReason) -> String {
    let reasons: Vec<_> = counts
        .iter()
        .map(|(reason, count)| {
            let why = causes.get(reason).map_or_else(String::new, Causes::shown);
            format!("{reason} {count}{why}")
        })
        .collect();
    reasons.join(", ")
}

fn in_words(cause: Cause) -> String {
    match cause {
        Cause::Status(status) => format!("status {status}"),
        other => dlq::cause(Some(other)),
    }
}

#[cfg(test)]
mod tests {
    use idemp_core::{Code, ErrorClass, Transport};

    use super::*;

    #[test]
    fn causes_are_told_once_each_and_not_without_end() {
        let code = |code| Cause::Code {
            class: ErrorClass::Transient,
            code: Code::new(code),
        };
        let told = |causes: &[Cause]| {
            let mut kept = Causes::default();
            causes.iter().for_each(|cause| kept.add(*cause));
            (kept.shown(), serde_json::to_string(&kept).unwrap())
        };
        let (connect, gone) = (Cause::Transport(Transport::Connect), Cause::Status(410));
        assert_eq!(
            told(&[gone, gone]),
            (" (status 410)".into(), r#"["status 410"]"#.into())
        );
        assert_eq!(
            told(&[connect, gone, connect]),
            (" (connect, status 410)".into(), r#"["connect","status 410"]"#.into())
        );
        let (shown, json) = told(&[code("OOM"), connect, code("")]);
        assert_eq!(shown, " (OOM, connect and others)");
        assert_eq!(json, r#"["OOM","connect","transient"]"#);
        let many: Vec<_> = (500..600).map(Cause::Status).collect();
        assert!(told(&many).1.ends_with(r#""status 507"]"#));
    }
}
