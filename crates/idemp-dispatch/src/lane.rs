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
use crate::config::{LaneConfig, OnFull};
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
    /// Room for events on their way to the sink.
    room: Capacity,
    /// Room for events that found none, on their way to the dead letters. As large as the other.
    overflow: Capacity,
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

/// How much may be unsettled.
struct Capacity {
    events: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Capacity {
    fn new(config: &LaneConfig) -> Self {
        Self {
            events: Arc::new(Semaphore::new(config.max_events)),
            bytes: Arc::new(Semaphore::new(config.max_bytes)),
        }
    }

    fn take_now(&self, bytes: u32) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let event = Arc::clone(&self.events).try_acquire_owned().ok()?;
        Some((event, Arc::clone(&self.bytes).try_acquire_many_owned(bytes).ok()?))
    }

    /// `None` never comes: nobody closes the semaphores.
    async fn take(&self, bytes: u32) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let event = Arc::clone(&self.events).acquire_owned().await.ok()?;
        Some((event, Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok()?))
    }
}

/// Room in a lane for one event, until it is settled.
pub(crate) struct Room {
    _permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    /// There was none on the way to the sink.
    is_overflow: bool,
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
        let letters = config.dead_letters.clone().map(|store| {
            let fallback = config.fallback.clone();
            Letters::new(store, fallback, config.store_timeout, Arc::clone(&meters))
        });
        Self {
            schedule: match config.mode {
                Mode::AtLeastOnce => config.schedule.clone(),
                Mode::AtMostOnce => RetrySchedule::once(),
            },
            attempts: Semaphore::new(config.concurrency),
            room: Capacity::new(&config),
            overflow: Capacity::new(&config),
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
        let bytes = self.weight(message);
        if let Some(permits) = self.room.take_now(bytes) {
            return Some(Room {
                _permits: permits,
                is_overflow: false,
            });
        }
        match self.config.on_full {
            OnFull::Wait => None,
            OnFull::DeadLetter => {
                let permits = self.overflow.take_now(bytes)?;
                Some(Room {
                    _permits: permits,
                    is_overflow: true,
                })
            }
        }
    }

    /// Waits for room.
    pub(crate) async fn wait_for_room(&self, message: &Message) -> Option<Room> {
        let is_overflow = self.config.on_full == OnFull::DeadLetter;
        let capacity = if is_overflow { &self.overflow } else { &self.room };
        let permits = capacity.take(self.weight(message)).await?;
        Some(Room {
            _permits: permits,
            is_overflow,
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

    /// Takes an accepted event to its end. What found no room on the way to the sink goes to the dead letters alone.
    pub(crate) async fn deliver(&self, message: Message, room: Room) -> Settlement {
        let accepted_at = self.clock.now();
        let mut delivery = Delivery::default();
        let end = if room.is_overflow {
            End::GivenUp(Reason::LaneFull)
        } else {
            self.attempt_until_settled(&message, &mut delivery).await
        };
        let settlement = match end {
            End::Delivered => Settlement::Delivered {
                attempts: made(&delivery),
            },
            // In a box, so that the future of an event that is delivered stays small.
            End::GivenUp(reason) => Box::pin(self.give_up(message, &delivery, reason, accepted_at)).await,
        };
        self.count(&settlement);
        settlement
    }

    async fn attempt_until_settled(&self, message: &Message, delivery: &mut Delivery) -> End {
        loop {
            if self.stopping.is_cancelled() {
                return End::GivenUp(Reason::Shutdown);
            }
            // Nobody is overtaken: a place that somebody waits for is not free.
            let place = match self.attempts.try_acquire() {
                Ok(place) => Ok(place),
                Err(_) => tokio::select! {
                    biased;
                    () = self.stopping.cancelled() => return End::GivenUp(Reason::Shutdown),
                    place = self.attempts.acquire() => place,
                },
            };
            let Some(admitted) = self.gate.admit() else {
                return End::GivenUp(Reason::CircuitOpen);
            };
            let wait = match self.attempt(message, delivery, admitted).await {
                ControlFlow::Break(end) => return end,
                ControlFlow::Continue(wait) => wait,
            };
            drop(place);
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return End::GivenUp(Reason::Shutdown),
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
                self.counts.attempts.add_one();
                return ControlFlow::Break(End::GivenUp(Reason::Shutdown));
            }
        };

        let elapsed = start.elapsed();
        let verdict = self.config.policy.classify(&outcome);
        tracing::debug!(attempt = attempt.number, verdict = verdict.code(), "attempt settled");
        self.counts.attempts.add_one();
        self.meters.attempt(verdict);
        self.meters.attempt_seconds.record(elapsed.as_secs_f64());
        let step = delivery.settle(&outcome, verdict, &self.schedule, started, elapsed, self.clock.now());

        let probe = admitted.is_probe();
        admitted.settle(signal(verdict, step));
        ControlFlow::Break(match step {
            Step::Delivered => End::Delivered,
            Step::Wait(_) if probe => End::GivenUp(Reason::CircuitOpen),
            Step::Wait(wait) => return ControlFlow::Continue(wait),
            Step::DeadLetter(reason) => End::GivenUp(reason),
        })
    }

    /// A sink answers by its deadline and does not panic. One that breaks its contract does not take the lane along.
    async fn bounded(&self, message: &Message, attempt: Attempt, deadline: Instant) -> Outcome {
        // The call itself is caught too, not only the future that it returns.
        let deliver = AssertUnwindSafe(async { self.config.sink.deliver(message, attempt).await }).catch_unwind();
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
            not_before: delivery.not_before(),
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
    GivenUp(Reason),
}

fn made(delivery: &Delivery) -> u32 {
    delivery.next_number() - 1
}

/// What the breaker learns from an attempt.
fn signal(verdict: Verdict, step: Step) -> Signal {
    match (verdict, step) {
        (Verdict::Delivered, _) => Signal::Delivered,
        (Verdict::Retry | Verdict::PushBack, Step::Wait(_)) => Signal::Retryable,
        (Verdict::Retry | Verdict::PushBack, _) => Signal::Exhausted,
        (Verdict::RejectsConfiguration, _) => Signal::Configuration,
        (Verdict::RejectsEvent, _) => Signal::Neutral,
    }
}
