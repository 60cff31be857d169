//! Claims in Redis beside plain `SET NX EX` through the same client, and inbox transactions beside the bare insert.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use idemp_core::{Secret, Signer, Ttl};
use idemp_receiver::{
    Claim, ClaimKey, ClaimStore, Claimant, Completed, HandlerError, Incoming, PostgresInbox, Receiver, ReceiverConfig,
    RedisConfig, RedisStore, Reply, Scope,
};
use idemp_tests::{Postgres, Redis, redis_programs};
use redis::aio::MultiplexedConnection;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Runtime;

use crate::corpus::Numbered;
use crate::local;
use crate::measure::{Both, Pairs};
use crate::report::{Bench, Unit};

const ROUNDS: usize = 7;
const IN_FLIGHT: usize = 64;
const CLAIMS: usize = 20_000;
const TRANSACTIONS: usize = 2_000;
/// Also the connections of the pool.
const TRANSACTIONS_IN_FLIGHT: usize = 16;
const LEASE: Duration = Duration::from_secs(6);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const SECRET: &str = "whsec_benchmark_secret";

pub(crate) fn add(bench: &mut Bench, runtime: &Runtime) -> anyhow::Result<()> {
    match std::env::var_os("IDEMP_E2E_REDIS_SERVER") {
        Some(_) => redis(bench, runtime)?,
        None => bench.skip("CLAIMS IN REDIS: no server; `cargo xtask bench` finds one"),
    }
    match std::env::var_os("IDEMP_E2E_POSTGRES_BIN").and_then(|_| Postgres::start()) {
        Some(server) => postgres(bench, runtime, &server.url())?,
        None => bench.skip("INBOX IN POSTGRES: no server; `cargo xtask bench` finds one"),
    }
    Ok(())
}

fn redis(bench: &mut Bench, runtime: &Runtime) -> anyhow::Result<()> {
    let programs = redis_programs();
    let server = Redis::start(programs.first().context("no Redis server")?, &["--appendonly", "no"]);
    // The clients want a runtime around them.
    let _inside = runtime.enter();
    let store = Arc::new(RedisStore::new(RedisConfig {
        response_timeout: Duration::from_secs(60),
        ..RedisConfig::new(server.url())
    })?);
    let client = redis::Client::open(server.url())?;
    let plain = runtime.block_on(client.get_multiplexed_async_connection())?;
    let events = Numbered::of_length(600)?;
    let claimants = || -> anyhow::Result<Vec<Claimant>> {
        let claimant = |event: idemp_core::Message| {
            let key = ClaimKey::new(&Scope::default(), event.key().as_str())?;
            Ok(Claimant::new(key, event.body()))
        };
        events.take(CLAIMS)?.into_iter().map(claimant).collect()
    };
    let ttl = Ttl::new(DAY, Duration::from_secs(36))?;
    let unit = Unit::EventsPerSecond(1);
    for (what, completes) in [("claim", false), ("claim and complete", true)] {
        let pairs = Pairs::take(
            ROUNDS,
            || claims(runtime, &store, claimants()?, completes.then_some(ttl)),
            || marks(runtime, &plain, claimants()?),
        )?;
        bench.compare(format!("Redis, {what}: SET NX EX"), &pairs.clock(), unit, None);
        bench.compare(
            "  the same, in processor time of the client",
            &pairs.processor(),
            unit,
            None,
        );
    }
    // What one key costs, once it is done.
    let mut peer = server.client();
    let mut bytes_per_key = |fill: &dyn Fn() -> anyhow::Result<Both>| -> anyhow::Result<u64> {
        peer.call(&["FLUSHALL"]);
        let before = used(&mut peer)?;
        fill()?;
        Ok((used(&mut peer)? - before) / CLAIMS as u64)
    };
    let ours = bytes_per_key(&|| claims(runtime, &store, claimants()?, Some(ttl)))?;
    let other = bytes_per_key(&|| marks(runtime, &plain, claimants()?))?;
    let key = events.take(1)?.remove(0).key().as_str().len();
    bench.fact(
        format!("Redis, memory of a done key of {key} bytes"),
        format!("{ours} bytes; SET NX EX {other} bytes"),
    );
    Ok(())
}

fn used(client: &mut idemp_tests::RedisClient) -> anyhow::Result<u64> {
    let info = format!("{:?}", client.call(&["INFO", "memory"]));
    let (_, rest) = info.split_once("used_memory:").context("INFO has used_memory")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Ok(digits.parse()?)
}

fn claims(
    runtime: &Runtime,
    store: &Arc<RedisStore>,
    claimants: Vec<Claimant>,
    completes: Option<Ttl>,
) -> anyhow::Result<Both> {
    let store = Arc::clone(store);
    let one = move |claimant: Claimant| {
        let store = Arc::clone(&store);
        async move {
            let claim = store.claim(&claimant, LEASE).await?;
            ensure!(matches!(claim, Claim::Claimed), "{claim:?}");
            if let Some(ttl) = completes {
                let completed = store.complete(&claimant, ttl).await?;
                ensure!(matches!(completed, Completed::Done), "{completed:?}");
            }
            Ok(())
        }
    };
    Ok(local::timed(runtime, local::in_flight(IN_FLIGHT, Arc::new(claimants), one))?.divided_by(CLAIMS))
}

/// What a plain peer does.
fn marks(runtime: &Runtime, connection: &MultiplexedConnection, claimants: Vec<Claimant>) -> anyhow::Result<Both> {
    let connection = connection.clone();
    let one = move |claimant: Claimant| {
        let mut connection = connection.clone();
        async move {
            let mut set = redis::cmd("SET");
            set.arg(claimant.key.as_str())
                .arg(1)
                .arg("EX")
                .arg(DAY.as_secs())
                .arg("NX");
            let done: Option<String> = set.query_async(&mut connection).await?;
            ensure!(done.is_some(), "the key was there");
            Ok(())
        }
    };
    Ok(local::timed(runtime, local::in_flight(IN_FLIGHT, Arc::new(claimants), one))?.divided_by(CLAIMS))
}

fn postgres(bench: &mut Bench, runtime: &Runtime, url: &str) -> anyhow::Result<()> {
    let pool = runtime.block_on(async {
        let pool = PgPoolOptions::new()
            .max_connections(TRANSACTIONS_IN_FLIGHT as u32)
            .connect(url)
            .await?;
        sqlx::query("CREATE TABLE effects (event_key text PRIMARY KEY, data bytea NOT NULL)")
            .execute(&pool)
            .await?;
        anyhow::Ok(pool)
    })?;
    let inbox = Arc::new(PostgresInbox::new(pool.clone()));
    runtime.block_on(inbox.migrate())?;
    let secret = Secret::new(SECRET)?;
    let config = ReceiverConfig {
        concurrency: TRANSACTIONS_IN_FLIGHT,
        store_timeout: Duration::from_secs(5),
        ..ReceiverConfig::default()
    };
    let receiver = Receiver::new(Arc::clone(&inbox), &secret.clone().into(), config)?;
    let (events, signer) = (Numbered::of_length(600)?, Signer::new(&secret));
    let pairs = Pairs::take(
        ROUNDS,
        || received(runtime, &receiver, &inbox, &signer, &events),
        || inserted(runtime, &pool, &events),
    )?;
    let unit = Unit::EventsPerSecond(1);
    bench.compare("Postgres inbox, verified: bare insert", &pairs.clock(), unit, None);
    bench.compare(
        "  the same, in processor time of the client",
        &pairs.processor(),
        unit,
        None,
    );
    Ok(())
}

const INSERT: &str = "INSERT INTO effects (event_key, data) VALUES ($1, $2)";

/// Events through the receiver, whose handler writes one row in the inbox's transaction.
fn received(
    runtime: &Runtime,
    receiver: &Receiver,
    inbox: &Arc<PostgresInbox>,
    signer: &Signer,
    events: &Numbered,
) -> anyhow::Result<Both> {
    let events: Vec<(String, String, Bytes)> = events
        .take(TRANSACTIONS)?
        .into_iter()
        .map(|event| {
            let signature = signer.header(event.body()).as_str().to_owned();
            (event.key().as_str().to_owned(), signature, event.body().clone())
        })
        .collect();
    let (receiver, inbox) = (receiver.clone(), Arc::clone(inbox));
    let one = move |(key, signature, body): (String, String, Bytes)| {
        let (receiver, inbox) = (receiver.clone(), Arc::clone(&inbox));
        async move {
            let incoming = Incoming {
                key: key.as_str().into(),
                signature: signature.as_str().into(),
                body,
                ..Incoming::default()
            };
            let handler = move |event: idemp_receiver::Event| async move {
                let mut transaction = inbox.transaction(&event).await?;
                sqlx::query(INSERT)
                    .bind(event.key())
                    .bind(event.data_bytes())
                    .execute(&mut **transaction)
                    .await?;
                Ok::<(), HandlerError>(())
            };
            let reply = receiver.receive(incoming, handler).await;
            ensure!(reply == Reply::Ok, "{reply:?}");
            Ok(())
        }
    };
    Ok(
        local::timed(runtime, local::in_flight(TRANSACTIONS_IN_FLIGHT, Arc::new(events), one))?
            .divided_by(TRANSACTIONS),
    )
}

/// The same rows, each in a transaction of its own.
fn inserted(runtime: &Runtime, pool: &PgPool, events: &Numbered) -> anyhow::Result<Both> {
    let events: Vec<(String, Bytes)> = events
        .take(TRANSACTIONS)?
        .into_iter()
        .map(|event| (event.key().as_str().to_owned(), event.data()))
        .collect();
    let pool = pool.clone();
    let one = move |(key, data): (String, Bytes)| {
        let pool = pool.clone();
        async move {
            sqlx::query(INSERT).bind(key).bind(&data[..]).execute(&pool).await?;
            Ok(())
        }
    };
    Ok(
        local::timed(runtime, local::in_flight(TRANSACTIONS_IN_FLIGHT, Arc::new(events), one))?
            .divided_by(TRANSACTIONS),
    )
}
