//! `Event` in the arguments of an axum handler, and errors as its result.

use std::error::Error;
use std::fmt;

use axum_core::extract::FromRequestParts;
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use crate::event::{DataError, Event, HandlerError};

impl<S: Sync> FromRequestParts<S> for Event {
    type Rejection = NoReceiver;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoReceiver> {
        parts.extensions.get().cloned().ok_or(NoReceiver)
    }
}

/// The route has no [`ReceiverLayer`](crate::ReceiverLayer) around it: a mistake in the program. As a response, 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoReceiver;

impl fmt::Display for NoReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the route has no receiver layer around it")
    }
}

impl Error for NoReceiver {}

impl IntoResponse for NoReceiver {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

/// 500, or 422 if the event can never work.
impl IntoResponse for HandlerError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Rejected | Self::Data(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut response = (status, self.to_string()).into_response();
        // For the receiver's layer, which tells the place.
        response.extensions_mut().insert(self);
        response
    }
}

/// 422: the event can never work.
impl IntoResponse for DataError {
    fn into_response(self) -> Response {
        HandlerError::from(self).into_response()
    }
}
