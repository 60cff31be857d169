//! What happens when dead letters cannot be written.

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

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_one_piece_of_news_with_its_cause() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_ansi(false)
        .without_time()
        .with_writer(move || writer.clone());
    let _logging = tracing::subscriber::set_default(subscriber.finish());

    // Nine letters in vain, then one that is written.
    let (store, fallback) = (FailingStore::new(9 * 4), FailingStore::new(0));
    let rig = rig(&store, Some(&fallback));
    for message in messages(10) {
        rig.dispatcher.dispatch(message).await.unwrap();
    }
    assert_eq!(all_letters(&fallback.inner).await.len(), 9);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.contains("dead letter"))
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].starts_with("ERROR") && lines[0].contains("error=the test says so"),
        "{text}"
    );
    assert!(
        lines[1].starts_with("WARN") && lines[1].contains("failures=36"),
        "{text}"
    );
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
