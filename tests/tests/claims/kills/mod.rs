//! Receivers that are killed between claim, effect and mark, and handlers that fail: what is lost, and what runs twice.
//!
//! Sender, dead letters, replay and receivers are those of a deployment, over real HTTP: a dispatcher with a webhook, a
//! file of dead letters, the command `idemp replay`, and receivers in processes of their own. Each of them has one event
//! at a time, so that a kill hits one event.

mod child;
mod fleet;

use std::collections::{HashMap, HashSet};
use std::net::TcpListener;
use std::sync::Arc;

use idemp_core::{EventType, Run, Secret, SinkName};
use idemp_dispatch::{Dispatcher, LaneConfig};
use idemp_dlq::MemoryStore;
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_tests::{Process, temp_dir};
use redis::aio::MultiplexedConnection;

use crate::support::{LEASE, PATIENCE, SECRET, client, pool, postgres, redis};
use child::{Fate, Orders};
use fleet::{EVENTS, Fleet};

#[tokio::test(flavor = "multi_thread")]
async fn over_redis_nothing_is_lost_and_only_kills_before_the_mark_run_twice() {
    let Some(server) = redis() else { return };
    let client = client(server.address()).await;
    let story = tell(format!("redis {}", server.address()), || {
        effects_in_redis(client.clone())
    })
    .await;
    let kills = counted(story.keys_of(Fate::KilledBeforeMark));
    let runs = counted(&story.effects);
    for key in &story.keys {
        let kills = kills.get(key.as_str()).copied().unwrap_or_default();
        assert_eq!(
            runs[key.as_str()],
            1 + kills,
            "{key}: one run, and one more for each kill between effect and mark"
        );
    }
    story.print("redis");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_postgres_inbox_nothing_is_lost_and_nothing_runs_twice() {
    let Some(server) = postgres() else { return };
    let pool = pool(&server.url()).await;
    sqlx::query("CREATE TABLE effects (event_key text NOT NULL)")
        .execute(&pool)
        .await
        .unwrap();
    let effects = async || {
        let keys = sqlx::query_scalar("SELECT event_key FROM effects");
        keys.fetch_all(&pool).await.unwrap()
    };
    let story = tell(format!("postgres {}", server.url()), effects).await;
    let runs = counted(&story.effects);
    for key in &story.keys {
        assert_eq!(runs[key.as_str()], 1, "{key}");
    }
    story.print("inbox");
}

async fn effects_in_redis(mut client: MultiplexedConnection) -> Vec<String> {
    redis::cmd("LRANGE")
        .arg(&["effects", "0", "-1"])
        .query_async(&mut client)
        .await
        .unwrap()
}

/// What happened to all the events, when no dead letter is left.
struct Story {
    keys: Vec<String>,
    /// The key of each effect.
    effects: Vec<String>,
    /// Each run of a handler.
    runs: Vec<(Fate, String)>,
    /// How many copies, attempts and dead letters there were, and how the replay went.
    numbers: String,
}

/// Sends all events, replays what is left over until nothing is, and checks that none is lost.
async fn tell(store: String, effects: impl AsyncFn() -> Vec<String>) -> Story {
    let fleet = Fleet::start(store);
    let sent = fleet.send().await;
    let taken = effects().await;
    let taken: HashSet<&String> = taken.iter().collect();
    let lost = |key: &&String| !taken.contains(key) && !sent.dead.contains(*key);
    let lost: Vec<_> = sent.keys.iter().filter(lost).collect();
    assert!(lost.is_empty(), "{} neither processed nor a dead letter", lost.len());
    assert_eq!(sent.keys.len() as u64, EVENTS);
    assert!(sent.copies > EVENTS / 4, "{} copies", sent.copies);
    assert!(sent.dead.len() > 10, "{} dead letters", sent.dead.len());

    let (fleet, replayed) = tokio::task::spawn_blocking(move || {
        let replayed = fleet.replay();
        (fleet, replayed)
    })
    .await
    .unwrap();
    let effects = effects().await;
    let taken: HashSet<&String> = effects.iter().collect();
    let lost: Vec<_> = sent.keys.iter().filter(|key| !taken.contains(key)).collect();
    assert!(
        lost.is_empty(),
        "{} not processed, and no dead letter is left",
        lost.len()
    );
    assert_eq!(taken.len(), sent.keys.len(), "and no effect of what was not sent");
    assert_eq!(replayed.letters, sent.dead.len() as u64);

    let story = Story {
        numbers: format!(
            "{EVENTS} events, {} copies, {} attempts, {} dead letters, {} replayed in {} rounds",
            sent.copies,
            sent.attempts,
            sent.dead.len(),
            replayed.letters,
            replayed.rounds
        ),
        keys: sent.keys,
        effects,
        runs: fleet.stop(),
    };
    for kind in [Fate::KilledBeforeEffect, Fate::KilledBeforeMark] {
        let kills = story.keys_of(kind).count();
        assert!(kills > 50, "{kind:?}: {kills}");
    }
    let (failed, runs) = (story.keys_of(Fate::Fails).count(), story.runs.len());
    assert!(
        (25..35).contains(&(100 * failed / runs)),
        "{failed} of {runs} handlers fail"
    );
    story
}

impl Story {
    fn keys_of(&self, fate: Fate) -> impl Iterator<Item = &String> {
        let of = move |run: &&(Fate, String)| run.0 == fate;
        self.runs.iter().filter(of).map(|(_, key)| key)
    }

    #[expect(clippy::print_stdout, reason = "what was counted, for who wants to see it")]
    fn print(&self, store: &str) {
        let count = |fate| self.keys_of(fate).count();
        println!(
            "{store}: {}; {} handlers ran, {} failed, {} were killed before the effect, {} between effect and mark; \
             lost 0, double runs {}",
            self.numbers,
            self.runs.len(),
            count(Fate::Fails),
            count(Fate::KilledBeforeEffect),
            count(Fate::KilledBeforeMark),
            self.effects.len() - self.keys.len(),
        );
    }
}

fn counted<'k>(keys: impl IntoIterator<Item = &'k String>) -> HashMap<&'k str, usize> {
    let mut counts = HashMap::new();
    for key in keys {
        *counts.entry(key.as_str()).or_default() += 1;
    }
    counts
}

/// In real time, with the sender's own schedule and the receiver's own lease: the claim of the dead is over before the
/// budget is.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_killed_right_after_its_claim_costs_no_dead_letter() {
    let Some(server) = redis() else { return };
    let place = temp_dir();
    let orders = Orders {
        store: format!("redis {}", server.address()),
        lease: LEASE,
        ledger: place.path().join("ledger"),
    };
    let serve = |listener: &TcpListener, fate: Fate| {
        let mut command = orders.command(listener, fate.name());
        Process::start("a receiver", &mut command)
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let dies = serve(&listener, Fate::KilledBeforeEffect);
    drop(listener);
    let webhook = WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(format!("http://{address}/"), Secret::new(SECRET).unwrap())
    };
    let mut lane = LaneConfig::new(
        SinkName::parse("webhook").unwrap(),
        Arc::new(WebhookSink::new(webhook).unwrap()),
        Arc::new(MemoryStore::new()),
    );
    lane.attempt_timeout = PATIENCE;
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    let run = Run::new();
    let sent = dispatcher
        .try_submit(run.event(EventType::TOOL_END, &1).unwrap())
        .unwrap();
    let died = tokio::task::spawn_blocking(move || dies.finish(PATIENCE))
        .await
        .unwrap();
    assert_eq!(died.status.code(), None, "killed: {}", died.stdout);
    let mut client = client(server.address()).await;
    let held: usize = redis::cmd("DBSIZE").query_async(&mut client).await.unwrap();
    assert_eq!(held, 1, "the claim of the dead");

    let _lives = serve(&TcpListener::bind(address).unwrap(), Fate::Succeeds);
    assert!(sent.settled().await.all_delivered());
    let attempts = dispatcher.stats().lanes[0].attempts;
    assert!((2..=4).contains(&attempts), "{attempts}");
    assert_eq!(effects_in_redis(client).await.len(), 1);
}
