//! How a replay goes about it.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::report::Refused;

/// How a replay goes about it. Every field has a default.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayOptions {
    /// Attempts a second, at most. 10 by default; at least one in 24 h. They go out one after the other, so a slow receiver sets a
    /// bound of its own; above 1,000 there is no pause.
    pub rate_per_second: f64,
    /// How long an entry is held for an attempt. 30 s by default; at least 2 s more than
    /// [`attempt_timeout`](Self::attempt_timeout).
    pub lease: Duration,
    /// Time for one attempt: connecting, sending, reading the answer. 5 s by default; above 0, at most 1 h.
    pub attempt_timeout: Duration,
    /// After so many failures in a row at one sink, its letters are left alone: the receiver is not well yet. A rejection
    /// of one event neither counts nor resets. 10 by default; at least 1.
    pub stop_after_failures: u32,
    /// Attempts at most; entries that are refused, held or gone do not count. None by default.
    pub limit: Option<u64>,
    /// How long the receiver remembers a key. A letter that may have been delivered longer ago is refused, since the
    /// receiver would process it twice. 24 h by default.
    pub receiver_ttl: Duration,
    /// Replays what would be refused for [`receiver_ttl`](Self::receiver_ttl) or because the peer asked to be left
    /// alone until later. Off by default.
    pub force: bool,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            rate_per_second: 10.0,
            lease: Duration::from_secs(30),
            attempt_timeout: Duration::from_secs(5),
            stop_after_failures: 10,
            limit: None,
            receiver_ttl: Duration::from_secs(24 * 60 * 60),
            force: false,
        }
    }
}

/// What an attempt may take beyond its time before it is cut.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// Longest time between two attempts.
const LONGEST_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest time for an attempt.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(60 * 60);

/// Time for writing the result down before the lease ends.
const SETTLING: Duration = Duration::from_secs(1);

/// Options within their bounds.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    /// Between the starts of two attempts.
    pub(super) interval: Duration,
    pub(super) lease: Duration,
    pub(super) attempt_timeout: Duration,
    pub(super) stop_after_failures: u32,
    pub(super) limit: Option<u64>,
    pub(super) receiver_ttl: Duration,
    pub(super) force: bool,
}

impl Checked {
    /// Why an entry must not go out now, by what its record says.
    pub(super) fn refusal(
        &self,
        not_before: Option<SystemTime>,
        maybe_delivered_since: Option<SystemTime>,
        now: SystemTime,
    ) -> Option<Refused> {
        if self.force {
            return None;
        }
        if let Some(not_before) = not_before.filter(|at| *at > now) {
            return Some(Refused::NotBefore(not_before));
        }
        let since = maybe_delivered_since?;
        let age = now.duration_since(since).unwrap_or_default();
        (age >= self.receiver_ttl).then_some(Refused::ReceiverForgot { since })
    }
}

impl ReplayOptions {
    pub(super) fn check(self) -> Result<Checked, OptionsError> {
        let interval = match Duration::try_from_secs_f64(1.0 / self.rate_per_second) {
            Ok(interval) if self.rate_per_second > 0.0 && interval <= LONGEST_INTERVAL => interval,
            _ => return Err(OptionsError::Rate),
        };
        if self.attempt_timeout.is_zero() || self.attempt_timeout > LONGEST_ATTEMPT {
            return Err(OptionsError::AttemptTimeout);
        }
        let least = self.attempt_timeout + GRACE + SETTLING;
        if self.lease < least {
            return Err(OptionsError::Lease { least });
        }
        if self.stop_after_failures == 0 {
            return Err(OptionsError::StopAfterFailures);
        }
        Ok(Checked {
            // Timers tick in milliseconds: a shorter pause would be rounded up to one.
            interval: if interval < Duration::from_millis(1) {
                Duration::ZERO
            } else {
                interval
            },
            lease: self.lease,
            attempt_timeout: self.attempt_timeout,
            stop_after_failures: self.stop_after_failures,
            limit: self.limit,
            receiver_ttl: self.receiver_ttl,
            force: self.force,
        })
    }
}

/// An option that is out of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// The rate is not a number above 0, or less than one attempt in 24 h.
    Rate,
    /// An attempt has no time, or more than 1 h.
    AttemptTimeout,
    /// The lease could end before an attempt does.
    Lease {
        /// The shortest that is allowed.
        least: Duration,
    },
    /// The replay would stop before it begins.
    StopAfterFailures,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate => f.write_str("the rate is not a number of attempts a second, at least one in 24 h"),
            Self::AttemptTimeout => f.write_str("the time of an attempt is not above 0 and at most 1 h"),
            Self::Lease { least } => write!(f, "the lease is shorter than {least:?}, an attempt could outlive it"),
            Self::StopAfterFailures => f.write_str("a replay cannot stop after 0 failures"),
        }
    }
}

impl std::error::Error for OptionsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_kept() {
        let default = ReplayOptions::default();
        assert_eq!(default.clone().check().unwrap().interval, Duration::from_millis(100));
        for rate_per_second in [0.0, -0.0, -1.0, f64::NAN, f64::NEG_INFINITY, 1e-300, 1e-5] {
            let options = ReplayOptions {
                rate_per_second,
                ..default.clone()
            };
            assert_eq!(options.check().unwrap_err(), OptionsError::Rate, "{rate_per_second}");
        }
        for rate_per_second in [2_000.0, f64::INFINITY] {
            let options = ReplayOptions {
                rate_per_second,
                ..default.clone()
            };
            assert_eq!(options.check().unwrap().interval, Duration::ZERO, "{rate_per_second}");
        }
        let options = ReplayOptions {
            lease: Duration::from_millis(6_999),
            ..default.clone()
        };
        assert_eq!(
            options.check().unwrap_err(),
            OptionsError::Lease {
                least: Duration::from_secs(7)
            }
        );
        for attempt_timeout in [Duration::ZERO, Duration::from_millis(3_600_001), Duration::MAX] {
            let options = ReplayOptions {
                attempt_timeout,
                lease: Duration::MAX,
                ..default.clone()
            };
            assert_eq!(options.check().unwrap_err(), OptionsError::AttemptTimeout);
        }
        let options = ReplayOptions {
            stop_after_failures: 0,
            ..default
        };
        assert_eq!(options.check().unwrap_err(), OptionsError::StopAfterFailures);
    }
}
