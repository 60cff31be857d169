//! A topic with a queue behind it, and the peer that reads it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use idemp_core::{Secret, SinkName};
use idemp_dlq::{DeadLetterStore, Filter, Letterhead};
use idemp_sinks::sns::{SnsConfig, SnsSink};
use idemp_tests::{AwsServer, aws_script, json_of, temp_dir};
use serde_json::{Value, json};

/// Only a guard against hanging for ever.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);
pub(crate) const SECRET_ENV: &str = "IDEMP_TEST_SECRET";
pub(crate) const SECRET: &str = "of the test";

/// Where tests run: a server of their own, or one from outside.
pub(crate) struct Place {
    pub(crate) server: AwsServer,
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            server: AwsServer::start("IDEMP_E2E_SNS"),
            dir: temp_dir(),
        }
    }

    pub(crate) fn topic(&self, name: &str) -> Topic {
        let mut command = aws_script("sns_topic.py");
        let made = json_of(command.args(["--endpoint", &self.server.url(), "--name", name]));
        Topic {
            arn: made["topic_arn"].as_str().unwrap().to_owned(),
            queue: made["queue_url"].as_str().unwrap().to_owned(),
        }
    }
}

/// A topic and the queue behind it.
pub(crate) struct Topic {
    arn: String,
    queue: String,
}

impl Topic {
    /// With the credentials of the environment.
    pub(crate) async fn sink(&self, endpoint: &str) -> Arc<SnsSink> {
        let config = SnsConfig {
            endpoint_url: Some(endpoint.to_owned()),
            ..SnsConfig::new(&self.arn, Secret::new(SECRET).unwrap())
        };
        Arc::new(SnsSink::new(config).await.unwrap())
    }

    /// What has come, by the peer's count, against what was to come; and how many runs came out of order, which only a
    /// FIFO topic and one event after the other rule out.
    pub(crate) fn received(&self, endpoint: &str, sent: &Path) -> (Value, u64) {
        let mut command = aws_script("sns_receiver.py");
        command.arg(sent).args(["--endpoint", endpoint, "--queue", &self.queue]);
        let mut counted = json_of(command.args(["--secret-env", SECRET_ENV]).env(SECRET_ENV, SECRET));
        let out_of_order = counted.as_object_mut().unwrap().remove("runs out of order").unwrap();
        (counted, out_of_order.as_u64().unwrap())
    }
}

pub(crate) fn counts(received: u64, missing: u64, twice: u64) -> Value {
    json!({
        "received": received, "missing": missing, "unknown": 0, "more than once": twice,
        "changed": 0, "bad signature": 0, "bad event type": 0,
    })
}

pub(crate) fn name() -> SinkName {
    SinkName::parse("sns").unwrap()
}

pub(crate) async fn heads(store: &dyn DeadLetterStore) -> Vec<Letterhead> {
    let mut selection = store.select(&Filter::default()).await.unwrap();
    let mut heads = Vec::new();
    while let Some(page) = selection.next_page().await.unwrap() {
        heads.extend(page.into_iter().map(|listed| listed.letterhead.unwrap()));
    }
    heads
}
