//! Events as HTTP POST requests.
//!
//! One delivery is one request: nothing below this sink follows a redirect, tries again or decompresses. The status
//! decides what an attempt came to; the response body never does.
//!
//! | what happened | outcome |
//! |---|---|
//! | status 200 to 299 | delivered, whatever becomes of the response body |
//! | any other status, 101 and 300 to 399 among them | failed with this status, and with `Retry-After` if it stands there once and is valid |
//! | refused, unreachable, not connected within `connect_timeout`, no tunnel through the proxy | `connect`, not delivered |
//! | the name does not resolve | `dns`, not delivered |
//! | the TLS handshake fails | `tls`, not delivered; the detail says what to do |
//! | no answer by the end of the attempt | `timeout`, maybe delivered |
//! | the connection breaks, or what comes is no HTTP | `cut`, maybe delivered |
//!
//! Interim responses (`100 Continue`, `103 Early Hints`) are passed over. A request that the client had not begun to
//! send on a kept connection when the server closed it goes out on another one, within the same attempt: the server
//! has not seen it.
//!
//! TLS comes from rustls with ring, versions 1.2 and 1.3, and trusts the authorities that the system trusts and those of
//! [`WebhookConfig::root_certificates`]. It is set up for each sink: rustls's process-wide default provider is neither
//! used nor installed.

mod classify;
mod config;
mod error;
mod tls;

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use idemp_core::headers::{HeaderLine, lower};
use idemp_core::{
    Attempt, Detail, Failure, KeyHasDot, Message, Outcome, Refusal, RetryAfter, Signer, Sink, StandardSigner,
};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT};
use reqwest::{Client, Method, Request, Response, Url};
use tokio::time::{Instant, timeout_at};

pub use config::{WebhookConfig, WebhookProxy};
pub use error::{WebhookError, WebhookErrorKind};

use config::Origin;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static(lower::IDEMPOTENCY_KEY);
const X_SIGNATURE_256: HeaderName = HeaderName::from_static(lower::X_SIGNATURE_256);
const X_EVENT_TYPE: HeaderName = HeaderName::from_static(lower::X_EVENT_TYPE);
const WEBHOOK_ID: HeaderName = HeaderName::from_static(lower::WEBHOOK_ID);
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static(lower::WEBHOOK_TIMESTAMP);
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static(lower::WEBHOOK_SIGNATURE);

/// How long a response body is waited for, within the attempt's time. The outcome is known by then: the body of a
/// success is read for the sake of the connection, that of a failure for the sake of the detail.
const BODY_TIME: Duration = Duration::from_millis(500);

/// How long an HTTP/2 connection may be silent under a request before it is asked for a sign of life, and how long
/// that may take. Without it a link that went dead would stay in the pool and cost every attempt its whole time; over
/// HTTP/1.1 a connection goes with the attempt that ran out of time on it.
const PING_AFTER: Duration = Duration::from_secs(2);
const PING_TIME: Duration = Duration::from_secs(2);

/// A receiver of events over HTTP, with its own pool of connections and its own secret.
pub struct WebhookSink {
    client: Client,
    url: Url,
    signer: Signer,
    standard: Option<StandardSigner>,
    headers: HeaderMap,
    max_response_bytes: usize,
}

impl WebhookSink {
    /// Sets up the client; nothing is connected yet. The certificates that the system trusts are read from disk, which
    /// takes some milliseconds.
    ///
    /// # Errors
    /// Names the field that is at fault: a URL that is not `http` or `https` or holds a user name, a header that is
    /// not free to be set (`Idempotency-Key`, `X-Signature-256`, `X-Event-Type`, `User-Agent`, `Host`, `Content-*`,
    /// `Webhook-*`, `Proxy-*` and those of the connection), certificates that are not PEM, or
    /// none at all for an `https` receiver, a proxy that is no URL, a
    /// secret that is not base64 although Standard Webhooks are asked for, a connect timeout of zero.
    pub fn new(config: WebhookConfig) -> Result<Self, WebhookError> {
        let url = config.checked_url()?;
        let headers = config.checked_headers()?;
        let standard = config
            .standard_webhooks
            .then(|| StandardSigner::new(&config.secret))
            .transpose();
        let standard = standard.map_err(|error| {
            WebhookError::new(WebhookErrorKind::Secret, "not suited for Standard Webhooks").with_source(error)
        })?;
        Ok(Self {
            client: client(&config, &url)?,
            signer: Signer::new(&config.secret),
            standard,
            url,
            headers,
            max_response_bytes: config.max_response_bytes,
        })
    }

    fn request(&self, message: &Message, now: SystemTime) -> Result<Request, Unfit> {
        let (key, body) = (message.key(), message.body());
        // Room for ours and for what the client adds, so that the map does not grow.
        let mut headers = HeaderMap::with_capacity(self.headers.len() + 8);
        headers.extend(self.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        let signature = self.signer.header(body);
        let values = [key.as_str(), key.event_type(), signature.as_str()];
        // The values share one piece of memory.
        let mut text = Bytes::from(values.concat());
        for (name, value) in [IDEMPOTENCY_KEY, X_EVENT_TYPE, X_SIGNATURE_256].into_iter().zip(values) {
            headers.insert(name, HeaderValue::from_maybe_shared(text.split_to(value.len()))?);
        }
        if let Some(signer) = &self.standard {
            let signed = signer.sign(key.as_str(), now, body)?;
            headers.insert(WEBHOOK_ID, HeaderValue::try_from(signed.id)?);
            headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::try_from(signed.timestamp)?);
            headers.insert(WEBHOOK_SIGNATURE, HeaderValue::try_from(signed.signature)?);
        }
        let mut request = Request::new(Method::POST, self.url.clone());
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body.clone().into());
        Ok(request)
    }
}

#[async_trait]
impl Sink for WebhookSink {
    async fn deliver(&self, message: &Message, attempt: Attempt) -> Outcome {
        let deadline = Instant::from_std(attempt.deadline);
        if deadline <= Instant::now() {
            return classify::not_sent("the attempt was over before it began").into();
        }
        let request = match self.request(message, attempt.now) {
            Ok(request) => request,
            Err(Unfit(why)) => return classify::not_sent(why).into(),
        };
        match timeout_at(deadline, self.client.execute(request)).await {
            Ok(Ok(mut response)) => {
                let until = deadline.min(Instant::now() + BODY_TIME);
                let body = drain(&mut response, self.max_response_bytes, until).await;
                outcome(&response, &body, attempt.now)
            }
            Ok(Err(error)) => classify::failure(&error, self.url.scheme() == "https").into(),
            Err(_elapsed) => classify::out_of_time().into(),
        }
    }

    fn check(&self, message: &Message) -> Result<(), Refusal> {
        match self.standard {
            Some(_) => StandardSigner::check_key(message.key().as_str())
                .map_err(|KeyHasDot { .. }| Refusal::new("Standard Webhooks cannot sign a key with a `.` in it")),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSink")
            .field("url", &Origin(&self.url))
            .field("standard_webhooks", &self.standard.is_some())
            .finish_non_exhaustive()
    }
}

fn client(config: &WebhookConfig, url: &Url) -> Result<Client, WebhookError> {
    if config.connect_timeout.is_zero() {
        return Err(WebhookError::new(
            WebhookErrorKind::ConnectTimeout,
            "must be above zero",
        ));
    }
    let tls = tls::client(&config.root_certificates, url.scheme() == "https")?;
    // A default header, and not one of the request's, so that the proxy sees it as well.
    let agent = HeaderMap::from_iter([(USER_AGENT, config.checked_user_agent()?)]);
    let mut builder = Client::builder()
        .tls_backend_preconfigured(tls)
        .default_headers(agent)
        // The default follows a redirect of a POST as a GET without a body, whose 200 would look like success.
        .redirect(reqwest::redirect::Policy::none())
        // The schedule has one owner.
        .retry(reqwest::retry::never())
        .connect_timeout(config.connect_timeout)
        .pool_max_idle_per_host(config.max_idle_connections)
        .pool_idle_timeout(config.idle_timeout)
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIME);
    builder = match (&config.proxy, config.checked_proxy()?) {
        (_, Some(proxy)) => builder.proxy(proxy),
        (WebhookProxy::None, None) => builder.no_proxy(),
        (_, None) => builder,
    };
    builder
        .build()
        .map_err(|error| WebhookError::new(WebhookErrorKind::Client, "could not be set up").with_source(error))
}

/// What a response says, `body` being what was read of its body.
fn outcome(response: &Response, body: &[u8], now: SystemTime) -> Outcome {
    let status = response.status();
    if status.is_success() {
        return Outcome::Delivered {
            status: Some(status.as_u16()),
        };
    }
    let redirect = redirect_detail(response.headers()).filter(|_| status.is_redirection());
    Failure::status(status.as_u16())
        .with_retry_after(retry_after(response.headers(), now))
        .with_detail(redirect.unwrap_or_else(|| Detail::from_bytes(body)))
        .into()
}

/// Reads a response body up to `limit` bytes or until `until`, and gives what came. Errors end it like anything else.
async fn drain(response: &mut Response, limit: usize, until: Instant) -> Vec<u8> {
    let mut body = Vec::new();
    // A body that is known to be empty leaves the connection free already.
    if response.content_length() == Some(0) {
        return body;
    }
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]);
            if body.len() == limit {
                break;
            }
        }
    };
    let _elapsed = timeout_at(until, read).await;
    body
}

/// What a valid header that stands there once asks for.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<RetryAfter> {
    match headers.get_all(RETRY_AFTER).iter().map(HeaderValue::as_bytes).collect() {
        HeaderLine::One(value) => RetryAfter::parse(value, now),
        HeaderLine::Missing | HeaderLine::Repeated => None,
    }
}

fn redirect_detail(headers: &HeaderMap) -> Option<Detail> {
    let target = headers.get(LOCATION)?.as_bytes();
    Some(Detail::from_bytes(
        &[b"redirects are not followed; this one leads to ", target].concat(),
    ))
}

/// A message that this sink cannot send, which `check` and the types of core rule out.
struct Unfit(&'static str);

impl From<KeyHasDot> for Unfit {
    fn from(_: KeyHasDot) -> Self {
        Self("Standard Webhooks cannot sign a key with a `.` in it")
    }
}

impl From<reqwest::header::InvalidHeaderValue> for Unfit {
    fn from(_: reqwest::header::InvalidHeaderValue) -> Self {
        Self("the key fits no header")
    }
}

#[cfg(doctest)]
#[doc = include_str!("../../../../docs/sinks/webhook.md")]
struct Guide;
