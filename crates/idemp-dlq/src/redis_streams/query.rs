//! What a filter means, and what is read of many entries.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_core::Reason;
use serde::Deserialize;

use super::link::{Again, Link};
use super::{PAGE, scripts};
use crate::{EntryId, Filter, Letterhead, Listed, RecordError, Selection, Stats, StoreError, time};

/// Stream entries that one scan looks at, at first and at most.
const FEW: usize = 64;
const MANY: usize = 512;

/// Bytes that one scan should look at, so that the server is not held up.
const BYTES: usize = 2 * 1024 * 1024;

/// The id of a stream entry: milliseconds of the server's clock, and a number within them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Id(u64, u64);

impl Id {
    /// `None` for what no server gives out.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (time, number) = text.split_once('-')?;
        let id = Self(time.parse().ok()?, number.parse().ok()?);
        (id.text() == text).then_some(id)
    }

    pub(super) fn of(id: &EntryId) -> Option<Self> {
        Self::parse(id.as_str())
    }

    pub(super) fn text(self) -> String {
        format!("{}-{}", self.0, self.1)
    }

    fn time(self) -> SystemTime {
        time::after(SystemTime::UNIX_EPOCH, Duration::from_millis(self.0))
    }
}

/// What a scan says of an entry.
pub(super) type Line = (String, String, Vec<u8>, String, String);

/// An entry without its body.
pub(super) struct Entry {
    pub(super) id: Id,
    /// The stream entry in which the letter lies now.
    pub(super) at: String,
    pub(super) head: Result<Letterhead, Unreadable>,
}

/// What can be said of an entry whose record cannot be read.
pub(super) struct Unreadable {
    error: RecordError,
    known: Known,
}

/// What a record of another version may have, and where it does not, what the stream entry has.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Known {
    key: Option<String>,
    sink: Option<String>,
    event_type: Option<String>,
    reason: Option<String>,
    accepted_at: Option<String>,
    dead_at: Option<String>,
}

impl Entry {
    fn read((id, at, record, key, event_type): Line) -> Option<Self> {
        let head = Letterhead::from_json(&record).map_err(|error| {
            let mut known: Known = serde_json::from_slice(&record).unwrap_or_default();
            known.key.get_or_insert(key);
            known.event_type.get_or_insert(event_type);
            Unreadable { error, known }
        });
        Some(Self {
            id: Id::parse(&id)?,
            at,
            head,
        })
    }

    pub(super) fn is_meant_by(&self, filter: &Filter) -> bool {
        let Unreadable { known, .. } = match &self.head {
            Ok(head) => return filter.matches(head),
            Err(unreadable) => unreadable,
        };
        let is = |wanted: Option<&str>, known: &Option<String>| wanted.is_none() || wanted == known.as_deref();
        let run = known
            .key
            .as_ref()
            .and_then(|key| key.split(':').next())
            .map(str::to_owned);
        let dead_at = self.dead_at();
        is(filter.sink.as_ref().map(|sink| sink.as_str()), &known.sink)
            && is(
                filter.event_type.as_ref().map(|event| event.as_str()),
                &known.event_type,
            )
            && is(filter.reason.map(Reason::code), &known.reason)
            && is(filter.run_id.as_ref().map(|run| run.as_str()), &run)
            && is(filter.key.as_ref().map(|key| key.as_str()), &known.key)
            && filter.since.is_none_or(|since| dead_at >= since)
            && filter.until.is_none_or(|until| dead_at < until)
    }

    /// Oldest day first, within a day by run, within a run by step.
    fn place(&self) -> (i64, String, u64) {
        match &self.head {
            Ok(head) => (
                time::day(head.accepted_at),
                head.key.run_id().to_owned(),
                head.key.step_index().as_u64(),
            ),
            Err(Unreadable { known, .. }) => {
                let accepted_at = known.accepted_at.as_deref().and_then(time::from_text);
                let mut parts = known.key.as_deref().unwrap_or_default().split(':');
                let run = parts.next().unwrap_or_default().to_owned();
                let step = parts.nth(1).and_then(|step| step.parse().ok());
                (
                    time::day(accepted_at.unwrap_or(self.id.time())),
                    run,
                    step.unwrap_or_default(),
                )
            }
        }
    }

    fn dead_at(&self) -> SystemTime {
        match &self.head {
            Ok(head) => head.dead_at,
            Err(Unreadable { known, .. }) => {
                let dead_at = known.dead_at.as_deref().and_then(time::from_text);
                dead_at.unwrap_or(self.id.time())
            }
        }
    }

    fn count_in(&self, stats: &mut Stats) {
        let (sink, reason) = match &self.head {
            Ok(head) => (Some(head.sink.clone()), Some(head.reason)),
            Err(Unreadable { known, .. }) => (
                known.sink.as_deref().and_then(|sink| sink.parse().ok()),
                known.reason.as_deref().and_then(|reason| reason.parse().ok()),
            ),
        };
        stats.count(sink, reason, 1, self.dead_at());
    }

    fn listed(self) -> Listed {
        Listed {
            id: EntryId::new(self.id.text()),
            letterhead: self.head.map_err(|unreadable| unreadable.error),
        }
    }
}

/// The ids that are meant, in replay order.
pub(super) async fn select(link: &Link, filter: &Filter) -> Result<Vec<Id>, StoreError> {
    let mut meant = HashMap::new();
    scan(link, |entry| {
        // An entry that was written again meanwhile comes once more, and as it is now.
        if entry.is_meant_by(filter) {
            meant.insert(entry.id, entry.place());
        } else {
            meant.remove(&entry.id);
        }
    })
    .await?;
    let mut meant: Vec<_> = meant.into_iter().map(|(id, place)| (place, id)).collect();
    meant.sort_unstable();
    let limit = filter
        .limit
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(meant.into_iter().map(|(_, id)| id).take(limit).collect())
}

/// Counts what is meant, with a limit what a selection would list.
pub(super) async fn stats(link: &Link, filter: &Filter) -> Result<Stats, StoreError> {
    let mut stats = Stats::default();
    if filter.limit.is_some() {
        for ids in select(link, filter).await?.chunks(PAGE) {
            for entry in heads(link, ids).await? {
                entry.count_in(&mut stats);
            }
        }
        return Ok(stats);
    }
    let mut counted = HashSet::new();
    scan(link, |entry| {
        if entry.is_meant_by(filter) && counted.insert(entry.id) {
            entry.count_in(&mut stats);
        }
    })
    .await?;
    Ok(stats)
}

/// Those of the entries that are still there, as they are now.
pub(super) async fn heads(link: &Link, ids: &[Id]) -> Result<Vec<Entry>, StoreError> {
    let ids: Vec<String> = ids.iter().map(|id| id.text()).collect();
    let ids: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes()).collect();
    let lines: Vec<Line> = link.run(&scripts::HEADS, &ids, Again::Harmless).await?;
    Ok(lines.into_iter().filter_map(Entry::read).collect())
}

/// Goes over the stream from its beginning to its end, a few entries at a time.
async fn scan(link: &Link, mut visit: impl FnMut(Entry)) -> Result<(), StoreError> {
    let (mut from, mut count) = ("-".to_owned(), FEW);
    loop {
        let count_text = count.to_string();
        let arguments = [from.as_bytes(), count_text.as_bytes()];
        let (bytes, lines): (usize, Vec<Line>) = link.run(&scripts::SCAN, &arguments, Again::Harmless).await?;
        let Some((_, last, ..)) = lines.last() else {
            return Ok(());
        };
        from = format!("({last}");
        lines.into_iter().filter_map(Entry::read).for_each(&mut visit);
        count = match bytes {
            bytes if bytes > BYTES => (count / 2).max(1),
            bytes if bytes < BYTES / 4 => (count * 2).min(MANY),
            _ => count,
        };
    }
}

/// Sixteen bytes for every entry; each page is read when it is asked for.
pub(super) struct Frozen {
    link: Arc<Link>,
    /// The next one is the last, so that what was listed is let go of.
    ids: Vec<Id>,
}

impl Frozen {
    pub(super) fn new(link: Arc<Link>, mut ids: Vec<Id>) -> Self {
        ids.reverse();
        Self { link, ids }
    }
}

#[async_trait]
impl Selection for Frozen {
    async fn next_page(&mut self) -> Result<Option<Vec<Listed>>, StoreError> {
        if self.ids.is_empty() {
            return Ok(None);
        }
        let rest = self.ids.len().saturating_sub(PAGE);
        let page: Vec<Id> = self.ids[rest..].iter().rev().copied().collect();
        let entries = heads(&self.link, &page).await?;
        self.ids.truncate(rest);
        Ok(Some(entries.into_iter().map(Entry::listed).collect()))
    }
}
