//! What SNS's answers, and their absence, mean (docs/sinks/sns.md).

use std::error::Error;
use std::io;

use aws_sdk_sns::config::http::HttpResponse;
use aws_sdk_sns::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sns::operation::publish::PublishError;
use idemp_core::{Detail, ErrorClass, Failure, Refusal, Transport};

use ErrorClass::{Ambiguous, PushBack, RejectsConfiguration, RejectsEvent, Transient};

/// Codes on the wire, without the `Exception` at the end that some of them have at times, and what they mean. The SDK
/// has types for some of them, and none for throttling, so that the code alone tells.
///
/// From the API reference of SNS (Publish, "Errors", and "Common Errors") and, for throttling, from the list that the
/// SDKs of AWS share.
const CODES: &[(&str, ErrorClass)] = &[
    ("InvalidParameter", RejectsEvent),
    ("InvalidParameterValue", RejectsEvent),
    ("ParameterValueInvalid", RejectsEvent),
    ("ValidationError", RejectsEvent),
    ("Validation", RejectsEvent),
    ("AuthorizationError", RejectsConfiguration),
    ("InvalidSecurity", RejectsConfiguration),
    ("NotFound", RejectsConfiguration),
    ("EndpointDisabled", RejectsConfiguration),
    ("PlatformApplicationDisabled", RejectsConfiguration),
    ("KMSAccessDenied", RejectsConfiguration),
    ("KMSDisabled", RejectsConfiguration),
    ("KMSNotFound", RejectsConfiguration),
    ("KMSOptInRequired", RejectsConfiguration),
    ("AccessDenied", RejectsConfiguration),
    ("NotAuthorized", RejectsConfiguration),
    ("ExpiredToken", RejectsConfiguration),
    ("InvalidClientTokenId", RejectsConfiguration),
    ("UnrecognizedClient", RejectsConfiguration),
    ("SignatureDoesNotMatch", RejectsConfiguration),
    ("IncompleteSignature", RejectsConfiguration),
    ("MissingAuthenticationToken", RejectsConfiguration),
    ("RequestExpired", RejectsConfiguration),
    ("OptInRequired", RejectsConfiguration),
    ("KMSInvalidState", Transient),
    ("InternalError", Ambiguous),
    ("InternalFailure", Ambiguous),
    ("ServiceUnavailable", Ambiguous),
    ("RequestTimeout", Ambiguous),
    ("KMSThrottling", PushBack),
    ("Throttling", PushBack),
    ("Throttled", PushBack),
    ("RequestThrottled", PushBack),
    ("TooManyRequests", PushBack),
    ("RequestLimitExceeded", PushBack),
    ("BandwidthLimitExceeded", PushBack),
    ("SlowDown", PushBack),
];

/// The facts behind an error of the client.
pub(super) fn failure(error: &SdkError<PublishError, HttpResponse>) -> Failure {
    match error {
        SdkError::ServiceError(answer) => match error.code() {
            Some(code) => coded(class(code), code, error.message().unwrap_or_default()),
            // An answer that is not SNS's own, maybe of something on the way.
            None => {
                let code = format!("HTTP-{}", answer.raw().status().as_u16());
                coded(Ambiguous, &code, "an answer without a code of SNS")
            }
        },
        SdkError::ResponseError(answer) => {
            let code = format!("HTTP-{}", answer.raw().status().as_u16());
            coded(Ambiguous, &code, "the answer could not be read to its end")
        }
        SdkError::ConstructionFailure(_) => coded(
            RejectsConfiguration,
            "ConstructionFailure",
            "no request could be made of it",
        ),
        SdkError::TimeoutError(_) => out_of_time(),
        SdkError::DispatchFailure(failure) if failure.is_user() => {
            coded(RejectsEvent, "DispatchFailure", "the client refused the request")
        }
        SdkError::DispatchFailure(failure) => match failure.as_connector_error() {
            Some(connector) if is_refused(connector) => not_sent("connection refused"),
            Some(connector) if connector.is_timeout() => out_of_time(),
            _ => coded(
                Ambiguous,
                "DispatchFailure",
                "no answer: name, connection, TLS or credentials failed, or the connection broke",
            ),
        },
        _ => coded(Ambiguous, "Unknown", ""),
    }
}

/// A message that SNS would not take, which [`Sink::check`](idemp_core::Sink::check) says beforehand.
pub(super) fn refused(refusal: &Refusal) -> Failure {
    coded(RejectsEvent, "NotSendable", &refusal.to_string())
}

/// A success that is not SNS's own, maybe of something on the way.
pub(super) fn no_message_id() -> Failure {
    coded(Ambiguous, "NoMessageId", "an answer without a message id")
}

/// A failure before anything went out.
pub(super) fn not_sent(why: &str) -> Failure {
    Failure::transport(Transport::Connect).with_detail(Detail::new(why))
}

/// The attempt's time is up, and what went out is not known.
pub(super) fn out_of_time() -> Failure {
    Failure::transport(Transport::Timeout).with_detail(Detail::new("no answer before the end of the attempt"))
}

fn coded(class: ErrorClass, code: &str, detail: &str) -> Failure {
    Failure::code(class, code).with_detail(Detail::new(detail))
}

/// What is not in the table may have arrived.
fn class(code: &str) -> ErrorClass {
    let base = code.strip_suffix("Exception").unwrap_or(code);
    CODES
        .iter()
        .find(|(known, _)| *known == base)
        .map_or(Ambiguous, |(_, class)| *class)
}

/// Only an attempt to connect is refused, so nothing has gone out. No other failure of a connection tells that: a name
/// that does not resolve, a handshake that fails and a connection that breaks look alike here.
fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        // An I/O error's `source` skips the very error that it wraps.
        next = match io {
            Some(io) => io.get_ref().map(|inner| inner as _),
            None => cause.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_ambiguous() {
        for code in ["", "Exception", "NoSuchCode", "throttling"] {
            assert_eq!(class(code), Ambiguous, "{code}");
        }
    }

    #[test]
    fn a_refusal_is_found_beneath_other_errors() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(is_refused(&refused()));
        assert!(is_refused(&io::Error::other(io::Error::other(refused()))));
        assert!(!is_refused(&io::Error::from(io::ErrorKind::ConnectionReset)));
        assert!(!is_refused(&io::Error::other("refused")));
    }
}
