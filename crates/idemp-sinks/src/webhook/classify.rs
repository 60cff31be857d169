//! What the client's errors mean: how far the request may have come.

use std::error::Error;
use std::io;

use idemp_core::{Detail, Failure, Transport};

use super::tls;

/// The facts behind an error of the client. Its own text is not used: it holds the URL.
///
/// The order matters. An error while connecting may also be a timeout, and it is the only kind after which the event
/// is surely not delivered; whatever is not known better counts as maybe delivered.
pub(super) fn failure(error: &reqwest::Error, https: bool) -> Failure {
    if error.is_builder() {
        // The URL and the headers are checked beforehand, so this has no cause that is known.
        return not_sent("the request could not be built");
    }
    if error.is_connect() {
        return connecting(error, https);
    }
    if error.is_timeout() {
        return with(Transport::Timeout, "no sign of life on the connection");
    }
    with(Transport::Cut, broken(error))
}

/// A failure before anything went out.
pub(super) fn not_sent(why: &str) -> Failure {
    with(Transport::Connect, why)
}

/// The attempt's time is up, and what went out is not known.
pub(super) fn out_of_time() -> Failure {
    with(Transport::Timeout, "no answer before the end of the attempt")
}

fn with(transport: Transport, detail: &str) -> Failure {
    Failure::transport(transport).with_detail(Detail::new(detail))
}

fn connecting(error: &reqwest::Error, https: bool) -> Failure {
    if error.is_dns() {
        return with(Transport::Dns, "the URL's host name does not resolve");
    }
    if let Some(error) = find::<rustls::Error>(error) {
        return with(Transport::Tls, tls::explain(error));
    }
    if error.is_timeout() {
        return not_sent("no connection within connect_timeout");
    }
    match find_io(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => not_sent("connection refused"),
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => not_sent("host unreachable"),
        // The connection stood, so this is the handshake.
        Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) if https => {
            with(
                Transport::Tls,
                "connection closed during the TLS handshake: check scheme and port of the URL",
            )
        }
        _ => not_sent("no connection to the receiver, or none over the proxy"),
    }
}

fn broken(error: &reqwest::Error) -> &'static str {
    if let Some(error) = find::<rustls::Error>(error) {
        return tls::explain(error);
    }
    match find_io(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => "connection reset before an answer came",
        _ => "connection ended before a valid answer came",
    }
}

/// The first error of this type among the causes.
fn find<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// The innermost I/O error among the causes: the outer ones only wrap.
fn find_io<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e io::Error> {
    causes(error).filter_map(|cause| cause.downcast_ref()).last()
}

/// An error and all that lies beneath it. An I/O error's `source` skips the very error that it wraps.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&cause| match cause.downcast_ref::<io::Error>() {
        Some(io) => io.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => cause.source(),
    })
}
