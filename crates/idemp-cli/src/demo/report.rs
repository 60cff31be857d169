//! What the demo came to: the table, the same for machines, and the exit code.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::ledger::Account;
use crate::exit::Exit;

/// The figures of one demo.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    /// Events that were sent.
    pub(super) events: usize,
    /// Attempts of the sender and of replays.
    pub(super) attempts: u64,
    /// Those of replays among them.
    pub(super) replay_attempts: u64,
    /// Copies that the receiver answered with `duplicate`.
    pub(super) duplicates_received: u64,
    /// Events with exactly one effect.
    pub(super) processed_once: usize,
    pub(super) dead_lettered: u64,
    pub(super) dead_lettered_by_reason: BTreeMap<&'static str, u64>,
    /// Dead letters that a replay delivered.
    pub(super) replayed: u64,
    /// Dead letters that are left.
    pub(super) left: usize,
    /// Events without an effect that are nowhere.
    pub(super) lost: usize,
    /// Events with more than one effect.
    pub(super) processed_twice: usize,
    /// Effects of what nobody has sent.
    pub(super) strange: usize,
    /// What the receiver did wrong, and how often.
    pub(super) faults: BTreeMap<&'static str, u64>,
    pub(super) interrupted: bool,
    pub(super) seconds: f64,
}

impl Report {
    /// Takes in what the ledger says.
    pub(super) fn settle(&mut self, account: Account) {
        self.events = account.sent;
        self.processed_once = account.once;
        self.lost = account.lost;
        self.processed_twice = account.twice;
        self.strange = account.strange;
    }

    /// A loss or a double effect fails even if the demo was interrupted: then not everything is accounted for.
    pub(super) const fn exit(&self) -> Exit {
        if self.lost > 0 || self.processed_twice > 0 || self.strange > 0 {
            Exit::Failed
        } else if self.interrupted {
            Exit::Interrupted
        } else if self.left > 0 {
            Exit::Partial
        } else {
            Exit::Done
        }
    }

    /// For a person, without a line end at the end.
    pub(super) fn table(&self) -> String {
        let reasons: Vec<_> = self
            .dead_lettered_by_reason
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        let left = match self.left {
            0 => String::new(),
            left => format!("{left} left"),
        };
        let rows = [
            ("events", self.events as u64, String::new()),
            (
                "attempts",
                self.attempts,
                format!("{} of them replays", self.replay_attempts),
            ),
            ("duplicates received", self.duplicates_received, String::new()),
            ("processed once", self.processed_once as u64, String::new()),
            ("dead-lettered", self.dead_lettered, reasons.join(", ")),
            ("replayed", self.replayed, left),
            ("lost", self.lost as u64, String::new()),
            ("processed twice", self.processed_twice as u64, String::new()),
        ];
        let strange = (self.strange > 0).then(|| ("never sent", self.strange as u64, "but processed".to_owned()));
        let mut text = String::new();
        for (name, count, more) in rows.into_iter().chain(strange) {
            let row = format!("{name:<20}{count:>6}  {more}");
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", row.trim_end());
        }
        text.truncate(text.trim_end().len());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Report {
        let account = Account {
            sent: 80,
            once: 80,
            ..Account::default()
        };
        let mut report = Report {
            attempts: 190,
            replay_attempts: 25,
            duplicates_received: 30,
            dead_lettered: 23,
            dead_lettered_by_reason: BTreeMap::from([("circuit_open", 9), ("retries_exhausted", 14)]),
            replayed: 23,
            ..Report::default()
        };
        report.settle(account);
        report
    }

    #[test]
    fn the_table_has_its_rows() {
        assert_eq!(
            good().table(),
            "events                  80\n\
             attempts               190  25 of them replays\n\
             duplicates received     30\n\
             processed once          80\n\
             dead-lettered           23  circuit_open 9, retries_exhausted 14\n\
             replayed                23\n\
             lost                     0\n\
             processed twice          0"
        );
    }

    #[test]
    fn a_loss_and_a_double_fail() {
        let exit = |change: fn(&mut Account), also: fn(&mut Report)| {
            let mut account = Account {
                sent: 80,
                once: 79,
                ..Account::default()
            };
            change(&mut account);
            let mut report = good();
            also(&mut report);
            report.settle(account);
            (report.exit(), report.lost, report.processed_twice)
        };
        assert_eq!(exit(|account| account.once = 80, |_| ()), (Exit::Done, 0, 0));
        assert_eq!(exit(|account| account.lost = 1, |_| ()), (Exit::Failed, 1, 0));
        assert_eq!(exit(|account| account.twice = 1, |_| ()), (Exit::Failed, 0, 1));
        assert_eq!(exit(|account| account.strange = 1, |_| ()), (Exit::Failed, 0, 0));
        assert_eq!(
            exit(|account| account.waiting = 1, |report| report.left = 1),
            (Exit::Partial, 0, 0)
        );
        assert_eq!(
            exit(|account| account.waiting = 1, |report| report.interrupted = true),
            (Exit::Interrupted, 0, 0)
        );
        assert_eq!(
            exit(|account| account.lost = 1, |report| report.interrupted = true),
            (Exit::Failed, 1, 0)
        );
    }
}
