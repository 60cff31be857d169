//! The breaker of a lane, shared by its attempts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idemp_core::{Admission, Breaker, BreakerConfig, BreakerState, Permit, Signal};
use tokio::time::Instant;

use crate::meters::Meters;

pub(crate) struct Gate {
    breaker: Mutex<Breaker>,
    origin: Instant,
    meters: Arc<Meters>,
    sink: idemp_core::SinkName,
}

impl Gate {
    pub(crate) fn new(config: BreakerConfig, sink: idemp_core::SinkName, meters: Arc<Meters>) -> Self {
        Self {
            breaker: Mutex::new(Breaker::new(config)),
            origin: Instant::now(),
            meters,
            sink,
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.lock().state()
    }

    /// Leave for one attempt, or `None` while the breaker is open.
    pub(crate) fn admit(&self) -> Option<Admitted<'_>> {
        let mut breaker = self.lock();
        let admission = breaker.admit(self.origin.elapsed());
        self.tell(breaker);
        match admission {
            Admission::Admit(permit) => Some(Admitted {
                gate: self,
                permit: Some(permit),
            }),
            Admission::Refuse => None,
        }
    }

    fn settle(&self, permit: Permit, signal: Signal) {
        let mut breaker = self.lock();
        breaker.settle(permit, signal, self.origin.elapsed());
        self.tell(breaker);
    }

    fn tell(&self, mut breaker: MutexGuard<'_, Breaker>) {
        while let Some(transition) = breaker.poll_transition() {
            self.meters.transition(&transition);
            tracing::warn!(
                sink = %self.sink,
                state = transition.to.code(),
                reason = transition.opened_by.map(|by| by.code()),
                "circuit breaker changed state",
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A permit that frees its place if the attempt vanishes.
pub(crate) struct Admitted<'g> {
    gate: &'g Gate,
    permit: Option<Permit>,
}

impl Admitted<'_> {
    pub(crate) fn is_probe(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::is_probe)
    }

    pub(crate) fn settle(mut self, signal: Signal) {
        if let Some(permit) = self.permit.take() {
            self.gate.settle(permit, signal);
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.gate.settle(permit, Signal::Neutral);
        }
    }
}
