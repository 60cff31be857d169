//! What stands in Redis, byte for byte, beside plain peers; users with few rights; TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use idemp_receiver::{
    Claim, ClaimKey, ClaimStore, Claimant, Completed, RedisConfig, RedisStore, Scope, StoreErrorKind,
};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::net::{TcpListener, TcpStream};

use crate::support::{LEASE, client, copy, day, key, patient, read, redis, redis_with, store};

/// What the base document's receiver does; `true` if the key is new to it.
async fn plain_peer(client: &mut MultiplexedConnection, name: &str, seconds: u32) -> bool {
    let mut set = redis::cmd("SET");
    let set: Option<String> = set
        .arg(name)
        .arg("1")
        .arg("EX")
        .arg(seconds)
        .arg("NX")
        .query_async(client)
        .await
        .unwrap();
    set.is_some()
}

fn hex(bytes: &[u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn values_and_times_are_the_documented_ones() {
    let Some(server) = redis() else { return };
    let (store, mut client) = (store(server.address()), client(server.address()).await);
    let who = copy("r1:tool_end:1");
    assert_eq!(store.claim(&who, LEASE).await.unwrap(), Claim::Claimed);
    let value: String = client.get("idemp:r1:tool_end:1").await.unwrap();
    let (token, body) = (hex(who.token.as_bytes()), hex(who.fingerprint.as_bytes()));
    assert_eq!(value, format!("p1|{token}|{body}"));
    let left: i64 = client.pttl("idemp:r1:tool_end:1").await.unwrap();
    assert!((1..=6_000).contains(&left), "{left}");

    assert_eq!(store.complete(&who, day()).await.unwrap(), Completed::Done);
    let value: String = client.get("idemp:r1:tool_end:1").await.unwrap();
    assert_eq!(value, format!("d1|{body}"));
    let left: i64 = client.ttl("idemp:r1:tool_end:1").await.unwrap();
    assert!((86_000..=86_400).contains(&left), "{left}");

    let scope = Scope::named("orders").unwrap();
    let scoped = ClaimKey::new(&scope, "r1:tool_end:1").unwrap();
    assert!(store.mark_seen(&scoped, day()).await.unwrap());
    assert!(store.mark_seen(&key("k1"), day()).await.unwrap());
    for name in ["idemp/orders:r1:tool_end:1", "idemp:k1"] {
        let value: String = client.get(name).await.unwrap();
        assert_eq!(value, "1");
        let left: i64 = client.ttl(name).await.unwrap();
        assert!((86_000..=86_400).contains(&left), "{left}");
    }
    assert!(!plain_peer(&mut client, "idemp:k1", 86_400).await);
}

#[tokio::test]
async fn plain_peers_and_ours_see_each_other() {
    let Some(server) = redis() else { return };
    let (store, mut client) = (store(server.address()), client(server.address()).await);

    // Ours first.
    let who = copy("k1");
    assert_eq!(store.claim(&who, LEASE).await.unwrap(), Claim::Claimed);
    assert!(!plain_peer(&mut client, "idemp:k1", 86_400).await, "pending is seen");
    assert_eq!(store.complete(&who, day()).await.unwrap(), Completed::Done);
    assert!(!plain_peer(&mut client, "idemp:k1", 86_400).await, "done is seen");

    // Theirs first: a mark is done, a claim with a short time is pending.
    assert!(plain_peer(&mut client, "idemp:k2", 86_400).await);
    assert_eq!(store.claim(&copy("k2"), LEASE).await.unwrap(), Claim::Duplicate);
    assert!(!store.mark_seen(&key("k2"), day()).await.unwrap());
    assert!(plain_peer(&mut client, "idemp:k3", 6).await);
    let Claim::InProgress { retry_after } = store.claim(&copy("k3"), LEASE).await.unwrap() else {
        panic!("a peer is at work")
    };
    assert!(!retry_after.is_zero() && retry_after <= Duration::from_secs(6));
    let _: bool = client.expire("idemp:k3", 86_400).await.unwrap();
    assert_eq!(store.claim(&copy("k3"), LEASE).await.unwrap(), Claim::Duplicate);

    // Theirs after ours was given back or has ended: what ours still does changes nothing.
    let slow = copy("k4");
    assert_eq!(store.claim(&slow, LEASE).await.unwrap(), Claim::Claimed);
    let _: i64 = client.del("idemp:k4").await.unwrap();
    assert!(plain_peer(&mut client, "idemp:k4", 86_400).await);
    assert_eq!(store.complete(&slow, day()).await.unwrap(), Completed::Lost);
    assert!(!store.release(&slow).await.unwrap());
    assert!(!store.renew(&slow, LEASE).await.unwrap());
    let value: String = client.get("idemp:k4").await.unwrap();
    assert_eq!(value, "1");

    // Something else altogether.
    let _: i64 = client.hset("idemp:k5", "field", "value").await.unwrap();
    let error = store.claim(&copy("k5"), LEASE).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Foreign, "{error:?}");
}

/// What is asked at the same time travels together: the server reads far less often than it is asked.
#[tokio::test]
async fn many_claims_share_round_trips_and_one_connection() {
    let Some(server) = redis() else { return };
    let store = Arc::new(store(server.address()));
    store.ping().await.unwrap();
    let before = (
        count(server.address(), "total_connections_received"),
        count(server.address(), "total_reads_processed"),
    );
    let claims: Vec<_> = (0..2_000)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.claim(&copy(&format!("k{n}")), 10 * LEASE).await.unwrap() })
        })
        .collect();
    for claim in claims {
        assert_eq!(claim.await.unwrap(), Claim::Claimed);
    }
    let after = (
        count(server.address(), "total_connections_received"),
        count(server.address(), "total_reads_processed"),
    );
    // The looks from outside connect, too: one was between the two numbers of each pair, one before.
    assert!(after.0 - before.0 <= 2, "{before:?} {after:?}");
    assert!(after.1 - before.1 < 1_000, "{before:?} {after:?}");
}

fn count(address: SocketAddr, what: &str) -> u64 {
    let stats = read(address, "INFO stats");
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    line.unwrap().parse().unwrap()
}

/// The rights that docs/receiver.md names are enough.
#[tokio::test]
async fn a_user_with_few_rights_is_enough() {
    let Some(server) = redis_with(|_, _| {
        let rights = "--user app on >secret ~idemp* -@all +ping +eval +evalsha +get +set +del +pttl +pexpire";
        let mut arguments: Vec<String> = rights.split(' ').map(str::to_owned).collect();
        arguments.extend(["--user", "default", "on", "nopass", "~*", "+@all"].map(str::to_owned));
        arguments
    }) else {
        return;
    };
    let as_user = |user: &str| RedisStore::new(patient(format!("redis://{user}@{}", server.address()))).unwrap();
    // The fields stand in for what the address has.
    let store = RedisStore::new(RedisConfig {
        username: Some("app".to_owned()),
        password: Some("secret".to_owned()),
        ..patient(format!("redis://other:wrong@{}", server.address()))
    })
    .unwrap();
    store.ping().await.unwrap();
    as_user("app:secret").ping().await.unwrap();
    let (first, second) = (copy("k1"), copy("k2"));
    assert_eq!(store.claim(&first, LEASE).await.unwrap(), Claim::Claimed);
    assert!(store.renew(&first, LEASE).await.unwrap());
    assert_eq!(store.complete(&first, day()).await.unwrap(), Completed::Done);
    assert_eq!(store.claim(&second, LEASE).await.unwrap(), Claim::Claimed);
    assert!(store.release(&second).await.unwrap());
    assert!(store.mark_seen(&key("k3"), day()).await.unwrap());

    let error = as_user("app:wrong").ping().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(!format!("{error} {error:?}").contains("wrong"), "{error:?}");
}

/// The rights for all that is done to a claim, not only for its first step.
#[tokio::test]
async fn a_doctor_misses_each_right_that_is_not_there() {
    let needed = ["eval", "evalsha", "get", "set", "del", "pttl", "pexpire"];
    let Some(server) = redis() else { return };
    let mut client = client(server.address()).await;
    for missing in needed.map(Some).into_iter().chain([None]) {
        let mut rights = redis::cmd("ACL");
        rights.arg(&["SETUSER", "app", "reset", "on", ">secret", "~idemp*", "-@all", "+ping"]);
        for right in needed.iter().filter(|right| Some(**right) != missing) {
            rights.arg(format!("+{right}"));
        }
        rights.exec_async(&mut client).await.unwrap();
        let url = format!("redis://app:secret@{}", server.address());
        let looked = RedisStore::new(patient(url)).unwrap().diagnose().await;
        let findings: Vec<_> = looked
            .iter()
            .filter(|checked| checked.finding.is_some())
            .map(|checked| checked.check)
            .collect();
        // The text of a script is sent only to a server that does not know it, as when it is new.
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut client).await.unwrap();
        assert_eq!(
            findings,
            if missing.is_some() { vec!["scripts"] } else { vec![] },
            "{missing:?}"
        );
    }
    let left: usize = redis::cmd("DBSIZE").query_async(&mut client).await.unwrap();
    assert!(left <= 1, "what could not be deleted ends by itself: {left}");
}

/// TLS ends before the server, so that any build of it will do.
#[tokio::test]
async fn tls_is_checked_against_the_given_authority() {
    let Some(server) = redis() else { return };
    let authority = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let address = tls_before(server.address(), &authority).await;
    let config = |pem: String| RedisConfig {
        root_certificates: pem.into_bytes(),
        ..patient(format!("rediss://localhost:{}", address.port()))
    };
    let trusting = RedisStore::new(config(authority.cert.pem())).unwrap();
    assert_eq!(trusting.claim(&copy("k1"), LEASE).await.unwrap(), Claim::Claimed);

    let stranger = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let wary = RedisStore::new(config(stranger.cert.pem())).unwrap();
    let error = wary.claim(&copy("k2"), LEASE).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
}

async fn tls_before(server: SocketAddr, identity: &rcgen::CertifiedKey<rcgen::KeyPair>) -> SocketAddr {
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![identity.cert.der().clone()], key.into())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut outer) = acceptor.accept(stream).await else {
                    return;
                };
                let mut inner = TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
            });
        }
    });
    address
}

/// The contract, once more on its own: of 100 copies one takes over, and the one before it has no say any more.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_a_hundred_takes_over_what_has_just_ended() {
    let Some(server) = redis() else { return };
    let mut client = client(server.address()).await;
    // Two processes' worth of connections.
    let stores = [Arc::new(store(server.address())), Arc::new(store(server.address()))];
    let slow = copy("k1");
    assert_eq!(
        stores[0].claim(&slow, Duration::from_millis(100)).await.unwrap(),
        Claim::Claimed
    );
    while client.exists("idemp:k1").await.unwrap() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let copies: Vec<Claimant> = (0..100).map(|_| copy("k1")).collect();
    let claims: Vec<_> = copies
        .iter()
        .enumerate()
        .map(|(n, who)| {
            let (store, who) = (Arc::clone(&stores[n % 2]), who.clone());
            tokio::spawn(async move { store.claim(&who, 10 * LEASE).await.unwrap() })
        })
        .collect();
    let mut winners = Vec::new();
    for (claim, who) in claims.into_iter().zip(copies) {
        match claim.await.unwrap() {
            Claim::Claimed => winners.push(who),
            Claim::InProgress { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(winners.len(), 1);

    let before: String = client.get("idemp:k1").await.unwrap();
    assert!(!stores[0].renew(&slow, LEASE).await.unwrap());
    assert!(!stores[0].release(&slow).await.unwrap());
    assert_eq!(stores[0].complete(&slow, day()).await.unwrap(), Completed::Lost);
    let after: String = client.get("idemp:k1").await.unwrap();
    assert_eq!(before, after);
    assert_eq!(stores[1].complete(&winners[0], day()).await.unwrap(), Completed::Done);
}
