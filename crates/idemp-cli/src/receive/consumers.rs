//! `--kafka` and `--redis-stream`: events that come over a broker, beside those over HTTP or alone.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use idemp_receiver::{Event, HandlerError, Receiver};
use tokio_util::sync::CancellationToken;

use crate::address::Address;
use crate::exit::Failure;

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("broker").args(["kafka", "redis_stream"]).multiple(true)))]
pub(super) struct ConsumerArgs {
    /// Consume from these brokers: HOST:PORT,... with librdkafka's settings as ?NAME=VALUE&...
    #[arg(long, value_name = "BROKERS", requires = "topic")]
    kafka: Option<String>,

    /// The topic; may be repeated
    #[arg(long, value_name = "T", requires = "kafka")]
    topic: Vec<String>,

    /// Consume from this stream: `redis://[USER@]HOST:PORT/DB?stream=NAME`
    #[arg(long, value_name = "URL")]
    redis_stream: Option<String>,

    /// The consumer group
    #[arg(long, value_name = "NAME", default_value = "idemp", requires = "broker")]
    group: String,

    /// Whether messages of a broker must be signed
    #[arg(long, value_name = "WHICH", default_value = "required", requires = "broker")]
    signature: Signature,

    /// Where messages go that cannot be taken
    #[arg(
        long,
        value_name = "FILE",
        default_value = "idemp-quarantine.jsonl",
        requires = "broker"
    )]
    quarantine: PathBuf,

    /// Multiplies the waits before a handler is run again, for tests
    #[arg(long, value_name = "F", default_value_t = 1.0, hide = true)]
    retry_scale: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Signature {
    /// A message without a signature is put into quarantine
    Required,
    /// A message without a signature is trusted, one with a wrong signature is not
    Optional,
}

/// Runs until the token is cancelled.
pub(super) type Consumer = BoxFuture<'static, Result<(), Failure>>;

/// What is done with an event.
pub(super) trait Handler:
    Fn(Event) -> BoxFuture<'static, Result<(), HandlerError>> + Clone + Send + Sync + 'static
{
}

impl<H: Fn(Event) -> BoxFuture<'static, Result<(), HandlerError>> + Clone + Send + Sync + 'static> Handler for H {}

impl ConsumerArgs {
    /// Sets up the consumers that are asked for.
    ///
    /// # Errors
    /// If something about one is wrong, or its broker does not answer. One that goes away later is waited for.
    pub(super) async fn consumers(
        &self,
        receiver: &Receiver,
        handler: &impl Handler,
        stop: &CancellationToken,
    ) -> Result<Vec<Consumer>, Failure> {
        let mut consumers = Vec::new();
        if let Some(brokers) = &self.kafka {
            let address = Address::parse(&format!("kafka://{brokers}"));
            let address = address.map_err(|why| Failure::usage(format_args!("--kafka: {why}")))?;
            let consumer = self.kafka(address, receiver, handler, stop).await;
            consumers.push(consumer.map_err(|failure| failure.within("--kafka"))?);
        }
        if let Some(url) = &self.redis_stream {
            let address = Address::parse(url);
            let address = address.map_err(|why| Failure::usage(format_args!("--redis-stream: {why}")))?;
            if !matches!(address.scheme.as_str(), "redis" | "rediss") {
                return Err(Failure::usage(
                    "--redis-stream: it must begin with redis:// or rediss://",
                ));
            }
            let consumer = self.redis_stream(address, receiver, handler, stop).await;
            consumers.push(consumer.map_err(|failure| failure.within("--redis-stream"))?);
        }
        Ok(consumers)
    }

    #[cfg(any(feature = "kafka", feature = "redis"))]
    fn how(&self) -> Result<idemp_receiver::consume::ConsumeConfig, Failure> {
        use idemp_receiver::consume::{ConsumeConfig, Signatures};

        let defaults = ConsumeConfig::default();
        let scaled =
            |wait: &std::time::Duration| std::time::Duration::try_from_secs_f64(wait.as_secs_f64() * self.retry_scale);
        let retries: Result<Vec<_>, _> = defaults.retries.iter().map(scaled).collect();
        Ok(ConsumeConfig {
            signatures: match self.signature {
                Signature::Required => Signatures::Required,
                Signature::Optional => Signatures::Optional,
            },
            retries: retries.map_err(|error| Failure::usage("--retry-scale").because(&error))?,
            ..defaults
        })
    }

    #[cfg(feature = "kafka")]
    async fn kafka(
        &self,
        mut address: Address,
        receiver: &Receiver,
        handler: &impl Handler,
        stop: &CancellationToken,
    ) -> Result<Consumer, Failure> {
        use idemp_receiver::consume::{KafkaConsumer, KafkaConsumerConfig};

        use super::quarantine::Quarantine;

        let properties = address.options.take_all()?;
        let config = KafkaConsumerConfig {
            topics: self.topic.clone(),
            properties: properties
                .iter()
                .map(|(name, value)| (name.clone(), value.to_string()))
                .collect(),
            ..KafkaConsumerConfig::new(address.place.as_str(), self.group.as_str(), "")
        };
        let consumer = KafkaConsumer::new(receiver, self.how()?, config)
            .map_err(|error| Failure::usage("configuration").because(&error))?;
        let quarantine = Quarantine::open(&self.quarantine)?;
        let checked = consumer.check().await;
        checked.map_err(|error| unreachable(&address, &error))?;
        let (handler, stop) = (handler.clone(), stop.clone());
        Ok(Box::pin(async move {
            let ended = consumer.run(handler, quarantine.into_fn(), &stop).await;
            ended.map_err(|error| Failure::failed("the Kafka consumer ended").because(&error))
        }))
    }

    #[cfg(not(feature = "kafka"))]
    async fn kafka(
        &self,
        _address: Address,
        _receiver: &Receiver,
        _handler: &impl Handler,
        _stop: &CancellationToken,
    ) -> Result<Consumer, Failure> {
        Err(Failure::not_built("Kafka", "kafka"))
    }

    #[cfg(feature = "redis")]
    async fn redis_stream(
        &self,
        address: Address,
        receiver: &Receiver,
        handler: &impl Handler,
        stop: &CancellationToken,
    ) -> Result<Consumer, Failure> {
        use idemp_receiver::consume::{RedisStreamsConsumer, RedisStreamsConsumerConfig};

        use super::quarantine::Quarantine;
        use crate::redis_address::RedisAddress;

        let place = address.clone();
        let mut address = RedisAddress::take(address)?;
        if address.cluster {
            return Err(Failure::usage("cluster: name the node that has the stream"));
        }
        let stream = address.stream()?;
        let config = RedisStreamsConsumerConfig {
            username: address.login.username.take(),
            password: address.login.password.take().map(|password| password.to_string()),
            root_certificates: address.root_certificates()?,
            ..RedisStreamsConsumerConfig::new(address.url.as_str(), stream, self.group.as_str())
        };
        address.options.finish()?;
        let consumer = RedisStreamsConsumer::new(receiver, self.how()?, config)
            .map_err(|error| Failure::usage("configuration").because(&error))?;
        let quarantine = Quarantine::open(&self.quarantine)?;
        let checked = consumer.check().await;
        checked.map_err(|error| unreachable(&place, &error))?;
        let (handler, stop) = (handler.clone(), stop.clone());
        Ok(Box::pin(async move {
            let ended = consumer.run(handler, quarantine.into_fn(), &stop).await;
            ended.map_err(|error| Failure::failed("the Redis Streams consumer ended").because(&error))
        }))
    }

    #[cfg(not(feature = "redis"))]
    async fn redis_stream(
        &self,
        _address: Address,
        _receiver: &Receiver,
        _handler: &impl Handler,
        _stop: &CancellationToken,
    ) -> Result<Consumer, Failure> {
        Err(Failure::not_built("Redis", "redis"))
    }
}

#[cfg(any(feature = "kafka", feature = "redis"))]
fn unreachable(address: &Address, error: &dyn std::error::Error) -> Failure {
    Failure::usage(format_args!("cannot consume from {}", address.shown())).because(error)
}
