//! Which topic, and how, as plain data, and the checks of it.

use std::fmt;
use std::time::Duration;

use idemp_core::Secret;

use super::error::{SnsError, SnsErrorKind as Kind};

/// Which topic events go to, and how. Start from [`SnsConfig::new`] and change what differs.
#[derive(Clone)]
pub struct SnsConfig {
    /// The topic, `arn:PARTITION:sns:REGION:ACCOUNT:NAME`. A name that ends with `.fifo` makes it a FIFO topic.
    pub topic_arn: String,
    /// What bodies are signed with.
    pub secret: Secret,
    /// Where to send instead of AWS, `http` or `https`: an endpoint inside a VPC, or a server for tests. By default what
    /// `AWS_ENDPOINT_URL_SNS`, `AWS_ENDPOINT_URL` or the profile say, else AWS's own endpoint of the region.
    pub endpoint_url: Option<String>,
    /// The region that requests are signed for. By default the topic's.
    pub region: Option<String>,
    /// Longest message, in bytes of body and attributes together as SNS counts them: what is longer is refused before
    /// it is sent. 262,144 by default, which is what a topic takes unless its `MaximumMessageSize` says otherwise; from
    /// 1,024 to 1,048,576.
    pub max_message_bytes: usize,
    /// Longest time to resolve the name and connect, above zero. It should be less than an attempt's time. 3 s by
    /// default.
    pub connect_timeout: Duration,
}

impl SnsConfig {
    /// The defaults, for this topic and secret.
    #[must_use]
    pub fn new(topic_arn: impl Into<String>, secret: Secret) -> Self {
        Self {
            topic_arn: topic_arn.into(),
            secret,
            endpoint_url: None,
            region: None,
            max_message_bytes: 262_144,
            connect_timeout: Duration::from_secs(3),
        }
    }

    /// The topic, once everything else has been found sound.
    pub(super) fn check(&self) -> Result<Topic, SnsError> {
        let topic = Topic::parse(&self.topic_arn)?;
        if let Some(region) = &self.region
            && !is_region(region)
        {
            return Err(SnsError::new(Kind::Region, "is no name of a region"));
        }
        if let Some(url) = &self.endpoint_url {
            let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
            let host = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
            match host {
                None | Some("") => {
                    let why = "must begin with http:// or https://, and a host must follow";
                    return Err(SnsError::new(Kind::EndpointUrl, why));
                }
                Some(host) if host.contains('@') => {
                    return Err(SnsError::new(
                        Kind::EndpointUrl,
                        "must not hold a user name or password",
                    ));
                }
                Some(_) => {}
            }
        }
        if !(1_024..=1_048_576).contains(&self.max_message_bytes) {
            return Err(SnsError::new(Kind::MaxMessageBytes, "must be from 1,024 to 1,048,576"));
        }
        if self.connect_timeout.is_zero() {
            return Err(SnsError::new(Kind::ConnectTimeout, "must be above zero"));
        }
        Ok(topic)
    }
}

impl fmt::Debug for SnsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnsConfig")
            .field("topic_arn", &self.topic_arn)
            .field("region", &self.region)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// A topic's address, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    pub(super) arn: String,
    pub(super) region: String,
    pub(super) is_fifo: bool,
}

impl Topic {
    fn parse(arn: &str) -> Result<Self, SnsError> {
        let fault = |why| Err(SnsError::new(Kind::TopicArn, why));
        let parts: Vec<&str> = arn.split(':').collect();
        let ["arn", partition, "sns", region, account, name] = parts[..] else {
            return fault("must have the form arn:aws:sns:REGION:ACCOUNT:NAME");
        };
        if !is_region(region) || !is_region(partition) {
            return fault("names no region");
        }
        if account.is_empty() || !account.bytes().all(|byte| byte.is_ascii_digit()) {
            return fault("names no account");
        }
        let (base, is_fifo) = name.strip_suffix(".fifo").map_or((name, false), |base| (base, true));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if base.is_empty() || name.len() > 256 || !base.bytes().all(is_name) {
            return fault("names no topic");
        }
        Ok(Self {
            arn: arn.to_owned(),
            region: region.to_owned(),
            is_fifo,
        })
    }
}

/// Regions and partitions are words of a host name.
fn is_region(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(topic_arn: &str) -> SnsConfig {
        SnsConfig::new(topic_arn, Secret::new("s").unwrap())
    }

    #[test]
    fn a_topic_is_taken_apart() {
        let topic = config("arn:aws:sns:eu-west-1:123456789012:events").check().unwrap();
        assert_eq!((topic.region.as_str(), topic.is_fifo), ("eu-west-1", false));
        let topic = config("arn:aws-cn:sns:cn-north-1:123456789012:events.fifo")
            .check()
            .unwrap();
        assert_eq!((topic.region.as_str(), topic.is_fifo), ("cn-north-1", true));
    }

    #[test]
    fn what_is_no_topic_is_refused() {
        for arn in [
            "",
            "events",
            "arn:aws:sqs:eu-west-1:123456789012:events",
            "arn:aws:sns::123456789012:events",
            "arn:aws:sns:eu-west-1::events",
            "arn:aws:sns:eu-west-1:123456789012:",
            "arn:aws:sns:eu-west-1:123456789012:.fifo",
            "arn:aws:sns:eu-west-1:123456789012:a b",
            "arn:aws:sns:eu-west-1:123456789012:events:8c1d3f6a-0000-0000-0000-000000000000",
            "arn:aws:sns:evil.example/x:123456789012:events",
        ] {
            let error = config(arn).check().unwrap_err();
            assert_eq!(error.kind(), Kind::TopicArn, "{arn}");
        }
    }

    #[test]
    fn each_field_has_its_bounds() {
        let sound = || config("arn:aws:sns:eu-west-1:123456789012:events");
        for max_message_bytes in [0, 1_023, 1_048_577] {
            let config = SnsConfig {
                max_message_bytes,
                ..sound()
            };
            assert_eq!(config.check().unwrap_err().kind(), Kind::MaxMessageBytes);
        }
        for max_message_bytes in [1_024, 1_048_576] {
            let config = SnsConfig {
                max_message_bytes,
                ..sound()
            };
            assert!(config.check().is_ok());
        }
        for url in [
            "",
            "sns.example.com",
            "ftp://host",
            "http://",
            "http:///x",
            "http://u:p@host",
        ] {
            let config = SnsConfig {
                endpoint_url: Some(url.to_owned()),
                ..sound()
            };
            assert_eq!(config.check().unwrap_err().kind(), Kind::EndpointUrl, "{url}");
        }
        let config = SnsConfig {
            region: Some("eu west".to_owned()),
            ..sound()
        };
        assert_eq!(config.check().unwrap_err().kind(), Kind::Region);
        let config = SnsConfig {
            connect_timeout: Duration::ZERO,
            ..sound()
        };
        assert_eq!(config.check().unwrap_err().kind(), Kind::ConnectTimeout);
    }

    #[test]
    fn debug_shows_no_secret() {
        let config = SnsConfig::new("arn:aws:sns:eu-west-1:1:t", Secret::new("hush-hush").unwrap());
        assert!(!format!("{config:?}").contains("hush"));
    }
}
