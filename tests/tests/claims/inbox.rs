//! The inbox in Postgres: the effect and its mark are one.

use std::sync::Arc;
use std::time::Duration;

use idemp_core::{Secret, Signer, Ttl};
use idemp_receiver::consume::{Arrived, ConsumeConfig, Flow, Position, Quarantined, Settled};
use idemp_receiver::{
    Claim, ClaimStore, Completed, Event, HandlerError, POSTGRES_MIGRATIONS, PostgresInbox, PostgresStore, Receiver,
    Reply, StoreErrorKind, Unavailable,
};
use idemp_testkit::gate::Gate;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::support::{LEASE, PATIENCE, Signed, copy, day, key, patient_config, pool, postgres, receiver};

/// A database with a table for effects, an inbox in it, and a receiver over that.
struct Site {
    pool: PgPool,
    inbox: Arc<PostgresInbox>,
    receiver: Receiver,
}

impl Site {
    async fn new(url: &str) -> Self {
        let pool = pool(url).await;
        sqlx::query("CREATE TABLE effects (event_key text NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        let inbox = Arc::new(PostgresInbox::new(pool.clone()));
        let receiver = receiver(Arc::clone(&inbox), patient_config());
        Self { pool, inbox, receiver }
    }

    /// Takes the effect, and then ends with `result`.
    async fn receive(&self, event: &Signed, result: Result<(), HandlerError>) -> Reply {
        let inbox = Arc::clone(&self.inbox);
        let reply = self.receiver.receive(event.incoming(), move |event| async move {
            take_effect(&inbox, &event).await?;
            result
        });
        reply.await
    }

    async fn effects(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM effects")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }

    async fn marks(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM idemp_inbox")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

async fn take_effect(inbox: &PostgresInbox, event: &Event) -> Result<(), HandlerError> {
    let mut transaction = inbox.transaction(event).await?;
    sqlx::query("INSERT INTO effects VALUES ($1)")
        .bind(event.key())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

#[tokio::test]
async fn effect_and_mark_come_together_or_not_at_all() {
    let Some(server) = postgres() else { return };
    let site = Site::new(&server.url()).await;
    let event = Signed::new("r1:tool_end:1");
    assert_eq!(site.receive(&event, Err(HandlerError::Failed)).await, Reply::Failed);
    assert_eq!(site.receive(&event, Err(HandlerError::Rejected)).await, Reply::Rejected);
    assert_eq!((site.effects().await, site.marks().await), (0, 0));
    assert_eq!(site.receive(&event, Ok(())).await, Reply::Ok);
    assert_eq!((site.effects().await, site.marks().await), (1, 1));
    assert_eq!(site.receive(&event, Ok(())).await, Reply::Duplicate);
    assert_eq!((site.effects().await, site.marks().await), (1, 1));

    // A handler that panics, and one that has no effect.
    let event = Signed::new("r1:tool_end:2");
    let inbox = Arc::clone(&site.inbox);
    let panics = site.receiver.receive(event.incoming(), move |event| async move {
        take_effect(&inbox, &event).await?;
        panic!("on purpose")
    });
    assert_eq!(panics.await, Reply::Failed);
    let idle = site.receiver.receive(event.incoming(), |_| async { Ok(()) });
    assert_eq!(idle.await, Reply::Ok);
    assert_eq!((site.effects().await, site.marks().await), (1, 2));
}

#[tokio::test]
async fn another_body_is_a_conflict_once_the_first_is_done() {
    let Some(server) = postgres() else { return };
    let site = Site::new(&server.url()).await;
    assert_eq!(site.receive(&Signed::new("k1"), Ok(())).await, Reply::Ok);
    let body = r#"{"data": "another", "event": "tool_end"}"#;
    let signature = Signer::new(&Secret::new(crate::support::SECRET).unwrap()).header(body.as_bytes());
    let other = idemp_receiver::Incoming {
        key: "k1".into(),
        signature: signature.as_str().into(),
        body: body.into(),
        ..idemp_receiver::Incoming::default()
    };
    let reply = site.receiver.receive(other, |_| async { Ok(()) });
    assert_eq!(reply.await, Reply::Conflict);
}

/// COMMIT after a failed statement rolls back and does not say so: a handler that ignores the error must not be told
/// that its effect is taken.
#[tokio::test]
async fn a_transaction_that_has_failed_is_no_success() {
    let Some(server) = postgres() else { return };
    let site = Site::new(&server.url()).await;
    let event = Signed::new("r1:tool_end:1");
    let inbox = Arc::clone(&site.inbox);
    let reply = site.receiver.receive(event.incoming(), move |event| async move {
        take_effect(&inbox, &event).await?;
        let mut transaction = inbox.transaction(&event).await?;
        let _ = sqlx::query("SELECT 1 / 0").execute(&mut **transaction).await;
        Ok(())
    });
    assert_eq!(reply.await, Reply::Unavailable(Unavailable::Store));
    assert_eq!((site.effects().await, site.marks().await), (0, 0));
    assert_eq!(site.receive(&event, Ok(())).await, Reply::Ok);
    assert_eq!((site.effects().await, site.marks().await), (1, 1));
}

/// Over a broker nobody but the consumer tries again: what can never be committed must not come for ever.
#[tokio::test]
async fn a_message_whose_work_is_never_committed_goes_to_quarantine() {
    let Some(server) = postgres() else { return };
    let site = Site::new(&server.url()).await;
    sqlx::query("CREATE TABLE late (n int CONSTRAINT only_once UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        .execute(&site.pool)
        .await
        .unwrap();
    // A statement that fails and is not cared about, and one that only the commit finds to be wrong.
    for sql in ["SELECT 1 / 0", "INSERT INTO late VALUES (1), (1)"] {
        let quarantined = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (inbox, told) = (Arc::clone(&site.inbox), Arc::clone(&quarantined));
        let config = ConsumeConfig {
            retries: vec![Duration::from_millis(10); 2],
            ..ConsumeConfig::default()
        };
        let handler = move |event: Event| {
            let inbox = Arc::clone(&inbox);
            async move {
                take_effect(&inbox, &event).await?;
                let mut transaction = inbox.transaction(&event).await?;
                let _ = sqlx::query(sql).execute(&mut **transaction).await;
                Ok(())
            }
        };
        let quarantine = move |message: Quarantined| {
            told.lock().unwrap().push(message.reason);
            async { Ok(()) }
        };
        let flow = Flow::new(&site.receiver, "test", config, handler, quarantine).unwrap();
        let (message, stop) = (arrived("r1:tool_end:1"), CancellationToken::new());
        let settled = tokio::time::timeout(PATIENCE, flow.settle(&message, &stop));
        assert_eq!(settled.await, Ok(Settled::Acknowledge), "{sql}");
        assert_eq!(*quarantined.lock().unwrap(), [Reply::Failed], "{sql}");
        assert_eq!((site.effects().await, site.marks().await), (0, 0));
    }
}

/// The event with this key, as a message.
fn arrived(key: &str) -> Arrived {
    let body = r#"{"data": 1, "event": "tool_end"}"#;
    let signature = Signer::new(&Secret::new(crate::support::SECRET).unwrap()).header(body.as_bytes());
    let field = |name: &'static str, value: &str| (name.into(), value.to_owned().into());
    Arrived {
        position: Position::Other {
            transport: "test",
            id: key.to_owned(),
        },
        record_key: None,
        fields: vec![field("key", key), field("signature", signature.as_str())],
        body: Some(body.into()),
        key_field: "key",
        signature_field: "signature",
    }
}

/// Copies are answered at once while the first one is at work, and do not queue on its row with a connection each.
#[tokio::test(flavor = "multi_thread")]
async fn copies_do_not_wait_for_the_first() {
    let Some(server) = postgres() else { return };
    let site = Site::new(&server.url()).await;
    let event = Signed::new("r1:tool_end:1");
    let gate = Gate::shut();
    let (inbox, shut) = (Arc::clone(&site.inbox), gate.clone());
    let first = site.receiver.clone();
    let first = tokio::spawn(async move {
        let event = Signed::new("r1:tool_end:1");
        let reply = first.receive(event.incoming(), move |event| async move {
            take_effect(&inbox, &event).await?;
            shut.pass().await;
            Ok(())
        });
        reply.await
    });
    gate.arrived(1).await;
    // Twice as many as there are connections.
    for _ in 0..40 {
        let reply = site.receive(&event, Ok(())).await;
        assert!(matches!(reply, Reply::InProgress { .. }), "{reply:?}");
    }
    // Another key is not held up.
    assert_eq!(site.receive(&Signed::new("r1:tool_end:2"), Ok(())).await, Reply::Ok);
    gate.open();
    assert_eq!(first.await.unwrap(), Reply::Ok);
    assert_eq!(site.receive(&event, Ok(())).await, Reply::Duplicate);
    assert_eq!((site.effects().await, site.marks().await), (2, 2));
}

/// A handler that runs over its cap is cut, with its transaction.
#[tokio::test]
async fn a_handler_over_its_cap_leaves_nothing() {
    let Some(server) = postgres() else { return };
    let site = Site::new(&server.url()).await;
    let config = idemp_receiver::ReceiverConfig {
        handler_cap: Duration::from_millis(200),
        ..patient_config()
    };
    let hasty = receiver(Arc::clone(&site.inbox), config);
    let event = Signed::new("r1:tool_end:1");
    let inbox = Arc::clone(&site.inbox);
    let reply = hasty.receive(event.incoming(), move |event| async move {
        take_effect(&inbox, &event).await?;
        // Cut in the middle of a statement.
        let mut transaction = inbox.transaction(&event).await?;
        sqlx::query("SELECT pg_sleep(2)").execute(&mut **transaction).await?;
        Ok(())
    });
    assert_eq!(reply.await, Reply::OverCap);
    assert_eq!((site.effects().await, site.marks().await), (0, 0));
    assert_eq!(site.receive(&event, Ok(())).await, Reply::Ok);
    assert_eq!((site.effects().await, site.marks().await), (1, 1));
}

/// Whatever the database's own settings are, a contended key is in progress and no error.
#[tokio::test(flavor = "multi_thread")]
async fn stricter_isolation_and_lock_timeouts_are_in_progress() {
    let Some(server) = postgres() else { return };
    let url = server.url();
    for options in ["-c default_transaction_isolation=serializable", "-c lock_timeout=50ms"] {
        let options: sqlx::postgres::PgConnectOptions =
            format!("{url}?options={}", options.replace(' ', "%20").replace('=', "%3D"))
                .parse()
                .unwrap();
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(20)
            .connect_with(options)
            .await
            .unwrap();
        let inbox = Arc::new(PostgresInbox::new(pool.clone()));
        inbox.migrate().await.unwrap();
        let name = format!("k{}", uuid_like(&pool).await);
        let copies: Vec<_> = (0..20)
            .map(|_| {
                let (inbox, who) = (Arc::clone(&inbox), copy(&name));
                tokio::spawn(async move {
                    let claim = inbox.claim(&who, LEASE).await.unwrap();
                    if claim == Claim::Claimed {
                        assert_eq!(inbox.complete(&who, day()).await.unwrap(), Completed::Done);
                    }
                    claim
                })
            })
            .collect();
        let mut claimed = 0;
        for copy in copies {
            match copy.await.unwrap() {
                Claim::Claimed => claimed += 1,
                Claim::InProgress { .. } | Claim::Duplicate => {}
                Claim::Conflict => panic!("the same body"),
            }
        }
        assert_eq!(claimed, 1);
        assert_eq!(inbox.claim(&copy(&name), LEASE).await.unwrap(), Claim::Duplicate);
    }
}

async fn uuid_like(pool: &PgPool) -> String {
    sqlx::query_scalar("SELECT gen_random_uuid()::text")
        .fetch_one(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn marks_and_claims_are_purged_in_batches() {
    let Some(server) = postgres() else { return };
    let site = Site::new(&server.url()).await;
    let store = PostgresStore::new(site.pool.clone());
    let short = Ttl::new(Duration::from_secs(1), Duration::ZERO).unwrap();
    for n in 0..50 {
        assert!(site.inbox.mark_seen(&key(&format!("k{n}")), day()).await.unwrap());
        assert!(store.mark_seen(&key(&format!("k{n}")), short).await.unwrap());
    }
    assert!(!site.inbox.mark_seen(&key("k1"), day()).await.unwrap());
    assert_eq!(site.inbox.purge(day(), 1_000).await.unwrap(), 0);
    sqlx::query("UPDATE idemp_inbox SET created_at = created_at - interval '1 day'")
        .execute(&site.pool)
        .await
        .unwrap();
    sqlx::query("UPDATE idemp_claims SET until = until - interval '1 day'")
        .execute(&site.pool)
        .await
        .unwrap();
    // What somebody is at is passed over, not waited for.
    let mut busy = site.pool.begin().await.unwrap();
    for table in [
        "SELECT 1 FROM idemp_inbox WHERE event_key = 'k7' FOR UPDATE",
        "SELECT 1 FROM idemp_claims WHERE event_key = 'k7' FOR UPDATE",
    ] {
        sqlx::query(table).execute(&mut *busy).await.unwrap();
    }
    let mut purged = (Vec::new(), Vec::new());
    for _ in 0..4 {
        purged.0.push(site.inbox.purge(day(), 20).await.unwrap());
        purged.1.push(store.purge(20).await.unwrap());
    }
    assert_eq!(purged, (vec![20, 20, 9, 0], vec![20, 20, 9, 0]));
    busy.rollback().await.unwrap();
    assert_eq!(
        (
            site.inbox.purge(day(), 20).await.unwrap(),
            store.purge(20).await.unwrap()
        ),
        (1, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_may_run_at_once_and_again() {
    let Some(server) = postgres() else { return };
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(10)
        .connect(&server.url())
        .await
        .unwrap();
    let store = PostgresStore::new(pool.clone());
    let error = store.claim(&copy("k1"), LEASE).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotSetUp, "there is no table yet");
    let all: Vec<_> = (0..10)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.migrate().await })
        })
        .collect();
    for migrated in all {
        migrated.await.unwrap().unwrap();
    }
    for sql in POSTGRES_MIGRATIONS {
        sqlx::raw_sql(*sql).execute(&pool).await.unwrap();
    }
    assert_eq!(store.claim(&copy("k1"), LEASE).await.unwrap(), Claim::Claimed);
}

/// Tables of our names that somebody else has made: no key can be claimed, whatever is tried.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_another_making_are_no_tables_of_ours() {
    let Some(server) = postgres() else { return };
    let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
    for columns in [
        "id bigint",
        "scope text, event_key text, token uuid, epoch bigint, fingerprint uuid, until timestamptz, \
         created_at timestamptz, PRIMARY KEY (scope, event_key)",
        "scope bigint, event_key text, token bytea, epoch bigint, fingerprint bytea, until timestamptz, \
         created_at timestamptz, PRIMARY KEY (scope, event_key)",
        "scope text, event_key text, token bytea, epoch bigint, fingerprint bytea, until timestamptz, \
         created_at timestamptz",
    ] {
        for table in ["idemp_claims", "idemp_inbox"] {
            let make = format!("DROP TABLE IF EXISTS {table}; CREATE TABLE {table} ({columns})");
            sqlx::raw_sql(sqlx::AssertSqlSafe(make)).execute(&pool).await.unwrap();
        }
        let stores: [&dyn ClaimStore; 2] = [&PostgresStore::new(pool.clone()), &PostgresInbox::new(pool.clone())];
        for store in stores {
            let error = store.claim(&copy("k1"), LEASE).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::NotSetUp, "{columns}: {error:?}");
        }
    }
}

/// Parallel take-overs of one expired lease: one winner each time, and a higher epoch.
#[tokio::test(flavor = "multi_thread")]
async fn forty_take_overs_have_one_winner_and_rising_epochs() {
    let Some(server) = postgres() else { return };
    let pool = pool(&server.url()).await;
    let store = PostgresStore::new(pool.clone());
    let mut epochs = Vec::new();
    for _ in 0..5 {
        let copies: Vec<_> = (0..40)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move { store.claim(&copy("k1"), LEASE).await.unwrap() })
            })
            .collect();
        let mut claimed = 0;
        for copy in copies {
            claimed += usize::from(copy.await.unwrap() == Claim::Claimed);
        }
        assert_eq!(claimed, 1);
        let epoch: i64 = sqlx::query_scalar("UPDATE idemp_claims SET until = clock_timestamp() RETURNING epoch")
            .fetch_one(&pool)
            .await
            .unwrap();
        epochs.push(epoch);
    }
    assert_eq!(epochs, [1, 2, 3, 4, 5]);
}
