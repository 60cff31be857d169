//! Events that wait for their attempt, and how many are at it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A line of waiting items, served by at most so many runners, first come, first served.
///
/// A runner is counted in by [`push`](Self::push) with an item to begin with, and takes one after another until there
/// is none, which counts it out. So there is no runner without something to do, and nothing waits while there is room
/// for a runner.
pub(crate) struct Line<T> {
    inner: Mutex<Inner<T>>,
    most: usize,
}

struct Inner<T> {
    waiting: VecDeque<T>,
    runners: usize,
    closed: bool,
}

/// What became of an item at the end of the line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed<T> {
    /// It waits for one of the runners.
    Waits,
    /// It need not wait. The runner to be set off with it is counted in.
    NeedsRunner(T),
    /// The line is closed: here it is.
    Closed(T),
}

impl<T> Line<T> {
    /// A line for `most` runners.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                waiting: VecDeque::new(),
                runners: 0,
                closed: false,
            }),
            most,
        }
    }

    pub(crate) fn push(&self, item: T) -> Pushed<T> {
        let mut inner = self.lock();
        if inner.closed {
            return Pushed::Closed(item);
        }
        if inner.runners < self.most {
            inner.runners += 1;
            return Pushed::NeedsRunner(item);
        }
        inner.waiting.push_back(item);
        Pushed::Waits
    }

    /// The first in line. `None` counts the runner that asks out.
    pub(crate) fn next(&self) -> Option<T> {
        let mut inner = self.lock();
        let first = inner.waiting.pop_front();
        if first.is_none() {
            inner.runners -= 1;
        }
        first
    }

    /// Counts out a runner that will not ask again, and gives all that waits.
    pub(crate) fn abandon(&self) -> VecDeque<T> {
        let mut inner = self.lock();
        inner.runners -= 1;
        std::mem::take(&mut inner.waiting)
    }

    /// Lets nothing in any more and gives all that waits.
    pub(crate) fn close(&self) -> VecDeque<T> {
        let mut inner = self.lock();
        inner.closed = true;
        std::mem::take(&mut inner.waiting)
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        // Nothing panics while it is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runners_are_counted_in_up_to_the_limit_and_out_when_nothing_waits() {
        let line = Line::new(2);
        assert_eq!(line.push(1), Pushed::NeedsRunner(1));
        assert_eq!(line.push(2), Pushed::NeedsRunner(2));
        assert_eq!((line.push(3), line.push(4)), (Pushed::Waits, Pushed::Waits));
        assert_eq!((line.next(), line.next()), (Some(3), Some(4)));
        assert_eq!(line.next(), None);
        assert_eq!(line.push(5), Pushed::NeedsRunner(5));
        assert_eq!(line.push(6), Pushed::Waits);
    }

    #[test]
    fn a_runner_that_vanishes_leaves_its_place_and_all_that_waits() {
        let line = Line::new(1);
        assert_eq!(line.push(1), Pushed::NeedsRunner(1));
        assert_eq!((line.push(2), line.push(3)), (Pushed::Waits, Pushed::Waits));
        assert_eq!(line.abandon(), [2, 3]);
        assert_eq!(line.push(4), Pushed::NeedsRunner(4));
    }

    #[test]
    fn a_closed_line_gives_everything_back() {
        let line = Line::new(1);
        assert_eq!(line.push(1), Pushed::NeedsRunner(1));
        assert_eq!(line.push(2), Pushed::Waits);
        assert_eq!(line.close(), [2]);
        assert_eq!(line.push(3), Pushed::Closed(3));
        assert_eq!(line.next(), None);
        assert!(line.close().is_empty());
    }
}
