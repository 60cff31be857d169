//! What is counted (docs/metrics.md, "Receiver"). The handles are made once, so that counting costs no look-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use idemp_core::{Secrets, SignatureError, StandardError};
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::reply::Reply;
use crate::store::Completed;

const REPLIES: &str = "idemp_receiver_replies_total";
const BAD_SIGNATURES: &str = "idemp_receiver_bad_signatures_total";
const SECRETS: &str = "idemp_receiver_secret_matches_total";
const MARKS: &str = "idemp_receiver_marks_total";
const LOST_LEASES: &str = "idemp_receiver_lost_leases_total";
const STORE_ERRORS: &str = "idemp_receiver_store_errors_total";
const UNCLAIMED: &str = "idemp_receiver_unclaimed_runs_total";
const RUNNING: &str = "idemp_receiver_running_events";
const HANDLER_SECONDS: &str = "idemp_receiver_handler_duration_seconds";

pub(crate) struct Meters {
    replies: [Counter; Reply::CODES.len()],
    bad_signatures: [Counter; BadSignature::ALL.len()],
    /// For which reasons it was told already.
    told: [AtomicBool; BadSignature::ALL.len()],
    secrets: Vec<(Arc<str>, Counter)>,
    marks: [Counter; 4],
    pub(crate) lost_leases: Counter,
    store_errors: [Counter; 4],
    pub(crate) unclaimed: Counter,
    pub(crate) running: Gauge,
    pub(crate) handler_seconds: Histogram,
}

/// Which check of a signature failed.
#[derive(Clone, Copy)]
pub(crate) enum BadSignature {
    Missing,
    Repeated,
    Malformed,
    Time,
    Mismatch,
    /// The signature is good and covers another key.
    KeyNotCovered,
}

impl BadSignature {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Missing, "missing"),
        (Self::Repeated, "repeated"),
        (Self::Malformed, "malformed"),
        (Self::Time, "time"),
        (Self::Mismatch, "mismatch"),
        (Self::KeyNotCovered, "key_not_covered"),
    ];
}

impl From<SignatureError> for BadSignature {
    fn from(error: SignatureError) -> Self {
        match error {
            SignatureError::Missing => Self::Missing,
            SignatureError::Repeated => Self::Repeated,
            SignatureError::Malformed => Self::Malformed,
            _ => Self::Mismatch,
        }
    }
}

impl From<StandardError> for BadSignature {
    fn from(error: StandardError) -> Self {
        match error {
            StandardError::Missing { .. } => Self::Missing,
            StandardError::Repeated { .. } => Self::Repeated,
            StandardError::MalformedTimestamp | StandardError::NoV1Signature => Self::Malformed,
            StandardError::TooOld | StandardError::TooNew => Self::Time,
            _ => Self::Mismatch,
        }
    }
}

/// What became of the mark after the handler had succeeded.
#[derive(Clone, Copy)]
pub(crate) enum Mark {
    Done,
    Late,
    Lost,
    Unwritten,
}

impl Mark {
    const CODES: [&'static str; 4] = ["done", "late", "lost", "unwritten"];
}

impl From<Completed> for Mark {
    fn from(completed: Completed) -> Self {
        match completed {
            Completed::Done => Self::Done,
            Completed::Late => Self::Late,
            Completed::Lost => Self::Lost,
        }
    }
}

/// What the store was asked to do when it failed.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    Claim,
    Renew,
    Complete,
    Release,
}

impl Operation {
    pub(crate) const CODES: [&'static str; 4] = ["claim", "renew", "complete", "release"];
}

impl Meters {
    pub(crate) fn new(scope: &str, secrets: &Secrets) -> Self {
        describe();
        let scope: Arc<str> = scope.into();
        let scope = || Arc::clone(&scope);
        Self {
            replies: Reply::CODES.map(|code| counter!(REPLIES, "scope" => scope(), "reply" => code)),
            bad_signatures: BadSignature::ALL
                .map(|(_, reason)| counter!(BAD_SIGNATURES, "scope" => scope(), "reason" => reason)),
            told: Default::default(),
            secrets: secrets
                .iter()
                .map(|secret| {
                    let label: Arc<str> = secret.label().into();
                    let matches = counter!(SECRETS, "scope" => scope(), "secret" => Arc::clone(&label));
                    (label, matches)
                })
                .collect(),
            marks: Mark::CODES.map(|result| counter!(MARKS, "scope" => scope(), "result" => result)),
            lost_leases: counter!(LOST_LEASES, "scope" => scope()),
            store_errors: Operation::CODES
                .map(|operation| counter!(STORE_ERRORS, "scope" => scope(), "operation" => operation)),
            unclaimed: counter!(UNCLAIMED, "scope" => scope()),
            running: gauge!(RUNNING, "scope" => scope()),
            handler_seconds: histogram!(HANDLER_SECONDS, "scope" => scope()),
        }
    }

    pub(crate) fn reply(&self, reply: Reply) {
        self.replies[reply.index()].increment(1);
    }

    pub(crate) fn bad_signature(&self, reason: BadSignature) {
        let at = reason as usize;
        self.bad_signatures[at].increment(1);
        // Anybody can send such requests: the first is news, and they all must not fill the log.
        let reason = BadSignature::ALL[at].1;
        if self.told[at].swap(true, Relaxed) {
            tracing::debug!(reason, "refused a signature");
        } else {
            tracing::warn!(reason, "refused a signature; more of this kind are told at level debug");
        }
    }

    /// Counts a match and gives the label as a shared text.
    pub(crate) fn secret(&self, label: &str) -> Arc<str> {
        match self.secrets.iter().find(|(known, _)| &**known == label) {
            Some((known, matches)) => {
                matches.increment(1);
                Arc::clone(known)
            }
            None => label.into(),
        }
    }

    pub(crate) fn mark(&self, mark: Mark) {
        self.marks[mark as usize].increment(1);
    }

    pub(crate) fn store_error(&self, operation: Operation) {
        self.store_errors[operation as usize].increment(1);
    }
}

fn describe() {
    describe_counter!(REPLIES, "Requests by reply.");
    describe_counter!(BAD_SIGNATURES, "Requests refused for their signature, by reason.");
    describe_counter!(SECRETS, "Verified requests by label of the secret that matched.");
    describe_counter!(MARKS, "Successful runs of the handler by what became of their mark.");
    describe_counter!(LOST_LEASES, "Claims lost while their handler was running.");
    describe_counter!(STORE_ERRORS, "Failed store operations.");
    describe_counter!(
        UNCLAIMED,
        "Runs of the handler without a claim, because the store was down."
    );
    describe_gauge!(RUNNING, "Requests at work.");
    describe_histogram!(HANDLER_SECONDS, Unit::Seconds, "Time that handlers took.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_index() {
        for (at, (reason, _)) in BadSignature::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
        }
    }
}
