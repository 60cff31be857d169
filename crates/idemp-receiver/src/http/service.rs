//! The receiver and its handler as one service.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower_service::Service;

use super::exchange::{read, response};
use crate::event::{Event, HandlerError};
use crate::receiver::Receiver;

impl Receiver {
    /// A tower service that answers requests over HTTP and calls `handler` once per event.
    ///
    /// It takes every request for an event, whatever its path and method: mount it as a route, with axum's
    /// `post_service` for instance. Any server that speaks the types of the `http` crate will do. It must see the body as
    /// it came over the wire, so keep it outside of layers that decompress.
    ///
    /// Each event gets a clone of the handler; share what they use in an `Arc`.
    ///
    /// # Cancel safety
    /// A request whose future is dropped loses its reply. A handler that has begun goes on, and so does what follows it.
    pub fn service<H, F>(&self, handler: H) -> HandlerService<H>
    where
        H: FnOnce(Event) -> F + Clone + Send + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        HandlerService {
            receiver: self.clone(),
            handler,
        }
    }
}

/// What [`Receiver::service`] makes. It is always ready, and clones share the receiver.
#[derive(Clone)]
pub struct HandlerService<H> {
    receiver: Receiver,
    handler: H,
}

impl<H, F, B> Service<Request<B>> for HandlerService<H>
where
    H: FnOnce(Event) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Send,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { receiver, handler } = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let reply = match read(&receiver, &head.headers, body).await {
                Ok((place, event)) => {
                    drop(head);
                    receiver.handle(place, event, handler).await
                }
                Err(reply) => reply,
            };
            Ok(response(receiver.tell(reply)))
        })
    }
}

/// Leaves the handler out.
impl<H> fmt::Debug for HandlerService<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerService")
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}
