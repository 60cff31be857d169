//! Why an event became a dead letter: stable codes, each with an entry in docs/reasons.md.

use std::fmt;
use std::str::FromStr;

macro_rules! coded {
    (
        $(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The stable code, as it stands in records, metrics and filters.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.code())
            }
        }

        impl FromStr for $name {
            type Err = UnknownCode;

            fn from_str(code: &str) -> Result<Self, UnknownCode> {
                Self::ALL.iter().copied().find(|known| known.code() == code).ok_or(UnknownCode)
            }
        }
    };
}

coded! {
    /// Why an event was given up.
    Reason {
        /// Every attempt of the schedule failed in a way that may pass.
        RetriesExhausted = "retries_exhausted",
        /// The peer refuses this event, and would again.
        EventRejected = "event_rejected",
        /// The peer refuses everything from us: address, credentials or permission are wrong.
        ConfigurationRejected = "configuration_rejected",
        /// The peer asked for a longer pause than the retry budget holds.
        RetryAfterExceedsBudget = "retry_after_exceeds_budget",
        /// The sink's circuit breaker was open.
        CircuitOpen = "circuit_open",
        /// The sink's lane had no room, and was told to dead-letter rather than wait.
        LaneFull = "lane_full",
        /// The dispatcher was shut down before the event was settled.
        Shutdown = "shutdown",
        /// Another event with the same key and other bytes lies in the store already.
        KeyConflict = "key_conflict",
    }
}

coded! {
    /// What the letter says about the receiver.
    Class {
        /// It may pass: the receiver was away, slow or busy for longer than we wait.
        Exhausted = "exhausted",
        /// Address, credentials or permission: nothing gets through until somebody mends them.
        Configuration = "configuration",
        /// This one event: it says nothing about the receiver.
        Event = "event",
        /// The sender's own decision: it says nothing about the receiver either.
        Withheld = "withheld",
    }
}

impl Reason {
    /// The class of a letter that is written for this reason.
    #[must_use]
    pub const fn class(self) -> Class {
        match self {
            Self::RetriesExhausted | Self::RetryAfterExceedsBudget => Class::Exhausted,
            Self::ConfigurationRejected => Class::Configuration,
            Self::EventRejected | Self::KeyConflict => Class::Event,
            Self::CircuitOpen | Self::LaneFull | Self::Shutdown => Class::Withheld,
        }
    }
}

/// A text that is no code of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCode;

impl fmt::Display for UnknownCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown code")
    }
}

impl std::error::Error for UnknownCode {}
