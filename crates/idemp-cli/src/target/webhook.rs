//! `https://...`: a webhook.

use std::path::PathBuf;
use std::sync::Arc;

use idemp_core::Sink;

use super::Spec;
use crate::config::SinkTable;
use crate::exit::Failure;
use crate::secret::text_from_env;
use crate::shell::Line;

/// What only a webhook has.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct WebhookArgs {
    /// Send the headers of Standard Webhooks as well; the secret must be base64, with or without whsec_
    #[arg(long, conflicts_with = "config")]
    standard_webhooks: bool,

    /// A further request header; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", conflicts_with = "config")]
    headers: Vec<String>,

    /// Certificates of authorities to trust besides the system's, in PEM
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    ca: Option<PathBuf>,

    /// The proxy to go over, without user name and password, or none (default: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and
    /// NO_PROXY decide)
    #[arg(long, value_name = "URL|none", conflicts_with = "config")]
    proxy: Option<String>,
}

impl WebhookArgs {
    /// Adds it to a command that comes next, without the values of headers.
    pub(super) fn say_again(&self, line: &mut Line) {
        if self.standard_webhooks {
            line.flag("--standard-webhooks");
        }
        for text in &self.headers {
            let name = text.split(':').next().unwrap_or_default().trim();
            line.option("--header", &format!("{name}: VALUE"));
        }
        if let Some(path) = &self.ca {
            line.option("--ca", &path.to_string_lossy());
        }
        if let Some(proxy) = &self.proxy {
            line.option("--proxy", proxy);
        }
    }
}

/// The same from the command line or from `idemp.toml`.
pub(super) struct Webhook {
    standard_webhooks: bool,
    headers: Vec<(String, String)>,
    ca: Option<PathBuf>,
    proxy: Option<String>,
}

impl Webhook {
    /// # Errors
    /// If a header has no colon, or the proxy a password. The error does not show it.
    pub(super) fn from_args(args: &WebhookArgs) -> Result<Self, Failure> {
        Ok(Self {
            standard_webhooks: args.standard_webhooks,
            headers: args.headers.iter().map(|line| header(line)).collect::<Result<_, _>>()?,
            ca: args.ca.clone(),
            proxy: match &args.proxy {
                Some(url) if has_login(url) => {
                    return Err(Failure::usage(
                        "--proxy: a user name or password in it is seen by all: give the URL in HTTPS_PROXY or \
                         HTTP_PROXY",
                    ));
                }
                proxy => proxy.clone(),
            },
        })
    }

    /// # Errors
    /// If the value of a header or the proxy is not to be had, or the proxy has a password in the open.
    pub(super) fn from_table(table: &SinkTable) -> Result<Self, Failure> {
        let plain = table
            .headers
            .iter()
            .map(|(name, value)| Ok((name.clone(), value.clone())));
        let secret = table.headers_env.iter().map(|(name, variable)| {
            let value = text_from_env("headers_env", variable)?;
            Ok((name.clone(), value.to_string()))
        });
        Ok(Self {
            standard_webhooks: table.standard_webhooks,
            headers: plain.chain(secret).collect::<Result<_, Failure>>()?,
            ca: table.ca.clone(),
            proxy: match (&table.proxy, &table.proxy_env) {
                (Some(_), Some(_)) => return Err(Failure::usage("proxy and proxy_env: give one of them")),
                (Some(url), None) if has_login(url) => {
                    return Err(Failure::usage(
                        "proxy: a user name or password in it would lie open: give proxy_env, with the name of the \
                         variable that holds the URL",
                    ));
                }
                (proxy, None) => proxy.clone(),
                (None, Some(variable)) => Some(text_from_env("proxy_env", variable)?.to_string()),
            },
        })
    }

    /// # Errors
    /// If any of it is set, for a sink that is no webhook.
    pub(super) fn refuse(&self) -> Result<(), Failure> {
        let set = [
            ("standard webhooks", self.standard_webhooks),
            ("a header", !self.headers.is_empty()),
            ("a CA file", self.ca.is_some()),
            ("a proxy", self.proxy.is_some()),
        ];
        match set.into_iter().find(|(_, is_set)| *is_set) {
            Some((what, _)) => Err(Failure::usage(format_args!("{what}: only a webhook has that"))),
            None => Ok(()),
        }
    }
}

#[cfg(feature = "webhook")]
pub(super) fn open(spec: Spec<'_>) -> Result<Arc<dyn Sink>, Failure> {
    use idemp_sinks::webhook::{WebhookConfig, WebhookProxy, WebhookSink};

    let root_certificates = match &spec.webhook.ca {
        None => Vec::new(),
        Some(path) => std::fs::read(path)
            .map_err(|error| Failure::usage(format_args!("ca: cannot read {}", path.display())).because(&error))?,
    };
    let defaults = WebhookConfig::new(spec.to, spec.secret);
    let config = WebhookConfig {
        standard_webhooks: spec.webhook.standard_webhooks,
        headers: spec.webhook.headers,
        // A receiver that cannot be reached must not show as a timeout, after which it may have been delivered.
        connect_timeout: defaults.connect_timeout.min(spec.attempt_timeout * 3 / 5),
        root_certificates,
        proxy: match spec.webhook.proxy.as_deref() {
            None => WebhookProxy::Environment,
            Some("none") => WebhookProxy::None,
            Some(url) => WebhookProxy::Url(url.to_owned()),
        },
        ..defaults
    };
    let sink = WebhookSink::new(config).map_err(|error| Failure::usage("webhook").because(&error))?;
    Ok(Arc::new(sink))
}

#[cfg(not(feature = "webhook"))]
pub(super) fn open(_spec: Spec<'_>) -> Result<Arc<dyn Sink>, Failure> {
    Err(Failure::not_built("a webhook", "webhook"))
}

/// Whether a URL has a user name or password (RFC 3986, section 3.2.1), or something that could be one.
fn has_login(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.contains('@')
}

/// Splits `Name: value`.
fn header(line: &str) -> Result<(String, String), Failure> {
    match line.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(Failure::usage("--header: no colon between name and value")),
    }
}
