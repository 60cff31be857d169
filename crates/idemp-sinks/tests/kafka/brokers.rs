//! Brokers that are away, break off, or take too long.

use std::time::Duration;

use idemp_core::ErrorClass;
use idemp_sinks::kafka::{KafkaConfig, KafkaSink};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::{DELIVERED, SHORT, assert_failed, cluster, config, count, deliver, short_sink, until_delivered};

const CUT: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT;

#[tokio::test]
async fn a_broker_that_is_away_at_first_is_found_when_it_is_back() {
    let cluster = cluster();
    cluster.broker_down(-1).unwrap();
    let sink = short_sink(&cluster);
    for _ in 0..2 {
        assert_failed(deliver(&sink).await, ErrorClass::Transient, "MessageTimedOut");
    }
    cluster.broker_up(-1).unwrap();
    // The client may still be waiting before it connects again.
    until_delivered(&sink, |outcome| {
        _ = assert_failed(outcome, ErrorClass::Transient, "MessageTimedOut")
    })
    .await;
    assert_eq!(count(&cluster), 1);
}

#[tokio::test]
async fn where_nobody_listens_the_detail_says_so() {
    let config = KafkaConfig {
        attempt_timeout: SHORT,
        ..config("127.0.0.1:1")
    };
    let sink = KafkaSink::new(config).unwrap();
    let failure = assert_failed(deliver(&sink).await, ErrorClass::Transient, "MessageTimedOut");
    let detail = failure.detail.as_str();
    assert!(detail.contains("the client's last trouble: "), "{detail}");
}

#[tokio::test]
async fn a_connection_that_is_cut_once_is_librdkafkas_own_matter() {
    let cluster = cluster();
    let sink = short_sink(&cluster);
    cluster.request_errors(RDKafkaApiKey::Produce, &[CUT]);
    assert_eq!(deliver(&sink).await, DELIVERED);
}

#[tokio::test]
async fn a_connection_that_is_always_cut_leaves_it_open_whether_the_event_arrived() {
    let cluster = cluster();
    let sink = short_sink(&cluster);
    cluster.request_errors(RDKafkaApiKey::Produce, &[CUT; 1000]);
    assert_failed(deliver(&sink).await, ErrorClass::Ambiguous, "MessageTimedOut");
    cluster.clear_request_errors(RDKafkaApiKey::Produce);
    assert_eq!(deliver(&sink).await, DELIVERED);
}

#[tokio::test]
async fn an_answer_that_takes_too_long_leaves_it_open_whether_the_event_arrived() {
    let cluster = cluster();
    let sink = short_sink(&cluster);
    assert_eq!(deliver(&sink).await, DELIVERED);
    cluster.broker_round_trip_time(-1, Duration::from_secs(30)).unwrap();
    assert_failed(deliver(&sink).await, ErrorClass::Ambiguous, "MessageTimedOut");
}
