//! What a replay did, over the store and its fallback.

use std::fmt::Write;

use idemp_dlq::{ReplaySummary, Stopped};
use serde::Serialize;

use crate::exit::Exit;

/// Counts of entries. `selected` is the sum of the others.
#[derive(Debug, Serialize)]
pub(super) struct Totals {
    selected: u64,
    replayed: u64,
    /// Delivered, but still in the store.
    unmarked: u64,
    failed_retry: u64,
    failed_event: u64,
    failed_configuration: u64,
    refused_not_before: u64,
    refused_receiver_ttl: u64,
    refused_unsendable: u64,
    held: u64,
    gone: u64,
    no_target: u64,
    unreadable: u64,
    left: u64,
    /// Why it ended early: `failures` or `interrupted`.
    stopped: Option<&'static str>,
    dlq: String,
}

impl Totals {
    pub(super) fn new(summary: &ReplaySummary, dlq: &str) -> Self {
        Self {
            selected: summary.selected,
            replayed: summary.replayed,
            unmarked: summary.unmarked,
            failed_retry: summary.failed_retry,
            failed_event: summary.failed_event,
            failed_configuration: summary.failed_configuration,
            refused_not_before: summary.refused_not_before,
            refused_receiver_ttl: summary.refused_receiver_ttl,
            refused_unsendable: summary.refused_unsendable,
            held: summary.held,
            gone: summary.gone,
            no_target: summary.no_target,
            unreadable: summary.unreadable,
            left: summary.left,
            stopped: summary.stopped.map(|stopped| match stopped {
                Stopped::Cancelled => INTERRUPTED,
                _ => "failures",
            }),
            dlq: dlq.to_owned(),
        }
    }

    pub(super) fn exit(&self) -> Exit {
        if self.stopped == Some(INTERRUPTED) {
            Exit::Interrupted
        } else if self.unreadable > 0 {
            Exit::Failed
        } else if self.replayed + self.gone < self.selected || self.left > 0 {
            Exit::Partial
        } else {
            Exit::Done
        }
    }

    /// For a person, without a line end at the end.
    pub(super) fn human(&self) -> String {
        let rows = [
            ("selected", self.selected),
            ("replayed", self.replayed),
            ("delivered, but not marked", self.unmarked),
            ("failed, may pass", self.failed_retry),
            ("failed, event rejected", self.failed_event),
            ("failed, configuration rejected", self.failed_configuration),
            ("refused, too early", self.refused_not_before),
            ("refused, receiver may forget", self.refused_receiver_ttl),
            ("refused, cannot be sent", self.refused_unsendable),
            ("held by another replay", self.held),
            ("gone meanwhile", self.gone),
            ("of another sink", self.no_target),
            ("unreadable", self.unreadable),
            ("left", self.left),
        ];
        let mut text = String::new();
        // The first two always stand there, the others where there is something to tell.
        for (_, (name, count)) in rows
            .into_iter()
            .enumerate()
            .filter(|(index, (_, count))| *index < 2 || *count > 0)
        {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:<32}{count:>10}");
        }
        match self.stopped {
            Some(INTERRUPTED) => text.push_str("interrupted: run it again for the rest\n"),
            Some(_) => text.push_str("stopped after too many failures in a row: the receiver is not well yet\n"),
            None => {}
        }
        text.truncate(text.trim_end().len());
        text
    }
}

const INTERRUPTED: &str = "interrupted";
