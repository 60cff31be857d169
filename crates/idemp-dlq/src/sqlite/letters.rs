//! What is done to one entry. Each function either does the whole or nothing.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use idemp_core::Reason;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use sha2::{Digest, Sha256};

use super::fault::unreadable;
use super::query::Condition;
use crate::{
    Claim, DeadLetter, LeaseToken, Letterhead, Loaded, Put, RecordError, ReplayFailure, Settled, StoreError, time,
};

/// A letter as it is written.
pub(super) struct Row {
    head: Letterhead,
    json: String,
    body_sha256: [u8; 32],
    body: Bytes,
}

impl Row {
    pub(super) fn new(letter: DeadLetter) -> Self {
        let head = letter.letterhead();
        Self {
            json: head.to_json(),
            body_sha256: letter.body_sha256(),
            body: letter.message.body().clone(),
            head,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.json.len() + self.body.len()
    }
}

pub(super) fn put(connection: &Connection, row: &Row) -> Result<Put, StoreError> {
    let mut known =
        connection.prepare_cached("SELECT id, body_sha256, head FROM letters WHERE key = ?1 AND sink = ?2")?;
    let mut known = known.query(params![row.head.key.as_str(), row.head.sink.as_str()])?;
    let mut conflicts = false;
    while let Some(entry) = known.next()? {
        if entry.get_ref(1)?.as_bytes().map_err(rusqlite::Error::from)? != row.body_sha256 {
            conflicts = true;
            continue;
        }
        // What cannot be read is left as it is, and the letter is written beside it.
        if let Ok(mut head) = Letterhead::from_json(entry.get_ref(2)?.as_bytes().map_err(rusqlite::Error::from)?) {
            head.absorb(row.head.clone());
            let id = entry.get(0)?;
            update(connection, id, &head)?;
            return Ok(Put::Updated);
        }
    }
    if conflicts {
        let head = Letterhead {
            reason: Reason::KeyConflict,
            class: Reason::KeyConflict.class(),
            ..row.head.clone()
        };
        insert(connection, &head, &head.to_json(), row)?;
        return Ok(Put::Conflict);
    }
    insert(connection, &row.head, &row.json, row)?;
    Ok(Put::Added)
}

fn insert(connection: &Connection, head: &Letterhead, json: &str, row: &Row) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO letters (key, sink, event_type, step, day, reason, dead_at, body_sha256, head, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?
        .execute(params![
            head.key.as_str(),
            head.sink.as_str(),
            head.key.event_type(),
            head.key.step_index().as_i64(),
            time::day(head.accepted_at),
            head.reason.code(),
            time::nanos(head.dead_at),
            row.body_sha256,
            json,
            &*row.body,
        ])?;
    Ok(())
}

/// Writes all that can change in an entry.
fn update(connection: &Connection, id: i64, head: &Letterhead) -> Result<(), StoreError> {
    connection
        .prepare_cached("UPDATE letters SET day = ?2, reason = ?3, dead_at = ?4, head = ?5 WHERE id = ?1")?
        .execute(params![
            id,
            time::day(head.accepted_at),
            head.reason.code(),
            time::nanos(head.dead_at),
            head.to_json(),
        ])?;
    Ok(())
}

pub(super) fn load(connection: &Connection, id: i64) -> Result<Option<Loaded>, StoreError> {
    let found = read(connection, id)?;
    found
        .map(|Found { letter, lease }| {
            let held_until = lease.map(|(_, until)| until);
            Ok(Loaded {
                letter: letter.map_err(|error| unreadable(id, error))?,
                held_until,
            })
        })
        .transpose()
}

pub(super) fn claim(
    connection: &Connection,
    id: i64,
    token: &LeaseToken,
    lease: Duration,
    now: SystemTime,
) -> Result<Claim, StoreError> {
    let Some(Found { letter, lease: held }) = read(connection, id)? else {
        return Ok(Claim::Gone);
    };
    if let Some((holder, until)) = held
        && holder != token.as_str()
        && until > now
    {
        return Ok(Claim::Held { until });
    }
    let letter = letter.map_err(|error| unreadable(id, error))?;
    connection
        .prepare_cached("INSERT OR REPLACE INTO leases (letter, token, until) VALUES (?1, ?2, ?3)")?
        .execute(params![id, token.as_str(), time::nanos(time::after(now, lease))])?;
    Ok(Claim::Claimed(Box::new(letter)))
}

pub(super) fn mark_replayed(
    connection: &Connection,
    id: i64,
    token: &LeaseToken,
    now: SystemTime,
) -> Result<Settled, StoreError> {
    if !holds(connection, id, token)? {
        return Ok(Settled::Lost);
    }
    whole(connection, || {
        connection
            .prepare_cached(
                "INSERT INTO replayed (key, sink, event_type, reason, dead_at, body_sha256, replayed_at)
                 SELECT key, sink, event_type, reason, dead_at, body_sha256, ?2 FROM letters WHERE id = ?1",
            )?
            .execute(params![id, time::nanos(now)])?;
        connection
            .prepare_cached("DELETE FROM letters WHERE id = ?1")?
            .execute([id])?;
        let_go(connection, id)?;
        Ok(Settled::Done)
    })
}

pub(super) fn record_failure(
    connection: &Connection,
    id: i64,
    token: &LeaseToken,
    failure: &ReplayFailure,
) -> Result<Settled, StoreError> {
    if !holds(connection, id, token)? {
        return Ok(Settled::Lost);
    }
    let mut head = connection
        .prepare_cached("SELECT head FROM letters WHERE id = ?1")?
        .query_row([id], |row| Ok(Letterhead::from_json(row.get_ref(0)?.as_bytes()?)))?
        .map_err(|error| unreadable(id, error))?;
    head.record(failure.clone());
    whole(connection, || {
        update(connection, id, &head)?;
        let_go(connection, id)?;
        Ok(Settled::Done)
    })
}

pub(super) fn release(connection: &Connection, id: i64, token: &LeaseToken) -> Result<Settled, StoreError> {
    if !holds(connection, id, token)? {
        return Ok(Settled::Lost);
    }
    let_go(connection, id)?;
    Ok(Settled::Done)
}

/// Deletes those of the entries that the condition still means.
pub(super) fn purge(connection: &Connection, ids: &[i64], condition: &Condition) -> Result<u64, StoreError> {
    whole(connection, || {
        let sql = format!("DELETE FROM letters WHERE {} AND id = ?", condition.sql);
        let mut delete = connection.prepare_cached(&sql)?;
        let mut purged = 0;
        for id in ids {
            let values = condition.values.iter().cloned().chain([(*id).into()]);
            if delete.execute(params_from_iter(values))? > 0 {
                let_go(connection, *id)?;
                purged += 1;
            }
        }
        Ok(purged)
    })
}

/// Deletes what is left of replayed entries that the condition means.
pub(super) fn purge_replayed(connection: &Connection, condition: &Condition) -> Result<(), StoreError> {
    let sql = format!("DELETE FROM replayed WHERE {}", condition.sql);
    connection
        .prepare_cached(&sql)?
        .execute(params_from_iter(&condition.values))?;
    Ok(())
}

struct Found {
    letter: Result<DeadLetter, RecordError>,
    lease: Option<(String, SystemTime)>,
}

fn read(connection: &Connection, id: i64) -> Result<Option<Found>, StoreError> {
    let found = connection
        .prepare_cached(
            "SELECT head, body_sha256, body, token, until
             FROM letters LEFT JOIN leases ON leases.letter = letters.id WHERE letters.id = ?1",
        )?
        .query_row([id], |row| {
            let bytes = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_bytes()?);
            let lease = row.get::<_, Option<String>>(3)?.zip(row.get::<_, Option<i64>>(4)?);
            Ok(Found {
                letter: letter(bytes(0)?, bytes(1)?, bytes(2)?),
                lease: lease.map(|(token, until)| (token, time::from_nanos(until))),
            })
        })
        .optional()?;
    Ok(found)
}

fn letter(head: &[u8], body_sha256: &[u8], body: &[u8]) -> Result<DeadLetter, RecordError> {
    let head = Letterhead::from_json(head)?;
    if Sha256::digest(body).as_slice() != body_sha256 {
        return Err(RecordError::Body);
    }
    head.with_body(Bytes::copy_from_slice(body))
}

fn holds(connection: &Connection, id: i64, token: &LeaseToken) -> Result<bool, StoreError> {
    let held = connection
        .prepare_cached("SELECT 1 FROM leases JOIN letters ON letters.id = letter WHERE letter = ?1 AND token = ?2")?
        .exists(params![id, token.as_str()])?;
    Ok(held)
}

fn let_go(connection: &Connection, id: i64) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM leases WHERE letter = ?1")?
        .execute([id])?;
    Ok(())
}

/// Makes several writes one: all of them, or none, within the transaction that others share.
fn whole<T>(connection: &Connection, writes: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    connection.prepare_cached("SAVEPOINT job")?.execute([])?;
    let result = writes();
    if result.is_err() && !connection.is_autocommit() {
        connection.prepare_cached("ROLLBACK TO job")?.execute([])?;
    }
    if !connection.is_autocommit() {
        connection.prepare_cached("RELEASE job")?.execute([])?;
    }
    result
}
