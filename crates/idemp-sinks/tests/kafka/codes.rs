//! Errors that brokers answer with. Those that librdkafka takes care of by itself never come up to an attempt.

use idemp_core::ErrorClass::{self, Ambiguous, PushBack, RejectsConfiguration, RejectsEvent, Transient};
use idemp_core::{Outcome, Sink};
use idemp_sinks::kafka::{KafkaConfig, KafkaSink};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Answer};

use crate::{
    DELIVERED, SHORT, TOPIC, assert_failed, cluster, config, count, deliver, short_sink, sink, until_delivered,
};

#[tokio::test]
async fn an_event_is_refused_only_by_a_request_of_its_own() {
    for (answer, code) in [
        (Answer::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, "MessageSizeTooLarge"),
        (Answer::RD_KAFKA_RESP_ERR_INVALID_RECORD, "InvalidRecord"),
        (Answer::RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE, "InvalidMessageSize"),
        (Answer::RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE, "MessageBatchTooLarge"),
        (Answer::RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP, "InvalidTimestamp"),
    ] {
        let cluster = cluster();
        let sink = sink(&cluster);
        // It may have been the fault of another message in the request.
        cluster.request_errors(RDKafkaApiKey::Produce, &[answer]);
        assert_eq!(deliver(&sink).await, DELIVERED, "{code} once");
        cluster.request_errors(RDKafkaApiKey::Produce, &[answer; 2]);
        assert_failed(deliver(&sink).await, RejectsEvent, code);
        assert_eq!(deliver(&sink).await, DELIVERED, "after {code}");
        assert_eq!(count(&cluster), 2, "{code}");
        Sink::close(&sink).await;
    }
}

#[tokio::test]
async fn what_a_broker_answers_is_of_its_class_and_the_next_event_goes_through() {
    let cases: [(Answer, ErrorClass, &str); 7] = [
        (
            Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            RejectsConfiguration,
            "TopicAuthorizationFailed",
        ),
        (
            Answer::RD_KAFKA_RESP_ERR_INVALID_REQUIRED_ACKS,
            RejectsConfiguration,
            "InvalidRequiredAcks",
        ),
        (
            Answer::RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE,
            RejectsConfiguration,
            "UnsupportedCompressionType",
        ),
        (
            Answer::RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT,
            RejectsConfiguration,
            "UnsupportedForMessageFormat",
        ),
        (Answer::RD_KAFKA_RESP_ERR_POLICY_VIOLATION, PushBack, "PolicyViolation"),
        (
            Answer::RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED,
            PushBack,
            "ThrottlingQuotaExceeded",
        ),
        // In no table.
        (Answer::RD_KAFKA_RESP_ERR_UNKNOWN, Ambiguous, "Unknown"),
    ];
    for (answer, class, code) in cases {
        let cluster = cluster();
        let sink = sink(&cluster);
        cluster.request_errors(RDKafkaApiKey::Produce, &[answer]);
        assert_failed(deliver(&sink).await, class, code);
        assert_eq!(deliver(&sink).await, DELIVERED, "after {code}");
        assert_eq!(count(&cluster), 1, "{code}");
    }
}

#[tokio::test]
async fn what_may_pass_is_tried_again_inside_the_attempt() {
    for answer in [
        Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Answer::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        Answer::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
        Answer::RD_KAFKA_RESP_ERR_INVALID_MSG,
        Answer::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER,
    ] {
        let cluster = cluster();
        let sink = sink(&cluster);
        cluster.request_errors(RDKafkaApiKey::Produce, &[answer]);
        assert_eq!(deliver(&sink).await, DELIVERED, "{answer:?}");
    }
}

#[tokio::test]
async fn what_does_not_pass_in_time_is_as_open_as_the_answer_left_it() {
    for (answer, class) in [
        (Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, Transient),
        (Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, Transient),
        (Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND, Ambiguous),
    ] {
        let cluster = cluster();
        let sink = short_sink(&cluster);
        cluster.request_errors(RDKafkaApiKey::Produce, &[answer; 1000]);
        assert_failed(deliver(&sink).await, class, "MessageTimedOut");
    }
}

#[tokio::test]
async fn a_policy_violation_can_mean_something_else() {
    let cluster = cluster();
    let config = KafkaConfig {
        policy_violation: RejectsEvent,
        ..config(&cluster.bootstrap_servers())
    };
    let sink = KafkaSink::new(config).unwrap();
    cluster.request_errors(RDKafkaApiKey::Produce, &[Answer::RD_KAFKA_RESP_ERR_POLICY_VIOLATION]);
    assert_failed(deliver(&sink).await, RejectsEvent, "PolicyViolation");
}

#[tokio::test]
async fn an_event_that_is_too_large_for_the_client_is_refused() {
    let cluster = cluster();
    let config = KafkaConfig {
        // The least there is. Key and body must fit.
        properties: vec![("message.max.bytes".to_owned(), "1000".to_owned())],
        ..config(&cluster.bootstrap_servers())
    };
    let sink = KafkaSink::new(config).unwrap();
    let large = idemp_core::Run::new()
        .event(idemp_core::EventType::TOOL_END, &"x".repeat(1000))
        .unwrap();
    let outcome = Sink::deliver(&sink, &large, crate::attempt(crate::AMPLE)).await;
    assert_failed(outcome, RejectsEvent, "MessageSizeTooLarge");
    assert_eq!(deliver(&sink).await, DELIVERED);
    assert_eq!(count(&cluster), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_broke_is_replaced_once_for_all_attempts() {
    let cluster = cluster();
    let sink = std::sync::Arc::new(sink(&cluster));
    assert_eq!(deliver(&sink).await, DELIVERED);
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[Answer::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER],
    );
    let failure = assert_failed(deliver(&sink).await, Ambiguous, "OutOfOrderSequenceNumber");
    assert!(failure.maybe_delivered);

    // As many as are in flight find the new one.
    let attempts: Vec<_> = (0..16)
        .map(|_| {
            let sink = std::sync::Arc::clone(&sink);
            tokio::spawn(async move { deliver(&sink).await })
        })
        .collect();
    for attempt in attempts {
        assert_eq!(attempt.await.unwrap(), DELIVERED);
    }
    assert_eq!(count(&cluster), 17);
}

#[tokio::test]
async fn a_producer_that_may_not_begin_rejects_the_configuration_until_it_may() {
    let cluster = cluster();
    let denied = Answer::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &[denied; 1000]);
    let sink = short_sink(&cluster);
    for _ in 0..3 {
        assert_failed(deliver(&sink).await, RejectsConfiguration, "ClusterAuthorizationFailed");
    }
    cluster.clear_request_errors(RDKafkaApiKey::InitProducerId);
    until_delivered(&sink, |outcome| {
        _ = assert_failed(outcome, RejectsConfiguration, "ClusterAuthorizationFailed")
    })
    .await;
}

#[tokio::test]
async fn a_topic_that_is_missing_is_found_when_it_is_there() {
    let cluster = MockCluster::new(1).unwrap();
    let config = KafkaConfig {
        attempt_timeout: SHORT,
        properties: vec![("allow.auto.create.topics".to_owned(), "false".to_owned())],
        ..config(&cluster.bootstrap_servers())
    };
    let sink = KafkaSink::new(config).unwrap();
    for _ in 0..3 {
        assert_unknown_topic(deliver(&sink).await);
    }
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    until_delivered(&sink, |outcome| assert_unknown_topic(outcome)).await;
    assert_eq!(count(&cluster), 1);
}

/// The broker's word for it at first, and then librdkafka's.
#[track_caller]
fn assert_unknown_topic(outcome: Outcome) {
    let code = if format!("{outcome:?}").contains("UnknownTopicOrPartition") {
        "UnknownTopicOrPartition"
    } else {
        "UnknownTopic"
    };
    assert_failed(outcome, RejectsConfiguration, code);
}

#[tokio::test]
async fn a_topic_that_is_denied_is_served_again_when_it_is_not() {
    let cluster = cluster();
    let sink = short_sink(&cluster);
    assert_eq!(deliver(&sink).await, DELIVERED);
    let denied = Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.topic_error(TOPIC, denied).unwrap();
    cluster.request_errors(RDKafkaApiKey::Produce, &[denied; 1000]);
    for _ in 0..3 {
        assert_failed(deliver(&sink).await, RejectsConfiguration, "TopicAuthorizationFailed");
    }
    cluster.clear_request_errors(RDKafkaApiKey::Produce);
    cluster.topic_error(TOPIC, Answer::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
    until_delivered(&sink, |outcome| {
        _ = assert_failed(outcome, RejectsConfiguration, "TopicAuthorizationFailed")
    })
    .await;
    assert_eq!(count(&cluster), 2);
}
