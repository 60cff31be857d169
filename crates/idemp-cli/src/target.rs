//! `--to URL` and what goes with it: the receiver that a command sends to. The sink is called `webhook`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use idemp_core::{Sink, SinkName};

use crate::exit::Failure;
use crate::secret::SigningSecret;
use crate::times;

/// Logical name of the sink under `--to`, as it stands in dead letters.
const NAME: &str = "webhook";

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The receiver's address, http or https, without user name and password
    #[arg(long, value_name = "URL")]
    to: String,

    #[command(flatten)]
    secret: SigningSecret,

    /// Send the headers of Standard Webhooks as well; the secret must be base64, with or without whsec_
    #[arg(long)]
    standard_webhooks: bool,

    /// A further request header; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// Certificates of authorities to trust besides the system's, in PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// The proxy to go over, or none (default: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY decide)
    #[arg(long, value_name = "URL|none")]
    proxy: Option<String>,

    /// Time for one attempt: connecting, sending and reading the answer
    #[arg(long, value_name = "D", default_value = "5s", value_parser = times::duration)]
    timeout: Duration,
}

/// A sink that is ready, and how long an attempt may take.
pub(crate) struct TargetSink {
    pub(crate) name: SinkName,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) attempt_timeout: Duration,
}

impl TargetArgs {
    /// Sets the sink up. Nothing is connected yet.
    ///
    /// # Errors
    /// If something about it is wrong. The error holds neither secret nor URL nor header value.
    pub(crate) fn open(&self) -> Result<TargetSink, Failure> {
        let name = SinkName::parse(NAME).map_err(|error| Failure::usage("sink name").because(&error))?;
        Ok(TargetSink {
            name,
            sink: self.sink()?,
            attempt_timeout: self.timeout,
        })
    }

    #[cfg(feature = "webhook")]
    fn sink(&self) -> Result<Arc<dyn Sink>, Failure> {
        use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};

        if self.timeout.is_zero() {
            return Err(Failure::usage("--timeout: an attempt has no time"));
        }
        let secret = self.secret.load()?;
        let defaults = WebhookConfig::new(self.to.as_str(), secret);
        let config = WebhookConfig {
            standard_webhooks: self.standard_webhooks,
            headers: self.headers.iter().map(|line| header(line)).collect::<Result<_, _>>()?,
            // A receiver that cannot be reached must not show as a timeout, after which it may have been delivered.
            connect_timeout: defaults.connect_timeout.min(self.timeout * 3 / 5),
            root_certificates: self.root_certificates()?,
            proxy: match self.proxy.as_deref() {
                None => WebhookProxy::Environment,
                Some("none") => WebhookProxy::None,
                Some(url) => WebhookProxy::Url(url.to_owned()),
            },
            ..defaults
        };
        let sink = WebhookSink::new(config).map_err(|error| Failure::usage("cannot send to --to").because(&error))?;
        Ok(Arc::new(sink))
    }

    #[cfg(not(feature = "webhook"))]
    fn sink(&self) -> Result<Arc<dyn Sink>, Failure> {
        Err(Failure::usage(
            "this build cannot send: build idemp-cli with the feature webhook",
        ))
    }

    #[cfg(feature = "webhook")]
    fn root_certificates(&self) -> Result<Vec<u8>, Failure> {
        let Some(path) = &self.ca else { return Ok(Vec::new()) };
        std::fs::read(path)
            .map_err(|error| Failure::usage(format_args!("--ca: cannot read {}", path.display())).because(&error))
    }
}

/// Splits `Name: value`.
#[cfg(feature = "webhook")]
fn header(line: &str) -> Result<(String, String), Failure> {
    match line.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(Failure::usage("--header: no colon between name and value")),
    }
}
