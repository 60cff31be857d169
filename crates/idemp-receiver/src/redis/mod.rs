//! Claims in Redis or Valkey: for any number of receivers that share a server, and for fleets with plain peers.

mod config;
mod diagnosis;
mod link;
mod script;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use idemp_core::Ttl;
use redis::{RedisError, Value};

use crate::claim::{ClaimKey, Claimant};
use crate::store::{Claim, ClaimStore, Completed, StoreError, StoreErrorKind};
pub use config::RedisConfig;
pub use diagnosis::Checked;
use link::{Link, Resend};
use script::Scripts;

/// Keeps claims in a Redis or Valkey server or cluster, version 6.2 or later.
///
/// A key is one string, `idemp:<key>`, or `idemp/<scope>:<key>` in a named scope, with the values
///
/// * `p1|<token>|<fingerprint>` while a copy is at work, with the lease as its `PX`,
/// * `d1|<fingerprint>` once it is done, with the TTL as its `EX`.
///
/// A peer that does only `SET idemp:<key> 1 EX ttl NX` (docs/spec.md, "De-dup") finds any of them and says "duplicate".
/// Its bare `1` counts as done here, and as pending while no more than [`RedisConfig::peer_lease`] of its time is left.
/// docs/receiver.md, "Mixed fleets", says what such a fleet promises.
///
/// Each operation is one script over one key, so that it is atomic and runs on a cluster. All operations share one
/// connection: what is asked at the same time travels together. When the connection is lost, a claim, a renewal, a
/// completion and a release are sent once more over a new one; they compare tokens, so a lost answer does no harm.
/// [`mark_seen`](ClaimStore::mark_seen) is never sent twice, since it could not know its own mark. The next operation
/// connects anew, so a server may be away and come back.
///
/// While a cluster moves a slot, new keys of that slot may be answered with an error, and the sender tries again.
///
/// The server must not evict keys (`maxmemory-policy noeviction`), or claims and marks vanish. Replication is
/// asynchronous: after a failover, the newest marks may be gone, and their events may run twice.
pub struct RedisStore {
    link: Link,
    scripts: Scripts,
    peer_lease: Duration,
}

impl RedisStore {
    /// A store at this address. It connects when it is first used; [`ping`](Self::ping) tells earlier whether it can.
    ///
    /// # Errors
    /// If the address or the certificates cannot be read, or the settings contradict each other.
    pub fn new(config: RedisConfig) -> Result<Self, StoreError> {
        Ok(Self {
            peer_lease: config.peer_lease,
            link: Link::new(config).map_err(store_error)?,
            scripts: Scripts::new(),
        })
    }

    /// Asks the server whether it is there.
    ///
    /// # Errors
    /// If it is not, or does not let us in.
    ///
    /// # Panics
    /// Outside a tokio runtime with the time and I/O drivers, as every operation.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.link.ask(&redis::cmd("PING"), Resend::Always).await?;
        Ok(())
    }

    /// Runs a script on the server, which may not know it yet or any more.
    async fn run(&self, script: &script::Script, resend: Resend<'_>, arguments: &[&[u8]]) -> Result<Value, StoreError> {
        let answer = self.link.ask(&script.by_hash(arguments), resend).await;
        match answer {
            Err(error) if script::is_unknown(&error) => Ok(self.link.ask(&script.in_full(arguments), resend).await?),
            answer => Ok(answer?),
        }
    }

    async fn flag(&self, script: &script::Script, arguments: &[&[u8]]) -> Result<bool, StoreError> {
        match self.run(script, Resend::Always, arguments).await? {
            Value::Int(number) => Ok(number == 1),
            _ => Err(unexpected()),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

#[async_trait]
impl ClaimStore for RedisStore {
    async fn claim(&self, claimant: &Claimant, lease: Duration) -> Result<Claim, StoreError> {
        let (key, pending) = (name(&claimant.key), script::pending(claimant));
        let lease = millis(lease);
        let arguments = [key.as_bytes(), pending.as_bytes(), lease.as_bytes()];
        match self.run(&self.scripts.claim, Resend::Always, &arguments).await? {
            Value::Nil => Ok(Claim::Claimed),
            Value::Array(held) => match held.as_slice() {
                [Value::BulkString(value), Value::Int(left)] => {
                    Ok(script::held(value, *left, claimant, self.peer_lease))
                }
                _ => Err(unexpected()),
            },
            _ => Err(unexpected()),
        }
    }

    async fn renew(&self, claimant: &Claimant, lease: Duration) -> Result<bool, StoreError> {
        let (key, pending) = (name(&claimant.key), script::pending(claimant));
        let lease = millis(lease);
        let arguments = [key.as_bytes(), pending.as_bytes(), lease.as_bytes()];
        self.flag(&self.scripts.renew, &arguments).await
    }

    async fn complete(&self, claimant: &Claimant, ttl: Ttl) -> Result<Completed, StoreError> {
        let (key, pending, done) = (name(&claimant.key), script::pending(claimant), script::done(claimant));
        let ttl = seconds(ttl);
        let arguments = [key.as_bytes(), pending.as_bytes(), done.as_bytes(), ttl.as_bytes()];
        // A first answer that was lost may have been that it is done; then it is found done with our own body.
        let resent = std::sync::atomic::AtomicBool::new(false);
        let answer = self
            .run(&self.scripts.complete, Resend::Noting(&resent), &arguments)
            .await?;
        match answer {
            Value::Int(script::DONE) => Ok(Completed::Done),
            Value::Int(script::LATE) => Ok(Completed::Late),
            Value::Int(script::DONE_ALREADY) if resent.into_inner() => Ok(Completed::Done),
            Value::Int(script::DONE_ALREADY | script::LOST) => Ok(Completed::Lost),
            _ => Err(unexpected()),
        }
    }

    async fn release(&self, claimant: &Claimant) -> Result<bool, StoreError> {
        let (key, pending) = (name(&claimant.key), script::pending(claimant));
        self.flag(&self.scripts.release, &[key.as_bytes(), pending.as_bytes()])
            .await
    }

    async fn mark_seen(&self, key: &ClaimKey, ttl: Ttl) -> Result<bool, StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(name(key)).arg("1").arg("EX").arg(seconds(ttl)).arg("NX");
        match self.link.ask(&set, Resend::IfRefused).await? {
            Value::Okay => Ok(true),
            Value::Nil => Ok(false),
            _ => Err(unexpected()),
        }
    }
}

/// The name in Redis.
fn name(key: &ClaimKey) -> String {
    ["idemp", key.as_str()].concat()
}

/// The longest time that is asked for: Redis refuses those whose end does not fit its clock.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// For `PX`: at least 1, since 0 is an error there.
fn millis(time: Duration) -> String {
    time.min(LONGEST).as_millis().max(1).to_string()
}

/// For `EX`.
fn seconds(ttl: Ttl) -> String {
    ttl.as_duration().min(LONGEST).as_secs().max(1).to_string()
}

/// Our scripts answer otherwise: whatever it is that answers, it does so for every key.
fn unexpected() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable)
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        store_error(error)
    }
}

fn store_error(error: RedisError) -> StoreError {
    let kind = match error.code() {
        Some("OOM") => StoreErrorKind::Full,
        Some("WRONGTYPE") => StoreErrorKind::Foreign,
        // Before version 7 the error of a command within a script stands in the text of another one.
        Some("ERR") if error.detail().is_some_and(|detail| detail.contains(": WRONGTYPE ")) => StoreErrorKind::Foreign,
        _ if error.is_timeout() => StoreErrorKind::TimedOut,
        _ => StoreErrorKind::Unavailable,
    };
    StoreError::with_source(kind, error)
}

/// For the tests of this module: the words that are sent.
#[cfg(test)]
fn words(cmd: &redis::Cmd) -> Vec<String> {
    cmd.args_iter()
        .map(|arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Scope;

    #[test]
    fn names_are_those_of_the_base_document() {
        let key = ClaimKey::new(&Scope::default(), "r1:tool_end:1").unwrap();
        assert_eq!(name(&key), "idemp:r1:tool_end:1");
        let key = ClaimKey::new(&Scope::named("orders").unwrap(), "r1:tool_end:1").unwrap();
        assert_eq!(name(&key), "idemp/orders:r1:tool_end:1");
    }

    /// What the servers answer to a claim of a key that holds a hash.
    #[test]
    fn a_key_of_another_type_is_told_apart_from_a_server_that_fails() {
        for (answer, expected) in [
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value script: \
                 82f65cd5f0f5d0ee3be3ac8b9bd0c4b0c4b15a12, on @user_script:2.",
                StoreErrorKind::Foreign,
            ),
            (
                "ERR Error running script (call to f_82f65cd5f0f5d0ee3be3ac8b9bd0c4b0c4b15a12): @user_script:2: \
                 WRONGTYPE Operation against a key holding the wrong kind of value",
                StoreErrorKind::Foreign,
            ),
            ("ERR unknown command 'EVALSHA'", StoreErrorKind::Unavailable),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                StoreErrorKind::Full,
            ),
        ] {
            let answer = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap();
            let error = store_error(answer.extract_error().unwrap_err());
            assert_eq!(error.kind(), expected, "{error:?}");
        }
    }

    #[test]
    fn times_are_those_that_redis_takes() {
        for (time, expected) in [
            (Duration::ZERO, "1"),
            (Duration::from_nanos(1), "1"),
            (Duration::from_micros(1_999), "1"),
            (Duration::from_secs(6), "6000"),
            (Duration::MAX, "3153600000000"),
        ] {
            assert_eq!(millis(time), expected);
        }
        let ttl = |time| Ttl::new(time, Duration::ZERO).unwrap();
        assert_eq!(seconds(ttl(Duration::ZERO)), "1");
        assert_eq!(seconds(ttl(Duration::from_millis(1_001))), "2");
        assert_eq!(seconds(ttl(Duration::MAX)), "3153600000");
    }
}
