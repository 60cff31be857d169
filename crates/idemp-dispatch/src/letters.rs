//! Where dead letters are put, and what happens when a store does not take them.

use std::error::Error;
use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use idemp_core::SinkName;
use idemp_dlq::{DeadLetter, DeadLetterStore, Put, StoreError, StoreErrorKind};
use tokio::time::Instant;

use crate::meters::Meters;

/// Waits before the second, third and fourth write to the store.
const WAITS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
];

pub(crate) struct Letters {
    primary: Watched,
    fallback: Option<Watched>,
    timeout: Duration,
    meters: Arc<Meters>,
}

impl Letters {
    /// `timeout` is the time for one write.
    pub(crate) fn new(
        store: Arc<dyn DeadLetterStore>,
        fallback: Option<Arc<dyn DeadLetterStore>>,
        timeout: Duration,
        meters: Arc<Meters>,
    ) -> Self {
        Self {
            primary: Watched::new(store, "primary"),
            fallback: fallback.map(|store| Watched::new(store, "fallback")),
            timeout,
            meters,
        }
    }

    /// Puts a letter into the store, trying four times, then into the fallback.
    ///
    /// All tries at the store together take no longer than one that hangs and the waits: a store that does not answer
    /// is not asked four times.
    ///
    /// # Errors
    /// What the last store said, or `None` if it did not answer.
    pub(crate) async fn put(&self, letter: &DeadLetter) -> Result<Put, Option<StoreError>> {
        let mut waits = WAITS.iter();
        let deadline = Instant::now() + self.timeout + WAITS.iter().sum::<Duration>();
        let error = loop {
            match self.once(&self.primary, letter, deadline).await {
                Ok(put) => return Ok(put),
                Err(error) => match waits.next() {
                    Some(wait) if Instant::now() + *wait < deadline => tokio::time::sleep(*wait).await,
                    _ => break error,
                },
            }
        };
        match &self.fallback {
            Some(fallback) => self.once(fallback, letter, Instant::now() + self.timeout).await,
            None => Err(error),
        }
    }

    async fn once(&self, watched: &Watched, letter: &DeadLetter, deadline: Instant) -> Result<Put, Option<StoreError>> {
        // A store that panics has failed like any other.
        let put = AssertUnwindSafe(async { watched.store.put(letter.clone()).await }).catch_unwind();
        let failure = match tokio::time::timeout_at(deadline, put).await {
            Ok(Ok(Ok(put))) => {
                watched.tell_success(&letter.sink);
                return Ok(put);
            }
            Ok(Ok(Err(error))) => Failure::Said(error),
            Ok(Err(_panic)) => Failure::Panicked,
            Err(_elapsed) => Failure::Silent,
        };
        self.meters.store_failed(watched.which);
        watched.tell_failure(&letter.sink, &failure);
        Err(match failure {
            Failure::Said(error) => Some(error),
            Failure::Panicked | Failure::Silent => None,
        })
    }
}

/// Why a letter was not written.
enum Failure {
    Said(StoreError),
    Panicked,
    Silent,
}

impl Failure {
    fn kind(&self) -> Option<StoreErrorKind> {
        match self {
            Self::Said(error) => Some(error.kind()),
            Self::Panicked | Self::Silent => None,
        }
    }
}

/// The store's own words, and those of the system behind them. What lies between may quote an answer, an address or a
/// key.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = match self {
            Self::Said(error) => error,
            Self::Panicked => return f.write_str("the store panicked"),
            Self::Silent => return f.write_str("the store does not answer"),
        };
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            if let Some(error) = source.downcast_ref::<io::Error>() {
                text = match error.raw_os_error() {
                    Some(_) => format!("{text}: {error}"),
                    None => format!("{text}: {}", error.kind()),
                };
                break;
            }
            next = source.source();
        }
        f.write_str(&text.replace(char::is_control, " "))
    }
}

/// A store, and what was logged of it: a store that is away fails once for every letter, and is one piece of news.
struct Watched {
    store: Arc<dyn DeadLetterStore>,
    which: &'static str,
    trouble: Mutex<Trouble>,
}

/// What went wrong since a letter was written last.
#[derive(Default)]
struct Trouble {
    failures: u64,
    /// Kinds of failures that were logged.
    told: Vec<Option<StoreErrorKind>>,
}

impl Watched {
    fn new(store: Arc<dyn DeadLetterStore>, which: &'static str) -> Self {
        Self {
            store,
            which,
            trouble: Mutex::default(),
        }
    }

    fn tell_failure(&self, sink: &SinkName, failure: &Failure) {
        let is_news = {
            let mut trouble = self.trouble();
            trouble.failures += 1;
            let is_news = !trouble.told.contains(&failure.kind());
            if is_news {
                trouble.told.push(failure.kind());
            }
            is_news
        };
        let (store, says) = (self.which, "a dead letter could not be written");
        if is_news {
            tracing::error!(%sink, store, error = %failure, "{says}; more of its kind go to debug");
        } else {
            tracing::debug!(%sink, store, error = %failure, "{says}");
        }
    }

    fn tell_success(&self, sink: &SinkName) {
        let Trouble { failures, .. } = std::mem::take(&mut *self.trouble());
        if failures > 0 {
            let store = self.which;
            tracing::warn!(%sink, store, failures, "dead letters can be written again");
        }
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        // Nothing panics while it is held.
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a client's error may: it repeats what was asked for and what was answered.
    #[derive(Debug)]
    struct Quotes(io::Error);

    impl fmt::Display for Quotes {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("PUT http://host/bucket/key: <Token>secret</Token>")
        }
    }

    impl Error for Quotes {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn of_a_cause_the_words_of_the_system_alone_are_told() {
        let told = |cause: io::Error| {
            let error = StoreError::new(StoreErrorKind::Unavailable, "no connection").with_source(Quotes(cause));
            Failure::Said(error).to_string()
        };
        assert_eq!(
            told(io::Error::from_raw_os_error(111)),
            "no connection: Connection refused (os error 111)"
        );
        assert_eq!(told(io::Error::other("secret")), "no connection: other error");
        assert_eq!(Failure::Silent.to_string(), "the store does not answer");
    }
}
