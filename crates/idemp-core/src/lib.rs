//! What every part of idemp agrees on, without I/O: keys, canonical bytes, signatures, what an attempt means,
//! when to try again, when to stop trying, and how long a receiver remembers.
//!
//! Everything here is a plain function or a small machine of `(input, now) -> decision`. There is no async
//! runtime, no socket and no clock: time is an argument.
//!
//! ```
//! use idemp_core::{EventType, Run, RunId, Secret, Signer};
//!
//! let run = Run::with_id(RunId::parse("req-42")?);
//! let message = run.event(EventType::TOOL_END, &serde_json::json!({"output": "4 °C", "tokens": 12}))?;
//!
//! assert_eq!(message.key().as_str(), "req-42:tool_end:1");
//! assert_eq!(
//!     message.body().as_ref(),
//!     br#"{"data": {"output": "4 \u00b0C", "tokens": 12}, "event": "tool_end"}"#,
//! );
//! let signer = Signer::new(&Secret::new("whsec_test_secret")?);
//! assert!(signer.header(message.body()).as_str().starts_with("sha256="));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
