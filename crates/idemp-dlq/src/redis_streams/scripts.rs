//! What is done on the server, as scripts that each do the whole or nothing.
//!
//! A server that refuses a command to the login stops a script where it is, and what was written stays. So each of them
//! calls `may_write` before its first write: that calls every command that writes and leaves the keys as they are, but for
//! `XADD`, after which nothing is refused any more.
//!
//! `KEYS` are the stream and its index. The index is a hash:
//!
//! | field | value |
//! |---|---|
//! | `v` | version of this layout |
//! | `i:ID` | `CURRENT\|UNTIL\|TOKEN\|SHA256\|SINK:KEY`: in which stream entry the letter lies now, who holds it until when, hash of the body |
//! | `k:SINK:KEY` | the ids under this sink and key, with spaces between |
//!
//! An entry's id is the id of the stream entry that it was first written to, which the server never gives again. When a
//! letter is written once more, it gets another stream entry, whose field `entry` holds the id.
//!
//! A letter that stands in the stream and not in the index is read all the same, and gets into the index when it is
//! claimed.

use std::sync::LazyLock;

use redis::{Cmd, Script};

/// Version of the layout, and the only one that is understood.
pub(super) const VERSION: u64 = 1;

/// A script and what the server knows it by.
pub(super) struct Lua {
    source: String,
    hash: String,
}

impl Lua {
    /// `flags` is a line that the server reads before the script.
    fn new(flags: &str, body: &str) -> Self {
        let source = format!("{flags}{COMMON}{body}");
        Self {
            hash: Script::new(&source).get_hash().to_owned(),
            source,
        }
    }

    /// Runs the script that the server knows already.
    pub(super) fn by_hash(&self, keys: [&str; 2], arguments: &[&[u8]]) -> Cmd {
        call("EVALSHA", &self.hash, keys, arguments)
    }

    /// Runs the script and makes it known.
    pub(super) fn by_source(&self, keys: [&str; 2], arguments: &[&[u8]]) -> Cmd {
        call("EVAL", &self.source, keys, arguments)
    }
}

fn call(name: &str, script: &str, keys: [&str; 2], arguments: &[&[u8]]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(keys.len()).arg(&keys);
    for argument in arguments {
        command.arg(*argument);
    }
    command
}

const COMMON: &str = r"
local stream, index = KEYS[1], KEYS[2]

local function state(id)
  local text = redis.call('HGET', index, 'i:' .. id)
  if not text then return nil end
  local at, til, token, sha, name = string.match(text, '^(.-)|(.-)|(.-)|(.-)|(.*)$')
  return {at = at, til = til, token = token, sha = sha, name = name}
end

local function keep(id, entry)
  local text = entry.at .. '|' .. entry.til .. '|' .. entry.token .. '|' .. entry.sha .. '|' .. entry.name
  redis.call('HSET', index, 'i:' .. id, text)
end

local function list(id, name)
  local ids = redis.call('HGET', index, 'k:' .. name)
  redis.call('HSET', index, 'k:' .. name, ids and (ids .. ' ' .. id) or id)
end

local function may_write()
  -- First, because a full server refuses a script by its first write alone.
  redis.call('HSET', index, 'v', redis.call('HGET', index, 'v') or '1')
  redis.call('XDEL', stream, '0-0')
  redis.call('HDEL', index, '')
end

local function forget(id, entry)
  redis.call('HDEL', index, 'i:' .. id)
  local rest = {}
  for other in string.gmatch(redis.call('HGET', index, 'k:' .. entry.name) or '', '%S+') do
    if other ~= id then rest[#rest + 1] = other end
  end
  if #rest == 0 then
    redis.call('HDEL', index, 'k:' .. entry.name)
  else
    redis.call('HSET', index, 'k:' .. entry.name, table.concat(rest, ' '))
  end
end

local function fields(at)
  local found = redis.call('XRANGE', stream, at, at)[1]
  if not found then return nil end
  local by_name = {}
  for i = 1, #found[2], 2 do by_name[found[2][i]] = found[2][i + 1] end
  return by_name
end

-- A record without its body: that is its last field, and no text within a record has a quote that is not escaped.
local function head(record)
  local body = string.find(record, ',\34body\34:\34', 1, true)
  if body and string.sub(record, -2) == '\34}' then return string.sub(record, 1, body - 1) .. '}' end
  return record
end

local function line(id, at, by_name)
  return {id, at, head(by_name['record'] or ''), by_name['idempotency_key'] or '', by_name['event_type'] or ''}
end
";

/// Allowed where memory is full: whoever takes letters out has to hold them first.
const ALSO_WHEN_FULL: &str = "#!lua flags=allow-oom\n";

/// sink:key, hash, whether other bytes are known under it, ids to pass over, then key, event type, payload, record.
/// Gives `added`, `fresh` or `conflict` if the third argument was wrong, or `same` with id, stream entry and record.
pub(super) static PUT: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        "",
        r"
may_write()
local name, sha = ARGV[1], ARGV[2]
local conflict = false
for id in string.gmatch(redis.call('HGET', index, 'k:' .. name) or '', '%S+') do
  local entry = state(id)
  local by_name = entry and fields(entry.at)
  if entry and not by_name then
    forget(id, entry)
  elseif entry and entry.sha ~= sha then
    conflict = true
  elseif entry and not string.find(' ' .. ARGV[4] .. ' ', ' ' .. id .. ' ', 1, true) then
    return {'same', id, entry.at, by_name['record'] or ''}
  end
end
if conflict ~= (ARGV[3] == '1') then return {conflict and 'conflict' or 'fresh'} end
local id = redis.call('XADD', stream, '*', 'idempotency_key', ARGV[5], 'event_type', ARGV[6],
  'payload', ARGV[7], 'record', ARGV[8])
keep(id, {at = id, til = '', token = '', sha = sha, name = name})
list(id, name)
return {'added'}
",
    )
});

/// id, the stream entry that was read, token or nothing, then key, event type, payload, record. A token has to hold the
/// entry, which is let go of. Gives `done`, `lost`, or `moved` if the entry is not as it was read.
pub(super) static REWRITE: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        "",
        r"
local id, token = ARGV[1], ARGV[3]
local entry = state(id)
if token ~= '' and (not entry or entry.token ~= token) then return 'lost' end
if not entry or entry.at ~= ARGV[2] or not fields(entry.at) then return 'moved' end
may_write()
local at = redis.call('XADD', stream, '*', 'idempotency_key', ARGV[4], 'event_type', ARGV[5],
  'payload', ARGV[6], 'record', ARGV[7], 'entry', id)
redis.call('XDEL', stream, entry.at)
entry.at = at
if token ~= '' then entry.til, entry.token = '', '' end
keep(id, entry)
return 'done'
",
    )
});

/// id. Gives nothing, or stream entry, record, end of the lease, token.
pub(super) static LOAD: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        "",
        r"
local entry = state(ARGV[1]) or {at = ARGV[1], til = '', token = ''}
local by_name = fields(entry.at)
if not by_name then return {} end
return {entry.at, by_name['record'] or '', entry.til, entry.token}
",
    )
});

/// id, the stream entry that was read, token, end of the lease, now, hash, sink:key. Gives `claimed`, `held` with the
/// end of the lease, or `moved`.
pub(super) static CLAIM: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        ALSO_WHEN_FULL,
        r"
local id, token = ARGV[1], ARGV[3]
local entry = state(id)
if (entry and entry.at or id) ~= ARGV[2] or not fields(ARGV[2]) then return {'moved'} end
may_write()
if not entry then
  entry = {at = id, til = '', token = '', sha = ARGV[6], name = ARGV[7]}
  list(id, entry.name)
end
if entry.token ~= '' and entry.token ~= token and entry.til > ARGV[5] then return {'held', entry.til} end
entry.til, entry.token = ARGV[4], token
keep(id, entry)
return {'claimed'}
",
    )
});

/// id, token. Gives whether the token held the entry, which is gone then.
pub(super) static REMOVE: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        ALSO_WHEN_FULL,
        r"
local entry = state(ARGV[1])
if not entry or entry.token ~= ARGV[2] then return 0 end
may_write()
forget(ARGV[1], entry)
return redis.call('XDEL', stream, entry.at)
",
    )
});

/// id, token. Gives whether the token held the entry, which is free then.
pub(super) static RELEASE: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        ALSO_WHEN_FULL,
        r"
local entry = state(ARGV[1])
if not entry or entry.token ~= ARGV[2] or not fields(entry.at) then return 0 end
entry.til, entry.token = '', ''
keep(ARGV[1], entry)
return 1
",
    )
});

/// Pairs of id and the stream entry that was read. Gives how many were deleted; those that changed since are not.
pub(super) static PURGE: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        ALSO_WHEN_FULL,
        r"
may_write()
local count = 0
for i = 1, #ARGV, 2 do
  local entry = state(ARGV[i])
  if (entry and entry.at or ARGV[i]) == ARGV[i + 1] then
    count = count + redis.call('XDEL', stream, ARGV[i + 1])
    if entry then forget(ARGV[i], entry) end
  end
end
return count
",
    )
});

/// Where to begin, and how many. Gives the bytes that were looked at, and a line for each entry: id, stream entry,
/// record without body, key, event type.
pub(super) static SCAN: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        "",
        r"
local lines, bytes = {}, 0
for _, found in ipairs(redis.call('XRANGE', stream, ARGV[1], '+', 'COUNT', ARGV[2])) do
  local by_name = {}
  for i = 1, #found[2], 2 do
    by_name[found[2][i]] = found[2][i + 1]
    bytes = bytes + #found[2][i + 1]
  end
  local id = by_name['entry']
  local entry = id and state(id)
  -- Without its place in the index an entry is known by where it lies.
  if not entry or entry.at ~= found[1] then id = found[1] end
  lines[#lines + 1] = line(id, found[1], by_name)
end
return {bytes, lines}
",
    )
});

/// Ids. Gives a line, as above, for each that is still there.
pub(super) static HEADS: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        "",
        r"
local lines = {}
for _, id in ipairs(ARGV) do
  local entry = state(id)
  local at = entry and entry.at or id
  local by_name = fields(at)
  if by_name then lines[#lines + 1] = line(id, at, by_name) end
end
return lines
",
    )
});

/// Makes the index where there is none, which says that the store is there.
pub(super) static MAKE: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        ALSO_WHEN_FULL,
        r"
if redis.call('TYPE', index)['ok'] ~= 'none' then return 0 end
redis.call('HSET', index, 'v', '1')
return 1
",
    )
});

/// Gives the types of both keys and the version of the layout.
pub(super) static LOOK: LazyLock<Lua> = LazyLock::new(|| {
    Lua::new(
        "",
        r"
local hash = redis.call('TYPE', index)['ok']
local version = hash == 'hash' and redis.call('HGET', index, 'v')
return {redis.call('TYPE', stream)['ok'], hash, version or '1'}
",
    )
});
