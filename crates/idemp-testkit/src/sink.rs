//! A sink that follows a script and keeps a transcript.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use idemp_core::{Attempt, Failure, IdempotencyKey, Message, Outcome, Refusal, RetryAfter, Sink, Transport};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::gate::{Gate, reached};

/// A sink whose answers are written in advance. Copies share script and transcript, so that a test keeps one.
///
/// ```
/// use idemp_testkit::sink::{Reply, ScriptedSink};
///
/// // Every key: 503, then 429, then delivered for good.
/// let sink = ScriptedSink::by_attempt([Reply::status(503), Reply::status(429), Reply::delivered()]);
/// // Only one key fails.
/// let sink = ScriptedSink::with(|call| match call.key.step_index().as_u64() {
///     7 => Reply::status(400),
///     _ => Reply::delivered(),
/// });
/// assert!(sink.calls().is_empty());
/// ```
#[derive(Clone)]
pub struct ScriptedSink(Arc<Inner>);

type Script = dyn Fn(&Call) -> Reply + Send + Sync;
type Check = dyn Fn(&Message) -> Result<(), Refusal> + Send + Sync;

struct Inner {
    script: Box<Script>,
    check: Option<Box<Check>>,
    clock: Clock,
    calls: Mutex<Vec<Call>>,
    called: watch::Sender<usize>,
    in_flight: AtomicUsize,
    max_in_flight: AtomicUsize,
    dropped: AtomicUsize,
    closed: AtomicBool,
}

/// One call of `deliver`, as the transcript keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Place in the transcript, from 0.
    pub index: usize,
    /// The message's key.
    pub key: IdempotencyKey,
    /// The message's body.
    pub body: Bytes,
    /// Number of the attempt, as the caller counts.
    pub number: u32,
    /// Time since the sink was made, by tokio's clock.
    pub at: Duration,
    /// Time of day that the caller gave.
    pub now: SystemTime,
    /// Time that the caller left for the attempt.
    pub timeout: Duration,
}

/// What happens in one attempt.
#[derive(Clone, Debug)]
pub struct Reply {
    end: End,
    delay: Duration,
    gate: Option<Gate>,
}

#[derive(Clone, Debug)]
enum End {
    Outcome(Outcome),
    Timeout,
    Hang,
    Panic,
}

impl Reply {
    fn new(end: End) -> Self {
        Self {
            end,
            delay: Duration::ZERO,
            gate: None,
        }
    }

    /// Ends with this outcome.
    #[must_use]
    pub fn outcome(outcome: impl Into<Outcome>) -> Self {
        Self::new(End::Outcome(outcome.into()))
    }

    /// Delivered, with status 200.
    #[must_use]
    pub fn delivered() -> Self {
        Self::outcome(Outcome::Delivered { status: Some(200) })
    }

    /// Failed with this status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::outcome(Failure::status(status))
    }

    /// Failed with this status, and this is when to come back.
    #[must_use]
    pub fn retry_after(status: u16, after: RetryAfter) -> Self {
        Self::outcome(Failure::status(status).with_retry_after(Some(after)))
    }

    /// Failed in this way before a status came.
    #[must_use]
    pub fn transport(transport: Transport) -> Self {
        Self::outcome(Failure::transport(transport))
    }

    /// Takes all the time there is and fails with a timeout at the deadline.
    #[must_use]
    pub fn timeout() -> Self {
        Self::new(End::Timeout)
    }

    /// Never ends, deadline or not, against the contract.
    #[must_use]
    pub fn hang() -> Self {
        Self::new(End::Hang)
    }

    /// Panics, against the contract.
    #[must_use]
    pub fn panic() -> Self {
        Self::new(End::Panic)
    }

    /// Ends so much later.
    #[must_use]
    pub fn delayed(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Ends only when the gate lets it through.
    #[must_use]
    pub fn behind(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }
}

impl ScriptedSink {
    /// A sink that asks the closure. Make it inside the runtime, or it does not see paused time.
    pub fn with(script: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Self {
        Self::build(Box::new(script), None)
    }

    /// A sink that gives this reply to every attempt.
    #[must_use]
    pub fn always(reply: Reply) -> Self {
        Self::with(move |_| reply.clone())
    }

    /// A sink that gives the n-th reply to the n-th attempt of any key, and the last one to all further attempts.
    ///
    /// # Panics
    /// If there is no reply.
    pub fn by_attempt(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies = Replies::new(replies);
        Self::with(move |call| replies.at(call.number.max(1) as usize - 1))
    }

    /// A sink that gives the replies in the order in which attempts arrive, whatever their keys, and the last one to
    /// all that follow.
    ///
    /// # Panics
    /// If there is no reply.
    pub fn in_order(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies = Replies::new(replies);
        Self::with(move |call| replies.at(call.index))
    }

    /// The same sink, which refuses messages when they are submitted. It must not have been copied yet.
    ///
    /// # Panics
    /// If there is a copy already.
    #[must_use]
    pub fn checking(self, check: impl Fn(&Message) -> Result<(), Refusal> + Send + Sync + 'static) -> Self {
        let inner = Arc::into_inner(self.0).expect("not copied yet");
        Self::build(inner.script, Some(Box::new(check)))
    }

    fn build(script: Box<Script>, check: Option<Box<Check>>) -> Self {
        Self(Arc::new(Inner {
            script,
            check,
            clock: Clock::start(),
            calls: Mutex::default(),
            called: watch::Sender::new(0),
            in_flight: AtomicUsize::new(0),
            max_in_flight: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }))
    }

    /// The transcript so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.0.calls.lock().unwrap().clone()
    }

    /// When the attempts of one key began, since the sink was made.
    #[must_use]
    pub fn times_of(&self, key: &str) -> Vec<Duration> {
        self.calls()
            .into_iter()
            .filter(|call| call.key.as_str() == key)
            .map(|call| call.at)
            .collect()
    }

    /// Waits until so many calls in all have begun.
    pub async fn called(&self, count: usize) {
        reached(&self.0.called, count).await;
    }

    /// Attempts that are running now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.load(Ordering::SeqCst)
    }

    /// The most attempts that ever ran at once.
    #[must_use]
    pub fn max_in_flight(&self) -> usize {
        self.0.max_in_flight.load(Ordering::SeqCst)
    }

    /// Attempts whose future was dropped, or panicked, before it had an outcome.
    #[must_use]
    pub fn dropped(&self) -> usize {
        self.0.dropped.load(Ordering::SeqCst)
    }

    /// Whether `close` was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::SeqCst)
    }
}

/// Replies in order, of which the last one goes on for ever.
struct Replies(Vec<Reply>);

impl Replies {
    fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies: Vec<Reply> = replies.into_iter().collect();
        assert!(!replies.is_empty(), "a script has at least one reply");
        Self(replies)
    }

    fn at(&self, index: usize) -> Reply {
        self.0[index.min(self.0.len() - 1)].clone()
    }
}

#[async_trait]
impl Sink for ScriptedSink {
    async fn deliver(&self, message: &Message, attempt: Attempt) -> Outcome {
        let running = Running::enter(&self.0);
        let call = {
            let mut calls = self.0.calls.lock().unwrap();
            let call = Call {
                index: calls.len(),
                key: message.key().clone(),
                body: message.body().clone(),
                number: attempt.number,
                at: self.0.clock.elapsed(),
                now: attempt.now,
                timeout: attempt.deadline.saturating_duration_since(self.0.clock.monotonic()),
            };
            calls.push(call.clone());
            call
        };
        self.0.called.send_modify(|count| *count += 1);

        let reply = (self.0.script)(&call);
        if !reply.delay.is_zero() {
            tokio::time::sleep(reply.delay).await;
        }
        if let Some(gate) = &reply.gate {
            gate.pass().await;
        }
        let outcome = match reply.end {
            End::Outcome(outcome) => outcome,
            End::Timeout => {
                tokio::time::sleep_until(Instant::from_std(attempt.deadline)).await;
                Failure::transport(Transport::Timeout).into()
            }
            End::Hang => std::future::pending().await,
            End::Panic => panic!("the script says so"),
        };
        running.done();
        outcome
    }

    fn check(&self, message: &Message) -> Result<(), Refusal> {
        self.0.check.as_ref().map_or(Ok(()), |check| check(message))
    }

    async fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
    }
}

impl fmt::Debug for ScriptedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedSink")
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}

/// Counts an attempt for as long as it runs.
struct Running<'s> {
    inner: &'s Inner,
    done: bool,
}

impl<'s> Running<'s> {
    fn enter(inner: &'s Inner) -> Self {
        let now = inner.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        inner.max_in_flight.fetch_max(now, Ordering::SeqCst);
        Self { inner, done: false }
    }

    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.inner.in_flight.fetch_sub(1, Ordering::SeqCst);
        if !self.done {
            self.inner.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use idemp_core::{EventType, Run};

    use super::*;

    fn messages(count: usize) -> Vec<Message> {
        let run = Run::with_id("r1".parse().unwrap());
        (0..count)
            .map(|n| run.event(EventType::TOOL_END, &n).unwrap())
            .collect()
    }

    const TIMEOUT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn follows_the_script_and_keeps_a_transcript() {
        let sink = ScriptedSink::by_attempt([Reply::status(503).delayed(Duration::from_secs(2)), Reply::delivered()]);
        let clock = Clock::start();
        let message = &messages(1)[0];
        assert_eq!(
            sink.deliver(message, clock.attempt(1, TIMEOUT)).await,
            Failure::status(503).into()
        );
        assert_eq!(
            sink.deliver(message, clock.attempt(2, TIMEOUT)).await,
            Outcome::Delivered { status: Some(200) }
        );
        assert_eq!(sink.times_of("r1:tool_end:1"), [Duration::ZERO, Duration::from_secs(2)]);
        assert_eq!(sink.calls()[1].body, message.body());
        assert_eq!(sink.calls()[1].timeout, TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_ends_at_the_deadline() {
        let sink = ScriptedSink::always(Reply::timeout());
        let clock = Clock::start();
        let outcome = sink.deliver(&messages(1)[0], clock.attempt(1, TIMEOUT)).await;
        assert_eq!(outcome, Failure::transport(Transport::Timeout).into());
        assert_eq!(clock.elapsed(), TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn counts_what_runs_at_once_and_what_is_dropped() {
        let gate = Gate::shut();
        let sink = ScriptedSink::always(Reply::delivered().behind(&gate));
        let clock = Clock::start();
        let tasks: Vec<_> = messages(3)
            .into_iter()
            .map(|message| {
                let sink = sink.clone();
                tokio::spawn(async move { sink.deliver(&message, clock.attempt(1, TIMEOUT)).await })
            })
            .collect();
        sink.called(3).await;
        gate.arrived(3).await;
        assert_eq!((sink.in_flight(), sink.max_in_flight()), (3, 3));
        tasks[0].abort();
        gate.open();
        for task in tasks {
            let _ = task.await;
        }
        assert_eq!((sink.in_flight(), sink.max_in_flight(), sink.dropped()), (0, 3, 1));
    }
}
