//! What a server says of itself, and what of that does not suit claims.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{FromRedisValue, RedisResult, Value, cmd};
use uuid::Uuid;

use super::RedisStore;
use super::link::Resend;
use crate::store::StoreError;

/// The oldest version that has what the scripts use.
const OLDEST: (u32, u32) = (6, 2);

/// How far the server's clock may be off. Leases and TTLs go by that clock alone, so this is about logs and about peers
/// that compare times themselves.
const CLOCK: Duration = Duration::from_secs(2);

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// A stable name.
    pub check: &'static str,
    /// What was found.
    pub found: String,
    /// What is wrong with that and what follows from it; `None` if nothing is.
    pub finding: Option<String>,
}

impl Checked {
    fn fine(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            found: found.into(),
            finding: None,
        }
    }

    fn finding(mut self, is_wrong: bool, why: &str) -> Self {
        if is_wrong {
            self.finding = Some(why.to_owned());
        }
        self
    }
}

impl RedisStore {
    /// Looks whether the server suits claims: whether it is there, its version, whether it evicts, whether it keeps
    /// what it has over a restart, whether our scripts may run, whether it takes writes, and its clock.
    ///
    /// It writes and deletes one key, `idemp/doctor:` and a UUID. On a cluster it sees one of the nodes. What the user
    /// of the connection may not ask is told as not known.
    ///
    /// # Panics
    /// Outside a tokio runtime with the time and I/O drivers, as every operation.
    pub async fn diagnose(&self) -> Vec<Checked> {
        if let Err(error) = self.link.ask(&cmd("PING"), Resend::Always).await {
            let why = error
                .code()
                .map_or("the server cannot be reached", |_| "the server does not let us in");
            let found = error.code().unwrap_or("no answer").to_owned();
            return vec![Checked::fine("server", found).finding(true, why)];
        }
        let before = SystemTime::now();
        let time = self.link.ask(&cmd("TIME"), Resend::Always).await;
        let after = SystemTime::now();
        let mut all = match self.link.ask(cmd("INFO").arg("everything"), Resend::Always).await {
            Ok(info) => said(&text(&info)),
            Err(_) => vec![Checked::fine("server", "there; it may not be asked of itself (INFO)")],
        };
        all.push(self.scripts_run().await);
        all.push(clock(time, before, after));
        all
    }

    /// Whether the user may do all that claims need.
    async fn scripts_run(&self) -> Checked {
        match self.claim_for_a_look().await {
            Ok(()) => Checked::fine("scripts", "run"),
            Err(error) => Checked::fine("scripts", error.to_string()).finding(
                true,
                "claims are scripts over keys that begin with idemp: the user must be allowed to run them and the commands \
                 in them (docs/receiver.md, \"Redis\")",
            ),
        }
    }

    /// Claims a key of its own, is refused it under another name, renews it and lets it go: every command that is in any
    /// of the scripts.
    async fn claim_for_a_look(&self) -> Result<(), StoreError> {
        let key = format!("idemp/doctor:{}", Uuid::new_v4());
        let key = key.as_bytes();
        let (own, other, time): (&[u8], &[u8], &[u8]) = (b"p1|doctor|0", b"p1|other|0", b"1000");
        self.run(&self.scripts.claim, Resend::Always, &[key, own, time]).await?;
        let looked = async {
            self.run(&self.scripts.claim, Resend::Always, &[key, other, time])
                .await?;
            self.run(&self.scripts.renew, Resend::Always, &[key, own, time]).await
        };
        let looked = looked.await;
        self.run(&self.scripts.release, Resend::Always, &[key, own]).await?;
        looked.map(drop)
    }
}

/// What the text of INFO says.
fn said(info: &str) -> Vec<Checked> {
    let field = |name: &str| {
        let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.to_owned());
        info.lines().find_map(value)
    };
    let unknown = || "not known".to_owned();
    let mut all = Vec::new();

    let (name, version) = match field("valkey_version") {
        Some(version) => ("Valkey", Some(version)),
        None => ("Redis", field("redis_version")),
    };
    let number = version.as_deref().and_then(major_and_minor);
    let found = version.map_or_else(unknown, |version| format!("{name} {version}"));
    all.push(Checked::fine("version", found).finding(
        number.is_some_and(|number| number < OLDEST),
        "the oldest version that is supported is 6.2",
    ));

    let policy = field("maxmemory_policy");
    all.push(
        Checked::fine("eviction", policy.clone().unwrap_or_else(unknown)).finding(
            policy.is_some_and(|policy| policy != "noeviction"),
            "when memory is short, claims and marks vanish and events run twice: set maxmemory-policy noeviction",
        ),
    );

    let is_on = |name: &str| field(name).map(|value| value == "1");
    let failed = |name: &str| field(name).is_some_and(|value| value != "ok");
    let aof = is_on("aof_enabled");
    let found = match aof {
        Some(true) => "append-only file".to_owned(),
        Some(false) => "no append-only file".to_owned(),
        None => unknown(),
    };
    all.push(
        Checked::fine("persistence", found)
            .finding(
                aof == Some(false),
                "a restart forgets marks since the last snapshot, and their events run twice: set appendonly yes",
            )
            .finding(
                failed("aof_last_write_status") || failed("rdb_last_bgsave_status"),
                "the last write to disk failed: the server may refuse writes",
            ),
    );

    let role = field("role");
    all.push(Checked::fine("role", role.clone().unwrap_or_else(unknown)).finding(
        role.is_some_and(|role| role == "slave"),
        "a replica takes no writes: name the primary",
    ));
    all
}

fn clock(time: RedisResult<Value>, before: SystemTime, after: SystemTime) -> Checked {
    let time = time.ok().and_then(|time| <(u64, u64)>::from_redis_value(time).ok());
    let Some((seconds, micros)) = time else {
        return Checked::fine("clock", "not known");
    };
    let server = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
    // It was read somewhere between.
    let ahead = server.duration_since(after).unwrap_or_default();
    let behind = before.duration_since(server).unwrap_or_default();
    let found = match (ahead.as_millis(), behind.as_millis()) {
        (0, 0) => "as here".to_owned(),
        (ahead, 0) => format!("{ahead} ms ahead"),
        (_, behind) => format!("{behind} ms behind"),
    };
    Checked::fine("clock", found).finding(
        ahead.max(behind) > CLOCK,
        "the clocks differ: leases are safe, since they go by the server's, but times in logs do not match",
    )
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.clone(),
        // Of a cluster: the first node that answered.
        Value::Map(nodes) => nodes.first().map(|(_, info)| self::text(info)).unwrap_or_default(),
        _ => String::new(),
    }
}

fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(info: &str) -> Vec<&'static str> {
        let all = said(info);
        assert_eq!(all.len(), 4);
        let wrong = all.into_iter().filter(|checked| checked.finding.is_some());
        wrong.map(|checked| checked.check).collect()
    }

    #[test]
    fn a_server_as_it_should_be() {
        let info = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:9.1.2\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n\
                    aof_enabled:1\r\naof_last_write_status:ok\r\nrdb_last_bgsave_status:ok\r\nrole:master\r\n";
        assert!(findings(info).is_empty());
        assert_eq!(said(info)[0].found, "Valkey 9.1.2");
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        let info = "redis_version:5.0.14\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0\r\nrole:slave\r\n";
        assert_eq!(findings(info), ["version", "eviction", "persistence", "role"]);
        assert_eq!(
            findings("redis_version:6.2.0\r\naof_enabled:1\r\naof_last_write_status:err\r\n"),
            ["persistence"]
        );
        assert!(findings("").is_empty(), "what is not known is no finding");
    }

    #[test]
    fn a_clock_is_compared_with_the_time_in_which_it_was_read() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let read = |seconds: &str| {
            let part = |text: &str| Value::BulkString(text.as_bytes().to_vec());
            clock(Ok(Value::Array(vec![part(seconds), part("0")])), at(100), at(105))
        };
        assert_eq!(read("103"), Checked::fine("clock", "as here"));
        assert_eq!(read("106").finding, None);
        assert_eq!(read("108").found, "3000 ms ahead");
        assert!(read("108").finding.is_some());
        assert_eq!(read("97").found, "3000 ms behind");
        assert!(read("97").finding.is_some());
    }
}
