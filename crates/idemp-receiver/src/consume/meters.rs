//! What consumers count (docs/metrics.md, "Consumers").

use std::sync::Arc;

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

use crate::reply::Reply;

const SETTLED: &str = "idemp_consumer_acknowledged_total";
const QUARANTINED: &str = "idemp_consumer_quarantined_total";
const LEFT: &str = "idemp_consumer_left_total";
const WAITS: &str = "idemp_consumer_waits_total";
const RECLAIMED: &str = "idemp_consumer_reclaimed_total";
const TRIMMED: &str = "idemp_consumer_trimmed_total";
const ERRORS: &str = "idemp_consumer_errors_total";
const RUNNING: &str = "idemp_consumer_running_messages";

/// The handles are made once per flow, and looked up by transport: there is one of them in nearly every flow.
pub(super) struct Meters {
    scope: Arc<str>,
    transport: &'static str,
    waits: [Counter; Wait::ALL.len()],
    left: Counter,
    pub(super) running: Gauge,
}

/// What a message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The next run of its handler.
    Handler,
    /// Another copy, which is at work.
    InProgress,
    /// The claim store, which is down.
    Store,
    /// The quarantine, which has failed.
    Quarantine,
}

impl Wait {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Handler, "handler"),
        (Self::InProgress, "in_progress"),
        (Self::Store, "store"),
        (Self::Quarantine, "quarantine"),
    ];
}

/// What a consumer asked its broker for when it failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Connect,
    Read,
    Acknowledge,
}

impl Operation {
    const fn code(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Read => "read",
            Self::Acknowledge => "acknowledge",
        }
    }
}

impl Meters {
    pub(super) fn new(scope: &str, transport: &'static str) -> Self {
        describe();
        let scope: Arc<str> = scope.into();
        Self {
            waits: Wait::ALL.map(
                |(_, reason)| counter!(WAITS, "scope" => Arc::clone(&scope), "transport" => transport, "reason" => reason),
            ),
            left: counter!(LEFT, "scope" => Arc::clone(&scope), "transport" => transport),
            running: gauge!(RUNNING, "scope" => Arc::clone(&scope), "transport" => transport),
            scope,
            transport,
        }
    }

    pub(super) fn acknowledged(&self, reply: Reply) {
        self.by_reply(SETTLED, reply).increment(1);
    }

    pub(super) fn quarantined(&self, reason: Reply) {
        self.by_reply(QUARANTINED, reason).increment(1);
    }

    pub(super) fn left(&self) {
        self.left.increment(1);
    }

    pub(super) fn waits(&self, reason: Wait) {
        self.waits[reason as usize].increment(1);
    }

    pub(super) fn error(&self, operation: Operation) {
        counter!(
            ERRORS,
            "scope" => Arc::clone(&self.scope), "transport" => self.transport, "operation" => operation.code()
        )
        .increment(1);
    }

    #[cfg(feature = "redis-streams")]
    pub(super) fn reclaimed(&self, entries: usize) {
        self.plain(RECLAIMED).increment(entries as u64);
    }

    #[cfg(feature = "redis-streams")]
    pub(super) fn trimmed(&self, entries: usize) {
        self.plain(TRIMMED).increment(entries as u64);
    }

    #[cfg(feature = "redis-streams")]
    fn plain(&self, name: &'static str) -> Counter {
        counter!(name, "scope" => Arc::clone(&self.scope), "transport" => self.transport)
    }

    fn by_reply(&self, name: &'static str, reply: Reply) -> Counter {
        counter!(
            name,
            "scope" => Arc::clone(&self.scope), "transport" => self.transport, "reply" => reply.code()
        )
    }
}

fn describe() {
    describe_counter!(SETTLED, "Messages acknowledged because their event is done.");
    describe_counter!(QUARANTINED, "Messages put into quarantine and acknowledged.");
    describe_counter!(
        LEFT,
        "Messages left to be taken again, because the consumer was stopped or lost them."
    );
    describe_counter!(WAITS, "Waits of messages that were tried again.");
    describe_counter!(RECLAIMED, "Entries taken over from other consumers.");
    describe_counter!(
        TRIMMED,
        "Entries that were trimmed from their stream before they were done."
    );
    describe_counter!(ERRORS, "Failed operations on the broker.");
    describe_gauge!(RUNNING, "Messages at work.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_index_and_in_the_docs() {
        let docs = include_str!("../../../../docs/metrics.md");
        for (at, (reason, code)) in Wait::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
            assert!(docs.contains(&format!("`{code}`")), "{code}");
        }
        for name in [SETTLED, QUARANTINED, LEFT, WAITS, RECLAIMED, TRIMMED, ERRORS, RUNNING] {
            assert!(docs.contains(&format!("`{name}`")), "{name}");
        }
        for operation in [Operation::Connect, Operation::Read, Operation::Acknowledge] {
            assert!(docs.contains(&format!("`{}`", operation.code())), "{operation:?}");
        }
    }
}
