//! From facts to a decision: the status table of docs/retry.md, as data.

use std::collections::BTreeMap;

use crate::{Cause, ErrorClass, Outcome};

/// What follows from an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Done.
    Delivered,
    /// It may pass: try again while the schedule allows.
    Retry,
    /// The peer refuses this event, and would again: dead-letter at once.
    RejectsEvent,
    /// The peer refuses everything from us: dead-letter at once.
    RejectsConfiguration,
    /// The peer, or the client in front of it, has no room: wait out of the same budget, without using up one of the
    /// schedule's attempts.
    PushBack,
}

impl From<ErrorClass> for Verdict {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::Transient | ErrorClass::Ambiguous => Self::Retry,
            ErrorClass::RejectsEvent => Self::RejectsEvent,
            ErrorClass::RejectsConfiguration => Self::RejectsConfiguration,
            ErrorClass::PushBack => Self::PushBack,
        }
    }
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 5] = [
        Self::Delivered,
        Self::Retry,
        Self::RejectsEvent,
        Self::RejectsConfiguration,
        Self::PushBack,
    ];

    /// Stable code for metrics.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retry => "retry",
            Self::RejectsEvent => "rejects_event",
            Self::RejectsConfiguration => "rejects_configuration",
            Self::PushBack => "push_back",
        }
    }
}

/// What each HTTP status means, and how a sink may differ from the rule.
///
/// | status | verdict |
/// |---|---|
/// | 200-299 | delivered |
/// | 408, 429, 500-599 | retry |
/// | 401, 402, 403, 404, 407, 410, 451 | rejects the configuration |
/// | the rest of 400-499 | rejects the event |
/// | everything else (redirects are never followed) | rejects the configuration |
///
/// A failure without an answer is always retried. A transport's own code means what its [`ErrorClass`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusPolicy {
    overrides: BTreeMap<u16, Verdict>,
}

impl StatusPolicy {
    /// Says for one status what it means at this sink, in place of the table.
    #[must_use]
    pub fn with(mut self, status: u16, verdict: Verdict) -> Self {
        self.overrides.insert(status, verdict);
        self
    }

    /// What a status means.
    #[must_use]
    pub fn status(&self, status: u16) -> Verdict {
        if let Some(verdict) = self.overrides.get(&status) {
            return *verdict;
        }
        match status {
            200..=299 => Verdict::Delivered,
            408 | 429 | 500..=599 => Verdict::Retry,
            401 | 402 | 403 | 404 | 407 | 410 | 451 => Verdict::RejectsConfiguration,
            400..=499 => Verdict::RejectsEvent,
            _ => Verdict::RejectsConfiguration,
        }
    }

    /// What an attempt's facts mean.
    #[must_use]
    pub fn classify(&self, outcome: &Outcome) -> Verdict {
        match outcome {
            Outcome::Delivered { status: None } => Verdict::Delivered,
            Outcome::Delivered { status: Some(status) } => self.status(*status),
            Outcome::Failed(failure) => match failure.cause {
                Cause::Status(status) => self.status(status),
                Cause::Transport(_) => Verdict::Retry,
                Cause::Code { class, .. } => class.into(),
            },
        }
    }
}
