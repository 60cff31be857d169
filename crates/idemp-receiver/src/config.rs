//! How a receiver works: plain fields, and the rules that hold between them.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use idemp_core::{Cadence, SecretError, StandardVerifier, Ttl, TtlError};

use crate::claim::Scope;

/// How a receiver works. Every field has a default; [`Receiver::new`](crate::Receiver::new) checks the rules.
///
/// ```
/// use std::time::Duration;
/// use idemp_receiver::ReceiverConfig;
///
/// let config = ReceiverConfig { lease: Duration::from_secs(13), ..ReceiverConfig::default() };
/// assert_eq!(
///     config.check().unwrap_err().to_string(),
///     "a lease of 13s is longer than a third of the retry budget, 12s",
/// );
/// ```
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// Keeps these keys apart from others in the same store. Default: the unnamed scope.
    pub scope: Scope,
    /// How long a done event is remembered, counted from its completion. Default: 24 hours, [`Cadence::SubMinute`].
    /// At least twice `retry_budget`.
    pub ttl: Duration,
    /// How long a claim holds without news of its owner; renewed every third of it while the handler runs. After a
    /// crash, copies are put off for the rest of it. Default: 6 s. From 100 ms to a third of `retry_budget`.
    pub lease: Duration,
    /// How long a handler may run before it is cut. Default: 4 s. More than zero, less than `attempt_timeout`.
    pub handler_cap: Duration,
    /// How long the store may take over one operation before it counts as down. Default: 1 s. More than zero, at most
    /// `attempt_timeout`.
    pub store_timeout: Duration,
    /// The sender's waiting between all its attempts, in total. Default: 36 s (docs/spec.md, "Retry").
    pub retry_budget: Duration,
    /// How long the sender waits for one reply. Default: 5 s (docs/spec.md, "Retry"). A body that takes longer to
    /// arrive is given up.
    pub attempt_timeout: Duration,
    /// Largest body, in bytes. Default: 1 MiB. At least 1.
    pub body_limit: usize,
    /// How many events may be at work at one time, from the first byte of the body on; more are put off with 503.
    /// Bodies take up to `concurrency` times `body_limit` of memory. Default: 512. From 1 to 1,000,000.
    pub concurrency: usize,
    /// Takes only keys of the form `run_id:event_type:step_index`. Default: `false`, keys of other senders are opaque.
    pub require_canonical: bool,
    /// Takes only requests with good Standard Webhooks headers, which cover the key and the time as well as the body.
    /// `X-Signature-256` is then not looked at, and `webhook-id` is the key. Default: `false`.
    pub require_standard_webhooks: bool,
    /// How far the time in Standard Webhooks headers may be off, in the past or in the future. Default: 5 minutes.
    /// More than zero.
    pub tolerance: Duration,
    /// Runs the handler without a claim when the store is down: nothing is lost and events may be processed twice.
    /// Default: `false`, the sender is put off.
    pub fail_open: bool,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            scope: Scope::default(),
            ttl: Cadence::default().ttl(),
            lease: Duration::from_secs(6),
            handler_cap: Duration::from_secs(4),
            store_timeout: Duration::from_secs(1),
            retry_budget: Duration::from_secs(36),
            attempt_timeout: Duration::from_secs(5),
            body_limit: 1024 * 1024,
            concurrency: 512,
            require_canonical: false,
            require_standard_webhooks: false,
            tolerance: StandardVerifier::DEFAULT_TOLERANCE,
            fail_open: false,
        }
    }
}

/// Leases are renewed every third of their length, and the machine's scheduling must not matter.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

const MOST_AT_ONCE: usize = 1_000_000;

impl ReceiverConfig {
    /// Checks the rules between the fields.
    ///
    /// # Errors
    /// The first rule that is broken, with both numbers.
    pub fn check(&self) -> Result<Ttl, ConfigError> {
        match self.violations().into_iter().next() {
            Some(error) => Err(error),
            None => Ttl::new(self.ttl, self.retry_budget).map_err(ConfigError::Ttl),
        }
    }

    /// Every rule that is broken, with both numbers. Empty if all hold.
    #[must_use]
    pub fn violations(&self) -> Vec<ConfigError> {
        let mut broken = Vec::new();
        let third = self.retry_budget / 3;
        if self.lease > third {
            broken.push(ConfigError::LeaseTooLong {
                lease: self.lease,
                third,
            });
        }
        if self.lease < SHORTEST_LEASE {
            broken.push(ConfigError::LeaseTooShort {
                lease: self.lease,
                least: SHORTEST_LEASE,
            });
        }
        if self.handler_cap >= self.attempt_timeout {
            broken.push(ConfigError::CapTooLong {
                cap: self.handler_cap,
                attempt_timeout: self.attempt_timeout,
            });
        }
        if self.store_timeout > self.attempt_timeout {
            broken.push(ConfigError::StoreTimeoutTooLong {
                store_timeout: self.store_timeout,
                attempt_timeout: self.attempt_timeout,
            });
        }
        for (field, value) in [
            ("handler_cap", self.handler_cap),
            ("store_timeout", self.store_timeout),
            ("tolerance", self.tolerance),
        ] {
            if value.is_zero() {
                broken.push(ConfigError::Zero { field });
            }
        }
        if self.body_limit == 0 {
            broken.push(ConfigError::Zero { field: "body_limit" });
        }
        if !(1..=MOST_AT_ONCE).contains(&self.concurrency) {
            broken.push(ConfigError::Concurrency {
                concurrency: self.concurrency,
                most: MOST_AT_ONCE,
            });
        }
        broken.extend(Ttl::new(self.ttl, self.retry_budget).err().map(ConfigError::Ttl));
        broken
    }
}

/// Which rule a configuration breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A done event would be forgotten while its sender may still try again.
    Ttl(TtlError),
    /// After a crash, copies would be put off for too much of the sender's budget.
    LeaseTooLong {
        /// The lease.
        lease: Duration,
        /// A third of the retry budget.
        third: Duration,
    },
    /// The lease could run out between two renewals.
    LeaseTooShort {
        /// The lease.
        lease: Duration,
        /// The shortest one.
        least: Duration,
    },
    /// The sender would give up before the handler does.
    CapTooLong {
        /// The handler's cap.
        cap: Duration,
        /// The sender's attempt timeout.
        attempt_timeout: Duration,
    },
    /// The sender would give up before the store does.
    StoreTimeoutTooLong {
        /// The store's timeout.
        store_timeout: Duration,
        /// The sender's attempt timeout.
        attempt_timeout: Duration,
    },
    /// A field that must be more than zero.
    Zero {
        /// Its name.
        field: &'static str,
    },
    /// The number of events at work at one time is 0 or too large.
    Concurrency {
        /// The number.
        concurrency: usize,
        /// The largest one.
        most: usize,
    },
    /// A secret cannot verify Standard Webhooks, which are required.
    Secret(SecretError),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ttl(error) => fmt::Display::fmt(error, f),
            Self::LeaseTooLong { lease, third } => {
                write!(
                    f,
                    "a lease of {lease:?} is longer than a third of the retry budget, {third:?}"
                )
            }
            Self::LeaseTooShort { lease, least } => {
                write!(f, "a lease of {lease:?} is shorter than the shortest one, {least:?}")
            }
            Self::CapTooLong { cap, attempt_timeout } => write!(
                f,
                "a handler cap of {cap:?} is not below the sender's attempt timeout, {attempt_timeout:?}"
            ),
            Self::StoreTimeoutTooLong {
                store_timeout,
                attempt_timeout,
            } => write!(
                f,
                "a store timeout of {store_timeout:?} is longer than the sender's attempt timeout, {attempt_timeout:?}"
            ),
            Self::Zero { field } => write!(f, "{field} is zero and must be more"),
            Self::Concurrency { concurrency, most } => {
                write!(f, "a concurrency of {concurrency} is not between 1 and {most}")
            }
            Self::Secret(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut ReceiverConfig), expected: &str) {
        let mut config = ReceiverConfig::default();
        change(&mut config);
        assert_eq!(config.check().unwrap_err().to_string(), expected);
    }

    #[test]
    fn the_defaults_hold_together() {
        assert_eq!(
            ReceiverConfig::default().check().unwrap().as_duration(),
            Duration::from_secs(86_400)
        );
        let edge = ReceiverConfig {
            lease: Duration::from_secs(12),
            ttl: Duration::from_secs(72),
            handler_cap: Duration::from_millis(4_999),
            ..ReceiverConfig::default()
        };
        assert!(edge.check().is_ok());
        let other_edge = ReceiverConfig {
            lease: Duration::from_millis(100),
            store_timeout: Duration::from_secs(5),
            ..ReceiverConfig::default()
        };
        assert!(other_edge.check().is_ok());
    }

    #[test]
    fn every_broken_rule_is_told() {
        let config = ReceiverConfig {
            lease: Duration::from_secs(20),
            handler_cap: Duration::from_secs(9),
            ttl: Duration::from_secs(30),
            ..ReceiverConfig::default()
        };
        let told: Vec<String> = config.violations().iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "a lease of 20s is longer than a third of the retry budget, 12s",
                "a handler cap of 9s is not below the sender's attempt timeout, 5s",
                "a key would be remembered for 30s, but at least twice the retry budget is needed, 72s",
            ]
        );
        assert_eq!(config.check().unwrap_err().to_string(), told[0]);
        assert!(ReceiverConfig::default().violations().is_empty());
    }

    #[test]
    fn each_rule_says_both_numbers() {
        check(
            |config| config.ttl = Duration::from_secs(71),
            "a key would be remembered for 71s, but at least twice the retry budget is needed, 72s",
        );
        check(
            |config| config.lease = Duration::from_millis(12_001),
            "a lease of 12.001s is longer than a third of the retry budget, 12s",
        );
        check(
            |config| config.lease = Duration::from_millis(99),
            "a lease of 99ms is shorter than the shortest one, 100ms",
        );
        check(
            |config| config.handler_cap = Duration::from_secs(5),
            "a handler cap of 5s is not below the sender's attempt timeout, 5s",
        );
        check(
            |config| config.store_timeout = Duration::from_secs(6),
            "a store timeout of 6s is longer than the sender's attempt timeout, 5s",
        );
        check(
            |config| config.concurrency = 0,
            "a concurrency of 0 is not between 1 and 1000000",
        );
        check(
            |config| config.concurrency = 1_000_001,
            "a concurrency of 1000001 is not between 1 and 1000000",
        );
        check(|config| config.body_limit = 0, "body_limit is zero and must be more");
        check(
            |config| config.handler_cap = Duration::ZERO,
            "handler_cap is zero and must be more",
        );
        check(
            |config| config.tolerance = Duration::ZERO,
            "tolerance is zero and must be more",
        );
    }
}
