//! One sink: its attempts, its waits, its breaker and its dead letters.
//!
//! An accepted event waits in a queue for its attempt. Workers, as many as attempts may be in flight, take one event after
//! another and end when none is left. An event that waits for its next attempt, or is on its way to the dead letters,
//! has a task of its own, which ends with the wait or with the event. All of that happens in the runtime in which the
//! event was submitted.

mod worker;

use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use idemp_core::{
    Attempt, Delivery, Detail, Failure, Message, Mode, Outcome, Reason, RetrySchedule, Signal, SinkName, Step,
    Transport, Verdict,
};
use idemp_dlq::DeadLetter;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::admission::{Admitted, Gate};
use crate::clock::Clock;
use crate::config::LaneConfig;
use crate::ledger::Unsettled;
use crate::letters::Letters;
use crate::meters::Meters;
use crate::queue::{Pushed, Queue};
use crate::room::{Room, Rooms};
use crate::settlement::Settlement;
use crate::stats::{Counts, LaneStats};

use worker::{Limits, Worker};

/// A sink that has not returned this long after its deadline never will.
const OVERDUE: Duration = Duration::from_millis(500);

pub(crate) struct Lane {
    pub(crate) config: LaneConfig,
    schedule: RetrySchedule,
    pub(crate) rooms: Rooms,
    queue: Queue<Job>,
    /// Workers that are spawned and not at their first event yet.
    starting: AtomicUsize,
    gate: Gate,
    letters: Option<Letters>,
    counts: Counts,
    meters: Arc<Meters>,
    clock: Arc<dyn Clock>,
    /// Waits end, and their events become dead letters.
    stopping: CancellationToken,
    /// So do attempts in flight.
    aborting: CancellationToken,
    /// Whether the sink is closed.
    closed: OnceCell<()>,
}

/// An accepted event with all that is known of it.
///
/// If it is lost, it is counted and its room is free before anybody hears of that: fields are dropped in their order.
struct Job {
    loss: Loss,
    room: Room,
    event: Unsettled,
    delivery: Delivery,
    accepted_at: SystemTime,
    /// Child of the span in which the event was submitted.
    span: Span,
    /// Where it was submitted.
    runtime: Handle,
}

/// Counts an event as lost, unless it is settled: its runtime has ended, or its clock or a recorder panicked.
struct Loss(Option<Arc<Lane>>);

impl Loss {
    fn avert(mut self) {
        self.0 = None;
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        if let Some(lane) = &self.0 {
            lane.counts.lost.add_one();
            lane.meters.unsettled.decrement(1.0);
            lane.meters.lost.increment(1);
        }
    }
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
            rooms: Rooms::new(&config),
            queue: Queue::new(config.concurrency),
            starting: AtomicUsize::new(0),
            gate: Gate::new(breaker, config.name.clone(), Arc::clone(&meters)),
            letters,
            counts: Counts::default(),
            meters,
            clock,
            stopping,
            aborting,
            closed: OnceCell::new(),
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

    /// Takes an accepted event to its end. What found no room on the way to the sink goes to the dead letters alone.
    pub(crate) fn take(self: &Arc<Self>, event: Unsettled, room: Room, accepted_at: SystemTime, runtime: &Handle) {
        self.counts.accepted.add_one();
        self.meters.accepted.increment(1);
        self.meters.unsettled.increment(1.0);
        let job = Job {
            loss: Loss(Some(Arc::clone(self))),
            room,
            event,
            delivery: Delivery::default(),
            accepted_at,
            span: tracing::debug_span!("deliver", sink = %self.config.name),
            runtime: runtime.clone(),
        };
        if job.room.is_overflow {
            self.give_up(job, Reason::LaneFull);
        } else {
            self.enqueue(job);
        }
    }

    /// No attempt begins any more: what waits for one becomes a dead letter. Those in flight go on.
    pub(crate) fn stop(self: &Arc<Self>) {
        for job in self.queue.close() {
            self.give_up(job, Reason::Shutdown);
        }
    }

    /// Closes the sink within `deadline`, once. Who comes second waits for it.
    pub(crate) async fn close(&self, deadline: Duration) {
        let close = || async {
            if tokio::time::timeout(deadline, self.config.sink.close()).await.is_err() {
                tracing::warn!(sink = %self.config.name, "the sink did not close in time");
            }
        };
        self.closed.get_or_init(close).await;
    }

    fn enqueue(self: &Arc<Self>, job: Job) {
        match self.queue.push(job) {
            Pushed::Waits => {}
            Pushed::NeedsWorker(job) => Worker::spawn(Arc::clone(self), job),
            Pushed::Closed(job) => self.give_up(job, Reason::Shutdown),
        }
    }

    /// Makes one attempt at an event and sends it on its way.
    async fn attend(self: &Arc<Self>, mut job: Job, limits: &mut Limits<'_, '_>) {
        let Some(admitted) = self.gate.admit() else {
            return self.give_up(job, Reason::CircuitOpen);
        };
        let Job { event, delivery, .. } = &mut job;
        match self.attempt(event.message(), delivery, admitted, limits).await {
            ControlFlow::Continue(wait) => self.wait(job, Instant::now() + wait),
            ControlFlow::Break(End::GivenUp(reason)) => self.give_up(job, reason),
            ControlFlow::Break(End::Delivered) => {
                let attempts = made(&job.delivery);
                self.settle(job, Settlement::Delivered { attempts });
            }
        }
    }

    /// Makes one attempt; continues with the wait before the next one.
    async fn attempt(
        &self,
        message: &Message,
        delivery: &mut Delivery,
        admitted: Admitted<'_>,
        limits: &mut Limits<'_, '_>,
    ) -> ControlFlow<End, Duration> {
        let (started, start) = (self.clock.now(), Instant::now());
        let deadline = start + self.config.attempt_timeout;
        let attempt = Attempt {
            number: delivery.next_number(),
            now: started,
            deadline: deadline.into_std(),
        };
        let Limits { aborted, overdue } = limits;
        overdue.as_mut().reset(deadline + OVERDUE);
        let outcome = tokio::select! {
            biased;
            outcome = self.guarded(message, attempt) => outcome,
            () = aborted.as_mut() => {
                delivery.abandon(started, start.elapsed());
                self.counts.attempts.add_one();
                return ControlFlow::Break(End::GivenUp(Reason::Shutdown));
            }
            // A sink that never lets go of the thread must not keep the timer from being looked at.
            () = unconstrained(overdue.as_mut()) => {
                self.broken(Transport::Timeout, "the sink did not return by its deadline")
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

    /// A sink does not panic. One that does takes nothing else along.
    async fn guarded(&self, message: &Message, attempt: Attempt) -> Outcome {
        // The call itself is caught too, not only the future that it returns.
        let deliver = AssertUnwindSafe(async { self.config.sink.deliver(message, attempt).await }).catch_unwind();
        deliver
            .await
            .unwrap_or_else(|_panic| self.broken(Transport::Cut, "the sink panicked"))
    }

    /// What came of an attempt at a sink that broke its contract.
    fn broken(&self, transport: Transport, says: &'static str) -> Outcome {
        tracing::error!(sink = %self.config.name, "{says}");
        Failure::transport(transport).with_detail(Detail::new(says)).into()
    }

    /// Puts an event into the queue again later.
    fn wait(self: &Arc<Self>, job: Job, until: Instant) {
        let (lane, span, runtime) = (Arc::clone(self), job.span.clone(), job.runtime.clone());
        let waiting = async move {
            tokio::select! {
                biased;
                () = lane.stopping.cancelled() => lane.give_up(job, Reason::Shutdown),
                () = sleep_until(until) => lane.enqueue(job),
            }
        };
        runtime.spawn(waiting.instrument(span));
    }

    /// Sends an event to the dead letters, if the lane has any.
    fn give_up(self: &Arc<Self>, job: Job, reason: Reason) {
        let (lane, span, runtime) = (Arc::clone(self), job.span.clone(), job.runtime.clone());
        let giving_up = async move {
            let settlement = lane.dead_letter(&job, reason).await;
            lane.settle(job, settlement);
        };
        runtime.spawn(giving_up.instrument(span));
    }

    async fn dead_letter(&self, job: &Job, reason: Reason) -> Settlement {
        let delivery = &job.delivery;
        let cause = delivery.attempts().last().and_then(|attempt| attempt.cause);
        let Some(letters) = self.letters.as_ref().filter(|_| self.config.mode == Mode::AtLeastOnce) else {
            return Settlement::Dropped { reason, cause };
        };
        let letter = DeadLetter {
            sink: self.config.name.clone(),
            message: job.event.message().clone(),
            reason,
            class: reason.class(),
            maybe_delivered: delivery.maybe_delivered(),
            attempts: delivery.attempts().to_vec(),
            accepted_at: job.accepted_at,
            dead_at: self.clock.now(),
            not_before: delivery.not_before(),
            replay_count: 0,
        };
        match letters.put(&letter).await {
            Ok(_) => Settlement::DeadLettered {
                reason,
                attempts: made(delivery),
                cause,
            },
            Err(error) => Settlement::Unsaved {
                letter: Arc::new(letter),
                error: error.map(Arc::new),
            },
        }
    }

    fn settle(&self, job: Job, settlement: Settlement) {
        job.loss.avert();
        self.count(&settlement);
        // Free before anybody hears of the end.
        drop(job.room);
        job.event.settle(settlement);
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
            Settlement::Dropped { reason, .. } => {
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
