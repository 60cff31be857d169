//! One sink: its attempts, its waits, its breaker and its dead letters. One task per event, which ends with it.

use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use idemp_core::{
    Attempt, Delivery, Detail, Failure, Message, Mode, Outcome, Reason, RetrySchedule, Signal, SinkName, Step,
    Transport, Verdict,
};
use idemp_dlq::DeadLetter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admission::{Admitted, Gate};
use crate::clock::Clock;
use crate::config::LaneConfig;
use crate::letters::Letters;
use crate::meters::Meters;
use crate::settlement::Settlement;
use crate::stats::{Counts, LaneStats};

/// A sink that has not returned this long after its deadline never will.
const OVERDUE: Duration = Duration::from_millis(500);

pub(crate) struct Lane {
    pub(crate) config: LaneConfig,
    schedule: RetrySchedule,
    attempts: Semaphore,
    events: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    gate: Gate,
    letters: Option<Letters>,
    counts: Counts,
    meters: Arc<Meters>,
    clock: Arc<dyn Clock>,
    /// Waits end, and their events become dead letters.
    stopping: CancellationToken,
    /// So do attempts in flight.
    aborting: CancellationToken,
}

/// Room in a lane for one event.
pub(crate) struct Room {
    _event: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Lane {
    pub(crate) fn new(
        config: LaneConfig,
        clock: Arc<dyn Clock>,
        stopping: CancellationToken,
        aborting: CancellationToken,
    ) -> Self {
        let meters = Arc::new(Meters::new(config.name.clone()));
        let mut breaker = config.breaker;
        breaker.probe_lease = config.attempt_timeout + Duration::from_secs(1);
        let letters = config.dead_letters.clone().map(|store| Letters {
            store,
            fallback: config.fallback.clone(),
            timeout: config.store_timeout,
            meters: Arc::clone(&meters),
        });
        Self {
            schedule: match config.mode {
                Mode::AtLeastOnce => config.schedule.clone(),
                Mode::AtMostOnce => RetrySchedule::once(),
            },
            attempts: Semaphore::new(config.concurrency),
            events: Arc::new(Semaphore::new(config.max_events)),
            bytes: Arc::new(Semaphore::new(config.max_bytes)),
            gate: Gate::new(breaker, config.name.clone(), Arc::clone(&meters)),
            letters,
            counts: Counts::default(),
            meters,
            clock,
            stopping,
            aborting,
            config,
        }
    }

    pub(crate) fn name(&self) -> &SinkName {
        &self.config.name
    }

    pub(crate) fn takes(&self, message: &Message) -> bool {
        self.config.filter.as_ref().is_none_or(|filter| filter(message))
    }

    pub(crate) fn stats(&self) -> LaneStats {
        self.counts.snapshot(self.config.name.clone(), self.gate.state())
    }

    /// Room for the event if there is any now.
    pub(crate) fn room(&self, message: &Message) -> Option<Room> {
        let event = Arc::clone(&self.events).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.bytes)
            .try_acquire_many_owned(self.weight(message))
            .ok()?;
        Some(Room {
            _event: event,
            _bytes: bytes,
        })
    }

    /// Waits for room. The semaphores are never closed.
    pub(crate) async fn wait_for_room(&self, message: &Message) -> Option<Room> {
        let event = Arc::clone(&self.events).acquire_owned().await.ok()?;
        let bytes = Arc::clone(&self.bytes)
            .acquire_many_owned(self.weight(message))
            .await
            .ok()?;
        Some(Room {
            _event: event,
            _bytes: bytes,
        })
    }

    fn weight(&self, message: &Message) -> u32 {
        // `max_bytes` fits: the configuration was checked.
        message.body().len().min(self.config.max_bytes) as u32
    }

    pub(crate) fn count_accepted(&self) {
        self.counts.accepted.add_one();
        self.meters.accepted.increment(1);
        self.meters.unsettled.increment(1.0);
    }

    /// Takes an accepted event to its end. Without room it goes no further than the dead letters.
    pub(crate) async fn deliver(&self, message: Message, room: Option<Room>) -> Settlement {
        let accepted_at = self.clock.now();
        let mut delivery = Delivery::default();
        let end = match room {
            Some(_) => self.attempt_until_settled(&message, &mut delivery).await,
            None => End::GivenUp {
                reason: Reason::LaneFull,
                not_before: None,
            },
        };
        let settlement = match end {
            End::Delivered => Settlement::Delivered {
                attempts: made(&delivery),
            },
            End::GivenUp { reason, not_before } => {
                self.give_up(message, &delivery, reason, not_before, accepted_at).await
            }
        };
        self.count(&settlement);
        settlement
    }

    async fn attempt_until_settled(&self, message: &Message, delivery: &mut Delivery) -> End {
        let shutdown = End::GivenUp {
            reason: Reason::Shutdown,
            not_before: None,
        };
        loop {
            let place = tokio::select! {
                biased;
                () = self.stopping.cancelled() => return shutdown,
                place = self.attempts.acquire() => place,
            };
            let Some(admitted) = self.gate.admit() else {
                return End::GivenUp {
                    reason: Reason::CircuitOpen,
                    not_before: None,
                };
            };
            let wait = match self.attempt(message, delivery, admitted).await {
                ControlFlow::Break(end) => return end,
                ControlFlow::Continue(wait) => wait,
            };
            drop(place);
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return shutdown,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Makes one attempt; continues with the wait before the next one.
    async fn attempt(
        &self,
        message: &Message,
        delivery: &mut Delivery,
        admitted: Admitted<'_>,
    ) -> ControlFlow<End, Duration> {
        let (started, start) = (self.clock.now(), Instant::now());
        let deadline = start + self.config.attempt_timeout;
        let attempt = Attempt {
            number: delivery.next_number(),
            now: started,
            deadline: deadline.into_std(),
        };
        let outcome = tokio::select! {
            biased;
            outcome = self.bounded(message, attempt, deadline) => outcome,
            () = self.aborting.cancelled() => {
                delivery.abandon(started, start.elapsed());
                return ControlFlow::Break(End::GivenUp { reason: Reason::Shutdown, not_before: None });
            }
        };

        let elapsed = start.elapsed();
        let verdict = self.config.policy.classify(&outcome);
        self.counts.attempts.add_one();
        self.meters.attempt(verdict);
        self.meters.attempt_seconds.record(elapsed.as_secs_f64());
        let step = delivery.settle(&outcome, verdict, &self.schedule, started, elapsed, self.clock.now());

        let probe = admitted.is_probe();
        admitted.settle(signal(verdict, step));
        ControlFlow::Break(match step {
            Step::Delivered => End::Delivered,
            Step::Wait(_) if probe => End::GivenUp {
                reason: Reason::CircuitOpen,
                not_before: None,
            },
            Step::Wait(wait) => return ControlFlow::Continue(wait),
            Step::DeadLetter { reason, not_before } => End::GivenUp { reason, not_before },
        })
    }

    /// A sink answers by its deadline and does not panic. One that breaks its contract does not take the lane along.
    async fn bounded(&self, message: &Message, attempt: Attempt, deadline: Instant) -> Outcome {
        let deliver = AssertUnwindSafe(self.config.sink.deliver(message, attempt)).catch_unwind();
        let (transport, says) = match tokio::time::timeout_at(deadline + OVERDUE, deliver).await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(_panic)) => (Transport::Cut, "the sink panicked"),
            Err(_elapsed) => (Transport::Timeout, "the sink did not return by its deadline"),
        };
        tracing::error!(sink = %self.config.name, "{says}");
        Failure::transport(transport).with_detail(Detail::new(says)).into()
    }

    async fn give_up(
        &self,
        message: Message,
        delivery: &Delivery,
        reason: Reason,
        not_before: Option<SystemTime>,
        accepted_at: SystemTime,
    ) -> Settlement {
        let Some(letters) = self.letters.as_ref().filter(|_| self.config.mode == Mode::AtLeastOnce) else {
            return Settlement::Dropped { reason };
        };
        let letter = DeadLetter {
            sink: self.config.name.clone(),
            message,
            reason,
            class: reason.class(),
            maybe_delivered: delivery.maybe_delivered(),
            attempts: delivery.attempts().to_vec(),
            accepted_at,
            dead_at: self.clock.now(),
            not_before,
            replay_count: 0,
        };
        match letters.put(&letter).await {
            Ok(_) => Settlement::DeadLettered {
                reason,
                attempts: made(delivery),
            },
            Err(error) => Settlement::Unsaved {
                letter: Arc::new(letter),
                error: error.map(Arc::new),
            },
        }
    }

    fn count(&self, settlement: &Settlement) {
        let (counts, meters) = (&self.counts, &self.meters);
        meters.unsettled.decrement(1.0);
        match settlement {
            Settlement::Delivered { .. } => {
                counts.delivered.add_one();
                meters.delivered.increment(1);
            }
            Settlement::DeadLettered { reason, .. } => {
                counts.dead_lettered.add_one();
                meters.dead_lettered(*reason);
            }
            Settlement::Dropped { reason } => {
                counts.dropped.add_one();
                meters.dropped(*reason);
            }
            Settlement::Unsaved { letter, .. } => {
                counts.unsaved.add_one();
                meters.unsaved.increment(1);
                tracing::error!(sink = %letter.sink, key = %letter.message.key(), "no store took a dead letter");
            }
        }
    }
}

enum End {
    Delivered,
    GivenUp {
        reason: Reason,
        not_before: Option<SystemTime>,
    },
}

fn made(delivery: &Delivery) -> u32 {
    delivery.next_number() - 1
}

/// What the breaker learns from an attempt.
fn signal(verdict: Verdict, step: Step) -> Signal {
    match (verdict, step) {
        (Verdict::Delivered, _) => Signal::Delivered,
        (Verdict::Retry, Step::Wait(_)) => Signal::Retryable,
        (Verdict::Retry, _) => Signal::Exhausted,
        (Verdict::RejectsConfiguration, _) => Signal::Configuration,
        (Verdict::RejectsEvent, _) => Signal::Neutral,
    }
}
