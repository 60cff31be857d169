//! Events as messages of an SNS topic.
//!
//! One delivery is one `Publish` request: the SDK's own retries, timeouts and stalled-stream protection are off, whatever
//! the environment says, and the attempt's deadline rules. The message is the body; `idempotency-key`, `event-type` and
//! `x-signature-256` are message attributes of type `String`. On a FIFO topic the message group is the run, and the
//! de-duplication id is the key, or the SHA-256 of the key in hex where the key is longer than the 128 characters that
//! SNS allows: SNS then drops copies that come within five minutes, and answers as if it had taken them.
//!
//! | what happened | outcome |
//! |---|---|
//! | SNS answers with a message id | delivered |
//! | SNS answers with an error code | failed with this code, classified by the table in docs/sinks/sns.md |
//! | connection refused | `connect`, not delivered |
//! | no answer by the end of the attempt | `timeout`, maybe delivered |
//! | anything else, an unknown code too | ambiguous, maybe delivered |
//!
//! Copies happen, so a receiver behind SNS has to de-duplicate by the attribute `idempotency-key` like any other; many
//! take SNS for notifications that may get lost, hence [`DEFAULT_MODE`].
//!
//! Credentials are found as every AWS tool finds them: environment, profile files, web identity, container, instance.
//! Single sign-on and `credential_process` are not among them. TLS is rustls with ring, with the authorities that the
//! system trusts.

mod classify;
mod config;
mod error;

use std::fmt;
use std::fmt::Write as _;

use async_trait::async_trait;
use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_sns::Client;
use aws_sdk_sns::config::{ProvideCredentials, Region, SharedHttpClient, StalledStreamProtectionConfig};
use aws_sdk_sns::types::MessageAttributeValue;
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use idemp_core::headers::lower::{IDEMPOTENCY_KEY, X_SIGNATURE_256};
use idemp_core::{Attempt, IdempotencyKey, Message, Mode, Outcome, Refusal, Signer, Sink};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

pub use config::SnsConfig;
pub use error::{SnsError, SnsErrorKind};

use config::Topic;

/// What a lane in front of an SNS topic promises unless it is told otherwise: one attempt, no retry, no dead letter, and
/// what is lost is counted.
pub const DEFAULT_MODE: Mode = Mode::AtMostOnce;

/// `event-type`, as X-Event-Type is called on SNS.
const EVENT_TYPE: &str = "event-type";

/// The data type of every attribute.
const STRING: &str = "String";

/// Longest de-duplication id, in characters.
const MAX_DEDUPLICATION_ID: usize = 128;

/// A topic, with its own client and its own secret.
pub struct SnsSink {
    client: Client,
    topic: Topic,
    signer: Signer,
    max_message_bytes: usize,
}

impl SnsSink {
    /// Sets up the client and looks for credentials, which may ask a file, a container or the instance. Nothing is sent to
    /// SNS yet.
    ///
    /// # Errors
    /// Names the field that is at fault, or says that there are no credentials.
    ///
    /// # Cancel safety
    /// Safe: nothing has happened.
    pub async fn new(config: SnsConfig) -> Result<Self, SnsError> {
        let topic = config.check()?;
        let region = config.region.clone().unwrap_or_else(|| topic.region.clone());
        let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .http_client(http_client())
            .region(Region::new(region));
        if let Some(url) = &config.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        let shared = loader.load().await;
        let Some(credentials) = shared.credentials_provider() else {
            return Err(SnsError::new(SnsErrorKind::Credentials, "none are configured"));
        };
        credentials.provide_credentials().await.map_err(|error| {
            let why =
                "none found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the machine a role";
            SnsError::new(SnsErrorKind::Credentials, why).with_source(error)
        })?;
        Ok(Self::with(aws_sdk_sns::config::Builder::from(&shared), topic, &config))
    }

    /// Uses the region, endpoint, credentials and HTTP client of a client that exists. Its retries, timeouts and
    /// stalled-stream protection do not count; neither do the configuration's `endpoint_url` and `region`.
    ///
    /// # Errors
    /// Names the field that is at fault.
    pub fn from_client(client: &Client, config: SnsConfig) -> Result<Self, SnsError> {
        let topic = config.check()?;
        Ok(Self::with(client.config().to_builder(), topic, &config))
    }

    fn with(client: aws_sdk_sns::config::Builder, topic: Topic, config: &SnsConfig) -> Self {
        // The schedule has one owner, and so has the attempt's time.
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(config.connect_timeout)
            .disable_read_timeout()
            .disable_operation_timeout()
            .disable_operation_attempt_timeout()
            .build();
        let client = client
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        Self {
            client: Client::from_conf(client.build()),
            topic,
            signer: Signer::new(&config.secret),
            max_message_bytes: config.max_message_bytes,
        }
    }

    /// Whether SNS would. It is no matter of [`Sink::check`], which would keep the event from every other sink too.
    fn would_take(&self, message: &Message) -> Result<(), Refusal> {
        // A signature is as long as any other.
        let signature = [b'0'; SIGNATURE_LEN];
        let signature = std::str::from_utf8(&signature).unwrap_or_default();
        fits(
            message.body(),
            &self.attributes(message, signature),
            self.max_message_bytes,
        )
    }

    fn attributes<'m>(&self, message: &'m Message, signature: &'m str) -> [(&'static str, &'m str); 3] {
        let key = message.key();
        [
            (IDEMPOTENCY_KEY, key.as_str()),
            (EVENT_TYPE, key.event_type()),
            (X_SIGNATURE_256, signature),
        ]
    }
}

#[async_trait]
impl Sink for SnsSink {
    async fn deliver(&self, message: &Message, attempt: Attempt) -> Outcome {
        let deadline = Instant::from_std(attempt.deadline);
        if deadline <= Instant::now() {
            return classify::not_sent("the attempt was over before it began").into();
        }
        if let Err(refusal) = self.would_take(message) {
            return classify::refused(&refusal).into();
        }
        let (key, body) = (message.key(), message.body());
        let Ok(text) = std::str::from_utf8(body) else {
            return classify::refused(&NOT_TEXT).into();
        };
        let signature = self.signer.header(body);
        let mut publish = self.client.publish().topic_arn(&self.topic.arn).message(text);
        for (name, value) in self.attributes(message, signature.as_str()) {
            let value = MessageAttributeValue::builder().data_type(STRING).string_value(value);
            match value.build() {
                Ok(value) => publish = publish.message_attributes(name, value),
                Err(error) => {
                    return classify::failure(&aws_sdk_sns::error::SdkError::construction_failure(error)).into();
                }
            }
        }
        if self.topic.is_fifo {
            publish = publish
                .message_group_id(key.run_id())
                .message_deduplication_id(deduplication_id(key));
        }
        match timeout_at(deadline, publish.send()).await {
            Ok(Ok(answer)) if answer.message_id().is_some() => Outcome::Delivered { status: None },
            Ok(Ok(_)) => classify::no_message_id().into(),
            Ok(Err(error)) => classify::failure(&error).into(),
            Err(_elapsed) => classify::out_of_time().into(),
        }
    }
}

impl fmt::Debug for SnsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnsSink")
            .field("topic_arn", &self.topic.arn)
            .finish_non_exhaustive()
    }
}

const EMPTY: Refusal = Refusal::new("SNS takes no empty message");
const TOO_LONG: Refusal = Refusal::new("message and attributes are longer than the topic takes");
const NOT_TEXT: Refusal = Refusal::new("SNS takes text only");

/// Length of `sha256=` and 64 hex digits.
const SIGNATURE_LEN: usize = 71;

/// Whether SNS would take a message of this size. It counts the message and each attribute's name, type and value.
fn fits(body: &[u8], attributes: &[(&str, &str)], max: usize) -> Result<(), Refusal> {
    let attributes = attributes
        .iter()
        .map(|(name, value)| name.len() + STRING.len() + value.len());
    if body.is_empty() {
        Err(EMPTY)
    } else if body.len() + attributes.sum::<usize>() > max {
        Err(TOO_LONG)
    } else {
        Ok(())
    }
}

/// The key, or its SHA-256 in hex where it is too long for SNS. Every character of a key is one that SNS allows.
fn deduplication_id(key: &IdempotencyKey) -> String {
    if key.as_str().len() <= MAX_DEDUPLICATION_ID {
        return key.as_str().to_owned();
    }
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(key.as_str()) {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

fn http_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(CryptoMode::Ring))
        // Below what servers allow, so that a request rarely meets a connection that the server is closing.
        .pool_idle_timeout(std::time::Duration::from_secs(4))
        .build_https()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_counted_as_sns_counts_it() {
        let attributes = [("idempotency-key", "r:t:1"), ("event-type", "t")];
        // 15 + 6 + 5 and 10 + 6 + 1
        let of_attributes = 43;
        let body = vec![b'x'; 100];
        assert_eq!(fits(&body, &attributes, 100 + of_attributes), Ok(()));
        assert_eq!(fits(&body, &attributes, 100 + of_attributes - 1), Err(TOO_LONG));
        assert_eq!(fits(b"", &attributes, 1_000), Err(EMPTY));
    }

    #[test]
    fn a_key_that_is_too_long_is_hashed() {
        let key = |step: &str| {
            let text = format!("{}:{}:{step}", "r".repeat(62), "t".repeat(62));
            IdempotencyKey::parse(&text).unwrap()
        };
        let longest = key("12");
        assert_eq!(longest.as_str().len(), 128);
        assert_eq!(deduplication_id(&longest), longest.as_str());
        // From CPython's hashlib.
        assert_eq!(deduplication_id(&key("123")), EXPECTED_HEX);
    }

    const EXPECTED_HEX: &str = "1a8d190244caf3ca3fc844efb0054b4aec0b76fc620a0395751f6225a821b02e";
}
