//! What a filter means in SQL, and what is read of many entries.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use crate::{EntryId, Filter, Letterhead, Listed, Stats, StoreError, time};

/// Oldest day first, within a day by run, within a run by step.
const REPLAY_ORDER: &str = "ORDER BY day, substr(key, 1, instr(key, ':') - 1), step, id LIMIT ?";

/// A filter as the text after `WHERE`, and the values of its parameters in order.
pub(super) struct Condition {
    pub(super) sql: String,
    pub(super) values: Vec<Value>,
}

impl Condition {
    pub(super) fn of(filter: &Filter) -> Self {
        let mut condition = Self {
            sql: "TRUE".to_owned(),
            values: Vec::new(),
        };
        let text = |text: &str| Value::Text(text.to_owned());
        if let Some(sink) = &filter.sink {
            condition.and("sink = ?", text(sink.as_str()));
        }
        if let Some(event_type) = &filter.event_type {
            condition.and("event_type = ?", text(event_type.as_str()));
        }
        if let Some(reason) = filter.reason {
            condition.and("reason = ?", text(reason.code()));
        }
        if let Some(run_id) = &filter.run_id {
            // The keys of one run lie side by side: `;` is the next byte after `:`.
            condition.and("key >= ?", Value::Text(format!("{run_id}:")));
            condition.and("key < ?", Value::Text(format!("{run_id};")));
        }
        if let Some(key) = &filter.key {
            condition.and("key = ?", text(key.as_str()));
        }
        if let Some(since) = filter.since {
            condition.and("dead_at >= ?", time::nanos(since).into());
        }
        if let Some(until) = filter.until {
            condition.and("dead_at < ?", time::nanos(until).into());
        }
        condition
    }

    fn and(&mut self, comparison: &str, value: Value) {
        self.sql.push_str(" AND ");
        self.sql.push_str(comparison);
        self.values.push(value);
    }
}

/// The entries that are meant, in replay order.
pub(super) fn select(connection: &Connection, filter: &Filter) -> Result<Vec<i64>, StoreError> {
    let Condition { sql, mut values } = Condition::of(filter);
    values.push(limit(filter));
    let mut statement = connection.prepare_cached(&format!("SELECT id FROM letters WHERE {sql} {REPLAY_ORDER}"))?;
    let ids = statement.query_map(params_from_iter(values), |row| row.get(0))?;
    Ok(ids.collect::<Result<_, _>>()?)
}

/// Those of the entries that are still there.
pub(super) fn page(connection: &Connection, ids: &[i64]) -> Result<Vec<Listed>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT head FROM letters WHERE id = ?")?;
    let mut page = Vec::with_capacity(ids.len());
    for id in ids {
        let head = statement
            .query_row([id], |row| Ok(Letterhead::from_json(row.get_ref(0)?.as_bytes()?)))
            .optional()?;
        if let Some(letterhead) = head {
            page.push(Listed {
                id: EntryId::new(id.to_string()),
                letterhead,
            });
        }
    }
    Ok(page)
}

/// Counts what is meant, with a limit what a selection would list.
pub(super) fn stats(connection: &Connection, filter: &Filter) -> Result<Stats, StoreError> {
    let Condition { sql, mut values } = Condition::of(filter);
    let mut meant = format!("SELECT sink, reason, dead_at FROM letters WHERE {sql}");
    if filter.limit.is_some() {
        meant = format!("{meant} {REPLAY_ORDER}");
        values.push(limit(filter));
    }
    let mut statement = connection.prepare_cached(&format!(
        "SELECT sink, reason, count(*), min(dead_at) FROM ({meant}) GROUP BY sink, reason"
    ))?;
    let mut groups = statement.query(params_from_iter(values))?;
    let mut stats = Stats::default();
    while let Some(group) = groups.next()? {
        let (sink, reason): (String, String) = (group.get(0)?, group.get(1)?);
        let (count, dead_at): (i64, i64) = (group.get(2)?, group.get(3)?);
        stats.count(
            sink.parse().ok(),
            reason.parse().ok(),
            count.unsigned_abs(),
            time::from_nanos(dead_at),
        );
    }
    Ok(stats)
}

/// SQLite takes a negative limit for none.
fn limit(filter: &Filter) -> Value {
    filter
        .limit
        .map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX))
        .into()
}
