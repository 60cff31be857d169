//! What a lane tells the `metrics` facade. The names stand in docs/metrics.md.

use idemp_core::{BreakerState, Reason, SinkName, Transition, Verdict};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// Handles that are looked up once: an exporter must be installed before the dispatcher is made.
pub(crate) struct Meters {
    sink: SinkName,
    pub(crate) accepted: Counter,
    pub(crate) delivered: Counter,
    pub(crate) unsaved: Counter,
    pub(crate) lost: Counter,
    pub(crate) unsettled: Gauge,
    pub(crate) attempt_seconds: Histogram,
    verdicts: [(Verdict, Counter); 5],
}

impl Meters {
    pub(crate) fn new(sink: SinkName) -> Self {
        let name = || sink.to_string();
        let verdict = |verdict: Verdict| {
            (
                verdict,
                counter!("idemp_attempts_total", "sink" => name(), "verdict" => verdict.code()),
            )
        };
        let meters = Self {
            accepted: counter!("idemp_events_accepted_total", "sink" => name()),
            delivered: counter!("idemp_events_delivered_total", "sink" => name()),
            unsaved: counter!("idemp_events_unsaved_total", "sink" => name()),
            lost: counter!("idemp_events_lost_total", "sink" => name()),
            unsettled: gauge!("idemp_lane_unsettled_events", "sink" => name()),
            attempt_seconds: histogram!("idemp_attempt_duration_seconds", "sink" => name()),
            verdicts: Verdict::ALL.map(verdict),
            sink,
        };
        meters.breaker_state(BreakerState::Closed);
        meters
    }

    pub(crate) fn attempt(&self, verdict: Verdict) {
        if let Some((_, counter)) = self.verdicts.iter().find(|(known, _)| *known == verdict) {
            counter.increment(1);
        }
    }

    // What follows happens seldom, so its labels are looked up each time.

    pub(crate) fn dead_lettered(&self, reason: Reason) {
        counter!("idemp_dead_letters_total", "sink" => self.sink.to_string(), "reason" => reason.code()).increment(1);
    }

    pub(crate) fn dropped(&self, reason: Reason) {
        counter!("idemp_events_dropped_total", "sink" => self.sink.to_string(), "reason" => reason.code()).increment(1);
    }

    pub(crate) fn store_failed(&self, store: &'static str) {
        counter!("idemp_dead_letter_write_failures_total", "sink" => self.sink.to_string(), "store" => store)
            .increment(1);
    }

    pub(crate) fn transition(&self, transition: &Transition) {
        let opened_by = transition.opened_by.map_or("", |by| by.code());
        counter!(
            "idemp_breaker_transitions_total",
            "sink" => self.sink.to_string(), "state" => transition.to.code(), "reason" => opened_by,
        )
        .increment(1);
        self.breaker_state(transition.to);
    }

    fn breaker_state(&self, state: BreakerState) {
        let value = match state {
            BreakerState::Closed => 0.0,
            BreakerState::HalfOpen => 1.0,
            BreakerState::Open => 2.0,
        };
        gauge!("idemp_breaker_state", "sink" => self.sink.to_string()).set(value);
    }
}
