//! The whole corpus, where nothing is in the way.

use idemp_core::{ErrorClass, Failure, Outcome};
use idemp_sinks::redis_streams::{RedisStreamsConfig, RedisStreamsSink};
use idemp_tests::{EVENTS, Redis, RedisReply, corpus};

use crate::consumer::consumer;
use crate::support::{DELIVERED, Lane, STREAM, config, deliver, event, on_each};

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
