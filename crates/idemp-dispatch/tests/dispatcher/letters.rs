//! What happens when dead letters cannot be written.

use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;

use idemp_core::Reason;
use idemp_dispatch::{Settlement, SubmitErrorKind};
use idemp_dlq::StoreErrorKind;
use idemp_testkit::sink::{Reply, ScriptedSink};
use tokio::time::Instant;

use super::*;

fn rejecting() -> ScriptedSink {
    ScriptedSink::always(Reply::status(400))
}

fn rig(primary: &Arc<FailingStore>, fallback: Option<&Arc<FailingStore>>) -> Rig {
    Rig::with(&rejecting(), |lane| {
        lane.dead_letters = Some(Arc::clone(primary) as Arc<dyn DeadLetterStore>);
        lane.fallback = fallback.map(|store| Arc::clone(store) as Arc<dyn DeadLetterStore>);
    })
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_three_times_gets_the_letter_at_the_fourth() {
    let store = FailingStore::new(3);
    let rig = rig(&store, None);
    let start = Instant::now();
    let report = rig.dispatcher.dispatch(message()).await.unwrap();
    assert!(matches!(
        report.settlements()[0].1,
        Settlement::DeadLettered {
            reason: Reason::EventRejected,
            ..
        }
    ));
    assert_eq!(start.elapsed(), Duration::from_millis(100 + 500 + 2_000));
    assert_eq!(all_letters(&store.inner).await.len(), 1);
    assert_eq!(rig.stats().dead_lettered, 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_four_times_leaves_the_letter_to_the_fallback() {
    let (store, fallback) = (FailingStore::new(usize::MAX), FailingStore::new(0));
    let rig = rig(&store, Some(&fallback));
    let report = rig.dispatcher.dispatch(message()).await.unwrap();
    assert!(matches!(report.settlements()[0].1, Settlement::DeadLettered { .. }));
    assert_eq!(store.puts.load(Ordering::SeqCst), 4);
    assert_eq!(all_letters(&fallback.inner).await[0].message, message());
}

/// What is logged, level first.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Of this thread, for as long as the guard lives.
    fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
            .with_ansi(false)
            .without_time()
            .with_writer(move || writer.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    /// The lines about dead letters must begin and go on as these say.
    fn assert_tells(&self, wanted: &[(&str, &str)]) {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(str::trim).filter(|line| line.contains("dead letter"));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), wanted.len(), "{text}");
        for (line, (level, says)) in lines.into_iter().zip(wanted) {
            assert!(line.starts_with(level) && line.contains(says), "{level} {says}: {text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_one_piece_of_news_with_its_cause() {
    let (log, _logging) = Log::begin();
    // Nine letters in vain, then one that is written.
    let (store, fallback) = (FailingStore::new(9 * 4), FailingStore::new(0));
    let rig = rig(&store, Some(&fallback));
    for message in messages(10) {
        rig.dispatcher.dispatch(message).await.unwrap();
    }
    assert_eq!(all_letters(&fallback.inner).await.len(), 9);
    log.assert_tells(&[("ERROR", "error=the test says so"), ("WARN", "failures=36")]);
}

/// A store that does what a list says, a write each, and then takes everything.
struct ListedStore {
    list: Mutex<VecDeque<Step>>,
    inner: MemoryStore,
}

#[derive(Clone, Copy)]
enum Step {
    Says(StoreErrorKind, &'static str),
    Panics,
    TakesIn(Duration),
}

impl ListedStore {
    fn new(list: impl IntoIterator<Item = Step>) -> Arc<Self> {
        Arc::new(Self {
            list: Mutex::new(list.into_iter().collect()),
            inner: MemoryStore::new(),
        })
    }
}

put_only!(ListedStore, |self, letter| {
    let step = self.list.lock().unwrap().pop_front();
    match step {
        Some(Step::Says(kind, text)) => return Err(StoreError::new(kind, text)),
        Some(Step::Panics) => panic!("the test says so"),
        Some(Step::TakesIn(time)) => tokio::time::sleep(time).await,
        None => {}
    }
    self.inner.put(letter).await
});

#[tokio::test(start_paused = true)]
async fn another_cause_is_news_and_so_is_the_same_after_letters_were_written() {
    let (log, _logging) = Log::begin();
    let away = Step::Says(StoreErrorKind::Unavailable, "away");
    // Three letters in vain, one that is written, and one at its second try.
    let list = [
        [away; 4],
        [Step::Says(StoreErrorKind::Full, "full"); 4],
        [Step::Panics; 4],
    ];
    let list = list.concat().into_iter().chain([Step::TakesIn(secs(1)), away]);
    let rig = Rig::with(&rejecting(), |lane| {
        lane.dead_letters = Some(ListedStore::new(list));
        lane.fallback = Some(Arc::new(MemoryStore::new()));
    });
    for message in messages(5) {
        rig.dispatcher.dispatch(message).await.unwrap();
    }
    log.assert_tells(&[
        ("ERROR", "error=away"),
        ("ERROR", "error=full"),
        ("ERROR", "error=the store panicked"),
        ("WARN", "failures=12"),
        ("ERROR", "error=away"),
        ("WARN", "failures=1"),
    ]);
}

#[tokio::test(start_paused = true)]
async fn the_fallback_is_asked_once_and_has_the_time_of_a_store() {
    for (fallback, takes, saved) in [
        (Duration::from_millis(4_999), Duration::from_millis(4_999), true),
        (secs(3_000), secs(5), false),
    ] {
        let fallback = ListedStore::new([Step::TakesIn(fallback)]);
        let rig = Rig::with(&rejecting(), |lane| {
            lane.dead_letters = Some(FailingStore::new(usize::MAX));
            lane.fallback = Some(Arc::clone(&fallback) as Arc<dyn DeadLetterStore>);
        });
        let start = Instant::now();
        let report = rig.dispatcher.dispatch(message()).await.unwrap();
        match &report.settlements()[0].1 {
            Settlement::DeadLettered { .. } => assert!(saved),
            Settlement::Unsaved { error: None, .. } => assert!(!saved, "it did not answer"),
            other => panic!("{other:?}"),
        }
        assert_eq!(start.elapsed(), Duration::from_millis(100 + 500 + 2_000) + takes);
        assert_eq!(all_letters(&fallback.inner).await.len(), usize::from(saved));
    }
}

#[tokio::test(start_paused = true)]
async fn when_both_fail_the_event_is_handed_back_and_no_new_work_is_taken() {
    let (store, fallback) = (FailingStore::new(usize::MAX), FailingStore::new(1));
    let rig = rig(&store, Some(&fallback));
    let report = rig.dispatcher.dispatch(message()).await.unwrap();
    match &report.settlements()[0].1 {
        Settlement::Unsaved { letter, error } => {
            assert_eq!((&letter.message, letter.reason), (&message(), Reason::EventRejected));
            assert_eq!(error.as_ref().unwrap().kind(), StoreErrorKind::Unavailable);
        }
        other => panic!("{other:?}"),
    }
    let stats = rig.stats();
    assert_eq!((stats.unsaved, stats.dead_lettered, stats.unsettled()), (1, 0, 0));

    let next = messages(2).remove(1);
    let error = rig.dispatcher.submit(next.clone()).await.unwrap_err();
    assert_eq!(error.kind(), &SubmitErrorKind::DeadLettersFail);
    assert_eq!(
        error.to_string(),
        "event r1:tool_end:2 is not accepted: a dead letter before it could not be saved"
    );
    assert_eq!(
        rig.dispatcher.try_submit(next.clone()).unwrap_err().kind(),
        &SubmitErrorKind::DeadLettersFail
    );

    rig.dispatcher.accept_again();
    let report = rig.dispatcher.dispatch(next).await.unwrap();
    assert!(
        matches!(report.settlements()[0].1, Settlement::DeadLettered { .. }),
        "the fallback is back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_not_asked_four_times() {
    let fallback = FailingStore::new(0);
    let rig = Rig::with(&rejecting(), |lane| {
        lane.dead_letters = Some(Arc::new(HangingStore));
        lane.fallback = Some(Arc::clone(&fallback) as Arc<dyn DeadLetterStore>);
        lane.store_timeout = secs(2);
    });
    let start = Instant::now();
    let report = rig.dispatcher.dispatch(message()).await.unwrap();
    assert!(matches!(report.settlements()[0].1, Settlement::DeadLettered { .. }));
    assert_eq!(start.elapsed(), Duration::from_millis(2_000 + 100 + 500 + 2_000));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_has_failed_like_any_other() {
    let fallback = FailingStore::new(0);
    let rig = Rig::with(&rejecting(), |lane| {
        lane.dead_letters = Some(Arc::new(PanickingStore));
        lane.fallback = Some(Arc::clone(&fallback) as Arc<dyn DeadLetterStore>);
    });
    let report = rig.dispatcher.dispatch(message()).await.unwrap();
    assert!(matches!(report.settlements()[0].1, Settlement::DeadLettered { .. }));

    let rig = Rig::with(&rejecting(), |lane| lane.dead_letters = Some(Arc::new(PanickingStore)));
    let report = rig.dispatcher.dispatch(message()).await.unwrap();
    assert!(matches!(
        report.settlements()[0].1,
        Settlement::Unsaved { error: None, .. }
    ));
    rig.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_always_fails_still_gets_its_four_attempts_before_the_letter() {
    let store = FailingStore::new(0);
    let sink = ScriptedSink::always(Reply::status(503));
    let rig = Rig::with(&sink, |lane| {
        lane.dead_letters = Some(Arc::clone(&store) as Arc<dyn DeadLetterStore>)
    });
    rig.dispatcher.dispatch(message()).await.unwrap();
    assert_eq!(sink.calls().len(), 4);
    assert_eq!(all_letters(&store.inner).await.len(), 1);
}
