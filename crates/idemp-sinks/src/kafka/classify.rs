//! What librdkafka's and the broker's error codes mean (docs/sinks/kafka.md), as data.

use idemp_core::{Detail, ErrorClass, Failure, Outcome};
use rdkafka::error::RDKafkaErrorCode;

use super::report::{Persisted, Report};

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The event is in the log.
    Delivered,
    /// It is of this class.
    Is(ErrorClass),
    /// It covers both what never left the process and what may be in the log: librdkafka knows which of them, message
    /// by message.
    AsPersisted,
    /// It is of this class, and the producer will not get over it by itself.
    Broken(ErrorClass),
}

/// Every code that is known; any other may mean anything, so it is ambiguous.
#[rustfmt::skip]
const TABLE: &[(RDKafkaErrorCode, Meaning)] = {
    use ErrorClass::{Ambiguous, PushBack, RejectsConfiguration, RejectsEvent, Transient};
    use Meaning::{AsPersisted, Broken, Delivered, Is};
    use RDKafkaErrorCode as Code;
    &[
        (Code::NoError, Delivered),
        // The broker has seen its sequence number before.
        (Code::DuplicateSequenceNumber, Delivered),

        (Code::MessageSizeTooLarge, Is(RejectsEvent)),
        (Code::InvalidMessageSize, Is(RejectsEvent)),
        (Code::MessageBatchTooLarge, Is(RejectsEvent)),
        (Code::InvalidMessage, Is(RejectsEvent)),
        (Code::InvalidRecord, Is(RejectsEvent)),
        (Code::InvalidTimestamp, Is(RejectsEvent)),
        (Code::KeySerialization, Is(RejectsEvent)),
        (Code::ValueSerialization, Is(RejectsEvent)),
        (Code::InvalidArgument, Is(RejectsEvent)),

        (Code::UnknownTopic, Is(RejectsConfiguration)),
        (Code::UnknownPartition, Is(RejectsConfiguration)),
        (Code::UnknownTopicOrPartition, Is(RejectsConfiguration)),
        (Code::InvalidTopic, Is(RejectsConfiguration)),
        // The topic stays marked as failed inside the producer.
        (Code::TopicAuthorizationFailed, Broken(RejectsConfiguration)),
        (Code::ClusterAuthorizationFailed, Broken(RejectsConfiguration)),
        (Code::Authentication, Is(RejectsConfiguration)),
        (Code::SaslAuthenticationFailed, Is(RejectsConfiguration)),
        (Code::UnsupportedSASLMechanism, Is(RejectsConfiguration)),
        (Code::IllegalSASLState, Is(RejectsConfiguration)),
        (Code::SecurityDisabled, Is(RejectsConfiguration)),
        (Code::SSL, Is(RejectsConfiguration)),
        (Code::InvalidRequiredAcks, Is(RejectsConfiguration)),
        (Code::InvalidConfig, Is(RejectsConfiguration)),
        (Code::UnsupportedVersion, Is(RejectsConfiguration)),
        (Code::UnsupportedForMessageFormat, Is(RejectsConfiguration)),
        (Code::UnsupportedCompressionType, Is(RejectsConfiguration)),
        (Code::UnsupportedFeature, Is(RejectsConfiguration)),
        (Code::NotImplemented, Is(RejectsConfiguration)),

        (Code::LeaderNotAvailable, Is(Transient)),
        (Code::NotLeaderForPartition, Is(Transient)),
        (Code::BrokerNotAvailable, Is(Transient)),
        (Code::ReplicaNotAvailable, Is(Transient)),
        (Code::KafkaStorageError, Is(Transient)),
        (Code::NotEnoughReplicas, Is(Transient)),
        (Code::FencedLeaderEpoch, Is(Transient)),
        (Code::UnknownLeaderEpoch, Is(Transient)),
        (Code::CoordinatorLoadInProgress, Is(Transient)),
        (Code::CoordinatorNotAvailable, Is(Transient)),
        (Code::NotCoordinator, Is(Transient)),
        (Code::TimedOutQueue, Is(Transient)),
        (Code::AllBrokersDown, Is(Transient)),
        (Code::Resolve, Is(Transient)),
        (Code::DestroyBroker, Is(Transient)),
        (Code::Retry, Is(Transient)),
        (Code::PurgeQueue, Is(Transient)),
        // Another message of the request was refused.
        (Code::InvalidDifferentRecord, Is(Transient)),

        (Code::MessageTimedOut, AsPersisted),
        (Code::BrokerTransportFailure, AsPersisted),
        (Code::RequestTimedOut, Is(Ambiguous)),
        (Code::NetworkException, Is(Ambiguous)),
        (Code::OperationTimedOut, Is(Ambiguous)),
        (Code::NotEnoughReplicasAfterAppend, Is(Ambiguous)),
        (Code::PurgeInflight, Is(Ambiguous)),

        (Code::QueueFull, Is(PushBack)),
        (Code::ThrottlingQuotaExceeded, Is(PushBack)),
        (Code::PolicyViolation, Is(PushBack)),

        (Code::Fatal, Broken(Ambiguous)),
        (Code::OutOfOrderSequenceNumber, Broken(Ambiguous)),
        (Code::UnknownProducerId, Broken(Ambiguous)),
        (Code::InvalidProducerEpoch, Broken(Ambiguous)),
        (Code::InvalidProducerIdMapping, Broken(Ambiguous)),
        (Code::ProducerFenced, Broken(Ambiguous)),
        (Code::Fenced, Broken(Ambiguous)),
        (Code::GaplessGuarantee, Broken(Ambiguous)),
    ]
};

/// What a code means.
pub(super) fn meaning(code: RDKafkaErrorCode) -> Meaning {
    let row = TABLE.iter().find(|(known, _)| *known == code);
    row.map_or(Meaning::Is(ErrorClass::Ambiguous), |(_, meaning)| *meaning)
}

/// Whether the producer is of no more use after this code.
pub(super) fn breaks_producer(code: RDKafkaErrorCode) -> bool {
    matches!(meaning(code), Meaning::Broken(_))
}

/// Whether it may have come of a producer that broke: then all that lies in its queue is purged.
pub(super) fn may_have_a_cause(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{PurgeInflight, PurgeQueue};
    breaks_producer(code) || matches!(code, PurgeQueue | PurgeInflight)
}

/// Whether the message may have been refused for the sake of another one in its request.
pub(super) fn may_be_anothers_fault(report: &Report) -> bool {
    let is_refused = matches!(meaning(report.code), Meaning::Is(ErrorClass::RejectsEvent));
    (is_refused || report.code == RDKafkaErrorCode::InvalidDifferentRecord) && report.persisted == Persisted::No
}

/// What the delivery report of a message says. `cause` is what broke the producer, if it is broken, and
/// `policy_violation` the class of that code.
pub(super) fn reported(report: &Report, cause: Option<RDKafkaErrorCode>, policy_violation: ErrorClass) -> Outcome {
    let (code, persisted) = (report.code, report.persisted);
    let class = match meaning(code) {
        _ if persisted == Persisted::Surely => return DELIVERED,
        Meaning::Delivered => return DELIVERED,
        Meaning::Is(_) if code == RDKafkaErrorCode::PolicyViolation => policy_violation,
        Meaning::AsPersisted if persisted == Persisted::No => ErrorClass::Transient,
        Meaning::AsPersisted => ErrorClass::Ambiguous,
        Meaning::Is(class) | Meaning::Broken(class) => class,
    };
    // An earlier send within the attempt may have been written, whatever became of the last one.
    let class = match class {
        ErrorClass::Transient | ErrorClass::PushBack if persisted == Persisted::Perhaps => ErrorClass::Ambiguous,
        class => class,
    };
    let (class, code) = match cause {
        // A producer that is not let in has sent nothing of this message.
        Some(cause) if persisted == Persisted::No && rejects_configuration(cause) => {
            (ErrorClass::RejectsConfiguration, cause)
        }
        Some(cause) if code == RDKafkaErrorCode::Fatal => (class, cause),
        _ => (class, code),
    };
    let mut failure = failure(class, code, report.trouble);
    failure.maybe_delivered |= persisted == Persisted::Perhaps;
    failure.into()
}

fn rejects_configuration(code: RDKafkaErrorCode) -> bool {
    let (Meaning::Is(class) | Meaning::Broken(class)) = meaning(code) else {
        return false;
    };
    class == ErrorClass::RejectsConfiguration
}

/// What it means that a message was not taken into the queue: whatever the code, it did not arrive.
pub(super) fn not_queued(code: RDKafkaErrorCode, trouble: Option<RDKafkaErrorCode>) -> Failure {
    let class = match meaning(code) {
        Meaning::Is(ErrorClass::Ambiguous) | Meaning::Broken(ErrorClass::Ambiguous) => ErrorClass::Transient,
        Meaning::Is(class) | Meaning::Broken(class) => class,
        Meaning::AsPersisted | Meaning::Delivered => ErrorClass::Transient,
    };
    failure(class, code, trouble)
}

const DELIVERED: Outcome = Outcome::Delivered { status: None };

fn failure(class: ErrorClass, code: RDKafkaErrorCode, trouble: Option<RDKafkaErrorCode>) -> Failure {
    let detail = match trouble.filter(|trouble| *trouble != code) {
        // Librdkafka's descriptions are fixed texts.
        Some(trouble) => format!("{code}; the client's last trouble: {trouble}"),
        None => code.to_string(),
    };
    Failure::code(class, &format!("{code:?}")).with_detail(Detail::new(&detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use RDKafkaErrorCode as Code;

    /// The table of docs/sinks/kafka.md, whose last column names the codes of each row.
    const DOCS: &str = include_str!("../../../../docs/sinks/kafka.md");

    fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
        let lines = DOCS.lines().skip_while(|line| *line != "## What the codes mean");
        let cells = lines.filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
        let rows = cells.filter(|(class, _)| !matches!(*class, "class" | "---"));
        rows.map(|(class, codes)| (class, codes.split(", ").collect()))
            .collect()
    }

    fn words(meaning: Meaning) -> &'static str {
        match meaning {
            Meaning::Delivered => "delivered",
            Meaning::Is(class) => class.code(),
            Meaning::AsPersisted => "transient or ambiguous",
            Meaning::Broken(ErrorClass::Ambiguous) => "ambiguous, new producer",
            Meaning::Broken(ErrorClass::RejectsConfiguration) => "rejects_configuration, new producer",
            Meaning::Broken(class) => panic!("no row for a broken producer and {class:?}"),
        }
    }

    #[test]
    fn every_code_means_what_the_docs_say() {
        let rows = rows();
        assert_eq!(rows.len(), 9, "{rows:?}");
        let mut in_docs = 0;
        for (class, codes) in rows {
            for name in codes {
                let name = name.trim_matches('`');
                let row = TABLE.iter().find(|(code, _)| format!("{code:?}") == name);
                let (_, meaning) = row.unwrap_or_else(|| panic!("{name} is not in the table"));
                assert_eq!(words(*meaning), class, "{name}");
                in_docs += 1;
            }
        }
        assert_eq!(in_docs, TABLE.len(), "a code is not in the docs");
    }

    #[test]
    fn no_code_stands_in_the_table_twice() {
        for (index, (code, _)) in TABLE.iter().enumerate() {
            assert!(TABLE[..index].iter().all(|(other, _)| other != code), "{code:?}");
        }
    }

    #[test]
    fn a_code_that_is_not_known_is_ambiguous() {
        for code in [
            Code::Fail,
            Code::Unknown,
            Code::BadMessage,
            Code::UnknownTopicId,
            Code::RebalanceInProgress,
        ] {
            assert_eq!(meaning(code), Meaning::Is(ErrorClass::Ambiguous), "{code:?}");
        }
    }

    fn report(code: Code, persisted: Persisted) -> Report {
        Report {
            code,
            persisted,
            trouble: None,
        }
    }

    /// Class and code, or `None` if it counts as delivered.
    fn settled(report: &Report, cause: Option<Code>) -> Option<(ErrorClass, String)> {
        match reported(report, cause, ErrorClass::PushBack) {
            Outcome::Delivered { status } => {
                assert_eq!(status, None);
                None
            }
            Outcome::Failed(failure) => match failure.cause {
                idemp_core::Cause::Code { class, code } => {
                    assert_eq!(failure.maybe_delivered, class == ErrorClass::Ambiguous);
                    Some((class, code.to_string()))
                }
                cause => panic!("{cause:?}"),
            },
        }
    }

    #[test]
    fn a_timeout_is_what_librdkafka_knows_of_the_message() {
        for code in [Code::MessageTimedOut, Code::BrokerTransportFailure] {
            for (persisted, class) in [
                (Persisted::No, ErrorClass::Transient),
                (Persisted::Perhaps, ErrorClass::Ambiguous),
            ] {
                assert_eq!(
                    settled(&report(code, persisted), None),
                    Some((class, format!("{code:?}")))
                );
            }
        }
        // librdkafka calls every failure "not persisted" that it does not know better.
        let unknown = report(Code::Unknown, Persisted::No);
        assert_eq!(settled(&unknown, None), Some((ErrorClass::Ambiguous, "Unknown".into())));
    }

    #[test]
    fn what_is_surely_in_the_log_is_delivered_whatever_the_code() {
        for code in [
            Code::NoError,
            Code::DuplicateSequenceNumber,
            Code::MessageTimedOut,
            Code::Fatal,
        ] {
            assert_eq!(settled(&report(code, Persisted::Surely), None), None, "{code:?}");
        }
    }

    #[test]
    fn what_was_on_its_way_once_may_have_arrived_whatever_the_code() {
        // librdkafka resends within an attempt, and a message that may be in the log stays so for it: the code is the
        // last send's, or that of a purge of what waits to be sent again.
        for (code, class) in [
            (Code::PurgeQueue, ErrorClass::Ambiguous),
            (Code::NotLeaderForPartition, ErrorClass::Ambiguous),
            (Code::ThrottlingQuotaExceeded, ErrorClass::Ambiguous),
            (Code::PolicyViolation, ErrorClass::Ambiguous),
            (Code::TopicAuthorizationFailed, ErrorClass::RejectsConfiguration),
            (Code::UnknownTopicOrPartition, ErrorClass::RejectsConfiguration),
            (Code::MessageSizeTooLarge, ErrorClass::RejectsEvent),
            (Code::Unknown, ErrorClass::Ambiguous),
        ] {
            let Outcome::Failed(failure) = reported(&report(code, Persisted::Perhaps), None, ErrorClass::PushBack)
            else {
                panic!("{code:?}: delivered")
            };
            let idemp_core::Cause::Code { class: found, .. } = failure.cause else {
                panic!("{code:?}: {failure:?}")
            };
            assert_eq!((found, failure.maybe_delivered), (class, true), "{code:?}");
        }
    }

    #[test]
    fn a_policy_violation_means_what_the_configuration_says() {
        for class in ErrorClass::ALL {
            let outcome = reported(&report(Code::PolicyViolation, Persisted::No), None, class);
            assert_eq!(outcome, failure(class, Code::PolicyViolation, None).into());
        }
    }

    #[test]
    fn a_fatal_error_tells_its_cause() {
        let denied = Some(Code::ClusterAuthorizationFailed);
        for code in [Code::Fatal, Code::PurgeQueue] {
            assert_eq!(
                settled(&report(code, Persisted::No), denied),
                Some((ErrorClass::RejectsConfiguration, "ClusterAuthorizationFailed".into()))
            );
        }
        assert_eq!(
            settled(
                &report(Code::PurgeQueue, Persisted::No),
                Some(Code::OutOfOrderSequenceNumber)
            ),
            Some((ErrorClass::Transient, "PurgeQueue".into()))
        );
        for persisted in [Persisted::No, Persisted::Perhaps] {
            let gap = Some(Code::OutOfOrderSequenceNumber);
            assert_eq!(
                settled(&report(Code::Fatal, persisted), gap),
                Some((ErrorClass::Ambiguous, "OutOfOrderSequenceNumber".into()))
            );
            assert_eq!(
                settled(&report(Code::Fatal, persisted), None),
                Some((ErrorClass::Ambiguous, "Fatal".into()))
            );
        }
        assert_eq!(
            settled(&report(Code::Fatal, Persisted::Perhaps), denied),
            Some((ErrorClass::Ambiguous, "ClusterAuthorizationFailed".into()))
        );
    }

    #[test]
    fn what_was_not_queued_did_not_arrive() {
        for (code, _) in TABLE {
            assert!(!not_queued(*code, None).maybe_delivered, "{code:?}");
        }
        let class = |code| match not_queued(code, None).cause {
            idemp_core::Cause::Code { class, .. } => class,
            cause => panic!("{cause:?}"),
        };
        assert_eq!(class(Code::QueueFull), ErrorClass::PushBack);
        assert_eq!(class(Code::MessageSizeTooLarge), ErrorClass::RejectsEvent);
        assert_eq!(class(Code::UnknownTopic), ErrorClass::RejectsConfiguration);
        assert_eq!(class(Code::Fatal), ErrorClass::Transient);
        assert_eq!(class(Code::Unknown), ErrorClass::Transient);
    }

    #[test]
    fn the_detail_tells_the_clients_last_trouble() {
        let report = Report {
            trouble: Some(Code::SSL),
            ..report(Code::MessageTimedOut, Persisted::No)
        };
        let Outcome::Failed(failure) = reported(&report, None, ErrorClass::PushBack) else {
            panic!("delivered")
        };
        let detail = failure.detail.as_str();
        assert!(
            detail.starts_with("MessageTimedOut (Local: Message timed out)"),
            "{detail}"
        );
        assert!(detail.contains("SSL (Local: SSL error)"), "{detail}");
    }
}
