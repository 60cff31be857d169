//! The public suite, on every store that needs a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use idemp_receiver::conformance::{Subject, check};
use idemp_receiver::{Claim, ClaimStore, PostgresInbox, PostgresStore, RedisConfig, RedisStore};
use idemp_tests::{Server, Suite, free_address, redis_programs, selected};
use sqlx::postgres::PgPoolOptions;

use crate::support::{PATIENCE, ask, copy, patient, pool, postgres, read, redis_of, redis_with};

/// A store whose clock is the server's.
struct Real(Arc<dyn ClaimStore>);

#[async_trait]
impl Subject for Real {
    fn store(&self) -> Arc<dyn ClaimStore> {
        Arc::clone(&self.0)
    }

    async fn elapse(&self, time: Duration) {
        tokio::time::sleep(time + Duration::from_millis(20)).await;
    }
}

/// The suite's TTLs are shorter than the lease of a plain peer by default.
fn quick(config: RedisConfig) -> RedisConfig {
    RedisConfig {
        peer_lease: Duration::from_secs(1),
        ..config
    }
}

/// On each server program that is there: Redis and Valkey.
#[tokio::test]
async fn redis_conforms() {
    if !selected(Suite::Claims) {
        return;
    }
    let all = redis_programs().into_iter().map(async |program| {
        let server = redis_of(program, |_, _| Vec::new());
        let config = quick(patient(format!("redis://{}", server.address())));
        check(&Real(Arc::new(RedisStore::new(config).unwrap()))).await;
    });
    futures_util::future::join_all(all).await;
}

#[tokio::test]
async fn a_cluster_of_three_conforms() {
    let Some(nodes) = cluster() else { return };
    let config = RedisConfig {
        cluster: true,
        startup_nodes: nodes[1..]
            .iter()
            .map(|node| format!("redis://{}", node.address()))
            .collect(),
        ..quick(patient(format!("redis://{}", nodes[0].address())))
    };
    let store = Arc::new(RedisStore::new(config).unwrap());
    for n in 0..300 {
        assert_eq!(
            store
                .claim(&copy(&format!("k{n}")), Duration::from_secs(60))
                .await
                .unwrap(),
            Claim::Claimed
        );
    }
    for node in &nodes {
        let keys = ask(node.address(), "DBSIZE").unwrap();
        assert!(keys != ":0", "every node has its share");
    }
    check(&Real(store)).await;
}

#[tokio::test]
async fn postgres_conforms() {
    let Some(server) = postgres() else { return };
    let store = PostgresStore::new(pool(&server.url()).await);
    check(&Real(Arc::new(store))).await;
}

#[tokio::test]
async fn the_postgres_inbox_conforms() {
    let Some(server) = postgres() else { return };
    // Of 50 claims at once, most wait for a connection.
    let patient = PgPoolOptions::new().max_connections(20).acquire_timeout(PATIENCE);
    let inbox = PostgresInbox::new(patient.connect(&server.url()).await.unwrap());
    inbox.migrate().await.unwrap();
    check(&Real(Arc::new(inbox))).await;
}

/// Three nodes that share the 16,384 slots.
pub(crate) fn cluster() -> Option<Vec<Server>> {
    let buses: Vec<u16> = (0..3).map(|_| free_address().port()).collect();
    let mut nodes = Vec::new();
    for bus in &buses {
        let bus = bus.to_string();
        nodes.push(redis_with(move |_, _| {
            [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                "5000",
            ]
            .map(str::to_owned)
            .to_vec()
        })?);
    }
    let slots = ["0 5460", "5461 10922", "10923 16383"];
    for (epoch, (node, slots)) in nodes.iter().zip(slots).enumerate() {
        let is_ok = |command: String| assert_eq!(ask(node.address(), &command).unwrap(), "+OK", "{command}");
        is_ok(format!("CLUSTER SET-CONFIG-EPOCH {}", epoch + 1));
        is_ok(format!("CLUSTER ADDSLOTSRANGE {slots}"));
        for (other, bus) in nodes.iter().zip(&buses) {
            is_ok(format!("CLUSTER MEET 127.0.0.1 {} {bus}", other.address().port()));
        }
    }
    let end = Instant::now() + Duration::from_secs(60);
    while !nodes
        .iter()
        .all(|node| read(node.address(), "CLUSTER INFO").contains("cluster_state:ok"))
    {
        assert!(Instant::now() < end, "the nodes do not find each other");
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(nodes)
}
