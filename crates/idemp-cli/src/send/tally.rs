//! What became of the input, and how it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use idemp_core::{Cause, Reason, SinkName};
use serde::Serialize;

use super::causes::{self, ByReason, by_reason};
use crate::exit::Exit;
use crate::store::MEMORY;

/// How many line numbers the summary names.
const LINES: usize = 1_000;
/// How many of them a person wants to see.
const SHOWN: usize = 20;

/// What became of events. With several sinks an event counts at each.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Settled {
    pub(super) delivered: u64,
    pub(super) dead_lettered: u64,
    pub(super) dead_lettered_by_reason: BTreeMap<&'static str, u64>,
    /// Why their last attempts failed.
    pub(super) dead_lettered_causes: ByReason,
    /// Lost at a sink that delivers at most once.
    pub(super) dropped: u64,
    pub(super) dropped_by_reason: BTreeMap<&'static str, u64>,
    pub(super) dropped_causes: ByReason,
    /// Events that no store took.
    pub(super) unsaved: u64,
}

/// Counts of lines. Blank lines are not counted.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Lines taken from the input. With one sink it is the sum of the other counts.
    pub(super) read: u64,
    #[serde(flatten)]
    pub(super) all: Settled,
    /// The same for each sink.
    pub(super) sinks: BTreeMap<String, Settled>,
    /// Lines of event types that no sink takes.
    pub(super) unwanted: u64,
    /// Lines with the key and bytes of a line before.
    pub(super) duplicates: u64,
    pub(super) invalid: u64,
    /// The first of them.
    pub(super) invalid_lines: Vec<u64>,
    /// The first lines whose events no store took.
    pub(super) unsaved_lines: BTreeSet<u64>,
    pub(super) interrupted: bool,
    /// The first line that is not accounted for: not taken, or saved nowhere.
    pub(super) resume_from_line: Option<u64>,
    pub(super) dlq: String,
    /// The file beside the store that holds some of the dead letters.
    pub(super) dlq_fallback: Option<String>,
}

impl Tally {
    pub(super) fn invalid(&mut self, line: u64) {
        self.read += 1;
        self.invalid += 1;
        if self.invalid_lines.len() < LINES {
            self.invalid_lines.push(line);
        }
    }

    /// Takes down that no store took an event. They do not come in the order of their lines.
    pub(super) fn unsaved(&mut self, sink: &SinkName, line: u64) {
        self.count(sink, |settled| settled.unsaved += 1);
        self.unsaved_lines.insert(line);
        if self.unsaved_lines.len() > LINES {
            self.unsaved_lines.pop_last();
        }
    }

    /// Sets the line to resume from, when all is settled. `next` is the first line that was not taken, if any was left.
    pub(super) fn resume_from(&mut self, next: Option<u64>) {
        let unsaved = self.unsaved_lines.first().copied();
        self.resume_from_line = unsaved.into_iter().chain(next).min();
    }

    pub(super) fn delivered(&mut self, sink: &SinkName) {
        self.count(sink, |settled| settled.delivered += 1);
    }

    pub(super) fn dead_lettered(&mut self, sink: &SinkName, reason: Reason, cause: Option<Cause>) {
        self.count(sink, |settled| {
            settled.dead_lettered += 1;
            *settled.dead_lettered_by_reason.entry(reason.code()).or_default() += 1;
            causes::add(&mut settled.dead_lettered_causes, reason, cause);
        });
    }

    pub(super) fn dropped(&mut self, sink: &SinkName, reason: Reason, cause: Option<Cause>) {
        self.count(sink, |settled| {
            settled.dropped += 1;
            *settled.dropped_by_reason.entry(reason.code()).or_default() += 1;
            causes::add(&mut settled.dropped_causes, reason, cause);
        });
    }

    fn count(&mut self, sink: &SinkName, count: impl Fn(&mut Settled)) {
        count(&mut self.all);
        match self.sinks.get_mut(sink.as_str()) {
            Some(settled) => count(settled),
            None => count(self.sinks.entry(sink.as_str().to_owned()).or_default()),
        }
    }

    /// Whether there were events, and no sink takes events of their types.
    pub(super) fn is_unwanted(&self) -> bool {
        self.unwanted > 0 && self.unwanted + self.duplicates + self.invalid == self.read
    }

    /// How to look at what was given up, if anything lies where one can look. `list` is the command that lists it.
    pub(super) fn where_to_look(&self, list: &str) -> Option<String> {
        let letters = self.all.dead_lettered;
        let is_kept = letters > 0 && self.dlq != MEMORY;
        is_kept.then(|| format!("{letters} dead letters lie in {}: `{list}` lists them", self.dlq))
    }

    /// What is to be done after an interruption: two things, of which neither does for the other. `replay` is the
    /// command that sends what became a dead letter.
    pub(super) fn next_steps(&self, replay: &str) -> Vec<String> {
        let mut steps = Vec::new();
        if !self.interrupted {
            return steps;
        }
        let shutdown = Reason::Shutdown.code();
        if let Some(letters) = self.all.dead_lettered_by_reason.get(shutdown) {
            let what = if self.dlq == MEMORY {
                "they were dead letters in memory, and are lost".to_owned()
            } else {
                format!("they are dead letters in {}, and `{replay}` sends them", self.dlq)
            };
            steps.push(format!("{letters} events were accepted and not delivered yet: {what}"));
        }
        if let Some(dropped) = self.all.dropped_by_reason.get(shutdown) {
            steps.push(format!(
                "{dropped} events were accepted and not delivered yet: they are dropped"
            ));
        }
        if let Some(line) = self.resume_from_line {
            let what = if self.unsaved_lines.contains(&line) {
                format!("line {line} is saved nowhere: `--from-line {line}` sends it, and what follows once more")
            } else {
                format!("from line {line} on nothing was taken yet: `--from-line {line}` sends that")
            };
            steps.push(what);
        }
        steps
    }

    /// 130 before 1 before 3; but an event that no store took is not accounted for.
    pub(super) fn exit(&self) -> Exit {
        if self.all.unsaved > 0 {
            Exit::Failed
        } else if self.interrupted {
            Exit::Interrupted
        } else if self.invalid > 0 || self.resume_from_line.is_some() {
            Exit::Failed
        } else if self.all.dead_lettered > 0 || self.all.dropped > 0 {
            Exit::Partial
        } else {
            Exit::Done
        }
    }

    /// A word beside the progress bar.
    pub(super) fn brief(&self) -> String {
        format!(
            "{} delivered, {} dead-lettered",
            self.all.delivered, self.all.dead_lettered
        )
    }

    /// For a person, without a line end at the end.
    pub(super) fn human(&self) -> String {
        let all = &self.all;
        let mut rows = vec![
            ("read", self.read, String::new()),
            ("delivered", all.delivered, String::new()),
            (
                "dead-lettered",
                all.dead_lettered,
                by_reason(&all.dead_lettered_by_reason, &all.dead_lettered_causes),
            ),
        ];
        if all.dropped > 0 {
            let reasons = by_reason(&all.dropped_by_reason, &all.dropped_causes);
            rows.push(("dropped", all.dropped, reasons));
        }
        if self.unwanted > 0 {
            rows.push(("unwanted", self.unwanted, String::new()));
        }
        rows.extend([
            ("duplicates", self.duplicates, String::new()),
            ("invalid", self.invalid, shown(&self.invalid_lines, self.invalid)),
            ("unsaved", all.unsaved, shown(&self.unsaved_lines, all.unsaved)),
        ]);
        let mut text = String::new();
        for (name, count, more) in rows {
            let row = format!("{name:<14}{count:>10}  {more}");
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", row.trim_end());
        }
        if self.sinks.len() > 1 {
            for (name, settled) in &self.sinks {
                let row = format!("  {name}: {settled}");
                let _ = writeln!(text, "{row}");
            }
        }
        if let Some(path) = &self.dlq_fallback {
            let _ = writeln!(
                text,
                "dead letters lie also in {path}, where `idemp dlq` and `idemp replay` look too"
            );
        }
        if let Some(line) = self.resume_from_line {
            let _ = writeln!(text, "resume from line {line}");
        }
        text.truncate(text.trim_end().len());
        text
    }
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} delivered, {} dead-lettered", self.delivered, self.dead_lettered)?;
        if self.dropped > 0 {
            write!(f, ", {} dropped", self.dropped)?;
        }
        if self.unsaved > 0 {
            write!(f, ", {} unsaved", self.unsaved)?;
        }
        Ok(())
    }
}

/// The first of so many lines.
fn shown<'l>(lines: impl IntoIterator<Item = &'l u64>, count: u64) -> String {
    let shown: Vec<_> = lines.into_iter().take(SHOWN).map(u64::to_string).collect();
    if shown.is_empty() {
        return String::new();
    }
    let left = count - shown.len() as u64;
    let more = if left > 0 {
        format!(" and {left} more")
    } else {
        String::new()
    };
    format!("lines {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(name: &str) -> SinkName {
        SinkName::parse(name).unwrap()
    }

    #[test]
    fn several_sinks_are_told_one_by_one() {
        let mut tally = Tally {
            read: 2,
            ..Tally::default()
        };
        tally.delivered(&sink("kafka"));
        tally.delivered(&sink("kafka"));
        tally.delivered(&sink("sns"));
        tally.dropped(&sink("sns"), Reason::EventRejected, Some(Cause::Status(413)));
        assert_eq!(
            tally.human(),
            "read                   2\n\
             delivered              3\n\
             dead-lettered          0\n\
             dropped                1  event_rejected 1 (status 413)\n\
             duplicates             0\n\
             invalid                0\n\
             unsaved                0\n  \
               kafka: 2 delivered, 0 dead-lettered\n  \
               sns: 1 delivered, 0 dead-lettered, 1 dropped"
        );
    }

    #[test]
    fn exit_codes_in_their_order() {
        let exit = |change: fn(&mut Tally)| {
            let mut tally = Tally {
                read: 9,
                ..Tally::default()
            };
            tally.all.delivered = 9;
            change(&mut tally);
            tally.exit()
        };
        assert_eq!(exit(|_| ()), Exit::Done);
        assert_eq!(exit(|tally| tally.duplicates = 1), Exit::Done);
        assert_eq!(exit(|tally| tally.all.dead_lettered = 1), Exit::Partial);
        assert_eq!(exit(|tally| tally.all.dropped = 1), Exit::Partial);
        assert_eq!(
            exit(|tally| (tally.all.dead_lettered, tally.invalid) = (1, 1)),
            Exit::Failed
        );
        assert_eq!(
            exit(|tally| (tally.invalid, tally.interrupted) = (1, true)),
            Exit::Interrupted
        );
        assert_eq!(
            exit(|tally| (tally.all.unsaved, tally.interrupted) = (1, true)),
            Exit::Failed
        );
        assert_eq!(
            exit(|tally| tally.resume_from_line = Some(3)),
            Exit::Failed,
            "stopped before the end"
        );
    }

    #[test]
    fn a_summary_for_a_person() {
        let mut tally = Tally {
            read: 100,
            duplicates: 2,
            ..Tally::default()
        };
        tally.all.delivered = 70;
        for reason in [Reason::Shutdown, Reason::EventRejected, Reason::Shutdown] {
            let cause = (reason == Reason::EventRejected).then_some(Cause::Status(422));
            tally.dead_lettered(&sink("webhook"), reason, cause);
        }
        (1..=22).for_each(|line| tally.invalid(line));
        tally.unsaved(&sink("webhook"), 99);
        tally.resume_from_line = Some(99);
        assert_eq!(
            tally.human(),
            "read                 122\n\
             delivered             70\n\
             dead-lettered          3  event_rejected 1 (status 422), shutdown 2\n\
             duplicates             2\n\
             invalid               22  lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 and 2 more\n\
             unsaved                1  lines 99\n\
             resume from line 99"
        );
    }

    #[test]
    fn the_next_steps_are_those_that_help() {
        let steps = |set: fn(&mut Tally)| {
            let mut tally = Tally {
                interrupted: true,
                dlq: "sqlite:d.db".to_owned(),
                ..Tally::default()
            };
            set(&mut tally);
            tally.next_steps("idemp replay --reason shutdown")
        };
        assert_eq!(steps(|_| ()), [""; 0]);
        assert_eq!(
            steps(|tally| tally.resume_from(Some(7))),
            ["from line 7 on nothing was taken yet: `--from-line 7` sends that"]
        );
        assert_eq!(
            steps(|tally| {
                tally.unsaved(&sink("webhook"), 5);
                tally.resume_from(Some(7));
            }),
            ["line 5 is saved nowhere: `--from-line 5` sends it, and what follows once more"]
        );
        let in_a_file = steps(|tally| tally.dead_lettered(&sink("webhook"), Reason::Shutdown, None));
        assert!(in_a_file[0].ends_with("in sqlite:d.db, and `idemp replay --reason shutdown` sends them"));
        let in_memory = steps(|tally| {
            tally.dlq = "memory:".to_owned();
            tally.dead_lettered(&sink("webhook"), Reason::Shutdown, None);
        });
        assert!(in_memory[0].ends_with("they were dead letters in memory, and are lost"));
    }

    #[test]
    fn it_is_resumed_from_the_first_line_that_is_not_accounted_for() {
        let resumed = |unsaved: &[u64], next| {
            let mut tally = Tally::default();
            unsaved.iter().for_each(|line| tally.unsaved(&sink("webhook"), *line));
            tally.resume_from(next);
            tally.resume_from_line
        };
        assert_eq!(resumed(&[], None), None);
        assert_eq!(resumed(&[], Some(7)), Some(7));
        assert_eq!(resumed(&[5, 3, 4], Some(7)), Some(3));
        assert_eq!(resumed(&[5], None), Some(5));
    }

    #[test]
    fn the_first_unsaved_lines_are_named_in_whatever_order_they_come() {
        let mut tally = Tally::default();
        (1..=1_002).rev().for_each(|line| tally.unsaved(&sink("webhook"), line));
        assert_eq!(tally.all.unsaved, 1_002);
        assert!(tally.unsaved_lines.iter().copied().eq(1..=1_000));
    }
}
