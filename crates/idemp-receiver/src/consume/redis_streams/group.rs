//! The consumer group: where it begins, making it, and leaving it.

use redis::{RedisResult, Value, cmd};

use super::config::RedisStreamsConsumerConfig;
use super::entry::{self, ENDS};
use super::fault::Fault;
use super::link::{self, Link};
use crate::consume::config::Start;

/// One step, so that no entry comes in between.
const LEAVE: &str = "\
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
return 0";

/// The id after which a group begins that is not there yet.
pub(super) async fn beginning(link: &Link, config: &RedisStreamsConsumerConfig) -> Result<String, Fault> {
    match config.start {
        Start::Earliest => Ok(ENDS.to_owned()),
        // Not `$`: made again, the group must begin where it began.
        Start::Latest => last_id(link, config).await,
    }
}

/// Makes the group, and the stream if need be. It may be there.
pub(super) async fn make(link: &Link, config: &RedisStreamsConsumerConfig, beginning: &str) -> RedisResult<()> {
    let mut make = cmd("XGROUP");
    make.arg("CREATE").arg(&config.stream).arg(&config.group);
    make.arg(beginning).arg("MKSTREAM");
    match link.ask(&make).await {
        Ok(_) => tracing::info!(stream = config.stream, group = config.group, "made the consumer group"),
        Err(error) if error.code() == Some("BUSYGROUP") => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Takes this consumer's name out of the group, unless entries are pending under it: they would be lost.
pub(super) async fn leave(link: &Link, config: &RedisStreamsConsumerConfig) {
    let mut leave = cmd("EVAL");
    leave
        .arg(LEAVE)
        .arg(1)
        .arg(&config.stream)
        .arg(&config.group)
        .arg(&config.consumer);
    if let Err(error) = link.ask(&leave).await {
        tracing::info!(cause = link::cause(&error), "the consumer's name stays in the group");
    }
}

/// The id of the newest entry that the stream holds; with none, of its beginning, after which there is nothing to pass
/// over.
async fn last_id(link: &Link, config: &RedisStreamsConsumerConfig) -> Result<String, Fault> {
    let mut newest = cmd("XREVRANGE");
    newest.arg(&config.stream).arg("+").arg("-").arg("COUNT").arg(1);
    let answer = link.ask(&newest).await?;
    let Value::Array(mut entries) = answer else {
        return Err(Fault::Misshapen);
    };
    match entries.pop() {
        None => Ok(ENDS.to_owned()),
        Some(entry) => {
            let stream = Value::Array(vec![Value::Nil, Value::Array(vec![entry])]);
            let newest = entry::read(Value::Array(vec![stream]))?;
            newest.into_iter().next().map(|entry| entry.id).ok_or(Fault::Misshapen)
        }
    }
}
