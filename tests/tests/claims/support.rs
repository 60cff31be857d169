//! Servers, stores over them, and signed events.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use idemp_core::{Secret, Signer, Ttl};
use idemp_receiver::{
    ClaimKey, ClaimStore, Claimant, Incoming, PostgresStore, Receiver, ReceiverConfig, RedisConfig, RedisStore, Scope,
};
use idemp_tests::{Postgres, Server, Suite, redis_programs, selected};
use redis::aio::MultiplexedConnection;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

pub(crate) const SECRET: &str = "of the test";

/// For a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// A Redis or Valkey of the test's own, if the suite is chosen.
pub(crate) fn redis() -> Option<Server> {
    redis_with(|_, _| Vec::new())
}

/// The same with more arguments, made for its address and data folder.
pub(crate) fn redis_with(more: impl Fn(SocketAddr, &Path) -> Vec<String> + Send + Sync + 'static) -> Option<Server> {
    let program = || redis_programs().swap_remove(0);
    selected(Suite::Claims).then(|| redis_of(program(), more))
}

/// One of this program.
pub(crate) fn redis_of(
    program: PathBuf,
    more: impl Fn(SocketAddr, &Path) -> Vec<String> + Send + Sync + 'static,
) -> Server {
    let command = move |address: SocketAddr, data: &Path| {
        let mut command = Command::new(&program);
        command
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--dir"])
            .arg(data)
            .args(["--save", "", "--appendonly", "yes"])
            .args(more(address, data));
        command
    };
    Server::start("redis", command, |address| {
        ask(address, "PING").is_some_and(|answer| answer == "+PONG" || answer.starts_with("-NOAUTH"))
    })
}

/// The first line of the answer to a command.
pub(crate) fn ask(address: SocketAddr, command: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    BufReader::new(stream).lines().next()?.ok()
}

/// All that is answered to a command.
pub(crate) fn read(address: SocketAddr, command: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A Postgres of the test's own, if the suite is chosen and its programs are there.
pub(crate) fn postgres() -> Option<Postgres> {
    selected(Suite::Claims).then(Postgres::start).flatten()
}

/// A pool of connections to it, with the tables.
pub(crate) async fn pool(url: &str) -> PgPool {
    let pool = PgPoolOptions::new()
        .max_connections(20)
        .acquire_timeout(Duration::from_secs(2))
        .connect(url)
        .await
        .unwrap();
    PostgresStore::new(pool.clone()).migrate().await.unwrap();
    pool
}

/// Settings for a server on a busy machine.
pub(crate) fn patient(url: String) -> RedisConfig {
    RedisConfig {
        connect_timeout: PATIENCE,
        response_timeout: PATIENCE,
        ..RedisConfig::new(url)
    }
}

pub(crate) fn store(address: SocketAddr) -> RedisStore {
    RedisStore::new(patient(format!("redis://{address}"))).unwrap()
}

/// A plain client, for a look from outside.
pub(crate) async fn client(address: SocketAddr) -> MultiplexedConnection {
    let client = redis::Client::open(format!("redis://{address}")).unwrap();
    let settings = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    client
        .get_multiplexed_async_connection_with_config(&settings)
        .await
        .unwrap()
}

pub(crate) fn key(text: &str) -> ClaimKey {
    ClaimKey::new(&Scope::default(), text).unwrap()
}

/// One copy of the event with this key.
pub(crate) fn copy(text: &str) -> Claimant {
    Claimant::new(key(text), b"the body")
}

pub(crate) fn day() -> Ttl {
    Ttl::new(Duration::from_secs(86_400), Duration::from_secs(36)).unwrap()
}

/// A receiver whose limits a busy machine does not meet.
pub(crate) fn patient_config() -> ReceiverConfig {
    ReceiverConfig {
        attempt_timeout: 2 * PATIENCE,
        handler_cap: PATIENCE,
        store_timeout: PATIENCE,
        ..ReceiverConfig::default()
    }
}

pub(crate) fn receiver(store: impl ClaimStore, config: ReceiverConfig) -> Receiver {
    Receiver::new(store, &Secret::new(SECRET).unwrap().into(), config).unwrap()
}

/// What comes in for one event.
pub(crate) struct Signed {
    key: String,
    body: String,
    signature: String,
}

impl Signed {
    pub(crate) fn new(key: &str) -> Self {
        let body = format!(r#"{{"data": {{"of": "{key}"}}, "event": "tool_end"}}"#);
        let signature = Signer::new(&Secret::new(SECRET).unwrap()).header(body.as_bytes());
        Self {
            key: key.to_owned(),
            signature: signature.as_str().to_owned(),
            body,
        }
    }

    pub(crate) fn incoming(&self) -> Incoming<'_> {
        Incoming {
            key: self.key.as_str().into(),
            signature: self.signature.as_str().into(),
            body: Bytes::from(self.body.clone()),
            ..Incoming::default()
        }
    }
}

/// How often each key's effect was taken.
#[derive(Clone, Default)]
pub(crate) struct Effects(Arc<Mutex<HashMap<String, usize>>>);

impl Effects {
    pub(crate) fn add(&self, key: &str) {
        *self.0.lock().unwrap().entry(key.to_owned()).or_default() += 1;
    }

    pub(crate) fn of(&self, key: &str) -> usize {
        self.0.lock().unwrap().get(key).copied().unwrap_or_default()
    }

    /// How many keys, and how many effects.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let effects = self.0.lock().unwrap();
        (effects.len(), effects.values().sum())
    }
}

/// Small, seeded, and good enough to make choices: splitmix64.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}
