//! A bucket, letters by their numbers, and replays to a webhook.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use idemp_core::{IdempotencyKey, Message, Reason, Secret, SinkName};
use idemp_dlq::{
    DeadLetter, DeadLetterStore, EntryId, Filter, ObjectStoreDlq, ReplayOptions, ReplaySummary, Replayer, S3Config,
    Target,
};
use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};
use idemp_testkit::peer::Peer;
use idemp_tests::{AwsServer, aws_script, json_of};
use serde_json::Value;

/// Only a guard against hanging for ever.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);
pub(crate) const BUCKET: &str = "dead-letters";
pub(crate) const CHILD_STORE: &str = "IDEMP_TEST_REPLAY_FROM";

/// A server with a bucket.
pub(crate) struct Place {
    pub(crate) server: AwsServer,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self {
            server: AwsServer::start("IDEMP_E2E_S3"),
        };
        place.script("make", "", &[]);
        place
    }

    pub(crate) async fn store(&self, prefix: &str) -> ObjectStoreDlq {
        ObjectStoreDlq::s3(config(&self.server.url(), prefix)).await.unwrap()
    }

    /// How many objects lie where, as somebody else sees it.
    pub(crate) fn count(&self, prefix: &str) -> Value {
        self.script("count", prefix, &[])
    }

    pub(crate) fn script(&self, command: &str, prefix: &str, options: &[&str]) -> Value {
        let mut script = aws_script("s3_bucket.py");
        script.args([
            command,
            "--endpoint",
            &self.server.url(),
            "--bucket",
            BUCKET,
            "--prefix",
            prefix,
        ]);
        json_of(script.args(options))
    }
}

pub(crate) fn config(url: &str, prefix: &str) -> S3Config {
    S3Config {
        prefix: prefix.to_owned(),
        endpoint: Some(url.to_owned()),
        allow_http: true,
        ..S3Config::new(BUCKET)
    }
}

/// 2026-11-30T00:00:00Z and so many seconds.
pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_996_800 + seconds)
}

/// Letters of ten runs, two sinks, two event types and two reasons.
pub(crate) fn letter(number: u64) -> DeadLetter {
    let sink = if number.is_multiple_of(3) { "one" } else { "two" };
    let sink = if number < 30 { "one" } else { sink };
    let event = if number.is_multiple_of(2) {
        "tool_end"
    } else {
        "chain_end"
    };
    let reason = if number.is_multiple_of(4) {
        Reason::EventRejected
    } else {
        Reason::RetriesExhausted
    };
    let key = format!("run-{}:{event}:{}", number % 10, number + 1);
    DeadLetter {
        sink: SinkName::parse(sink).unwrap(),
        message: Message::new(IdempotencyKey::parse(&key).unwrap(), &number).unwrap(),
        reason,
        class: reason.class(),
        maybe_delivered: false,
        attempts: Vec::new(),
        accepted_at: at(0),
        dead_at: at(number),
        not_before: None,
        replay_count: 0,
    }
}

pub(crate) async fn ids(store: &dyn DeadLetterStore) -> Vec<EntryId> {
    let mut selection = store.select(&Filter::default()).await.unwrap();
    let mut ids = Vec::new();
    while let Some(page) = selection.next_page().await.unwrap() {
        ids.extend(page.into_iter().map(|listed| listed.id));
    }
    ids
}

pub(crate) async fn replay(store: &dyn DeadLetterStore, receiver: &Peer) -> ReplaySummary {
    replay_to(store, receiver.url("/"), false).await
}

/// Replays everything as fast as it goes, in real time, with leases that a killed replay leaves for 8 s.
pub(crate) async fn replay_to(store: &dyn DeadLetterStore, url: String, force: bool) -> ReplaySummary {
    let sink = WebhookSink::new(WebhookConfig {
        proxy: WebhookProxy::None,
        ..WebhookConfig::new(url, Secret::new("of the test").unwrap())
    });
    let sink = Arc::new(sink.unwrap());
    let replayer = Replayer::new(ReplayOptions {
        rate_per_second: 10_000.0,
        lease: Duration::from_secs(8),
        force,
        ..ReplayOptions::default()
    });
    let target = move |_: &SinkName| {
        Some(Target {
            sink: Arc::clone(&sink) as _,
            policy: Default::default(),
        })
    };
    let replayer = replayer.unwrap();
    replayer
        .run(store, &Filter::default(), &target, &mut |_| (), &Default::default())
        .await
        .unwrap()
}
