//! Delivery reports: from librdkafka's callback to the attempt that waits for one.

use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::ClientContext;
use rdkafka::bindings::{rd_kafka_message_status, rd_kafka_msg_status_t};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::BorrowedMessage;
use rdkafka::producer::{DeliveryResult, ProducerContext};
use tokio::sync::oneshot;

/// What librdkafka says of one message at its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    /// `NoError` for what the brokers have.
    pub(super) code: RDKafkaErrorCode,
    pub(super) persisted: Persisted,
    /// The last trouble of the client as a whole, such as TLS that fails, if nothing has gone well since.
    pub(super) trouble: Option<RDKafkaErrorCode>,
}

/// Whether a message is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persisted {
    No,
    Perhaps,
    Surely,
}

/// What the producers of a sink, one after the other, share with its attempts.
#[derive(Default)]
pub(super) struct Shared {
    trouble: Mutex<Option<RDKafkaErrorCode>>,
}

impl Shared {
    /// The client's last trouble, if nothing has gone well since.
    pub(super) fn trouble(&self) -> Option<RDKafkaErrorCode> {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, trouble: Option<RDKafkaErrorCode>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

/// Hands every report to the attempt that waits for it.
pub(super) struct Reports(pub(super) Arc<Shared>);

impl ClientContext for Reports {
    /// Such an error settles no event: each of them has its own report. The text goes to the log by itself.
    fn error(&self, error: KafkaError, _reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.0.note(Some(code));
        }
    }

    fn stats_raw(&self, _statistics: &[u8]) {}
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<oneshot::Sender<Report>>;

    fn delivery(&self, result: &DeliveryResult<'_>, report_to: Self::DeliveryOpaque) {
        let (code, message) = match result {
            Ok(message) => (RDKafkaErrorCode::NoError, message),
            Err((error, message)) => (error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown), message),
        };
        if code == RDKafkaErrorCode::NoError {
            self.0.note(None);
        }
        let report = Report {
            code,
            persisted: persisted(message),
            trouble: self.0.trouble(),
        };
        // Nobody waits any more if the attempt ran out of time.
        let _ = report_to.send(report);
    }
}

#[expect(
    unsafe_code,
    reason = "only librdkafka knows whether the request was on its way, and rdkafka does not ask it"
)]
fn persisted(message: &BorrowedMessage<'_>) -> Persisted {
    // SAFETY: the pointer is to the message of a delivery report, which `message` keeps alive while it is borrowed; the
    // function reads one field of it.
    let status = unsafe { rd_kafka_message_status(message.ptr()) };
    match status {
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED => Persisted::No,
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_POSSIBLY_PERSISTED => Persisted::Perhaps,
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_PERSISTED => Persisted::Surely,
    }
}
