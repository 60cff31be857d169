//! From a request to a verified event, and from a reply to a response.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, EXPECT, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use idemp_core::StandardHeaderValues;
use idemp_core::headers::{HeaderLine, lower};

use super::body::collect;
use crate::event::Event;
use crate::gate::Place;
use crate::receiver::{Incoming, Receiver};
use crate::reply::Reply;
use crate::work::within;

/// All up to the verified event.
pub(super) async fn read<B: Body>(receiver: &Receiver, headers: &HeaderMap, body: B) -> Result<(Place, Event), Reply> {
    let place = receiver.enter()?;
    let config = receiver.config();
    let body = collect(body, config.body_limit, headers.contains_key(EXPECT));
    let body = within(config.attempt_timeout, body)
        .await
        .unwrap_or(Err(Reply::BodyTimedOut))?;
    let event = receiver.examine(incoming(headers, body, config.require_standard_webhooks))?;
    Ok((place, event))
}

fn incoming(headers: &HeaderMap, body: Bytes, standard: bool) -> Incoming<'_> {
    let line = |name| -> HeaderLine<'_> { headers.get_all(name).iter().map(HeaderValue::as_bytes).collect() };
    Incoming {
        key: line(&IDEMPOTENCY_KEY),
        signature: line(&X_SIGNATURE_256),
        standard: if standard {
            StandardHeaderValues {
                id: line(&WEBHOOK_ID),
                timestamp: line(&WEBHOOK_TIMESTAMP),
                signature: line(&WEBHOOK_SIGNATURE),
            }
        } else {
            StandardHeaderValues::default()
        },
        body,
    }
}

// Parsed once: a look-up by text would parse it each time.
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static(lower::IDEMPOTENCY_KEY);
static X_SIGNATURE_256: HeaderName = HeaderName::from_static(lower::X_SIGNATURE_256);
static WEBHOOK_ID: HeaderName = HeaderName::from_static(lower::WEBHOOK_ID);
static WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static(lower::WEBHOOK_TIMESTAMP);
static WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static(lower::WEBHOOK_SIGNATURE);

pub(super) fn response(reply: Reply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(reply.body().as_bytes())));
    *response.status_mut() = StatusCode::from_u16(reply.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = reply.retry_after() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}
