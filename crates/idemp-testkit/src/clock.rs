//! A wall clock that moves with tokio's time: in a test with paused time it stands still until tokio jumps.

use std::time::{Duration, SystemTime};

use idemp_core::Attempt;
use tokio::time::Instant;

/// Time of day at which every [`Clock`] starts: 2026-11-30T12:00:00Z, in Unix seconds.
pub const EPOCH_UNIX_SECONDS: u64 = 1_796_040_000;

/// Both clocks of a test: monotonic from tokio, time of day from a fixed start. Copies are the same clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now, at [`EPOCH_UNIX_SECONDS`]. Make it inside the runtime, or it does not see paused time.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.start.elapsed()
    }

    /// Time of day.
    #[must_use]
    pub fn wall(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH_UNIX_SECONDS) + self.elapsed()
    }

    /// Monotonic time, as core takes it.
    #[must_use]
    pub fn monotonic(self) -> std::time::Instant {
        Instant::now().into_std()
    }

    /// What a sink is told about an attempt that starts now and may take so long.
    #[must_use]
    pub fn attempt(self, number: u32, timeout: Duration) -> Attempt {
        Attempt {
            number,
            now: self.wall(),
            deadline: self.monotonic() + timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn both_clocks_move_with_tokio() {
        let clock = Clock::start();
        let (wall, monotonic) = (clock.wall(), clock.monotonic());
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.wall().duration_since(wall).unwrap(), Duration::from_secs(3600));
        assert_eq!(clock.monotonic() - monotonic, Duration::from_secs(3600));
        assert_eq!(
            clock.attempt(1, Duration::from_secs(5)).deadline,
            clock.monotonic() + Duration::from_secs(5)
        );
    }
}
