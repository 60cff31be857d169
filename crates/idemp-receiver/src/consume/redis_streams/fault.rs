//! What keeps a step of the reader from working.

use redis::RedisError;

use super::entry::Misshapen;
use crate::consume::meters::Operation;

/// A step that did not work.
#[derive(Debug)]
pub(super) enum Fault {
    Server(RedisError),
    Misshapen,
}

impl Fault {
    pub(super) fn operation(&self) -> Operation {
        match self {
            Self::Server(error) if error.is_connection_refusal() => Operation::Connect,
            Self::Server(_) | Self::Misshapen => Operation::Read,
        }
    }

    pub(super) fn is_no_group(&self) -> bool {
        matches!(self, Self::Server(error) if error.code() == Some("NOGROUP"))
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        Self::Server(error)
    }
}

impl From<Misshapen> for Fault {
    fn from(_: Misshapen) -> Self {
        Self::Misshapen
    }
}
