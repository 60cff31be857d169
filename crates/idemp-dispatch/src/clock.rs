//! The time of day. The monotonic clock is tokio's, which tests pause.

use std::time::SystemTime;

/// Where the dispatcher reads the time of day, for signatures, records and `Retry-After` dates.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> SystemTime;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}
