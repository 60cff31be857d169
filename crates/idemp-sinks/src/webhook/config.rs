//! Where a webhook goes and how, as plain data, and the checks that turn it into parts of a client.

use std::fmt;
use std::time::Duration;

use idemp_core::{Secret, headers};
use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::error::{WebhookError, WebhookErrorKind as Kind};

/// Where a webhook goes, and how. Start from [`WebhookConfig::new`] and change what differs.
///
/// `Debug` shows no more of the URL than scheme, host and port, and neither secret nor header value nor proxy.
#[derive(Clone)]
pub struct WebhookConfig {
    /// The receiver's address, `http` or `https`, without user name and password.
    pub url: String,
    /// What bodies are signed with.
    pub secret: Secret,
    /// Whether the headers of Standard Webhooks are sent as well. The secret must then be base64, with or without
    /// `whsec_` in front, and keys must not have a `.` in them. Off by default.
    pub standard_webhooks: bool,
    /// Further request headers, by name and value, each name once. Names that this sink, the body or the connection
    /// give a meaning to are refused: see [`WebhookSink::new`](super::WebhookSink::new). None by default.
    pub headers: Vec<(String, String)>,
    /// Longest time to resolve the name, connect and shake hands, above zero. It should be less than an attempt's
    /// time, or a receiver that cannot be reached shows as a timeout, after which the event counts as maybe
    /// delivered. 3 s by default.
    pub connect_timeout: Duration,
    /// Connections kept open while nothing uses them. 100 by default. How many are open in all is no matter of the
    /// client: over HTTP/1.1 each attempt in flight has one, so the concurrency of the lane bounds them, and over
    /// HTTP/2 they share one.
    pub max_idle_connections: usize,
    /// How long an unused connection is kept. 4 s by default, below what common servers allow, so that a request
    /// rarely meets a connection that the server is closing.
    pub idle_timeout: Duration,
    /// Certificates of authorities to trust besides those that the system trusts, as PEM, any number of them. None
    /// by default. Where `SSL_CERT_FILE` or `SSL_CERT_DIR` are set, they stand for the system's.
    pub root_certificates: Vec<u8>,
    /// Whether the way leads over a proxy. What the environment says, by default.
    pub proxy: WebhookProxy,
    /// How much of a response body is read, in bytes; the rest is dropped together with the connection. 4,096 by
    /// default, of which the first 512 bytes at most end up beside the failed attempt.
    pub max_response_bytes: usize,
    /// Value of the `User-Agent` header. `idemp/` and the version by default.
    pub user_agent: String,
}

/// Which proxy requests go over.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum WebhookProxy {
    /// `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case, as they are when the sink is
    /// made; on macOS and Windows also the system's settings.
    #[default]
    Environment,
    /// No proxy, whatever the environment says.
    None,
    /// This one, `http` or `https`, possibly with user name and password; `NO_PROXY` does not count then.
    Url(String),
}

impl WebhookConfig {
    /// The defaults, for this receiver and secret.
    #[must_use]
    pub fn new(url: impl Into<String>, secret: Secret) -> Self {
        Self {
            url: url.into(),
            secret,
            standard_webhooks: false,
            headers: Vec::new(),
            connect_timeout: Duration::from_secs(3),
            max_idle_connections: 100,
            idle_timeout: Duration::from_secs(4),
            root_certificates: Vec::new(),
            proxy: WebhookProxy::Environment,
            max_response_bytes: 4096,
            user_agent: concat!("idemp/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    pub(super) fn checked_url(&self) -> Result<Url, WebhookError> {
        let url = http_url(&self.url, Kind::Url)?;
        if !url.username().is_empty() || url.password().is_some() {
            let why = "must not hold a user name or password: they belong into a header";
            return Err(WebhookError::new(Kind::Url, why));
        }
        Ok(url)
    }

    /// The headers that are the same for every request, except the `User-Agent`.
    pub(super) fn checked_headers(&self) -> Result<HeaderMap, WebhookError> {
        let mut map = HeaderMap::new();
        map.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            let fault = |why: &str| WebhookError::new(Kind::Headers, format!("`{}` {why}", name.escape_debug()));
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| fault("is no header name"))?;
            if is_reserved(&key) {
                return Err(fault("is not free to be set"));
            }
            let mut value =
                HeaderValue::from_str(value).map_err(|_| fault("has a value with characters not allowed"))?;
            value.set_sensitive(true);
            if map.insert(key, value).is_some() {
                return Err(fault("is given twice"));
            }
        }
        Ok(map)
    }

    pub(super) fn checked_user_agent(&self) -> Result<HeaderValue, WebhookError> {
        HeaderValue::from_str(&self.user_agent)
            .map_err(|_| WebhookError::new(Kind::UserAgent, "has characters not allowed in a header"))
    }

    pub(super) fn checked_proxy(&self) -> Result<Option<reqwest::Proxy>, WebhookError> {
        let WebhookProxy::Url(url) = &self.proxy else {
            return Ok(None);
        };
        let proxy = reqwest::Proxy::all(http_url(url, Kind::Proxy)?);
        proxy
            .map(Some)
            .map_err(|error| WebhookError::new(Kind::Proxy, "cannot be used").with_source(error.without_url()))
    }
}

fn http_url(text: &str, kind: Kind) -> Result<Url, WebhookError> {
    let url = Url::parse(text).map_err(|error| WebhookError::new(kind, "is no URL").with_source(error))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(WebhookError::new(kind, "must begin with http:// or https://"));
    }
    Ok(url)
}

/// Names that the sink sets, that describe the body, or that belong to the connection (RFC 9110, section 7.6.1).
fn is_reserved(name: &HeaderName) -> bool {
    let name = name.as_str();
    let ours = [
        headers::lower::IDEMPOTENCY_KEY,
        headers::lower::X_SIGNATURE_256,
        headers::lower::X_EVENT_TYPE,
        "host",
        "user-agent",
    ];
    let connection = [
        "connection",
        "expect",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    ours.contains(&name)
        || connection.contains(&name)
        || ["content-", "proxy-", "webhook-"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

impl fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("WebhookConfig")
            .field("url", &Url::parse(&self.url).ok().as_ref().map(Origin))
            .field("standard_webhooks", &self.standard_webhooks)
            .field("headers", &names)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_idle_connections", &self.max_idle_connections)
            .field("idle_timeout", &self.idle_timeout)
            .field(
                "root_certificates",
                &format_args!("{} bytes", self.root_certificates.len()),
            )
            .field("proxy", &self.proxy)
            .field("max_response_bytes", &self.max_response_bytes)
            .field("user_agent", &self.user_agent)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WebhookProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Environment => "Environment",
            Self::None => "None",
            Self::Url(_) => "Url(..)",
        })
    }
}

/// Scheme, host and port alone: the path of a webhook is often its password.
pub(super) struct Origin<'u>(pub(super) &'u Url);

impl fmt::Debug for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.origin().ascii_serialization())
    }
}
