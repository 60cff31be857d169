//! The tower layer.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use tower_layer::Layer;
use tower_service::Service;

use super::exchange::{read, response};
use crate::event::{Event, HandlerError};
use crate::receiver::Receiver;

/// Puts a [`Receiver`] before a service, which becomes its handler.
///
/// For handlers that need the request itself, axum's extractors among them. [`Receiver::service`] is simpler for a
/// handler that needs the event only, and quicker.
///
/// The service gets the request with the same body, and an [`Event`] in its extensions. Its response
/// decides: any 2xx means that the effect is taken, 422 that the event can never work, everything else, and an error,
/// that it failed. The sender gets the receiver's own reply (docs/receiver.md has the table), never the service's.
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
                    let handling = handle(inner, request, event.clone());
                    receiver.run(place, event, handling).await
                }
                Err(reply) => reply,
            };
            Ok(response(receiver.tell(reply)))
        })
    }
}

async fn handle<S, B, R>(mut inner: S, request: Request<B>, event: Event) -> Result<(), HandlerError>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    let ready = poll_fn(|cx| inner.poll_ready(cx)).await;
    ready.map_err(|_| HandlerError::Failed)?;
    let response = inner.call(request).await.map_err(|_| HandlerError::Failed)?;
    match response.status() {
        status if status.is_success() => Ok(()),
        StatusCode::UNPROCESSABLE_ENTITY => {
            let error = response.extensions().get().copied();
            Err(error.unwrap_or(HandlerError::Rejected))
        }
        status => {
            // Often not the handler's own: 404 of an inner router, 415 of an extractor.
            tracing::warn!(key = event.key(), status = status.as_u16(), "the handler's response");
            Err(HandlerError::Failed)
        }
    }
}
