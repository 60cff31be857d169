//! The tower layer.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, EXPECT, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use idemp_core::StandardHeaderValues;
use idemp_core::headers::{HeaderLine, lower};
use tower_layer::Layer;
use tower_service::Service;

use super::body::collect;
use crate::event::{Event, HandlerError};
use crate::gate::Place;
use crate::receiver::{Incoming, Receiver};
use crate::reply::Reply;
use crate::work::within;

/// Puts a [`Receiver`] before a service, which becomes its handler.
///
/// The service gets the request with the same body, and an [`Event`] in its extensions. Its response decides: any 2xx
/// means that the effect is taken, 422 that the event can never work, everything else, and an error, that it failed. The
/// sender gets the receiver's own reply (docs/receiver.md has the table), never the service's.
///
/// It must see the body as it came over the wire: put it outside of layers that decompress.
#[derive(Clone, Debug)]
pub struct ReceiverLayer(Receiver);

impl ReceiverLayer {
    /// A layer of this receiver. Clones of the receiver share its limits and its store.
    #[must_use]
    pub fn new(receiver: Receiver) -> Self {
        Self(receiver)
    }
}

impl<S> Layer<S> for ReceiverLayer {
    type Service = ReceiverService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ReceiverService {
            receiver: self.0.clone(),
            inner,
        }
    }
}

/// A service behind a [`Receiver`].
///
/// It is always ready. Whether the inner service is ready is asked once an event is claimed, within the handler's cap.
#[derive(Clone, Debug)]
pub struct ReceiverService<S> {
    receiver: Receiver,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for ReceiverService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Send,
    R: 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { receiver, inner } = self.clone();
        let (mut parts, body) = request.into_parts();
        Box::pin(async move {
            let reply = match read(&receiver, &parts.headers, body).await {
                Ok((place, event)) => {
                    parts.extensions.insert(event.clone());
                    let request = Request::from_parts(parts, B::from(event.body().clone()));
                    receiver.run(place, event, handle(inner, request)).await
                }
                Err(reply) => reply,
            };
            Ok(response(receiver.tell(reply)))
        })
    }
}

/// All up to the verified event.
async fn read<B: Body>(receiver: &Receiver, headers: &HeaderMap, body: B) -> Result<(Place, Event), Reply> {
    let place = receiver.enter()?;
    let config = receiver.config();
    let body = collect(body, config.body_limit, headers.contains_key(EXPECT));
    let body = within(config.attempt_timeout, body)
        .await
        .unwrap_or(Err(Reply::BodyTimedOut))?;
    let event = receiver.examine(incoming(headers, body, config.require_standard_webhooks))?;
    Ok((place, event))
}

async fn handle<S, B, R>(mut inner: S, request: Request<B>) -> Result<(), HandlerError>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    let ready = poll_fn(|cx| inner.poll_ready(cx)).await;
    ready.map_err(|_| HandlerError::Failed)?;
    let response = inner.call(request).await;
    match response.map_err(|_| HandlerError::Failed)?.status() {
        status if status.is_success() => Ok(()),
        StatusCode::UNPROCESSABLE_ENTITY => Err(HandlerError::Rejected),
        _ => Err(HandlerError::Failed),
    }
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

fn response(reply: Reply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(reply.body().as_bytes())));
    *response.status_mut() = StatusCode::from_u16(reply.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = reply.retry_after() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}
