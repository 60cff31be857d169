//! What is stored under a key, and the scripts that change it. Each touches one key and takes values that are made here.

use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};

use crate::claim::{Claimant, Fingerprint};
use crate::store::Claim;

/// Nil if the key is now held with `ARGV[1]`, else what holds it and for how many milliseconds more.
const CLAIM: &str = "
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
  return {held, redis.call('PTTL', KEYS[1])}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false";

const RENEW: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

/// One of the numbers below.
const COMPLETE: &str = "
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
  if held == ARGV[2] then
    return 2
  end
  return 3
end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
if held then
  return 0
end
return 1";

pub(super) const DONE: i64 = 0;
pub(super) const LATE: i64 = 1;
/// Done before, with the same body.
pub(super) const DONE_ALREADY: i64 = 2;
pub(super) const LOST: i64 = 3;

const RELEASE: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])";

pub(super) struct Scripts {
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) complete: Script,
    pub(super) release: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            claim: Script::new(CLAIM),
            renew: Script::new(RENEW),
            complete: Script::new(COMPLETE),
            release: Script::new(RELEASE),
        }
    }
}

pub(super) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            hash: redis::Script::new(text).get_hash().to_owned(),
        }
    }

    /// The call of a script that the server knows. The first argument is the key.
    pub(super) fn by_hash(&self, arguments: &[&[u8]]) -> Cmd {
        call("EVALSHA", &self.hash, arguments)
    }

    /// The call with the text, after which the server knows it.
    pub(super) fn in_full(&self, arguments: &[&[u8]]) -> Cmd {
        call("EVAL", self.text, arguments)
    }
}

fn call(command: &str, script: &str, arguments: &[&[u8]]) -> Cmd {
    let mut cmd = redis::cmd(command);
    cmd.arg(script).arg("1").arg(arguments);
    cmd
}

/// The server has forgotten the script: it was restarted, flushed, or is another one after a failover.
pub(super) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

const HEX: usize = 32;

/// `p1|<token>|<fingerprint>`.
pub(super) fn pending(who: &Claimant) -> String {
    format!("p1|{}|{}", hex(who.token.as_bytes()), hex(who.fingerprint.as_bytes()))
}

/// `d1|<fingerprint>`.
pub(super) fn done(who: &Claimant) -> String {
    format!("d1|{}", hex(who.fingerprint.as_bytes()))
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

/// What a claim is told about the value that it found, with its `PTTL`.
pub(super) fn held(value: &[u8], left: i64, who: &Claimant, peer_lease: Duration) -> Claim {
    // Negative for a value without an end.
    let left = u64::try_from(left).ok().map(Duration::from_millis);
    let in_progress = |rest: Duration| Claim::InProgress {
        retry_after: rest.max(Duration::from_millis(1)),
    };
    match Held::read(value) {
        Held::Pending(body) | Held::Done(body) if body != who.fingerprint => Claim::Conflict,
        Held::Pending(_) => in_progress(left.unwrap_or_default()),
        Held::Done(_) => Claim::Duplicate,
        Held::ByPeer => match left.filter(|left| *left <= peer_lease) {
            Some(left) => in_progress(left),
            None => Claim::Duplicate,
        },
    }
}

enum Held {
    Pending(Fingerprint),
    Done(Fingerprint),
    /// Anything that is not ours: to peers, too, only its existence counts.
    ByPeer,
}

impl Held {
    fn read(value: &[u8]) -> Self {
        let ours = if let Some(rest) = value.strip_prefix(b"p1|") {
            rest.get(HEX..)
                .and_then(|rest| rest.strip_prefix(b"|"))
                .and_then(fingerprint)
                .map(Self::Pending)
        } else {
            value.strip_prefix(b"d1|").and_then(fingerprint).map(Self::Done)
        };
        ours.unwrap_or(Self::ByPeer)
    }
}

fn fingerprint(text: &[u8]) -> Option<Fingerprint> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() == HEX)?;
    let number = u128::from_str_radix(text, 16).ok()?;
    Some(Fingerprint::from_bytes(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::super::words;
    use super::*;
    use crate::claim::{ClaimKey, Scope, Token};

    fn who() -> Claimant {
        Claimant {
            key: ClaimKey::new(&Scope::default(), "k1").unwrap(),
            token: Token::from_bytes([0xab; 16]),
            fingerprint: Fingerprint::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]),
        }
    }

    const BODY: &str = "000102030405060708090a0b0c0d0eff";
    const PEER_LEASE: Duration = Duration::from_secs(12);

    #[track_caller]
    fn check(value: &str, left: i64, expected: Claim) {
        assert_eq!(held(value.as_bytes(), left, &who(), PEER_LEASE), expected);
    }

    fn rest(millis: u64) -> Claim {
        Claim::InProgress {
            retry_after: Duration::from_millis(millis),
        }
    }

    #[test]
    fn values_are_written_as_documented() {
        assert_eq!(pending(&who()), format!("p1|{}|{BODY}", "ab".repeat(16)));
        assert_eq!(done(&who()), format!("d1|{BODY}"));
    }

    #[test]
    fn what_holds_a_key_is_told_apart() {
        let (token, other) = ("cd".repeat(16), "ee".repeat(16));
        check(&format!("p1|{token}|{BODY}"), 5_999, rest(5_999));
        check(&format!("p1|{token}|{BODY}"), 0, rest(1));
        check(&format!("p1|{token}|{other}"), 5_999, Claim::Conflict);
        check(&format!("d1|{BODY}"), 86_400_000, Claim::Duplicate);
        // The end of a TTL is no lease.
        check(&format!("d1|{BODY}"), 1, Claim::Duplicate);
        check(&format!("d1|{other}"), 86_400_000, Claim::Conflict);
    }

    #[test]
    fn a_peers_value_is_pending_while_little_of_its_time_is_left() {
        for value in [
            "1",
            "0",
            "",
            "p1|",
            "p2|x",
            "d1|xyz",
            "6f9619ff-8b86-d011-b42d-00cf4fc964ff",
        ] {
            check(value, 12_001, Claim::Duplicate);
            check(value, 12_000, rest(12_000));
            check(value, 1, rest(1));
            check(value, -1, Claim::Duplicate);
        }
    }

    #[test]
    fn a_script_is_called_with_its_one_key_first() {
        let script = Script::new("return KEYS[1]");
        // The hash as the server computes it: printf %s 'return KEYS[1]' | sha1sum
        assert_eq!(
            words(&script.by_hash(&[b"idemp:k1", b"a"])),
            [
                "EVALSHA",
                "4a2267357833227dd98abdedb8cf24b15a986445",
                "1",
                "idemp:k1",
                "a"
            ]
        );
        assert_eq!(
            words(&script.in_full(&[b"idemp:k1", b"a"])),
            ["EVAL", "return KEYS[1]", "1", "idemp:k1", "a"]
        );
    }
}
