//! Where events go, one attempt at a time.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use async_trait::async_trait;

use crate::key::{check_name, text_impls};
use crate::{KeyError, KeyPart, Message, Outcome};

/// Gets one event to one place, in one attempt, and says what happened.
///
/// # Contract
///
/// * One call is one attempt. Nothing below retries: the schedule has one owner.
/// * It returns by `attempt.deadline`, which covers connecting, sending and reading the answer.
/// * The bytes of `message.body()` go out as they are, with the message's key, signed afresh with this sink's own secret.
/// * A failed attempt is an [`Outcome`], not an `Err`, and never a panic. What is not known for sure is
///   `maybe_delivered`.
/// * It is called from many tasks at once, never for two attempts of one key at the same time.
///
/// # Cancel safety
///
/// Dropping the future of [`deliver`](Self::deliver) does not unsend anything: the attempt counts as maybe delivered.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Makes one attempt.
    async fn deliver(&self, message: &Message, attempt: Attempt) -> Outcome;

    /// Whether this sink could ever send the message; asked when the message is submitted.
    ///
    /// # Errors
    /// Says why not.
    fn check(&self, message: &Message) -> Result<(), Refusal> {
        let _ = message;
        Ok(())
    }

    /// Hands over what is buffered and lets go of connections. No attempt follows.
    async fn close(&self) {}
}

/// The logical name of a sink: it labels metrics, and dead letters are replayed to the sink of that name.
///
/// 1 to 64 bytes of `A-Z a-z 0-9 _ . -`, the first a letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SinkName(Arc<str>);

impl SinkName {
    /// Takes a name.
    ///
    /// # Errors
    /// If it is not 1 to 64 bytes of `A-Z a-z 0-9 _ . -` with a letter or digit first.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        check_name(KeyPart::SinkName, text, u8::is_ascii_alphanumeric)?;
        Ok(Self(Arc::from(text)))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

text_impls!(SinkName);

/// What a sink is told about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// 1 for the first.
    pub number: u32,
    /// The time of day, for signatures that carry it.
    pub now: SystemTime,
    /// When the attempt must be over, on the monotonic clock.
    pub deadline: Instant,
}

/// What a sink promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Retry, then dead-letter: every event arrives once or more, or lies in the dead-letter store.
    #[default]
    AtLeastOnce,
    /// One attempt, no retry, no dead letter: what is lost is counted.
    AtMostOnce,
}

/// A message that a sink can never send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(&'static str);

impl Refusal {
    /// Why, in a few words without any of the message's content.
    #[must_use]
    pub const fn new(why: &'static str) -> Self {
        Self(why)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Refusal {}
