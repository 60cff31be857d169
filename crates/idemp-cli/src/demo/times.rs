//! The usual times, a fifth of them: how long a demo may take.

use std::time::Duration;

/// What the usual waits are multiplied with. The usual ones are 1, 5 and 30 s.
pub(super) const SCALE: f64 = 0.2;

/// How long one attempt may take. Usually 5 s.
pub(super) const ATTEMPT: Duration = Duration::from_secs(1);

/// How long a handler may run. Usually 4 s.
pub(super) const HANDLER_CAP: Duration = Duration::from_millis(800);

/// How long a claim holds without news of its owner. Usually 6 s, of which a fifth would be more than a slow disk allows.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// How long the breaker stays open. Usually 5 minutes. The demo is over before.
pub(super) const BREAKER_OPEN: Duration = Duration::from_secs(60);

/// How long a dead letter is held for its replay. Usually 30 s.
pub(super) const REPLAY_LEASE: Duration = Duration::from_secs(6);

/// Between one event and the next.
pub(super) const PACE: Duration = Duration::from_millis(50);

/// How long a slow handler is at work: within its cap, and longer than the wait before the second attempt.
pub(super) const WORK: Duration = Duration::from_millis(500);

/// How long a slow reply takes: the sender has given up by then.
pub(super) const LATE: Duration = Duration::from_millis(1_300);

/// How long a copy is held up: until after the second attempt, which comes 1.2 s after the first.
pub(super) const HELD_UP: Duration = Duration::from_millis(1_500);
