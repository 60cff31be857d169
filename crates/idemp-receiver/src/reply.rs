//! What the sender is told (docs/receiver.md has the table).

use std::time::Duration;

/// The answer to one request, as a status, a JSON body and perhaps a `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// New, and the handler succeeded.
    Ok,
    /// Done before.
    Duplicate,
    /// The key stands for another body.
    Conflict,
    /// Another copy is at work.
    InProgress {
        /// Rest of its lease.
        retry_after: Duration,
    },
    /// The signature is missing, malformed or wrong.
    BadSignature,
    /// Signed, but no event.
    BadRequest(BadRequest),
    /// The body is over the limit.
    TooLarge,
    /// The body did not arrive within the sender's attempt timeout.
    BodyTimedOut,
    /// The handler failed or panicked; the claim is released.
    Failed,
    /// The handler ran over its cap and was cut; the claim is released.
    OverCap,
    /// The handler says that the event can never work; the claim is released.
    Rejected,
    /// Not now.
    Unavailable(Unavailable),
}

/// Why a signed request is no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadRequest {
    /// It has no key.
    KeyMissing,
    /// It has more than one key.
    KeyRepeated,
    /// Its key is not 1 to 255 bytes of visible ASCII without space, comma, quote and brace.
    KeyMalformed,
    /// Its key is not `run_id:event_type:step_index`, and only such keys are taken.
    KeyNotCanonical,
    /// Its canonical key names another event type than its body.
    EventMismatch,
    /// Its body is not a JSON object with a string `event` and a `data`.
    NotAnEvent,
    /// Its body could not be read to the end.
    BodyUnread,
}

/// Why a request is put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// The claim store failed or did not answer in time.
    Store,
    /// The claim store holds under the key what this version did not write.
    Foreign,
    /// As many events are at work as are allowed.
    Busy,
    /// The receiver is shutting down.
    Draining,
}

impl Reply {
    /// The HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Ok | Self::Duplicate => 200,
            Self::BadRequest(_) => 400,
            Self::BadSignature => 401,
            Self::BodyTimedOut => 408,
            Self::TooLarge => 413,
            Self::Conflict | Self::Rejected => 422,
            Self::Failed => 500,
            Self::InProgress { .. } | Self::OverCap | Self::Unavailable(_) => 503,
        }
    }

    /// The JSON body.
    #[must_use]
    pub const fn body(self) -> &'static str {
        match self {
            Self::Ok => r#"{"status":"ok"}"#,
            Self::Duplicate => r#"{"status":"duplicate"}"#,
            Self::Conflict => r#"{"status":"conflict"}"#,
            Self::InProgress { .. } => r#"{"status":"in_progress"}"#,
            Self::BadSignature => r#"{"detail":"bad signature"}"#,
            Self::BadRequest(reason) => match reason {
                BadRequest::KeyMissing => r#"{"detail":"idempotency key is missing"}"#,
                BadRequest::KeyRepeated => r#"{"detail":"idempotency key is repeated"}"#,
                BadRequest::KeyMalformed => r#"{"detail":"idempotency key is malformed"}"#,
                BadRequest::KeyNotCanonical => r#"{"detail":"idempotency key is not run_id:event_type:step_index"}"#,
                BadRequest::EventMismatch => {
                    r#"{"detail":"event type of the idempotency key is not the event of the body"}"#
                }
                BadRequest::NotAnEvent => r#"{"detail":"body is not a JSON object with event and data"}"#,
                BadRequest::BodyUnread => r#"{"detail":"body could not be read"}"#,
            },
            Self::TooLarge => r#"{"detail":"body is too large"}"#,
            Self::BodyTimedOut => r#"{"detail":"body did not arrive in time"}"#,
            Self::Failed => r#"{"detail":"handler failed"}"#,
            Self::OverCap => r#"{"detail":"handler ran out of time"}"#,
            Self::Rejected => r#"{"detail":"event was rejected"}"#,
            Self::Unavailable(reason) => match reason {
                Unavailable::Store | Unavailable::Foreign => r#"{"detail":"claim store is not available"}"#,
                Unavailable::Busy => r#"{"detail":"too many events at once"}"#,
                Unavailable::Draining => r#"{"detail":"receiver is shutting down"}"#,
            },
        }
    }

    /// Seconds for `Retry-After`, at least 1, on every 503.
    #[must_use]
    pub fn retry_after(self) -> Option<u64> {
        match self {
            Self::InProgress { retry_after } => {
                let up = u64::from(retry_after.subsec_nanos() > 0);
                Some(retry_after.as_secs().saturating_add(up).max(1))
            }
            // A store that is down is seldom back within a second, and a record is not removed sooner.
            Self::Unavailable(Unavailable::Store | Unavailable::Foreign) => Some(5),
            Self::Unavailable(_) | Self::OverCap => Some(1),
            _ => None,
        }
    }

    /// A stable name, for logs and metrics (docs/metrics.md).
    #[must_use]
    pub const fn code(self) -> &'static str {
        Self::CODES[self.index()]
    }

    pub(crate) const CODES: [&'static str; 21] = [
        "ok",
        "duplicate",
        "conflict",
        "in_progress",
        "bad_signature",
        "key_missing",
        "key_repeated",
        "key_malformed",
        "key_not_canonical",
        "event_mismatch",
        "not_an_event",
        "body_unread",
        "too_large",
        "body_timed_out",
        "failed",
        "over_cap",
        "rejected",
        "store_unavailable",
        "foreign_record",
        "busy",
        "draining",
    ];

    /// Place of the code in [`Reply::CODES`].
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Ok => 0,
            Self::Duplicate => 1,
            Self::Conflict => 2,
            Self::InProgress { .. } => 3,
            Self::BadSignature => 4,
            Self::BadRequest(BadRequest::KeyMissing) => 5,
            Self::BadRequest(BadRequest::KeyRepeated) => 6,
            Self::BadRequest(BadRequest::KeyMalformed) => 7,
            Self::BadRequest(BadRequest::KeyNotCanonical) => 8,
            Self::BadRequest(BadRequest::EventMismatch) => 9,
            Self::BadRequest(BadRequest::NotAnEvent) => 10,
            Self::BadRequest(BadRequest::BodyUnread) => 11,
            Self::TooLarge => 12,
            Self::BodyTimedOut => 13,
            Self::Failed => 14,
            Self::OverCap => 15,
            Self::Rejected => 16,
            Self::Unavailable(Unavailable::Store) => 17,
            Self::Unavailable(Unavailable::Foreign) => 18,
            Self::Unavailable(Unavailable::Busy) => 19,
            Self::Unavailable(Unavailable::Draining) => 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_of_leases_are_rounded_up_and_never_zero() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (5_999, 6), (6_000, 6)] {
            let retry_after = Duration::from_millis(millis);
            assert_eq!(
                Reply::InProgress { retry_after }.retry_after(),
                Some(seconds),
                "{millis}"
            );
        }
        let retry_after = Duration::MAX;
        assert_eq!(Reply::InProgress { retry_after }.retry_after(), Some(u64::MAX));
    }

    /// What keeps the store from telling is the operator's concern, not the sender's.
    #[test]
    fn senders_are_told_the_same_of_a_record_as_of_a_store_that_is_down() {
        let told = |reason| {
            let reply = Reply::Unavailable(reason);
            (reply.status(), reply.body(), reply.retry_after())
        };
        let expected = (503, r#"{"detail":"claim store is not available"}"#, Some(5));
        assert_eq!(told(Unavailable::Store), expected);
        assert_eq!(told(Unavailable::Foreign), expected);
    }

    #[test]
    fn every_code_stands_in_the_docs() {
        let docs = include_str!("../../../docs/metrics.md");
        for code in Reply::CODES {
            assert!(docs.contains(&format!("`{code}`")), "{code}");
        }
    }
}
