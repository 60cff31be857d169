//! How often memory is allocated for an event, and how much is held at most. Facts, without targets.

use std::collections::HashSet;
use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::ensure;
use async_trait::async_trait;
use idemp_core::{Attempt, EventType, Failure, Message, Outcome, RetrySchedule, Run, Secret, Signer, Sink, SinkName};
use idemp_dispatch::{Dispatcher, LaneConfig};
use idemp_dlq::MemoryStore;
use tokio::runtime::Runtime;

use crate::allocator::{self, Allocated};
use crate::corpus::{self, Numbered};
use crate::local;
use crate::report::Bench;

const EVENTS: usize = 10_000;
const FLOOD: [usize; 3] = [10_000, 100_000, 300_000];
const LANE: usize = 10_000;

/// How long an attempt takes in the flood: enough for the lane to fill up.
const SLOW: Duration = Duration::from_millis(2);

pub(crate) fn run() -> anyhow::Result<Bench> {
    let mut bench = Bench::new("memory", "allocations for an event, and memory under a flood");
    let runtime = local::runtime()?;
    making(&mut bench)?;
    sending(&mut bench, &runtime)?;
    flood(&mut bench, &runtime)?;
    Ok(bench)
}

/// One canonicalisation per event, one HMAC per attempt.
fn making(bench: &mut Bench) -> anyhow::Result<()> {
    let events = corpus::events()?;
    let run = Run::new();
    let (made, allocated) = allocator::count(|| {
        let make = |event: &corpus::Event| run.event_from_json(EventType::TOOL_END, event.text.as_bytes());
        events.iter().map(make).collect::<Result<Vec<_>, _>>()
    });
    let made = made?;
    bench.fact(
        "key and canonical body of a recorded event, from JSON text",
        per_event(allocated, events.len()),
    );

    let signer = Signer::new(&Secret::new("whsec_benchmark_secret")?);
    let ((), allocated) = allocator::count(|| {
        for message in &made {
            black_box(signer.header(message.body()));
        }
    });
    bench.fact("its signature", per_event(allocated, made.len()));
    Ok(())
}

/// Through a dispatcher into a sink that does nothing.
fn sending(bench: &mut Bench, runtime: &Runtime) -> anyhow::Result<()> {
    for length in [600, 60_000] {
        let events = Numbered::of_length(length)?.take(EVENTS)?;
        let dispatcher = dispatcher(Arc::new(Scripted::default()), RetrySchedule::default())?;
        // The first time, queues and tables grow.
        runtime.block_on(send(&dispatcher, &events))?;
        let (sent, allocated) = allocator::count(|| runtime.block_on(send(&dispatcher, &events)));
        sent?;
        let what = format!("dispatcher, one attempt, a body of {length} bytes");
        bench.fact(what, per_event(allocated, events.len()));
    }

    let events = Numbered::recorded()?.take(EVENTS)?;
    let sink = Arc::new(Scripted::failing_at_first(&events));
    let schedule = RetrySchedule::default().scaled(0.001)?;
    let dispatcher = dispatcher(Arc::<Scripted>::clone(&sink), schedule)?;
    runtime.block_on(send(&dispatcher, &events))?;
    let attempts = sink.attempts.load(Ordering::Relaxed);
    bench.fact(
        format!(
            "bodies that were copied in {attempts} attempts of {} events",
            events.len()
        ),
        sink.copies.load(Ordering::Relaxed).to_string(),
    );
    Ok(())
}

/// Ever more events through a slow sink. What is held is bounded by the lane.
fn flood(bench: &mut Bench, runtime: &Runtime) -> anyhow::Result<()> {
    let source = Numbered::of_length(1000)?;
    for count in FLOOD {
        let dispatcher = dispatcher(Arc::new(Scripted::slow()), RetrySchedule::default())?;
        let before = Resident::reset();
        let (sent, allocated) = allocator::count(|| {
            runtime.block_on(async {
                for _ in 0..count {
                    // A body of its own for each, as an application makes it.
                    let event = source.take(1)?.remove(0);
                    let body = bytes::Bytes::copy_from_slice(event.body());
                    let _handle = dispatcher
                        .submit(Message::from_stored(event.key().clone(), body)?)
                        .await?;
                }
                settled(&dispatcher).await
            })
        });
        sent?;
        let mut value = format!(
            "{} at most, {} kept",
            mebibytes(allocated.peak as f64),
            mebibytes(allocated.kept as f64)
        );
        if let Some(grown) = before.and_then(Resident::grown) {
            value += &format!("; resident memory grew by {}", mebibytes(grown));
        }
        bench.fact(
            format!("held for {count} events of 1,000 bytes, {LANE} in the lane"),
            value,
        );
    }
    Ok(())
}

fn dispatcher(sink: Arc<dyn Sink>, schedule: RetrySchedule) -> anyhow::Result<Dispatcher> {
    let lane = LaneConfig {
        schedule,
        max_events: LANE,
        ..LaneConfig::new(SinkName::parse("nothing")?, sink, Arc::new(MemoryStore::new()))
    };
    Ok(Dispatcher::new(vec![lane])?)
}

async fn send(dispatcher: &Dispatcher, events: &[Message]) -> anyhow::Result<()> {
    for event in events {
        let _handle = dispatcher.submit(event.clone()).await?;
    }
    settled(dispatcher).await
}

async fn settled(dispatcher: &Dispatcher) -> anyhow::Result<()> {
    let left = dispatcher.flush(Duration::from_secs(60)).await;
    ensure!(left == 0, "{left} events were not settled in a minute");
    let stats = dispatcher.stats();
    ensure!(
        stats.lanes.iter().all(|lane| lane.dead_lettered == 0),
        "dead letters: {stats:?}"
    );
    Ok(())
}

/// A sink that sends nothing anywhere.
#[derive(Default)]
struct Scripted {
    /// How long an attempt takes.
    takes: Duration,
    /// Whether the first attempt of every event fails.
    fails_at_first: bool,
    attempts: AtomicUsize,
    /// Where the bodies lie that were submitted, if that is looked at.
    bodies: HashSet<usize>,
    /// Attempts whose body lay elsewhere.
    copies: AtomicUsize,
}

impl Scripted {
    fn slow() -> Self {
        Self {
            takes: SLOW,
            ..Self::default()
        }
    }

    fn failing_at_first(events: &[Message]) -> Self {
        Self {
            fails_at_first: true,
            bodies: events.iter().map(|event| event.body().as_ptr().addr()).collect(),
            ..Self::default()
        }
    }
}

#[async_trait]
impl Sink for Scripted {
    async fn deliver(&self, message: &Message, attempt: Attempt) -> Outcome {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if !self.bodies.is_empty() && !self.bodies.contains(&message.body().as_ptr().addr()) {
            self.copies.fetch_add(1, Ordering::Relaxed);
        }
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        if self.fails_at_first && attempt.number == 1 {
            return Failure::status(503).into();
        }
        Outcome::Delivered { status: None }
    }
}

/// Memory of this process that is in the machine's memory, where the system tells it (Linux).
struct Resident(f64);

impl Resident {
    /// Forgets the greatest value so far.
    fn reset() -> Option<Self> {
        fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(Self(status("VmRSS:")?))
    }

    /// By how many bytes the greatest value since then is above what it was.
    fn grown(self) -> Option<f64> {
        Some((status("VmHWM:")? - self.0).max(0.0))
    }
}

fn status(name: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: f64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024.0)
}

fn per_event(allocated: Allocated, events: usize) -> String {
    let each = |total: usize| total as f64 / events as f64;
    format!(
        "{:.1} allocations, {:.0} bytes",
        each(allocated.times),
        each(allocated.bytes)
    )
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}
