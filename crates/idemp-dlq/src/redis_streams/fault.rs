//! The server's errors in the words of a store.

use redis::{ErrorKind, RedisError};

use crate::{RecordError, StoreError, StoreErrorKind};

/// Marks the error of a store that was closed.
const CLOSED: &str = "the dead-letter store is closed";

/// How Redis 7.0 and Valkey refuse a command within a script to a login that may run the script: without a code of its
/// own.
const NOT_IN_SCRIPT: [&str; 2] = ["The user executing the script", "ACL failure in script"];

/// What the server's codes mean. What is not here may pass.
const CODES: [(&str, StoreErrorKind, &str); 10] = [
    ("OOM", StoreErrorKind::Full, "no memory is left for dead letters"),
    (
        "WRONGTYPE",
        StoreErrorKind::Corrupt,
        "the key of the dead letters holds something else",
    ),
    (
        "NOAUTH",
        StoreErrorKind::CannotOpen,
        "the dead-letter server wants a login",
    ),
    (
        "WRONGPASS",
        StoreErrorKind::CannotOpen,
        "the dead-letter server does not accept the login",
    ),
    (
        "NOPERM",
        StoreErrorKind::CannotOpen,
        "the login may not use the dead letters",
    ),
    (
        "DENIED",
        StoreErrorKind::CannotOpen,
        "the dead-letter server denies access",
    ),
    (
        "MOVED",
        StoreErrorKind::CannotOpen,
        "the dead-letter server is a node of a cluster",
    ),
    (
        "CROSSSLOT",
        StoreErrorKind::CannotOpen,
        "the keys of the dead letters lie in different slots",
    ),
    (
        "READONLY",
        StoreErrorKind::Unavailable,
        "the dead-letter server is a replica",
    ),
    (
        "LOADING",
        StoreErrorKind::Unavailable,
        "the dead-letter server is loading its data",
    ),
];

pub(super) fn of(error: RedisError) -> StoreError {
    if error.kind() == ErrorKind::Client && error.to_string().starts_with(CLOSED) {
        return StoreError::new(StoreErrorKind::Closed, CLOSED);
    }
    let (kind, message) = match error.code() {
        Some("ERR") if may_not_in_script(&error) => {
            (StoreErrorKind::CannotOpen, "the login may not use the dead letters")
        }
        Some(code) => CODES.iter().find(|(known, ..)| *known == code).map_or(
            (StoreErrorKind::Unavailable, "the dead-letter server refuses"),
            |(_, kind, message)| (*kind, message),
        ),
        None if error.kind() == ErrorKind::AuthenticationFailed => (
            StoreErrorKind::CannotOpen,
            "the dead-letter server does not accept the login",
        ),
        None => (StoreErrorKind::Unavailable, "no connection to the dead-letter server"),
    };
    StoreError::new(kind, message).with_source(error)
}

fn may_not_in_script(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    NOT_IN_SCRIPT.iter().any(|beginning| detail.starts_with(beginning))
}

/// One entry that cannot be read.
pub(super) fn unreadable(id: &str, error: RecordError) -> StoreError {
    StoreError::new(StoreErrorKind::Record, format!("entry {id} cannot be read")).with_source(error)
}

/// Too many others write the same entry.
pub(super) fn contended() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the entry changes all the time")
}

/// The store was closed.
pub(super) fn closed() -> RedisError {
    (ErrorKind::Client, CLOSED).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_code() {
        let error = |code: &str| {
            let text = format!("-{code} told by the server\r\n");
            let reply = redis::parse_redis_value(text.as_bytes()).unwrap();
            of(reply.extract_error().unwrap_err())
        };
        for (code, kind) in [
            ("OOM", StoreErrorKind::Full),
            ("WRONGTYPE", StoreErrorKind::Corrupt),
            ("NOAUTH", StoreErrorKind::CannotOpen),
            ("WRONGPASS", StoreErrorKind::CannotOpen),
            ("NOPERM", StoreErrorKind::CannotOpen),
            ("DENIED", StoreErrorKind::CannotOpen),
            ("MOVED", StoreErrorKind::CannotOpen),
            ("CROSSSLOT", StoreErrorKind::CannotOpen),
            ("READONLY", StoreErrorKind::Unavailable),
            ("LOADING", StoreErrorKind::Unavailable),
            ("BUSY", StoreErrorKind::Unavailable),
            ("ERR", StoreErrorKind::Unavailable),
            ("WHATEVER", StoreErrorKind::Unavailable),
        ] {
            let error = error(code);
            assert_eq!(error.kind(), kind, "{code}");
            assert!(
                !error.to_string().contains("told"),
                "the source's text is the source's: {error}"
            );
        }
        for refused in [
            "ERR The user executing the script can't run this command or subcommand",
            "ERR ACL failure in script: User l has no permissions to run the 'xadd' command",
        ] {
            assert_eq!(error(refused).kind(), StoreErrorKind::CannotOpen);
        }
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!(of(broken).kind(), StoreErrorKind::Unavailable);
        assert_eq!(of(closed()).kind(), StoreErrorKind::Closed);
    }
}
