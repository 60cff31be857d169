//! What to look at again, and when.

use std::collections::BTreeMap;
use std::time::Duration;

/// Items by the time from which they are due, in buckets: many share one, so that putting one in and taking one out
/// costs nearly nothing however many there are. An item is due late by a second and a 256th of the time it was put off
/// for, at most; never early.
///
/// Times are durations since an origin of the owner's choice.
pub(crate) struct Due<T> {
    /// By the second from which all in a bucket are due. None is empty.
    buckets: BTreeMap<u64, Vec<T>>,
    /// The second of the first bucket, `u64::MAX` if there is none, so that asking in vain looks at this alone.
    first: u64,
}

impl<T> Due<T> {
    /// Puts an item off until `at`.
    pub(crate) fn push(&mut self, now: Duration, at: Duration, item: T) {
        let put_off = at.saturating_sub(now).as_secs();
        let width = (put_off / 256).checked_ilog2().map_or(1, |log| 1 << log);
        let second = at.as_secs().saturating_add(u64::from(at.subsec_nanos() > 0));
        let from = second.checked_next_multiple_of(width).unwrap_or(u64::MAX);
        self.buckets.entry(from).or_default().push(item);
        self.first = self.first.min(from);
    }

    /// One of those that are due.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<T> {
        if self.first > now.as_secs() {
            return None;
        }
        let mut bucket = self.buckets.first_entry()?;
        let item = bucket.get_mut().pop();
        if bucket.get().is_empty() {
            bucket.remove();
            self.first = self.buckets.first_key_value().map_or(u64::MAX, |(from, _)| *from);
        }
        item
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.buckets.values().map(Vec::len).sum()
    }
}

impl<T> Default for Due<T> {
    fn default() -> Self {
        Self {
            buckets: BTreeMap::new(),
            first: u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn comes_out_when_it_is_due_and_once() {
        let mut due = Due::default();
        due.push(Duration::ZERO, Duration::from_secs(30), 'a');
        due.push(Duration::ZERO, Duration::from_millis(6_001), 'b');
        assert_eq!(due.pop(Duration::from_millis(6_999)), None);
        assert_eq!(due.pop(Duration::from_secs(7)), Some('b'));
        assert_eq!(due.pop(Duration::from_millis(29_999)), None);
        assert_eq!(due.pop(Duration::from_secs(30)), Some('a'));
        assert_eq!(due.pop(Duration::MAX), None);
        assert_eq!(due.len(), 0);
    }

    #[test]
    fn a_day_of_events_fills_few_buckets() {
        let mut due = Due::default();
        let day = Duration::from_secs(86_400);
        for second in 0..86_400 {
            let now = Duration::from_secs(second);
            due.push(now, now + day, second);
        }
        assert_eq!(due.len(), 86_400);
        // 256 seconds each.
        assert!(due.buckets.len() <= 339, "{}", due.buckets.len());
    }

    #[test]
    fn what_is_never_due_stays() {
        let mut due = Due::default();
        due.push(Duration::from_secs(5), Duration::MAX, ());
        assert_eq!(due.pop(Duration::from_secs(u64::MAX - 1)), None);
        assert_eq!(due.len(), 1);
    }

    proptest! {
        #[test]
        fn never_early_and_hardly_late(now in 0u64..1 << 40, put_off in 0u64..1 << 40) {
            let (now, put_off) = (Duration::from_millis(now), Duration::from_millis(put_off));
            let at = now + put_off;
            let mut due = Due::default();
            due.push(now, at, ());
            prop_assert_eq!(due.pop(at.saturating_sub(Duration::from_nanos(1))), None);
            prop_assert_eq!(due.pop(at + Duration::from_secs(1) + put_off / 16), Some(()));
        }
    }
}
