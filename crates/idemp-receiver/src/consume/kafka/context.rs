//! What librdkafka tells along the way.

use std::sync::Arc;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::TopicPartitionList;

use super::table::Table;
use crate::consume::flow::Flow;
use crate::consume::meters::Operation;

pub(super) struct Context {
    pub(super) table: Arc<Table>,
    pub(super) flow: Flow,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
                tracing::warn!(target: "librdkafka", facility, "{text}");
            }
            RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice => {
                tracing::info!(target: "librdkafka", facility, "{text}");
            }
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{text}"),
        }
    }

    /// Information: librdkafka goes on by itself.
    fn error(&self, error: KafkaError, reason: &str) {
        self.flow.meters().error(Operation::Connect);
        tracing::warn!(target: "librdkafka", code = ?error.rdkafka_error_code(), "{reason}");
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Revoke(list) => {
                tracing::info!(partitions = list.count(), "partitions revoked");
                let rest = self.table.revoke(list);
                // Those that were lost are another's already. librdkafka sends the commit before it lets go of them;
                // its answer is told to nobody.
                if let Some(rest) = rest
                    && !consumer.assignment_lost()
                    && let Err(error) = consumer.commit(&rest, CommitMode::Async)
                {
                    self.refused(&error, &rest);
                }
            }
            Rebalance::Assign(list) => tracing::info!(partitions = list.count(), "partitions assigned"),
            Rebalance::Error(error) => {
                tracing::warn!(code = ?error.rdkafka_error_code(), "rebalancing failed");
            }
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // They may have been paused when they were ours before.
        if let Rebalance::Assign(list) = rebalance
            && list.count() > 0
            && let Err(error) = consumer.resume(list)
        {
            tracing::warn!(code = ?error.rdkafka_error_code(), "partitions are not resumed");
        }
    }
}

impl Context {
    pub(super) fn refused(&self, error: &KafkaError, offsets: &TopicPartitionList) {
        self.flow.meters().error(Operation::Acknowledge);
        tracing::warn!(code = ?error.rdkafka_error_code(), "a commit failed");
        self.table.unsent(offsets);
    }
}
