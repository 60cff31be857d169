#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod breaker;
pub mod canonical;
mod classify;
mod decimal;
mod dedup;
mod delivery;
mod detail;
pub mod headers;
mod key;
mod letter;
mod message;
mod outcome;
mod retry_after;
mod run;
mod schedule;
mod secret;
mod signature;
mod sink;
mod standard_webhooks;

pub use breaker::{Admission, Breaker, BreakerConfig, BreakerState, OpenedBy, Permit, Signal, Transition};
pub use classify::{StatusPolicy, Verdict};
pub use dedup::{Cadence, Ttl, TtlError};
pub use delivery::{AttemptRecord, Delivery, Step};
pub use detail::Detail;
pub use key::{EventType, IdempotencyKey, KeyError, KeyFault, KeyPart, KeyParts, RunId, StepIndex};
pub use letter::{Class, Reason, UnknownCode};
pub use message::{EnvelopeError, Message};
pub use outcome::{Cause, Code, ErrorClass, Failure, Outcome, Transport};
pub use retry_after::RetryAfter;
pub use run::{EventError, Run, StepRange, StepsExhausted};
pub use schedule::{Next, RetrySchedule, ScheduleError};
pub use secret::{Secret, SecretError, Secrets};
pub use signature::{SignatureError, SignatureHeader, Signer, Verifier};
pub use sink::{Attempt, Mode, Refusal, Sink, SinkName};
pub use standard_webhooks::{
    KeyHasDot, StandardError, StandardHeaderValues, StandardHeaders, StandardSigner, StandardVerifier,
};
