//! Where an entry lies: `dlq/<sink>/YYYY/MM/DD/<run_id>/<key>.json`, and what a path says about its entry.

use std::cmp::Ordering;
use std::time::SystemTime;

use idemp_core::{IdempotencyKey, SinkName};
use object_store::path::Path;

use crate::{EntryId, Filter, time};

/// Below which folder entries lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    Dead,
    Replayed,
}

impl Root {
    const fn name(self) -> &'static str {
        match self {
            Self::Dead => "dlq",
            Self::Replayed => "replayed",
        }
    }
}

/// A day in UTC, as paths spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Day {
    year: i32,
    month: u8,
    day: u8,
}

impl Day {
    pub(super) fn of(at: SystemTime) -> Self {
        let text = time::to_text(at);
        let date = text.split('T').next().unwrap_or_default();
        // A year before 1 has a sign in front.
        let mut parts = date.rsplitn(3, '-');
        let mut part = || parts.next().unwrap_or_default();
        let (day, month, year) = (part(), part(), part());
        Self {
            year: year.parse().unwrap_or_default(),
            month: month.parse().unwrap_or_default(),
            day: day.parse().unwrap_or_default(),
        }
    }

    /// Takes the three parts of a path.
    pub(super) fn parse(year: &str, month: &str, day: &str) -> Option<Self> {
        Some(Self {
            year: year.parse().ok()?,
            month: month.parse().ok()?,
            day: day.parse().ok()?,
        })
    }

    fn text(self) -> String {
        format!("{:04}/{:02}/{:02}", self.year, self.month, self.day)
    }
}

/// The place of one entry, whether one is there or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) sink: SinkName,
    pub(super) day: Day,
    pub(super) key: IdempotencyKey,
    /// Tells entries of one key apart: the SHA-256 of a body that came second, in hex. The first has none.
    pub(super) mark: Option<Box<str>>,
}

impl Place {
    /// `<sink>/YYYY/MM/DD/<run_id>/<key>[.<mark>].json`
    fn name(&self) -> String {
        let Self { sink, day, key, mark } = self;
        let mark = mark.as_deref().map(|mark| format!(".{mark}")).unwrap_or_default();
        format!("{sink}/{}/{}/{key}{mark}.json", day.text(), key.run_id())
    }

    /// The object's path below `prefix`.
    pub(super) fn path(&self, prefix: &Path, root: Root) -> Path {
        below(prefix, &format!("{}/{}", root.name(), self.name()))
    }

    /// Takes the path of an object below `prefix`. What is not named like an entry is none.
    pub(super) fn of_path(prefix: &Path, root: Root, path: &Path) -> Option<Self> {
        let rest = path.as_ref().strip_prefix(prefix.as_ref())?.trim_start_matches('/');
        Self::parse(rest.strip_prefix(root.name())?.strip_prefix('/')?)
    }

    fn parse(name: &str) -> Option<Self> {
        let [sink, year, month, day, run, file] = name.split('/').collect::<Vec<_>>()[..] else {
            return None;
        };
        // The step, which comes last, is made of digits: from a point on it is no key any more.
        let (front, back) = file.strip_suffix(".json")?.rsplit_once(':')?;
        let (step, mark) = match back.split_once('.') {
            Some((step, mark)) => (step, Some(mark.into())),
            None => (back, None),
        };
        let key = IdempotencyKey::parse(&format!("{front}:{step}")).ok()?;
        (key.run_id() == run).then_some(Self {
            sink: SinkName::parse(sink).ok()?,
            day: Day::parse(year, month, day)?,
            key,
            mark,
        })
    }

    /// The id of the entry here that was made under this name.
    pub(super) fn id(&self, entry: &str) -> EntryId {
        EntryId::new(format!("{}#{entry}", self.name()))
    }

    /// A place, and which of the entries that may have been there one after the other.
    pub(super) fn of_id(id: &EntryId) -> Option<(Self, &str)> {
        let (name, entry) = id.as_str().split_once('#')?;
        Some((Self::parse(name)?, entry))
    }

    /// Whether the filter may mean an entry here, as far as its place tells.
    pub(super) fn may_match(&self, filter: &Filter) -> bool {
        filter.sink.as_ref().is_none_or(|sink| *sink == self.sink)
            && filter.key.as_ref().is_none_or(|key| *key == self.key)
            && filter
                .run_id
                .as_ref()
                .is_none_or(|run| run.as_str() == self.key.run_id())
            && filter
                .event_type
                .as_ref()
                .is_none_or(|event_type| event_type.as_str() == self.key.event_type())
    }

    /// Replay order: oldest day first, within a day one run after the other, within a run by step.
    pub(super) fn replay_order(&self, other: &Self) -> Ordering {
        let order = |place: &Self| (place.day, place.key.step_index());
        self.day
            .cmp(&other.day)
            .then_with(|| self.key.run_id().cmp(other.key.run_id()))
            .then_with(|| order(self).cmp(&order(other)))
            .then_with(|| self.sink.cmp(&other.sink))
            .then_with(|| self.key.as_str().cmp(other.key.as_str()))
            .then_with(|| self.mark.cmp(&other.mark))
    }
}

/// The folder of a sink's entries, or of all sinks'.
pub(super) fn folder(prefix: &Path, root: Root, sink: Option<&SinkName>) -> Path {
    match sink {
        Some(sink) => below(prefix, &format!("{}/{sink}", root.name())),
        None => below(prefix, root.name()),
    }
}

/// Names and keys have no character that a path spells otherwise.
fn below(prefix: &Path, name: &str) -> Path {
    let mut path = prefix.clone();
    path.extend(name.split('/').map(object_store::path::PathPart::from));
    path
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at(days: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400)
    }

    fn place(key: &str, mark: Option<&str>) -> Place {
        Place {
            sink: SinkName::parse("hooks.eu-1_a").unwrap(),
            // 2026-11-30
            day: Day::of(at(20_787)),
            key: IdempotencyKey::parse(key).unwrap(),
            mark: mark.map(Into::into),
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let plain = place("r-1.x:tool_end:7", None);
        let prefix = Path::from("team/a");
        assert_eq!(
            plain.path(&prefix, Root::Dead).as_ref(),
            "team/a/dlq/hooks.eu-1_a/2026/11/30/r-1.x/r-1.x:tool_end:7.json"
        );
        assert_eq!(
            place("r:t:7", Some("ab12"))
                .path(&Path::default(), Root::Replayed)
                .as_ref(),
            "replayed/hooks.eu-1_a/2026/11/30/r/r:t:7.ab12.json"
        );
    }

    #[test]
    fn what_is_not_named_like_an_entry_is_none() {
        for path in [
            "dlq/webhook/2026/11/30/r/r:t:1.txt",
            "dlq/webhook/2026/11/30/other/r:t:1.json",
            "dlq/webhook/2026/11/r/r:t:1.json",
            "dlq/webhook/2026/11/30/r/notes.json",
            "replayed/webhook/2026/11/30/r/r:t:1.json",
            "webhook/2026/11/30/r/r:t:1.json",
        ] {
            assert_eq!(
                Place::of_path(&Path::default(), Root::Dead, &Path::from(path)),
                None,
                "{path}"
            );
        }
    }

    #[test]
    fn days_outside_of_four_digits_have_a_place_too() {
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(86_400);
        assert_eq!(Day::of(before).text(), "1969/12/31");
        let long_ago = SystemTime::UNIX_EPOCH - Duration::from_secs(70_000_000_000);
        let Day { year, month, day } = Day::of(long_ago);
        let text = Day::of(long_ago).text();
        let parts: Vec<&str> = text.split('/').collect();
        assert!(year < 0);
        assert_eq!(Day::parse(parts[0], parts[1], parts[2]), Some(Day { year, month, day }));
    }

    proptest! {
        #[test]
        fn places_come_back_from_their_paths(
            run in "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
            event in "[A-Za-z][A-Za-z0-9_.-]{0,63}",
            step in 1..=i64::MAX,
            sink in "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
            mark in proptest::option::of("[0-9a-f]{64}"),
            days in 0..4_000_000_u64,
            prefix in "[a-z]{0,3}(/[a-z.]{1,3}[a-z])?",
        ) {
            let place = Place {
                sink: SinkName::parse(&sink).unwrap(),
                day: Day::of(at(days.min(2_900_000))),
                key: IdempotencyKey::parse(&format!("{run}:{event}:{step}")).unwrap(),
                mark: mark.map(Into::into),
            };
            let prefix = Path::from(prefix);
            for root in [Root::Dead, Root::Replayed] {
                let path = place.path(&prefix, root);
                prop_assert_eq!(Place::of_path(&prefix, root, &path), Some(place.clone()));
            }
            let id = place.id("e1");
            prop_assert_eq!(Place::of_id(&id), Some((place, "e1")));
        }
    }
}
