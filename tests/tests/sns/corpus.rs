//! The whole corpus, also when the server stops in mid-run.

use std::sync::Arc;
use std::time::Duration;

use idemp_core::{Mode, Reason, RetrySchedule, SinkName};
use idemp_dispatch::{Dispatcher, LaneConfig, Settlement};
use idemp_dlq::{Filter, MemoryStore, ReplayOptions, Replayer, Target};
use idemp_sinks::sns::DEFAULT_MODE;
use idemp_tests::{EVENTS, Suite, corpus, data, selected};

use crate::support::{LIMIT, Place, counts, heads, name};

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_corpus_arrives_but_for_what_is_too_long() {
    if !selected(Suite::Sns) {
        return;
    }
    let place = Place::new();
    let topic = place.topic("corpus");
    let lane = LaneConfig::at_most_once(name(), topic.sink(&place.server.url()).await);
    assert_eq!(lane.mode, DEFAULT_MODE);
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();

    let mut handles = Vec::new();
    for message in corpus() {
        let is_too_long = message.body().len() > 262_144;
        handles.push((is_too_long, dispatcher.submit(message).await.unwrap()));
    }
    for (is_too_long, handle) in handles {
        let report = handle.settled().await;
        match &report.settlements()[0].1 {
            Settlement::Delivered { attempts: 1 } => assert!(!is_too_long),
            Settlement::Dropped { reason, .. } => assert!(is_too_long && *reason == Reason::EventRejected, "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    let stats = dispatcher.shutdown(LIMIT).await.lanes.remove(0);
    assert_eq!((stats.delivered, stats.dropped), (EVENTS - 1, 1));
    assert_eq!(
        topic.received(&place.server.url(), &data("langchain-events.jsonl")).0,
        counts(EVENTS - 1, 1, 0),
        "the one that is missing is the one that was refused"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_in_mid_run_loses_nothing() {
    if !selected(Suite::Sns) {
        return;
    }
    let mut place = Place::new();
    if place.server.own().is_none() {
        return;
    }
    let topic = place.topic("stopped");
    let sink = topic.sink(&place.server.url()).await;
    let store = Arc::new(MemoryStore::new());
    // Waits of 20, 100 and 600 ms: what is under way when the server stops runs out of budget.
    let lane = LaneConfig {
        schedule: RetrySchedule::default().scaled(0.02).unwrap(),
        attempt_timeout: Duration::from_secs(60),
        concurrency: 8,
        ..LaneConfig::new(name(), Arc::clone(&sink) as _, Arc::clone(&store) as _)
    };
    assert_eq!(lane.mode, Mode::AtLeastOnce);
    let dispatcher = Arc::new(Dispatcher::new(vec![lane]).unwrap());

    let mut handles = Vec::new();
    for message in corpus() {
        if handles.len() == 300 {
            let delivered = || dispatcher.stats().lanes[0].delivered;
            idemp_testkit::until("some are delivered", || delivered() >= 100).await;
            place.server.own().unwrap().stop();
        }
        handles.extend(dispatcher.submit(message).await.ok());
    }
    assert_eq!(handles.len() as u64, EVENTS);
    for handle in handles {
        for (_, settlement) in handle.settled().await.settlements() {
            match settlement {
                Settlement::Delivered { .. } => {}
                Settlement::DeadLettered { reason, .. } => {
                    assert!(
                        matches!(
                            reason,
                            Reason::RetriesExhausted | Reason::CircuitOpen | Reason::EventRejected
                        ),
                        "{reason:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let stats = dispatcher.shutdown(LIMIT).await.lanes.remove(0);
    assert_eq!(stats.delivered + stats.dead_lettered, EVENTS);
    let letters = heads(&*store).await;
    let exhausted = letters.iter().filter(|head| head.reason == Reason::RetriesExhausted);
    assert!(exhausted.count() > 0, "the stop came too late");
    let doubtful = letters.iter().filter(|head| head.maybe_delivered).count() as u64;

    place.server.own().unwrap().start_again();
    let replayer = Replayer::new(ReplayOptions {
        rate_per_second: 10_000.0,
        attempt_timeout: Duration::from_secs(60),
        lease: Duration::from_secs(90),
        ..ReplayOptions::default()
    });
    let target = move |_: &SinkName| {
        Some(Target {
            sink: Arc::clone(&sink) as _,
            policy: Default::default(),
        })
    };
    let summary = replayer
        .unwrap()
        .run(&*store, &Filter::default(), &target, &mut |_| (), &Default::default())
        .await
        .unwrap();
    // All but the one that is longer than SNS takes.
    assert_eq!(summary.replayed, stats.dead_lettered - 1);
    let left = heads(&*store).await;
    assert_eq!(left.len(), 1);
    assert!(
        left[0].reason == Reason::EventRejected && left[0].body_len > 262_144,
        "{left:?}"
    );

    let (counted, _) = topic.received(&place.server.url(), &data("langchain-events.jsonl"));
    let twice = counted["more than once"].as_u64().unwrap();
    assert!(
        twice <= doubtful,
        "only what may have arrived is there twice: {twice} of {doubtful}"
    );
    assert_eq!(counted, counts(EVENTS - 1 + twice, 1, twice));
}
