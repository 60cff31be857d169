//! What a configuration may hold, and what is never printed of it.

use std::time::Duration;

use idemp_core::{ErrorClass, Secret};
use idemp_sinks::kafka::{KafkaConfig, KafkaErrorKind as Kind, KafkaSink};

fn config() -> KafkaConfig {
    KafkaConfig::new("127.0.0.1:9092", "events", Secret::new("hunter2").unwrap())
}

fn with_properties(properties: &[(&str, &str)]) -> KafkaConfig {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    KafkaConfig {
        properties: properties.iter().map(owned).collect(),
        ..config()
    }
}

#[track_caller]
fn refused(config: KafkaConfig, kind: Kind, text: &str) {
    let error = KafkaSink::new(config).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(error.to_string(), text);
    assert!(std::error::Error::source(&error).is_none());
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
}

#[test]
fn brokers_have_a_host_and_perhaps_a_port() {
    let text = "kafka brokers: must be `HOST:PORT`, with commas between several";
    for brokers in [
        "",
        " ",
        ",",
        "a:9092,",
        ":9092",
        "a:",
        "a:0",
        "a:65536",
        "a:http",
        "a b:9092",
        "a\0:9092",
        // A login is no part of a host, and would be logged with it.
        "me:hunter2@a:9092",
        "SASL_SSL://me:hunter2@a:9092",
    ] {
        refused(
            KafkaConfig {
                brokers: brokers.to_owned(),
                ..config()
            },
            Kind::Brokers,
            text,
        );
    }
    for brokers in [
        "localhost",
        "127.0.0.1:1, [::1]:9092 ,kafka.example.com:65535",
        "PLAINTEXT://localhost:1",
        "[::1]",
    ] {
        let config = KafkaConfig {
            brokers: brokers.to_owned(),
            ..config()
        };
        KafkaSink::new(config).unwrap();
    }
}

#[test]
fn topics_are_named_as_kafka_has_it() {
    let text = "kafka topic: must be 1 to 249 characters of `A-Z a-z 0-9 _ . -`, and neither `.` nor `..`";
    let long = "t".repeat(250);
    for topic in ["", ".", "..", "a/b", "a b", "a\0", "\u{e4}", &long] {
        refused(
            KafkaConfig {
                topic: topic.to_owned(),
                ..config()
            },
            Kind::Topic,
            text,
        );
    }
    for topic in ["...", "a.b_c-D9", &long[1..]] {
        let config = KafkaConfig {
            topic: topic.to_owned(),
            ..config()
        };
        KafkaSink::new(config).unwrap();
    }
}

#[test]
fn times_and_sizes_have_bounds() {
    for attempt_timeout in [
        Duration::ZERO,
        Duration::from_millis(1_999),
        Duration::from_millis(3_600_001),
    ] {
        let config = KafkaConfig {
            attempt_timeout,
            ..config()
        };
        refused(
            config,
            Kind::AttemptTimeout,
            "kafka attempt_timeout: must be 2 s to an hour",
        );
    }
    for attempt_timeout in [Duration::from_secs(2), Duration::from_secs(3600)] {
        let config = KafkaConfig {
            attempt_timeout,
            ..config()
        };
        KafkaSink::new(config).unwrap();
    }
    for max_queued_messages in [0, 10_000_001] {
        let config = KafkaConfig {
            max_queued_messages,
            ..config()
        };
        refused(
            config,
            Kind::Queue,
            "kafka queue: max_queued_messages must be 1 to 10,000,000",
        );
    }
    for max_queued_bytes in [0, (1 << 20) - 1, 1 << 41, u64::MAX] {
        let config = KafkaConfig {
            max_queued_bytes,
            ..config()
        };
        refused(
            config,
            Kind::Queue,
            "kafka queue: max_queued_bytes must be 1 MiB to 2 TiB",
        );
    }
    for (max_queued_messages, max_queued_bytes) in [(1, 1 << 20), (10_000_000, (1 << 41) - 1)] {
        let config = KafkaConfig {
            max_queued_messages,
            max_queued_bytes,
            ..config()
        };
        KafkaSink::new(config).unwrap();
    }
}

#[test]
fn properties_on_which_the_promises_rest_are_refused() {
    for (name, value, why) in [
        ("bootstrap.servers", "other:9092", "is what the field `brokers` says"),
        ("metadata.broker.list", "other:9092", "is what the field `brokers` says"),
        (
            "enable.idempotence",
            "false",
            "is fixed: without it resends would make duplicates, or lose events",
        ),
        (
            "acks",
            "1",
            "is fixed: without it resends would make duplicates, or lose events",
        ),
        (
            "request.required.acks",
            "all",
            "is fixed: without it resends would make duplicates, or lose events",
        ),
        (
            "retries",
            "0",
            "is fixed: without it resends would make duplicates, or lose events",
        ),
        (
            "message.send.max.retries",
            "0",
            "is fixed: without it resends would make duplicates, or lose events",
        ),
        (
            "max.in.flight.requests.per.connection",
            "6",
            "is fixed: without it resends would make duplicates, or lose events",
        ),
        ("compression.codec", "none", "is fixed: lz4"),
        ("compression.type", "lz4", "is fixed: lz4"),
        ("message.timeout.ms", "300000", "follows from `attempt_timeout`"),
        ("delivery.timeout.ms", "300000", "follows from `attempt_timeout`"),
        ("socket.timeout.ms", "60000", "follows from `attempt_timeout`"),
        (
            "topic.metadata.propagation.max.ms",
            "30000",
            "follows from `attempt_timeout`",
        ),
        ("reconnect.backoff.max.ms", "10000", "is fixed: 500"),
        (
            "delivery.report.only.error",
            "true",
            "is fixed: every event has its report",
        ),
        ("transactional.id", "hunter2", "is not for this sink"),
    ] {
        let text = format!("kafka properties: `{name}` {why}");
        refused(with_properties(&[(name, value)]), Kind::Properties, &text);
    }
}

#[test]
fn properties_that_librdkafka_does_not_take_are_named_without_their_value() {
    refused(
        with_properties(&[("linger.ns", "hunter2")]),
        Kind::Properties,
        "kafka properties: `linger.ns` is no property of librdkafka",
    );
    refused(
        with_properties(&[("linger.ms", "hunter2")]),
        Kind::Properties,
        "kafka properties: `linger.ms` has a value that librdkafka does not take",
    );
    refused(
        with_properties(&[("client.id", "a\0hunter2")]),
        Kind::Properties,
        "kafka properties: `client.id` has a value that librdkafka does not take",
    );
    refused(
        with_properties(&[("client.id", "a"), ("client.id", "b")]),
        Kind::Properties,
        "kafka properties: `client.id` is given twice",
    );
    // Each alone would do.
    refused(
        with_properties(&[("client.id", "hunter2"), ("linger.ms", "10000")]),
        Kind::Client,
        "kafka client: librdkafka makes no producer of these properties: look at linger.ms",
    );
}

#[test]
#[cfg(feature = "kafka-tls")]
fn tls_and_sasl_settings_pass_through() {
    KafkaSink::new(with_properties(&[
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanisms", "SCRAM-SHA-512"),
        ("sasl.username", "idemp"),
        ("sasl.password", "hunter2"),
        ("enable.ssl.certificate.verification", "true"),
    ]))
    .unwrap();
    refused(
        with_properties(&[
            ("security.protocol", "ssl"),
            ("ssl.key.password", "hunter2"),
            ("ssl.ca.location", "/nonexistent/hunter2.pem"),
        ]),
        Kind::Client,
        "kafka client: librdkafka makes no producer of these properties: look at ssl.ca.location",
    );
}

#[test]
#[cfg(not(feature = "kafka-tls"))]
fn tls_settings_name_the_feature_that_they_need() {
    refused(
        with_properties(&[("ssl.ca.location", "/hunter2.pem")]),
        Kind::Properties,
        "kafka properties: `ssl.ca.location` has a value that this build's librdkafka does not take: TLS and SASL SCRAM \
         need the feature kafka-tls",
    );
}

#[test]
fn debug_shows_no_secret() {
    let config = with_properties(&[("client.id", "hunter2")]);
    let printed = format!("{config:?}");
    assert!(
        printed.contains("client.id") && !printed.contains("hunter2"),
        "{printed}"
    );
    assert!(printed.contains("127.0.0.1:9092"), "{printed}");
    let sink = KafkaSink::new(config).unwrap();
    assert_eq!(
        format!("{sink:?}"),
        r#"KafkaSink { brokers: "127.0.0.1:9092", topic: "events", .. }"#
    );
}

#[test]
fn the_defaults_are_as_the_docs_say() {
    let config = config();
    assert_eq!(config.attempt_timeout, Duration::from_secs(5));
    assert_eq!(config.max_queued_messages, 10_000);
    assert_eq!(config.max_queued_bytes, 67_108_864);
    assert_eq!(config.policy_violation, ErrorClass::PushBack);
    assert!(config.properties.is_empty());
}
