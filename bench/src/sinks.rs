//! Events into Redis Streams, Kafka and the dead letters, each beside the least that a program without idemp would do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use async_trait::async_trait;
use idemp_core::{
    Attempt, BreakerConfig, Failure, Message, Outcome, RetrySchedule, Secret, Signer, Sink, SinkName, Transport,
};
use idemp_dispatch::{Dispatcher, LaneConfig};
use idemp_dlq::{DeadLetter, DeadLetterStore, SqliteStore};
use idemp_sinks::kafka::{KafkaConfig, KafkaSink};
use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};
use idemp_tests::{Kafka, Redis, make_topic, redis_programs};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::corpus::Numbered;
use crate::local;
use crate::measure::{Both, Pairs};
use crate::report::{Bench, Target, Unit};

const ROUNDS: usize = 7;
const IN_FLIGHT: usize = 64;
const EVENTS: usize = 10_000;
/// Kafka answers by the batch: with few in flight both sides wait for it most of the time.
const KAFKA_IN_FLIGHT: usize = 1_000;
/// Samples of the other side before the first pair: a broker that has just begun compiles itself for a while.
const KAFKA_WARM_UP: usize = 20;
/// One fsync each, for the other side of the dead letters.
const FEW_LETTERS: usize = 200;
const SECRET: &str = "whsec_benchmark_secret";
const STREAM: &str = "events";
const TOPIC: &str = "events";
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run() -> anyhow::Result<Bench> {
    let runtime = local::runtime()?;
    let mut bench = Bench::new(
        "sinks",
        format!("{EVENTS} events a sample, real servers on this machine"),
    );
    let bodies = || {
        anyhow::Ok([
            ("600-byte body", Numbered::of_length(600)?),
            ("recorded bodies", Numbered::recorded()?),
        ])
    };
    for (name, events) in bodies()? {
        if std::env::var_os("IDEMP_E2E_REDIS_SERVER").is_none() {
            bench.skip("REDIS STREAMS: no server; `cargo xtask bench` finds one");
            break;
        }
        redis(&mut bench, &runtime, name, &events)?;
    }
    match Kafka::start() {
        None => bench.skip("KAFKA: no broker; `cargo xtask bench` finds one"),
        Some(broker) => {
            make_topic(&broker.address().to_string(), TOPIC, &[]);
            let what = if broker.is_apache() { "Apache Kafka" } else { "TANSU" };
            for (name, events) in bodies()? {
                kafka(
                    &mut bench,
                    &runtime,
                    broker.address(),
                    &format!("{what}, {name}"),
                    &events,
                )?;
            }
        }
    }
    for (name, events, target) in [
        ("600-byte body", Numbered::of_length(600)?, 20.0),
        ("recorded bodies", Numbered::recorded()?, 8.0),
    ] {
        letters(&mut bench, &runtime, name, &events, target)?;
    }
    Ok(bench)
}

/// Seconds for one event at a sink.
fn through(runtime: &Runtime, workers: usize, sink: &Arc<dyn Sink>, events: &Numbered) -> anyhow::Result<Both> {
    let events = Arc::new(events.take(EVENTS)?);
    let sink = Arc::clone(sink);
    let one = move |event: Message| {
        let sink = Arc::clone(&sink);
        async move {
            let attempt = Attempt {
                number: 1,
                now: SystemTime::now(),
                deadline: Instant::now() + LIMIT,
            };
            let outcome = sink.deliver(&event, attempt).await;
            ensure!(matches!(outcome, Outcome::Delivered { .. }), "{outcome:?}");
            Ok(())
        }
    };
    Ok(local::timed(runtime, local::in_flight(workers, events, one))?.divided_by(EVENTS))
}

fn redis(bench: &mut Bench, runtime: &Runtime, name: &str, events: &Numbered) -> anyhow::Result<()> {
    let programs = redis_programs();
    let program = programs.first().context("no Redis server")?;
    let server = Redis::start(program, &["--appendonly", "no"]);
    // The client wants a runtime around it.
    let _inside = runtime.enter();
    let config = RedisStreamsConfig::new(server.url(), STREAM, Secret::new(SECRET)?);
    let sink: Arc<dyn Sink> = Arc::new(RedisStreamsSink::new(config)?);
    let client = redis::Client::open(server.url())?;
    let bare = runtime.block_on(client.get_multiplexed_async_connection())?;
    let signer = Signer::new(&Secret::new(SECRET)?);
    let mut empty = server.client();
    let ours = |empty: &mut idemp_tests::RedisClient| {
        empty.call(&["DEL", STREAM]);
        through(runtime, IN_FLIGHT, &sink, events)
    };
    let mut compare = |what: &str, batch: usize| {
        let pairs = Pairs::take(
            ROUNDS,
            || ours(&mut server.client()),
            || {
                empty.call(&["DEL", STREAM]);
                pipelined(runtime, &bare, &signer, events, batch)
            },
        )?;
        let unit = Unit::EventsPerSecond(1);
        bench.compare(
            format!("Redis Streams, {name}: {what}"),
            &pairs.clock(),
            unit,
            Some(Target::SpeedAtLeast(0.8)),
        );
        bench.compare("  the same, in processor time", &pairs.processor(), unit, None);
        anyhow::Ok(())
    };
    compare("bare XADD, as many in flight", 1)?;
    compare("bare XADD in pipelines of 64", 64)?;
    Ok(())
}

/// XADD of the same fields, signed beforehand.
fn pipelined(
    runtime: &Runtime,
    connection: &redis::aio::MultiplexedConnection,
    signer: &Signer,
    events: &Numbered,
    batch: usize,
) -> anyhow::Result<Both> {
    let sign = |event: Message| {
        let signature = signer.header(event.body());
        (event, signature)
    };
    let signed: Arc<Vec<_>> = Arc::new(events.take(EVENTS)?.into_iter().map(sign).collect());
    let next = Arc::new(AtomicUsize::new(0));
    let worker = |_| {
        let (mut connection, signed, next) = (connection.clone(), Arc::clone(&signed), Arc::clone(&next));
        async move {
            loop {
                let first = next.fetch_add(batch, Ordering::Relaxed);
                let some = signed.iter().skip(first).take(batch);
                if some.len() == 0 {
                    return Ok(());
                }
                let mut pipeline = redis::pipe();
                for (event, signature) in some {
                    let key = event.key();
                    pipeline.cmd("XADD").arg(STREAM).arg("*");
                    pipeline.arg("idempotency_key").arg(key.as_str());
                    pipeline.arg("event_type").arg(key.event_type());
                    pipeline.arg("payload").arg(&*event.data());
                    pipeline.arg("signature").arg(signature.as_str()).ignore();
                }
                pipeline.exec_async(&mut connection).await?;
            }
        }
    };
    let workers = (0..(IN_FLIGHT / batch).max(1)).map(worker);
    Ok(local::timed(runtime, local::all(workers))?.divided_by(EVENTS))
}

fn kafka(
    bench: &mut Bench,
    runtime: &Runtime,
    broker: SocketAddr,
    name: &str,
    events: &Numbered,
) -> anyhow::Result<()> {
    let _inside = runtime.enter();
    let sink = KafkaSink::new(KafkaConfig {
        attempt_timeout: LIMIT,
        ..KafkaConfig::new(broker.to_string(), TOPIC, Secret::new(SECRET)?)
    })?;
    let sink: Arc<dyn Sink> = Arc::new(sink);
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", broker.to_string())
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("compression.type", "lz4")
        .create()?;
    let signer = Signer::new(&Secret::new(SECRET)?);
    for _ in 0..KAFKA_WARM_UP {
        produced(runtime, &producer, &signer, Signs::Beforehand, events)?;
    }
    for (what, signs, target) in [
        (
            "bare idempotent producer",
            Signs::Beforehand,
            Some(Target::SpeedAtLeast(0.8)),
        ),
        ("one that signs as well", Signs::Within, None),
    ] {
        let pairs = Pairs::take(
            ROUNDS,
            || through(runtime, KAFKA_IN_FLIGHT, &sink, events),
            || produced(runtime, &producer, &signer, signs, events),
        )?;
        let unit = Unit::EventsPerSecond(1);
        bench.compare(format!("{name}: {what}"), &pairs.clock(), unit, target);
        bench.compare("  the same, in processor time", &pairs.processor(), unit, None);
    }
    runtime.block_on(sink.close());
    Ok(())
}

/// When the other side makes its signatures: before the sample begins, or as ours does.
#[derive(Clone, Copy)]
enum Signs {
    Beforehand,
    Within,
}

/// The same records by a bare producer.
fn produced(
    runtime: &Runtime,
    producer: &FutureProducer,
    signer: &Signer,
    signs: Signs,
    events: &Numbered,
) -> anyhow::Result<Both> {
    let signer = Arc::new(signer.clone());
    let sign = |event: Message| {
        let signature = matches!(signs, Signs::Beforehand).then(|| signer.header(event.body()));
        (event, signature)
    };
    let events: Arc<Vec<_>> = Arc::new(events.take(EVENTS)?.into_iter().map(sign).collect());
    let next = Arc::new(AtomicUsize::new(0));
    let worker = |_| {
        let (producer, events, next) = (producer.clone(), Arc::clone(&events), Arc::clone(&next));
        let signer = Arc::clone(&signer);
        async move {
            loop {
                let Some((event, signature)) = events.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return Ok(());
                };
                let made;
                let signature = match signature {
                    Some(signature) => signature,
                    None => {
                        made = signer.header(event.body());
                        &made
                    }
                };
                let header = |key, value: &'static str| Header {
                    key,
                    value: Some(value),
                };
                let headers = OwnedHeaders::new_with_capacity(3)
                    .insert(Header {
                        key: "idempotency-key",
                        value: Some(event.key().as_str()),
                    })
                    .insert(header("event-type", "tool_end"))
                    .insert(Header {
                        key: "x-signature-256",
                        value: Some(signature.as_str()),
                    });
                let record = FutureRecord::to(TOPIC)
                    .key(event.key().run_id())
                    .payload(&event.body()[..])
                    .headers(headers);
                producer.send(record, LIMIT).await.map_err(|(error, _)| error)?;
            }
        }
    };
    Ok(local::timed(runtime, local::all((0..KAFKA_IN_FLIGHT).map(worker)))?.divided_by(EVENTS))
}

/// Refuses every connection.
struct Dead;

#[async_trait]
impl Sink for Dead {
    async fn deliver(&self, _message: &Message, _attempt: Attempt) -> Outcome {
        Failure::transport(Transport::Connect).into()
    }
}

/// With the breaker open every event goes straight to the dead letters. The other side puts one after the other, each
/// with an fsync of its own.
fn letters(bench: &mut Bench, runtime: &Runtime, name: &str, events: &Numbered, target: f64) -> anyhow::Result<()> {
    let ours = || {
        let folder = TempDir::new()?;
        let store = Arc::new(SqliteStore::open(folder.path().join("letters.db"))?);
        let lane = LaneConfig {
            schedule: RetrySchedule::once(),
            breaker: BreakerConfig {
                exhausted_in_a_row: 1,
                ..BreakerConfig::default()
            },
            store_timeout: LIMIT,
            ..LaneConfig::new(SinkName::parse("dead")?, Arc::new(Dead), Arc::clone(&store) as _)
        };
        let dispatcher = {
            let _inside = runtime.enter();
            Dispatcher::new(vec![lane])?
        };
        let opening = events.take(1)?.remove(0);
        runtime.block_on(dispatcher.dispatch(opening))?;
        let events = events.take(EVENTS)?;
        let both = local::timed(runtime, async {
            for event in events {
                let _handle = dispatcher.submit(event).await?;
            }
            let left = dispatcher.flush(LIMIT).await;
            ensure!(left == 0, "{left} letters were not written in a minute");
            Ok(())
        })?;
        let stats = runtime.block_on(dispatcher.shutdown(LIMIT));
        let lane = stats.lanes.first().context("a lane")?;
        ensure!(
            (lane.dead_lettered, lane.attempts) == (EVENTS as u64 + 1, 1),
            "{lane:?}"
        );
        runtime.block_on(store.close());
        Ok(both.divided_by(EVENTS))
    };
    let one_by_one = || {
        let folder = TempDir::new()?;
        let store = SqliteStore::open(folder.path().join("letters.db"))?;
        let letters: Vec<DeadLetter> = events
            .take(FEW_LETTERS)?
            .into_iter()
            .map(letter)
            .collect::<anyhow::Result<_>>()?;
        let both = local::timed(runtime, async {
            for letter in letters {
                store.put(letter).await?;
            }
            Ok(())
        })?;
        runtime.block_on(store.close());
        Ok(both.divided_by(FEW_LETTERS))
    };
    let pairs: Pairs<Both> = Pairs::take(ROUNDS, ours, one_by_one)?;
    let unit = Unit::EventsPerSecond(1);
    let what = format!("dead letters in SQLite, {name}: an fsync each");
    bench.compare(what, &pairs.clock(), unit, Some(Target::SpeedAtLeast(target)));
    Ok(())
}

fn letter(message: Message) -> anyhow::Result<DeadLetter> {
    use idemp_core::Reason;

    let now = SystemTime::now();
    Ok(DeadLetter {
        sink: SinkName::parse("dead")?,
        message,
        reason: Reason::CircuitOpen,
        class: Reason::CircuitOpen.class(),
        maybe_delivered: false,
        attempts: Vec::new(),
        accepted_at: now,
        dead_at: now,
        not_before: None,
        replay_count: 0,
    })
}
