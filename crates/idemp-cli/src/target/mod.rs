//! Where a command sends to: `--to`, or the sinks of `idemp.toml`.

mod kafka;
mod redis;
mod sns;
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use idemp_core::{EventType, Mode, Secret, Sink, SinkName, StatusPolicy};

use crate::address::{Address, is_webhook};
use crate::config::{Config, ModeName, OnFullName, SinkTable};
use crate::exit::Failure;
use crate::secret::{self, SinkSecret};
use crate::shell::Line;
use crate::times;
use webhook::{Webhook, WebhookArgs};

const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// Where to: an http or https URL, kafka://BROKERS/TOPIC, redis://HOST:PORT/DB?stream=NAME, sns:ARN
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "config",
        required_unless_present = "config"
    )]
    to: Option<String>,

    #[command(flatten)]
    secret: SinkSecret,

    #[command(flatten)]
    webhook: WebhookArgs,

    /// What is promised (default: at-least-once; for sns: at-most-once)
    #[arg(long, value_name = "MODE", conflicts_with = "config")]
    mode: Option<ModeName>,

    /// Time for one attempt: connecting, sending and reading the answer (default: 5s)
    #[arg(long, value_name = "D", value_parser = times::duration, conflicts_with = "config")]
    timeout: Option<Duration>,
}

/// A sink that is ready, and how it is treated.
pub(crate) struct Target {
    pub(crate) name: SinkName,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) mode: Mode,
    pub(crate) policy: StatusPolicy,
    pub(crate) attempt_timeout: Duration,
    pub(crate) concurrency: Option<usize>,
    pub(crate) events: Option<Vec<EventType>>,
    pub(crate) on_full: OnFullName,
}

/// What one sink is made of.
struct Spec<'s> {
    address: Address,
    /// As it was given; a webhook's address goes to its sink untouched.
    to: &'s str,
    secret: Secret,
    webhook: Webhook,
    attempt_timeout: Duration,
}

impl TargetArgs {
    /// Whether `--to` is there.
    pub(crate) const fn is_given(&self) -> bool {
        self.to.is_some()
    }

    /// Adds it to a command that comes next. What may let somebody in, or be meant for few eyes, is left to fill in.
    pub(crate) fn say_again(&self, line: &mut Line) {
        let Some(to) = &self.to else { return };
        if Address::parse(to).is_ok_and(|address| address.is_for_every_eye()) {
            line.option("--to", to);
        } else {
            line.option_to_fill_in("--to", "URL");
        }
        self.secret.say_again(line);
        self.webhook.say_again(line);
        if let Some(timeout) = self.timeout {
            line.option("--timeout", &format!("{}ms", timeout.as_millis()));
        }
    }

    /// Sets up the sinks: that of `--to`, or those of the configuration. Nothing is sent yet.
    ///
    /// # Errors
    /// If something about one is wrong. The error names the sink, and holds neither secret nor URL nor header value.
    pub(crate) async fn open(&self, config: Option<&Config>) -> Result<Vec<Target>, Failure> {
        if let Some(config) = config {
            let mut targets = Vec::new();
            for (name, table) in &config.sinks {
                let name = &name.0;
                let opened = open_table(name, table).await;
                targets.push(opened.map_err(|failure| config.place(name, failure))?);
            }
            return match targets.is_empty() {
                true => Err(Failure::usage(format_args!("{}: no sink", config.path.display()))),
                false => Ok(targets),
            };
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(Failure::usage("--timeout: an attempt has no time"));
        }
        let to = self.to.as_deref().unwrap_or_default();
        let address = Address::parse(to).map_err(|why| Failure::usage(format_args!("--to: {why}")))?;
        let spec = Spec {
            to,
            secret: self.secret.load()?,
            webhook: Webhook::from_args(&self.webhook)?,
            attempt_timeout: self.timeout.unwrap_or(TIMEOUT),
            address,
        };
        let (kind, sink) = spec
            .open()
            .await
            .map_err(|failure| failure.within("cannot send to --to"))?;
        Ok(vec![Target {
            name: SinkName::parse(kind.name).map_err(|error| Failure::usage("sink name").because(&error))?,
            sink,
            mode: self.mode.map_or(kind.mode, Mode::from),
            policy: StatusPolicy::default(),
            attempt_timeout: self.timeout.unwrap_or(TIMEOUT),
            concurrency: None,
            events: None,
            on_full: OnFullName::Wait,
        }])
    }
}

async fn open_table(name: &SinkName, table: &SinkTable) -> Result<Target, Failure> {
    let mut address = Address::parse(&table.to).map_err(|why| Failure::usage(format_args!("to: {why}")))?;
    if is_webhook(&address.scheme) && !table.options.is_empty() {
        return Err(Failure::usage("options: a webhook has none"));
    }
    if !is_webhook(&address.scheme) && !table.status.is_empty() {
        return Err(Failure::usage("status: only a webhook answers with one"));
    }
    for (option, value) in &table.options {
        address.options.add(option, value.to_text()).map_err(Failure::usage)?;
    }
    let attempt_timeout = table.timeout.unwrap_or(TIMEOUT);
    if attempt_timeout.is_zero() {
        return Err(Failure::usage("timeout: an attempt has no time"));
    }
    if table.concurrency == Some(0) {
        return Err(Failure::usage("concurrency: it must be at least 1"));
    }
    let spec = Spec {
        address,
        to: &table.to,
        secret: secret::named(table.secret_env.as_deref(), table.secret_file.as_deref())?,
        webhook: Webhook::from_table(table)?,
        attempt_timeout,
    };
    let (kind, sink) = spec.open().await?;
    Ok(Target {
        name: name.clone(),
        sink,
        mode: table.mode.map_or(kind.mode, Mode::from),
        policy: table.policy()?,
        attempt_timeout,
        concurrency: table.concurrency,
        events: table.event_types()?,
        on_full: table.on_full,
    })
}

/// A kind of sink.
struct Kind {
    /// What the sink is called under `--to`.
    name: &'static str,
    /// What it promises unless told otherwise.
    mode: Mode,
}

impl Kind {
    const fn at_least_once(name: &'static str) -> Self {
        Self {
            name,
            mode: Mode::AtLeastOnce,
        }
    }
}

impl Spec<'_> {
    async fn open(self) -> Result<(Kind, Arc<dyn Sink>), Failure> {
        let scheme = self.address.scheme.as_str();
        if !is_webhook(scheme) {
            self.webhook.refuse()?;
        }
        match scheme {
            "http" | "https" => Ok((Kind::at_least_once("webhook"), webhook::open(self)?)),
            "kafka" => Ok((Kind::at_least_once("kafka"), kafka::open(self)?)),
            "redis" | "rediss" => Ok((Kind::at_least_once("redis-streams"), redis::open(self)?)),
            "sns" => {
                let (mode, sink) = sns::open(self).await?;
                Ok((Kind { name: "sns", mode }, sink))
            }
            _ => Err(Failure::usage(
                "unknown scheme: it is http, https, kafka, redis, rediss or sns",
            )),
        }
    }
}
