//! What the server's and the client's errors mean, as data.

use idemp_core::{Detail, ErrorClass, Failure, Transport};
use redis::{ErrorKind, RedisError};

use ErrorClass::{Ambiguous, RejectsConfiguration, RejectsEvent, Transient};

/// What the codes mean with which a server answers XADD. It refuses a command before it runs it, so that none of
/// these leaves it open whether the event arrived. A code that is not here does.
///
/// The codes stand in the server's sources, most of them in `createSharedObjects`; the client's own kinds of error
/// are no help, since most of these share one.
pub(super) const CODES: [(&str, ErrorClass); 23] = [
    ("OOM", Transient),
    ("LOADING", Transient),
    ("BUSY", Transient),
    ("UNKILLABLE", Transient),
    ("MASTERDOWN", Transient),
    ("CLUSTERDOWN", Transient),
    ("TRYAGAIN", Transient),
    ("READONLY", Transient),
    ("MISCONF", Transient),
    ("NOREPLICAS", Transient),
    ("FAILOVER", Transient),
    ("UNBLOCKED", Transient),
    ("NOAUTH", RejectsConfiguration),
    ("WRONGPASS", RejectsConfiguration),
    ("NOPERM", RejectsConfiguration),
    ("DENIED", RejectsConfiguration),
    ("WRONGTYPE", RejectsConfiguration),
    ("CROSSSLOT", RejectsConfiguration),
    ("NOSCRIPT", RejectsConfiguration),
    ("NOPROTO", RejectsConfiguration),
    // For a cluster: see `answered`.
    ("MOVED", RejectsConfiguration),
    ("ASK", RejectsConfiguration),
    // For the rest: see `GENERAL`.
    ("ERR", RejectsEvent),
];

/// What `ERR` means where it begins so.
pub(super) const GENERAL: [(&str, ErrorClass); 8] = [
    ("max number of clients", Transient),
    ("unknown command", RejectsConfiguration),
    ("operation not permitted", RejectsConfiguration),
    // Who has not logged in may send no more than ten words.
    ("Protocol error: unauthenticated", RejectsConfiguration),
    ("DB index", RejectsConfiguration),
    ("This instance has cluster support disabled", RejectsConfiguration),
    ("The stream has exhausted", RejectsConfiguration),
    ("syntax error", RejectsConfiguration),
];

/// Facts, and whether the connection has to go.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) failure: Failure,
    pub(super) renew: bool,
}

/// The facts behind an error that came in place of an answer to XADD.
pub(super) fn answered(error: &RedisError, cluster: bool) -> Judged {
    let Some(code) = error.code() else {
        return broken(error);
    };
    let moved = matches!(code, "MOVED" | "ASK");
    let class = if cluster && moved {
        Transient
    } else {
        class(error, code)
    };
    Judged {
        failure: told(class, code, error),
        // A server that was demoted answers so for ever; a cluster that was resharded, until its map is read again;
        // a login that is known by now is used by new connections alone; and after an error of the protocol the
        // server closes the connection.
        renew: matches!(code, "READONLY" | "NOAUTH")
            || cluster && (moved || code == "CLUSTERDOWN")
            || error
                .detail()
                .is_some_and(|detail| detail.starts_with("Protocol error")),
    }
}

/// The facts behind an error while connecting: the event is surely not delivered.
pub(super) fn connecting(error: &RedisError) -> Failure {
    // Of a cluster the client says that no node could be reached, and tells behind it what one of them said.
    let is_nodes = |said: &str| said.contains("Password authentication failed");
    if error.kind() == ErrorKind::AuthenticationFailed
        || error.kind() == ErrorKind::Io && error.detail().is_some_and(is_nodes)
    {
        return Failure::code(RejectsConfiguration, "WRONGPASS")
            .with_detail(Detail::new("the server does not accept user name and password"));
    }
    if let Some(code) = unsaid(error).or_else(|| error.code()) {
        let class = match class(error, code) {
            RejectsConfiguration => RejectsConfiguration,
            _ => Transient,
        };
        return told(class, code, error);
    }
    if error.is_connection_refusal() {
        return not_sent("connection refused");
    }
    not_sent(match error.kind() {
        ErrorKind::ClusterConnectionNotFound => "no node of the cluster answers",
        _ => "no connection to the server",
    })
}

/// The code with which the server refused to choose the database: the client tells the words behind it alone, as an
/// `ERR` of its own.
fn unsaid(error: &RedisError) -> Option<&'static str> {
    let said = error.detail().filter(|_| error.code() == Some("ERR"))?;
    if said.starts_with("Authentication required") {
        Some("NOAUTH")
    } else if said.contains(" has no permissions to run ") {
        Some("NOPERM")
    } else {
        None
    }
}

/// A failure before anything went out.
pub(super) fn not_sent(why: &str) -> Failure {
    with(Transport::Connect, why)
}

/// The attempt's time is up, and what went out is not known.
pub(super) fn out_of_time() -> Failure {
    with(Transport::Timeout, "no answer before the end of the attempt")
}

/// An answer that is none to XADD.
pub(super) fn strange() -> Judged {
    Judged {
        failure: with(Transport::Cut, "the answer is no entry id"),
        renew: true,
    }
}

fn class(error: &RedisError, code: &str) -> ErrorClass {
    if code == "ERR"
        && let Some(detail) = error.detail()
        && let Some((_, class)) = GENERAL.iter().find(|(beginning, _)| detail.starts_with(beginning))
    {
        return *class;
    }
    let known = CODES.iter().find(|(known, _)| *known == code);
    known.map_or(Ambiguous, |(_, class)| *class)
}

/// No answer: the connection broke, or what came was no answer.
fn broken(error: &RedisError) -> Judged {
    let failure = match error.kind() {
        // Nothing was sent: there is nowhere to send it.
        ErrorKind::ClusterConnectionNotFound => not_sent("no node of the cluster has the stream"),
        ErrorKind::Io if error.is_connection_refusal() => not_sent("connection refused"),
        ErrorKind::Io if error.is_timeout() => with(Transport::Timeout, "no sign of life on the connection"),
        _ => with(Transport::Cut, "connection ended before an answer came"),
    };
    Judged { failure, renew: true }
}

/// With what the server said, but not what it repeats of the command.
fn told(class: ErrorClass, code: &str, error: &RedisError) -> Failure {
    let said = error.detail().unwrap_or_default();
    let said = said.split(", with args beginning with").next().unwrap_or_default();
    Failure::code(class, code).with_detail(Detail::new(said))
}

fn with(transport: Transport, detail: &str) -> Failure {
    Failure::transport(transport).with_detail(Detail::new(detail))
}

#[cfg(test)]
mod tests {
    use idemp_core::Cause;
    use redis::make_extension_error;

    use super::*;

    /// As the client reads it from the wire.
    fn error(line: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        reply.extract_error().unwrap_err()
    }

    #[test]
    fn each_code_has_its_class() {
        use ErrorClass::*;
        for (line, class, renew) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Transient,
                false,
            ),
            ("LOADING Redis is loading the dataset in memory", Transient, false),
            ("BUSY Redis is busy running a script.", Transient, false),
            (
                "UNKILLABLE Sorry the script already executed write commands",
                Transient,
                false,
            ),
            ("MASTERDOWN Link with MASTER is down", Transient, false),
            ("CLUSTERDOWN The cluster is down", Transient, false),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                Transient,
                false,
            ),
            ("READONLY You can't write against a read only replica.", Transient, true),
            ("MISCONF Redis is configured to save RDB snapshots", Transient, false),
            ("NOREPLICAS Not enough good replicas to write.", Transient, false),
            ("FAILOVER something", Transient, false),
            ("UNBLOCKED the key changed", Transient, false),
            ("NOAUTH Authentication required.", RejectsConfiguration, true),
            ("WRONGPASS invalid username-password pair", RejectsConfiguration, false),
            ("NOPERM No permissions to access a key", RejectsConfiguration, false),
            ("DENIED Redis is running in protected mode", RejectsConfiguration, false),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                RejectsConfiguration,
                false,
            ),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                RejectsConfiguration,
                false,
            ),
            ("NOSCRIPT No matching script.", RejectsConfiguration, false),
            ("NOPROTO unsupported protocol version", RejectsConfiguration, false),
            ("MOVED 3999 127.0.0.1:6381", RejectsConfiguration, false),
            ("ASK 3999 127.0.0.1:6381", RejectsConfiguration, false),
            ("ERR max number of clients reached", Transient, false),
            (
                "ERR max number of clients + cluster connections reached",
                Transient,
                false,
            ),
            (
                "ERR unknown command 'XADD', with args beginning with: 's' '*' ",
                RejectsConfiguration,
                false,
            ),
            ("ERR operation not permitted", RejectsConfiguration, false),
            (
                "ERR Protocol error: unauthenticated multibulk length",
                RejectsConfiguration,
                true,
            ),
            ("ERR Protocol error: invalid bulk length", RejectsEvent, true),
            ("ERR DB index is out of range", RejectsConfiguration, false),
            (
                "ERR The stream has exhausted the last possible ID",
                RejectsConfiguration,
                false,
            ),
            (
                "ERR Invalid stream ID specified as stream command argument",
                RejectsEvent,
                false,
            ),
            ("ERR Elements are too large to be stored", RejectsEvent, false),
            ("WHATEVER a later version may say", Ambiguous, false),
        ] {
            let judged = answered(&error(line), false);
            let code = line.split(' ').next().unwrap();
            let Cause::Code {
                class: found,
                code: kept,
            } = judged.failure.cause
            else {
                panic!("{line}: {judged:?}");
            };
            assert_eq!((found, kept.as_str(), judged.renew), (class, code, renew), "{line}");
            assert_eq!(judged.failure.maybe_delivered, class == Ambiguous, "{line}");
        }
    }

    #[test]
    fn every_code_of_the_table_is_tested_as_it_comes() {
        for (code, class) in CODES {
            let judged = answered(&make_extension_error(code.to_owned(), None), false);
            assert_eq!(judged.failure, Failure::code(class, code));
        }
    }

    #[test]
    fn a_cluster_finds_out_where_the_stream_went() {
        for line in [
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
            "CLUSTERDOWN The cluster is down",
        ] {
            let judged = answered(&error(line), true);
            assert!(
                matches!(judged.failure.cause, Cause::Code { class: Transient, .. }) && judged.renew,
                "{judged:?}"
            );
        }
    }

    #[test]
    fn what_the_server_repeats_of_the_command_is_not_kept() {
        let judged = answered(
            &error("ERR unknown command 'XADD', with args beginning with: 's' 'private' "),
            false,
        );
        assert_eq!(judged.failure.detail.as_str(), "unknown command 'XADD'");
    }

    #[test]
    fn broken_connections_leave_it_open_and_refused_ones_do_not() {
        use std::io::{Error, ErrorKind};
        for (kind, transport) in [
            (ErrorKind::ConnectionReset, Transport::Cut),
            (ErrorKind::BrokenPipe, Transport::Cut),
            (ErrorKind::UnexpectedEof, Transport::Cut),
            (ErrorKind::TimedOut, Transport::Timeout),
            (ErrorKind::ConnectionRefused, Transport::Connect),
        ] {
            let judged = answered(&RedisError::from(Error::from(kind)), false);
            assert_eq!(judged.failure.cause, Cause::Transport(transport), "{kind:?}");
            assert_eq!(
                judged.failure.maybe_delivered,
                transport != Transport::Connect,
                "{kind:?}"
            );
            assert!(judged.renew, "{kind:?}");
        }
    }

    #[test]
    fn nothing_was_delivered_while_connecting() {
        for line in ["LOADING wait", "WHATEVER", "ERR something", "NOPERM this user may not"] {
            assert!(!connecting(&error(line)).maybe_delivered, "{line}");
        }
        let dropped = RedisError::from(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        assert_eq!(connecting(&dropped).cause, Cause::Transport(Transport::Connect));
        let login = RedisError::from((redis::ErrorKind::AuthenticationFailed, "no"));
        assert_eq!(
            connecting(&login).cause,
            Failure::code(RejectsConfiguration, "WRONGPASS").cause
        );
    }
}
