//! The Redis Streams sink on real servers: every test runs on each server program that is there.
//!
//! `cargo xtask e2e redis` brings up what this needs. A consumer with redis-py (`python/redis_consumer.py`) and CPython
//! (`python/compare.py`) judge what arrived.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails loudly"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use idemp_core::{
    Attempt, BreakerConfig, Cause, Class, ErrorClass, EventType, Failure, IdempotencyKey, Message, Outcome, Reason,
    RetrySchedule, Run, Secret, Sink, SinkName, Transport,
};
use idemp_dispatch::{Dispatcher, LaneConfig, LaneStats, Report, Settlement};
use idemp_dlq::{
    DeadLetter, DeadLetterStore, Filter, RedisStreamsStore, ReplayOptions, Replayer, SqliteStore, StoreErrorKind,
    Target,
};
use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};
use idemp_testkit::proxy::{Fault, Proxy};
use idemp_testkit::until;
use idemp_tests::{Process, Redis, RedisReply, Suite, data, redis_programs, selected, temp_dir};
use serde_json::{Value, json};

/// Lines of `langchain-events.jsonl`, each with a key of its own.
const EVENTS: u64 = 585;
const LIMIT: Duration = Duration::from_secs(120);
const SECRET_ENV: &str = "IDEMP_TEST_SECRET";
const SECRET: &str = "a secret of the test";
const STREAM: &str = "webhooks";
const DELIVERED: Outcome = Outcome::Delivered { status: None };

/// Runs the test on each server program.
fn on_each(test: impl AsyncFn(PathBuf)) {
    if !selected(Suite::Redis) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for program in redis_programs() {
        println!("on {}", program.display());
        runtime.block_on(test(program));
    }
}

#[test]
fn a_consumer_after_the_companion_pages_reads_the_corpus() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let lane = Lane::to(config(&redis));
        lane.submit(corpus()).await;
        let stats = lane.at_rest().await;
        assert_eq!((stats.delivered, stats.attempts), (EVENTS, EVENTS));
        consumer(&redis.url(), &[]).has_all(EVENTS);
    });
}

#[test]
fn nothing_is_lost_when_the_server_is_killed_in_mid_run() {
    on_each(async |program| {
        let mut redis = Redis::start(&program, &["--appendfsync", "always"]);
        let lane = Lane::to(config(&redis));
        let mut messages = corpus();
        let (last, middle) = (messages.split_off(400), messages.split_off(200));

        lane.submit(messages).await;
        until("some are delivered", || lane.stats().delivered >= 20).await;
        redis.kill();
        lane.submit(middle).await;
        until("some are given up", || lane.stats().dead_lettered >= 100).await;
        redis.start_again();
        until("it goes on by itself", || lane.stats().unsettled() == 0).await;
        lane.submit(last).await;
        let stats = lane.at_rest().await;
        assert_eq!(stats.delivered + stats.dead_lettered, EVENTS);
        assert!(stats.delivered >= 185 && stats.dead_lettered >= 100, "{stats:?}");

        let letters = lane.letters().await;
        assert_eq!(letters.len() as u64, stats.dead_lettered);
        assert!(letters.iter().all(|letter| letter.reason == Reason::RetriesExhausted));
        assert_eq!(lane.replay().await, stats.dead_lettered);
        assert_eq!(lane.letters().await, []);

        // What the server wrote and could not acknowledge any more is there twice.
        let entries = keys_in(&redis);
        let copies = entries.values().sum::<u64>() - EVENTS;
        println!("{} dead letters, {copies} copies", stats.dead_lettered);
        assert_eq!(entries.len() as u64, EVENTS);
        let maybe = letters.iter().filter(|letter| letter.maybe_delivered).count() as u64;
        assert!(
            copies <= maybe + 64,
            "{copies} copies, {maybe} letters that may have arrived"
        );
        consumer(&redis.url(), &[]).has_all(EVENTS + copies);
    });
}

#[test]
fn a_server_that_is_full_is_tried_again_until_it_has_room() {
    on_each(async |program| {
        let redis = Redis::start(&program, &["--maxmemory-policy", "noeviction"]);
        let lane = Lane::to(config(&redis));
        redis.client().call(&["CONFIG", "SET", "maxmemory", "1"]);
        let settlement = lane.one(event()).await;
        assert!(
            matches!(
                settlement,
                Settlement::DeadLettered {
                    reason: Reason::RetriesExhausted,
                    attempts: 4
                }
            ),
            "{settlement:?}"
        );
        let letter = lane.letters().await.remove(0);
        assert!(!letter.maybe_delivered);
        let codes: Vec<_> = letter.attempts.iter().map(|attempt| attempt.cause).collect();
        assert_eq!(codes, [Some(Failure::code(ErrorClass::Transient, "OOM").cause); 4]);

        // Room comes while an event waits for its next attempt.
        let lane = Lane::with(config(&redis), |lane| lane.schedule = RetrySchedule::default());
        let waiting = lane.dispatcher.submit(event()).await.unwrap();
        until("one attempt failed", || lane.stats().attempts == 1).await;
        redis.client().call(&["CONFIG", "SET", "maxmemory", "0"]);
        let report = waiting.settled().await;
        assert!(report.all_delivered(), "{report:?}");
    });
}

#[test]
fn a_demoted_server_costs_attempts_and_no_restart() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let proxy = Proxy::start(redis.address()).await;
        let sink = RedisStreamsSink::new(behind(&proxy)).unwrap();
        assert_eq!(deliver(&sink, &event()).await, DELIVERED);
        // Another server took over: this one follows it, and keeps its connections.
        let other = Redis::start(&program, &[]);
        redis
            .client()
            .call(&["REPLICAOF", "127.0.0.1", &other.address().port().to_string()]);
        let message = event();
        for connections in 1..=3 {
            let failure = failure(deliver(&sink, &message).await);
            assert_eq!(failure.cause, Failure::code(ErrorClass::Transient, "READONLY").cause);
            assert!(!failure.maybe_delivered);
            assert_eq!(proxy.connections(), connections);
        }
        redis.client().call(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(deliver(&sink, &message).await, DELIVERED);
        assert_eq!(proxy.connections(), 4);
    });
}

#[test]
fn a_key_that_is_no_stream_rejects_the_configuration() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        redis.client().call(&["SET", STREAM, "something else"]);
        let lane = Lane::to(config(&redis));
        let settlement = lane.one(event()).await;
        assert!(
            matches!(
                settlement,
                Settlement::DeadLettered {
                    reason: Reason::ConfigurationRejected,
                    attempts: 1
                }
            ),
            "{settlement:?}"
        );
        let letter = lane.letters().await.remove(0);
        assert_eq!((letter.class, letter.maybe_delivered), (Class::Configuration, false));
        redis.client().call(&["DEL", STREAM]);
        assert_eq!(lane.replay().await, 1);
        assert_eq!(keys_in(&redis).len(), 1);
    });
}

#[test]
fn logins_are_asked_for_refused_and_taken() {
    on_each(async |program| {
        let redis = Redis::start(&program, &["--requirepass", "of the default user"]);
        let mut admin = redis.client();
        admin.call(&["AUTH", "of the default user"]);
        // No more than the sink needs.
        admin.call(&["ACL", "SETUSER", "sender", "on", ">p@ss:word", "~webhooks", "+xadd"]);
        let with = |username: Option<&str>, password: Option<&str>| RedisStreamsConfig {
            username: username.map(str::to_owned),
            password: password.map(str::to_owned),
            ..config(&redis)
        };
        let elsewhere = RedisStreamsConfig {
            stream: "others".to_owned(),
            ..with(Some("sender"), Some("p@ss:word"))
        };
        for (config, code) in [
            (with(None, None), "NOAUTH"),
            (with(None, Some("wrong")), "WRONGPASS"),
            (with(Some("nobody"), Some("p@ss:word")), "WRONGPASS"),
            (elsewhere, "NOPERM"),
        ] {
            let failure = failure(deliver(&RedisStreamsSink::new(config).unwrap(), &event()).await);
            assert_eq!(
                failure.cause,
                Failure::code(ErrorClass::RejectsConfiguration, code).cause
            );
            assert!(!failure.maybe_delivered);
        }
        let in_url = RedisStreamsConfig {
            url: format!("redis://sender:p%40ss%3Aword@{}", redis.address()),
            ..config(&redis)
        };
        for config in [
            with(None, Some("of the default user")),
            with(Some("sender"), Some("p@ss:word")),
            in_url,
        ] {
            assert_eq!(
                deliver(&RedisStreamsSink::new(config).unwrap(), &event()).await,
                DELIVERED
            );
        }
    });
}

#[test]
fn a_link_that_goes_dead_is_replaced() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let proxy = Proxy::start(redis.address()).await;
        let lane = Lane::with(behind(&proxy), |lane| lane.attempt_timeout = Duration::from_millis(400));
        assert!(lane.one(event()).await.is_delivered());
        assert_eq!(proxy.connections(), 1);
        proxy.set(Fault::HalfOpen);
        let settlement = lane.one(event()).await;
        assert!(
            matches!(
                settlement,
                Settlement::DeadLettered {
                    reason: Reason::RetriesExhausted,
                    attempts: 4
                }
            ),
            "{settlement:?}"
        );
        // Two time-outs on the old connection, then new ones, of which nothing came either.
        let causes: Vec<_> = lane.letters().await[0]
            .attempts
            .iter()
            .map(|attempt| attempt.cause)
            .collect();
        let (timeout, connect) = (
            Cause::Transport(Transport::Timeout),
            Cause::Transport(Transport::Connect),
        );
        assert_eq!(causes, [Some(timeout), Some(timeout), Some(connect), Some(connect)]);
        assert!(proxy.connections() >= 2);
        proxy.set(Fault::None);
        assert_eq!(lane.replay().await, 1);
        assert!(lane.one(event()).await.is_delivered());
    });
}

#[test]
fn killed_connections_lose_nothing() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let lane = Arc::new(Lane::to(config(&redis)));
        let sending = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move {
                for message in corpus() {
                    drop(lane.dispatcher.submit(message).await.unwrap());
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut killed = 0;
        let mut admin = redis.client();
        while !sending.is_finished() || lane.stats().unsettled() > 0 {
            match admin.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]) {
                RedisReply::Integer(count) => killed += count,
                other => panic!("{other:?}"),
            }
            let seen = lane.stats().delivered;
            until("something happens", || {
                lane.stats().delivered > seen || lane.stats().unsettled() == 0
            })
            .await;
        }
        let stats = lane.at_rest().await;
        assert_eq!(stats.delivered + stats.dead_lettered, EVENTS);
        lane.replay().await;
        assert!(killed > 0);
        assert!(stats.attempts > EVENTS, "no attempt met a killed connection: {stats:?}");
        let entries = keys_in(&redis);
        println!(
            "{killed} connections killed, {} copies",
            entries.values().sum::<u64>() - EVENTS
        );
        assert_eq!(entries.len() as u64, EVENTS);
    });
}

#[test]
fn a_reply_that_is_lost_makes_a_copy_under_the_same_key() {
    on_each(async |program| {
        let redis = Redis::start(&program, &[]);
        let proxy = Proxy::start(redis.address()).await;
        let sink = RedisStreamsSink::new(behind(&proxy)).unwrap();
        assert_eq!(deliver(&sink, &event()).await, DELIVERED);
        proxy.set(Fault::SwallowReply);
        let message = event();
        let failure = failure(deliver(&sink, &message).await);
        assert_eq!(
            (failure.cause, failure.maybe_delivered),
            (Cause::Transport(Transport::Cut), true)
        );
        proxy.set(Fault::None);
        assert_eq!(deliver(&sink, &message).await, DELIVERED);
        let entries = redis.client().entries(STREAM);
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[1].1, entries[2].1);
        assert_eq!(entries[1].1[0].1, message.key().as_str());
    });
}

#[test]
fn a_bound_trims_the_oldest() {
    on_each(async |program| {
        let redis = Redis::start(&program, &["--stream-node-max-entries", "10"]);
        let lane = Lane::to(RedisStreamsConfig {
            maxlen: Some(100),
            ..config(&redis)
        });
        lane.submit(corpus()).await;
        assert_eq!(lane.at_rest().await.delivered, EVENTS);
        let RedisReply::Integer(length) = redis.client().call(&["XLEN", STREAM]) else {
            panic!("no length")
        };
        assert!((100..=120).contains(&length), "{length}");
    });
}

#[test]
fn a_cluster_takes_the_corpus_and_a_single_client_is_told_so() {
    on_each(async |program| {
        let nodes = Redis::cluster(&program);
        for stream in ["a", "b", "{c}:webhooks"] {
            // From each node, though one alone has the stream.
            for node in &nodes {
                let sink = RedisStreamsSink::new(RedisStreamsConfig {
                    cluster: true,
                    stream: stream.to_owned(),
                    ..config(node)
                })
                .unwrap();
                assert_eq!(deliver(&sink, &event()).await, DELIVERED);
            }
        }
        let lane = Lane::to(RedisStreamsConfig {
            cluster: true,
            startup_nodes: nodes[1..].iter().map(Redis::url).collect(),
            ..config(&nodes[0])
        });
        lane.submit(corpus()).await;
        assert_eq!(lane.at_rest().await.delivered, EVENTS);
        consumer(&nodes[0].url(), &["--cluster"]).has_all(EVENTS);

        let mut moved = 0;
        for node in &nodes {
            match deliver(&RedisStreamsSink::new(config(node)).unwrap(), &event()).await {
                Outcome::Delivered { .. } => {}
                Outcome::Failed(failure) => {
                    assert_eq!(
                        failure.cause,
                        Failure::code(ErrorClass::RejectsConfiguration, "MOVED").cause
                    );
                    moved += 1;
                }
            }
        }
        assert_eq!(moved, 2);
    });
}

#[test]
fn tls_is_checked() {
    on_each(async |program| {
        let dir = temp_dir();
        let authority = Authority::new();
        let (certificate, key) = authority.certificate("localhost");
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (certificate, key) = (file("server.crt", &certificate), file("server.key", &key));
        let trusted = file("ca.crt", &authority.pem);
        let port = idemp_tests::free_address().port();
        let tls = [
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &trusted,
            "--tls-auth-clients",
            "no",
        ];
        if !starts_with(&program, &tls) {
            println!("{} was built without TLS", program.display());
            return;
        }
        let redis = Redis::start(&program, &tls);
        let over = |url: String, root_certificates: &str| {
            RedisStreamsSink::new(RedisStreamsConfig {
                root_certificates: root_certificates.into(),
                ..RedisStreamsConfig::new(url, STREAM, secret())
            })
            .unwrap()
        };
        let url = format!("rediss://localhost:{port}");
        assert_eq!(deliver(&over(url.clone(), &authority.pem), &event()).await, DELIVERED);
        for sink in [
            over(url, &Authority::new().pem),
            over(format!("rediss://127.0.0.1:{port}"), &authority.pem),
            over(format!("rediss://localhost:{}", redis.address().port()), &authority.pem),
        ] {
            let failure = failure(deliver(&sink, &event()).await);
            assert!(!failure.maybe_delivered, "{failure:?}");
            assert!(
                matches!(failure.cause, Cause::Transport(Transport::Tls | Transport::Connect)),
                "{failure:?}"
            );
        }
        assert_eq!(keys_in(&redis).len(), 1);

        let store = |root_certificates: &str| idemp_dlq::RedisStreamsConfig {
            root_certificates: root_certificates.into(),
            ..idemp_dlq::RedisStreamsConfig::new(format!("rediss://localhost:{port}"))
        };
        RedisStreamsStore::open(&store(&authority.pem)).await.unwrap();
        let error = RedisStreamsStore::open(&store(&Authority::new().pem))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    });
}

/// A dispatcher with one lane, whose dead letters lie in a file. It waits a fiftieth of the usual times.
struct Lane {
    dispatcher: Dispatcher,
    sink: Arc<RedisStreamsSink>,
    store: Arc<dyn DeadLetterStore>,
    /// The folder of the dead letters.
    _dir: Box<dyn std::any::Any + Send + Sync>,
}

impl Lane {
    fn to(config: RedisStreamsConfig) -> Self {
        Self::with(config, |_| ())
    }

    fn with(config: RedisStreamsConfig, change: impl FnOnce(&mut LaneConfig)) -> Self {
        let dir = temp_dir();
        let store: Arc<dyn DeadLetterStore> = Arc::new(SqliteStore::open(dir.path().join("dlq.db")).unwrap());
        let sink = Arc::new(RedisStreamsSink::new(config).unwrap());
        let mut lane = LaneConfig::new(name(), Arc::clone(&sink) as _, Arc::clone(&store));
        lane.schedule = RetrySchedule::default().scaled(0.02).unwrap();
        // It is another test that shows when a breaker opens.
        lane.breaker = BreakerConfig {
            exhausted_in_a_row: 1_000_000,
            ..BreakerConfig::default()
        };
        change(&mut lane);
        Self {
            dispatcher: Dispatcher::new(vec![lane]).unwrap(),
            sink,
            store,
            _dir: Box::new(dir),
        }
    }

    async fn submit(&self, messages: Vec<Message>) {
        for message in messages {
            drop(self.dispatcher.submit(message).await.unwrap());
        }
    }

    async fn one(&self, message: Message) -> Settlement {
        let report: Report = self.dispatcher.dispatch(message).await.unwrap();
        report.settlements()[0].1.clone()
    }

    fn stats(&self) -> LaneStats {
        self.dispatcher.stats().lanes.remove(0)
    }

    /// What happened, once every event has its end.
    async fn at_rest(&self) -> LaneStats {
        assert_eq!(self.dispatcher.flush(LIMIT).await, 0);
        self.stats()
    }

    async fn letters(&self) -> Vec<DeadLetter> {
        let mut letters = Vec::new();
        let mut selection = self.store.select(&Filter::default()).await.unwrap();
        while let Some(page) = selection.next_page().await.unwrap() {
            for listed in page {
                letters.extend(self.store.load(&listed.id).await.unwrap().map(|loaded| loaded.letter));
            }
        }
        letters
    }

    /// Replays everything to the same sink, and says how many that were. A connection that broke meanwhile costs the
    /// first attempt, and so a second replay.
    async fn replay(&self) -> u64 {
        let replayer = Replayer::new(ReplayOptions {
            rate_per_second: 100_000.0,
            ..ReplayOptions::default()
        })
        .unwrap();
        let target = Target {
            sink: Arc::clone(&self.sink) as _,
            policy: Default::default(),
        };
        let (filter, targets) = (Filter::default(), move |_: &SinkName| Some(target.clone()));
        let cancel = Default::default();
        let mut replayed = 0;
        for _ in 0..2 {
            let summary = replayer
                .run(&*self.store, &filter, &targets, &mut |_| (), &cancel)
                .await;
            replayed += summary.unwrap().replayed;
        }
        assert_eq!(self.store.stats(&filter).await.unwrap().depth, 0);
        replayed
    }
}

fn name() -> SinkName {
    SinkName::parse("stream").unwrap()
}

fn secret() -> Secret {
    Secret::new(SECRET).unwrap()
}

fn config(redis: &Redis) -> RedisStreamsConfig {
    RedisStreamsConfig::new(redis.url(), STREAM, secret())
}

fn behind(proxy: &Proxy) -> RedisStreamsConfig {
    RedisStreamsConfig::new(format!("redis://{}", proxy.addr()), STREAM, secret())
}

fn event() -> Message {
    Run::new().event(EventType::TOOL_END, &json!({"output": "42"})).unwrap()
}

async fn deliver(sink: &RedisStreamsSink, message: &Message) -> Outcome {
    let attempt = Attempt {
        number: 1,
        now: SystemTime::now(),
        deadline: Instant::now() + Duration::from_secs(30),
    };
    sink.deliver(message, attempt).await
}

fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        Outcome::Delivered { .. } => panic!("delivered"),
    }
}

/// The events of the corpus, in the order of its lines.
fn corpus() -> Vec<Message> {
    let text = std::fs::read_to_string(data("langchain-events.jsonl")).unwrap();
    let lines = text.split('\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let event: Value = serde_json::from_str(line).unwrap();
            let part = |name: &str| event[name].as_str().unwrap().to_owned();
            let key = format!("{}:{}:{}", part("run_id"), part("event"), event["step_index"]);
            // The text as it stands there: a number keeps its spelling.
            let from = line.find("\"data\": ").unwrap() + "\"data\": ".len();
            let data = line[from..].strip_suffix('}').unwrap();
            Message::from_json(IdempotencyKey::parse(&key).unwrap(), data.as_bytes()).unwrap()
        })
        .collect()
}

/// How often each key is in the stream.
fn keys_in(redis: &Redis) -> BTreeMap<String, u64> {
    let mut keys = BTreeMap::new();
    for (_, fields) in redis.client().entries(STREAM) {
        let key = fields
            .into_iter()
            .find(|(name, _)| name == "idempotency_key")
            .unwrap()
            .1;
        *keys.entry(key).or_default() += 1;
    }
    keys
}

/// What the consumer of `python/redis_consumer.py` found in the stream.
struct Consumed {
    counts: Value,
    compared: Value,
}

fn consumer(url: &str, options: &[&str]) -> Consumed {
    let dir = temp_dir();
    let (out, events) = (dir.path().join("out.jsonl"), data("langchain-events.jsonl"));
    let script = |name: &str| {
        let mut command = Command::new(std::env::var_os("IDEMP_E2E_PYTHON").expect("IDEMP_E2E_PYTHON is set"));
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name))
            .env(SECRET_ENV, SECRET);
        command
    };
    let mut consume = script("redis_consumer.py");
    consume.args(["--url", url, "--stream", STREAM, "--secret-env", SECRET_ENV, "--out"]);
    let counts = json_of(consume.arg(&out).args(options));
    let compared = json_of(script("compare.py").arg(&events).arg(&out));
    Consumed { counts, compared }
}

impl Consumed {
    /// Every event of the corpus is there, in so many entries, all of them signed, read and acknowledged.
    fn has_all(&self, entries: u64) {
        assert_eq!(
            self.counts,
            json!({
                "entries": entries, "verified": entries, "signed otherwise": 0, "canonical": entries, "pending": 0,
            })
        );
        let of = |name: &str| self.compared[name].as_u64().unwrap();
        assert_eq!((of("sent"), of("processed")), (EVENTS, entries), "{}", self.compared);
        assert_eq!(
            (of("missing"), of("unknown"), of("changed")),
            (0, 0, 0),
            "{}",
            self.compared
        );
    }
}

/// The one JSON value that a script prints.
fn json_of(command: &mut Command) -> Value {
    let finished = Process::run("a Python script", command, LIMIT);
    assert!(finished.status.success(), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stdout))
}

/// Whether the program knows these options.
fn starts_with(program: &Path, options: &[&str]) -> bool {
    let process = Process::start("redis", Command::new(program).args(["--port", "0"]).args(options));
    let end = Instant::now() + LIMIT;
    loop {
        let said = process.stdout();
        if said.contains("Ready to accept connections") || said.contains("Failed") || said.contains("FATAL") {
            return said.contains("Ready to accept connections");
        }
        assert!(Instant::now() < end, "neither ready nor refused: {said}");
        std::thread::yield_now();
    }
}

/// An authority of the test's own.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: rcgen::Issuer::new(params, key),
            pem,
        }
    }

    /// A certificate for a host name, and its key, as PEM.
    fn certificate(&self, host: &str) -> (String, String) {
        let params = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}
