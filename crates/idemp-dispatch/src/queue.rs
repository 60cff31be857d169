//! Events that wait for their attempt, and how many workers are at it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Room that an empty queue keeps.
const KEPT: usize = 256;

/// A queue, first in, first out, served by at most so many workers.
///
/// A worker is counted in by [`push`](Self::push) with an item to begin with, and takes one after another until there
/// is none, which counts it out. So there is no worker without something to do, and nothing waits while there could be
/// another worker.
pub(crate) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    max_workers: usize,
}

struct Inner<T> {
    waiting: VecDeque<T>,
    workers: usize,
    closed: bool,
}

/// What became of an item that was pushed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed<T> {
    /// It waits for one of the workers.
    Waits,
    /// It need not wait. The worker to be spawned with it is counted in.
    NeedsWorker(T),
    /// The queue is closed: here it is.
    Closed(T),
}

impl<T> Queue<T> {
    pub(crate) fn new(max_workers: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                waiting: VecDeque::new(),
                workers: 0,
                closed: false,
            }),
            max_workers,
        }
    }

    pub(crate) fn push(&self, item: T) -> Pushed<T> {
        let mut inner = self.lock();
        if inner.closed {
            return Pushed::Closed(item);
        }
        if inner.workers < self.max_workers {
            inner.workers += 1;
            return Pushed::NeedsWorker(item);
        }
        inner.waiting.push_back(item);
        Pushed::Waits
    }

    /// The first item. `None` counts the worker that asks out.
    pub(crate) fn next(&self) -> Option<T> {
        let mut inner = self.lock();
        let first = inner.waiting.pop_front();
        if first.is_none() {
            inner.workers -= 1;
            inner.waiting.shrink_to(KEPT);
        }
        first
    }

    /// Counts out a worker that will not ask again, and gives all that waits.
    pub(crate) fn abandon(&self) -> VecDeque<T> {
        let mut inner = self.lock();
        inner.workers -= 1;
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
    fn workers_are_counted_in_up_to_the_limit_and_out_when_nothing_waits() {
        let queue = Queue::new(2);
        assert_eq!(queue.push(1), Pushed::NeedsWorker(1));
        assert_eq!(queue.push(2), Pushed::NeedsWorker(2));
        assert_eq!((queue.push(3), queue.push(4)), (Pushed::Waits, Pushed::Waits));
        assert_eq!((queue.next(), queue.next()), (Some(3), Some(4)));
        assert_eq!(queue.next(), None);
        assert_eq!(queue.push(5), Pushed::NeedsWorker(5));
        assert_eq!(queue.push(6), Pushed::Waits);
    }

    #[test]
    fn a_worker_that_vanishes_leaves_its_place_and_all_that_waits() {
        let queue = Queue::new(1);
        assert_eq!(queue.push(1), Pushed::NeedsWorker(1));
        assert_eq!((queue.push(2), queue.push(3)), (Pushed::Waits, Pushed::Waits));
        assert_eq!(queue.abandon(), [2, 3]);
        assert_eq!(queue.push(4), Pushed::NeedsWorker(4));
    }

    #[test]
    fn a_closed_queue_gives_everything_back() {
        let queue = Queue::new(1);
        assert_eq!(queue.push(1), Pushed::NeedsWorker(1));
        assert_eq!(queue.push(2), Pushed::Waits);
        assert_eq!(queue.close(), [2]);
        assert_eq!(queue.push(3), Pushed::Closed(3));
        assert_eq!(queue.next(), None);
        assert!(queue.close().is_empty());
    }

    #[test]
    fn an_empty_queue_keeps_little_room() {
        let queue = Queue::new(1);
        for item in 0..10_000 {
            let _ = queue.push(item);
        }
        while queue.next().is_some() {}
        assert!(queue.lock().waiting.capacity() < 2 * KEPT);
    }
}
