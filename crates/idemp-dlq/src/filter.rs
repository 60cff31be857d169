//! Which entries are meant.

use std::time::SystemTime;

use idemp_core::{EventType, IdempotencyKey, Reason, RunId, SinkName};

use crate::Letterhead;

/// Which entries are meant: those for which everything that is set here holds. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this sink.
    pub sink: Option<SinkName>,
    /// Of this event type.
    pub event_type: Option<EventType>,
    /// Given up for this reason.
    pub reason: Option<Reason>,
    /// Of this run.
    pub run_id: Option<RunId>,
    /// With this key.
    pub key: Option<IdempotencyKey>,
    /// Given up at this time or later.
    pub since: Option<SystemTime>,
    /// Given up before this time.
    pub until: Option<SystemTime>,
    /// No more than so many, the first in replay order.
    pub limit: Option<u64>,
}

impl Filter {
    /// Whether a letter is meant. [`limit`](Self::limit) is for the whole selection and not looked at.
    #[must_use]
    pub fn matches(&self, letter: &Letterhead) -> bool {
        let key = &letter.key;
        self.sink.as_ref().is_none_or(|sink| *sink == letter.sink)
            && self
                .event_type
                .as_ref()
                .is_none_or(|event_type| event_type.as_str() == key.event_type())
            && self.reason.is_none_or(|reason| reason == letter.reason)
            && self
                .run_id
                .as_ref()
                .is_none_or(|run_id| run_id.as_str() == key.run_id())
            && self.key.as_ref().is_none_or(|wanted| wanted == key)
            && self.since.is_none_or(|since| letter.dead_at >= since)
            && self.until.is_none_or(|until| letter.dead_at < until)
    }
}
