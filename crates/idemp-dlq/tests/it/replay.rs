//! Replays, on a clock that jumps.

mod faults;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_core::{
    Attempt, Cause, Class, ErrorClass, Failure, Message, Outcome, Reason, Refusal, RetryAfter, Sink, SinkName,
    StatusPolicy, Transport,
};
use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Fate, Filter, LeaseToken, Loaded, MemoryStore, Progress, Put, Refused,
    ReplayFailure, ReplayOptions, ReplaySummary, Replayer, Selection, Settled, Stats, Stopped, StoreError,
    StoreErrorKind, Target,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::letters::{at, attempt, contents, ids, letter, letters, sink};

const DELIVERED: Outcome = Outcome::Delivered { status: Some(200) };

fn busy() -> Outcome {
    Failure::status(503).into()
}

/// The time of day that belongs to tokio's clock: `at(0)` when it is made.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn now(self) -> SystemTime {
        at(0) + self.0.elapsed()
    }
}

/// A sink that answers by a script, then always the same, and remembers what it was sent.
struct Peer {
    clock: Clock,
    script: Mutex<VecDeque<Outcome>>,
    rest: Outcome,
    takes: Duration,
    /// One permit for each answer.
    permits: Semaphore,
    refuses: Option<&'static str>,
    seen: Mutex<Vec<(Duration, Message, Attempt)>>,
}

impl Peer {
    fn new(clock: Clock, script: impl IntoIterator<Item = Outcome>, rest: Outcome) -> Self {
        Self {
            clock,
            script: Mutex::new(script.into_iter().collect()),
            rest,
            takes: Duration::ZERO,
            permits: Semaphore::new(Semaphore::MAX_PERMITS),
            refuses: None,
            seen: Mutex::default(),
        }
    }

    fn keys(&self) -> Vec<String> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .map(|(_, message, _)| message.key().to_string())
            .collect()
    }

    fn times(&self) -> Vec<u64> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .map(|(at, ..)| u64::try_from(at.as_millis()).unwrap())
            .collect()
    }
}

#[async_trait]
impl Sink for Peer {
    async fn deliver(&self, message: &Message, attempt: Attempt) -> Outcome {
        self.seen
            .lock()
            .unwrap()
            .push((self.clock.0.elapsed(), message.clone(), attempt));
        self.permits.acquire().await.unwrap().forget();
        sleep(self.takes).await;
        self.script
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or_else(|| self.rest.clone())
    }

    fn check(&self, _message: &Message) -> Result<(), Refusal> {
        self.refuses.map_or(Ok(()), |why| Err(Refusal::new(why)))
    }
}

async fn filled(letters: impl IntoIterator<Item = DeadLetter>) -> MemoryStore {
    let store = MemoryStore::new();
    for letter in letters {
        store.put(letter).await.unwrap();
    }
    store
}

fn replayer(clock: Clock, options: ReplayOptions) -> Replayer {
    Replayer::new(options).unwrap().with_clock(move || clock.now())
}

/// Sends what lies under `webhook` to the peer, and returns what was told, too.
async fn replay(
    replayer: &Replayer,
    store: &dyn DeadLetterStore,
    peer: &Arc<Peer>,
    cancel: &CancellationToken,
) -> (ReplaySummary, Vec<Fate>) {
    let mut fates = Vec::new();
    let mut observe = |progress: Progress<'_>| {
        if let Progress::Settled { fate, .. } = progress {
            fates.push(fate.clone());
        }
    };
    let targets = targets(peer);
    let summary = replayer
        .run(store, &Filter::default(), &targets, &mut observe, cancel)
        .await
        .unwrap();
    (summary, fates)
}

fn targets(peer: &Arc<Peer>) -> impl Fn(&SinkName) -> Option<Target> + Send + Sync + use<> {
    let peer = Arc::clone(peer);
    move |name| {
        let target = Target {
            sink: Arc::clone(&peer) as Arc<dyn Sink>,
            policy: StatusPolicy::default(),
        };
        (name.as_str() == "webhook").then_some(target)
    }
}

async fn replay_by_default(clock: Clock, store: &MemoryStore, peer: &Arc<Peer>) -> (ReplaySummary, Vec<Fate>) {
    replay(
        &replayer(clock, ReplayOptions::default()),
        store,
        peer,
        &CancellationToken::new(),
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn letters_go_out_as_they_were_ten_a_second() {
    let clock = Clock::start();
    let letters = letters(12);
    let store = filled(letters.iter().cloned().rev()).await;
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let (summary, fates) = replay_by_default(clock, &store, &peer).await;

    let sent: Vec<_> = peer
        .seen
        .lock()
        .unwrap()
        .iter()
        .map(|(_, message, _)| message.clone())
        .collect();
    let put: Vec<_> = letters.into_iter().map(|letter| letter.message).collect();
    assert_eq!(sent, put, "original keys and bytes, in the order of the steps");
    assert_eq!(peer.times(), (0..12).map(|number| number * 100).collect::<Vec<_>>());
    let (_, _, attempt) = peer.seen.lock().unwrap()[2].clone();
    assert_eq!((attempt.number, attempt.now), (2, at(0) + Duration::from_millis(200)));
    let began = clock.0 + Duration::from_millis(200);
    assert_eq!(attempt.deadline, (began + Duration::from_secs(5)).into_std());

    assert_eq!(
        (summary.selected, summary.replayed, summary.left, summary.stopped),
        (12, 12, 0, None)
    );
    assert_eq!(fates, vec![Fate::Replayed; 12]);
    assert_eq!(contents(&store).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_failure_stays_in_its_entry_and_the_rest_goes_on() {
    let clock = Clock::start();
    let store = filled(letters(5)).await;
    let asked = RetryAfter::parse(b"60", at(0));
    let answers = [
        Failure::status(503).with_retry_after(asked).into(),
        Failure::transport(Transport::Connect).into(),
        Failure::status(422).into(),
        Failure::status(410).into(),
    ];
    let peer = Arc::new(Peer::new(clock, answers, DELIVERED));
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!((summary.selected, summary.replayed, summary.failed()), (5, 1, 4));
    assert_eq!(
        (summary.failed_retry, summary.failed_event, summary.failed_configuration),
        (2, 1, 1)
    );

    let left = contents(&store).await;
    let told: Vec<_> = left
        .iter()
        .map(|letter| (letter.reason, letter.class, letter.maybe_delivered, letter.not_before))
        .collect();
    let (exhausted, waited) = (Reason::RetriesExhausted, at(60));
    assert_eq!(
        told,
        [
            (exhausted, Class::Exhausted, true, Some(waited)),
            (exhausted, Class::Exhausted, false, None),
            (Reason::EventRejected, Class::Event, false, None),
            (Reason::ConfigurationRejected, Class::Configuration, false, None),
        ]
    );
    for (letter, before) in left.iter().zip(letters(5)) {
        assert_eq!((letter.replay_count, letter.attempts.len()), (1, 2));
        assert_eq!(letter.attempts[0], before.attempts[0]);
        assert_eq!(letter.attempts[1].number, 2);
    }
    assert_eq!(left[1].attempts[1].started, at(0) + Duration::from_millis(100));
    assert_eq!(left[1].attempts[1].cause, Some(Cause::Transport(Transport::Connect)));
}

#[tokio::test(start_paused = true)]
async fn what_comes_too_early_is_refused_without_force() {
    let clock = Clock::start();
    let early = DeadLetter {
        not_before: Some(at(60)),
        ..letter("r1:tool_end:1")
    };
    let store = filled([early.clone()]).await;
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let (summary, fates) = replay_by_default(clock, &store, &peer).await;
    assert_eq!(
        (summary.refused_not_before, fates),
        (1, vec![Fate::Refused(Refused::NotBefore(at(60)))])
    );
    assert_eq!(contents(&store).await, std::slice::from_ref(&early));
    assert_eq!(peer.keys().len(), 0);
    let id = ids(&store).await.remove(0);
    assert_eq!(
        store.load(&id).await.unwrap().unwrap().held_until,
        None,
        "and let go of"
    );

    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        replay_by_default(clock, &store, &peer).await.0.replayed,
        1,
        "then it is time, and nobody holds it"
    );

    let store = filled([DeadLetter {
        not_before: Some(at(1_000)),
        ..early
    }])
    .await;
    let forced = replayer(
        clock,
        ReplayOptions {
            force: true,
            ..ReplayOptions::default()
        },
    );
    assert_eq!(
        replay(&forced, &store, &peer, &CancellationToken::new())
            .await
            .0
            .replayed,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_receiver_has_forgotten_is_refused_when_its_turn_comes() {
    let clock = Clock::start();
    // The second letter's turn comes after 10 s, and by then the receiver has forgotten both.
    let maybe = |step: u32| DeadLetter {
        maybe_delivered: true,
        attempts: vec![attempt(1, at(0), Cause::Transport(Transport::Timeout))],
        ..letter(&format!("r1:tool_end:{step}"))
    };
    let surely_not = DeadLetter {
        attempts: vec![attempt(1, at(0), Cause::Transport(Transport::Connect))],
        ..letter("r1:tool_end:3")
    };
    let store = filled([maybe(1), maybe(2), surely_not]).await;
    let options = ReplayOptions {
        rate_per_second: 0.1,
        receiver_ttl: Duration::from_secs(10),
        ..ReplayOptions::default()
    };
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let (summary, fates) = replay(
        &replayer(clock, options.clone()),
        &store,
        &peer,
        &CancellationToken::new(),
    )
    .await;
    let forgotten = Fate::Refused(Refused::ReceiverForgot { since: at(0) });
    assert_eq!(fates, [Fate::Replayed, forgotten, Fate::Replayed]);
    assert_eq!(
        (summary.replayed, summary.refused_receiver_ttl, summary.refused()),
        (2, 1, 1)
    );
    assert_eq!(contents(&store).await, [maybe(2)]);

    let forced = replayer(clock, ReplayOptions { force: true, ..options });
    assert_eq!(
        replay(&forced, &store, &peer, &CancellationToken::new())
            .await
            .0
            .replayed,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_later_attempt_does_not_make_the_receiver_remember_for_longer() {
    let clock = Clock::start();
    let timed_out = DeadLetter {
        maybe_delivered: true,
        attempts: vec![attempt(1, at(0), Cause::Transport(Transport::Timeout))],
        ..letter("r1:tool_end:1")
    };
    let store = filled([timed_out]).await;
    let answers = [
        Failure::transport(Transport::Connect).into(),
        Failure::transport(Transport::Timeout).into(),
    ];
    let peer = Arc::new(Peer::new(clock, answers, DELIVERED));
    let hours = |hours: u64| Duration::from_secs(hours * 60 * 60);
    for _ in 0..2 {
        sleep(hours(10)).await;
        assert_eq!(replay_by_default(clock, &store, &peer).await.0.failed_retry, 1);
    }
    sleep(hours(10)).await;
    assert_eq!(replay_by_default(clock, &store, &peer).await.0.refused_receiver_ttl, 1);
    assert_eq!(peer.keys().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn ten_failures_in_a_row_stop_it_and_nine_do_not() {
    let clock = Clock::start();
    let store = filled(letters(30)).await;
    let nine = || vec![busy(); 9];
    let script = [nine(), vec![DELIVERED], nine(), vec![DELIVERED]].concat();
    let peer = Arc::new(Peer::new(clock, script, Failure::status(401).into()));
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!(
        (summary.replayed, summary.failed_retry, summary.failed_configuration),
        (2, 18, 10)
    );
    assert_eq!(
        (summary.left, summary.stopped),
        (0, None),
        "the tenth failure was the last entry"
    );

    let store = filled(letters(30)).await;
    let peer = Arc::new(Peer::new(clock, [], busy()));
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!(
        (summary.failed(), summary.left, summary.stopped),
        (10, 20, Some(Stopped::Failures))
    );
    let untouched = contents(&store).await.split_off(10);
    assert_eq!(untouched, letters(30).split_off(10));
}

#[tokio::test(start_paused = true)]
async fn rejections_of_single_events_neither_count_nor_reset() {
    let clock = Clock::start();
    let rejected = || Failure::status(422).into();
    let store = filled(letters(17)).await;
    let peer = Arc::new(Peer::new(clock, vec![rejected(); 12], DELIVERED));
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!(
        (summary.failed_event, summary.replayed, summary.left, summary.stopped),
        (12, 5, 0, None),
        "twelve bad letters do not keep the good ones behind them"
    );

    // Whatever else fails does count, and a rejection in between does not make up for it.
    let code = |class| Failure::code(class, "CODE").into();
    let counting: [Outcome; 5] = [
        busy(),
        Failure::transport(Transport::Connect).into(),
        Failure::status(403).into(),
        code(ErrorClass::PushBack),
        code(ErrorClass::Ambiguous),
    ];
    for failure in counting {
        let mut script = vec![failure.clone(); 5];
        script.extend(vec![rejected(); 3]);
        script.extend(vec![code(ErrorClass::RejectsEvent); 3]);
        let store = filled(letters(30)).await;
        let peer = Arc::new(Peer::new(clock, script, failure));
        let (summary, _) = replay_by_default(clock, &store, &peer).await;
        assert_eq!(
            (summary.failed_event, summary.failed(), summary.left, summary.stopped),
            (6, 16, 14, Some(Stopped::Failures))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_down_does_not_keep_letters_from_the_others() {
    let clock = Clock::start();
    let letters = letters(40).into_iter().enumerate().map(|(index, letter)| DeadLetter {
        // The dead one's are the oldest, and come in between.
        sink: sink(if index < 15 || index % 2 == 0 {
            "down"
        } else {
            "webhook"
        }),
        ..letter
    });
    let store = filled(letters).await;
    let (down, up) = (
        Arc::new(Peer::new(clock, [], busy())),
        Arc::new(Peer::new(clock, [], DELIVERED)),
    );
    let targets = |name: &SinkName| {
        let peer = if name.as_str() == "down" { &down } else { &up };
        Some(Target {
            sink: Arc::clone(peer) as Arc<dyn Sink>,
            policy: StatusPolicy::default(),
        })
    };
    let replayer = replayer(clock, ReplayOptions::default());
    let cancel = CancellationToken::new();
    let summary = replayer
        .run(&store, &Filter::default(), &targets, &mut |_| (), &cancel)
        .await
        .unwrap();
    assert_eq!((down.keys().len(), up.keys().len()), (10, 13));
    assert_eq!(
        (summary.selected, summary.replayed, summary.failed(), summary.left),
        (40, 13, 10, 17)
    );
    assert_eq!(summary.stopped, Some(Stopped::Failures));
}

#[tokio::test(start_paused = true)]
async fn a_limit_counts_attempts_and_not_what_is_refused_or_held() {
    let clock = Clock::start();
    let early = |step: u64| DeadLetter {
        not_before: Some(at(1_000)),
        ..letter(&format!("r1:tool_end:{step}"))
    };
    let first = filled((1..=6).map(early).chain(letters(9).split_off(6))).await;
    let seventh = ids(&first).await[6].clone();
    let token = LeaseToken::random();
    let claimed = first.claim(&seventh, &token, Duration::from_secs(30), clock.now());
    assert!(matches!(claimed.await, Ok(Claim::Claimed(_))));
    let second = filled(letters(20).split_off(9)).await;
    let peer = Arc::new(Peer::new(clock, [busy(), DELIVERED, busy()], DELIVERED));
    let options = ReplayOptions {
        limit: Some(4),
        ..ReplayOptions::default()
    };
    let summary = replayer(clock, options)
        .run_over(
            &[&first, &second],
            &Filter::default(),
            &targets(&peer),
            &mut |_| (),
            &CancellationToken::new(),
        )
        .await
        .unwrap();
    let sent: Vec<_> = (8..=11).map(|step| format!("r1:tool_end:{step}")).collect();
    assert_eq!(peer.keys(), sent, "over both stores");
    assert_eq!(
        (summary.replayed, summary.failed_retry, summary.refused_not_before),
        (2, 2, 6)
    );
    assert_eq!(
        (summary.selected, summary.left, summary.stopped),
        (10, 0, None),
        "what lies behind the limit is not of this run, and nothing is waited for"
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_not_used_up_by_a_page_of_entries_that_somebody_holds() {
    let clock = Clock::start();
    let store = filled(letters(1_001)).await;
    let (token, lease) = (LeaseToken::random(), Duration::from_secs(600));
    // Two pages of the store, and a limit that one page would fill.
    for id in &ids(&store).await[..1_000] {
        assert!(matches!(
            store.claim(id, &token, lease, clock.now()).await,
            Ok(Claim::Claimed(_))
        ));
    }
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let options = ReplayOptions {
        limit: Some(1),
        ..ReplayOptions::default()
    };
    let (summary, _) = replay(&replayer(clock, options), &store, &peer, &CancellationToken::new()).await;
    assert_eq!(peer.keys(), ["r1:tool_end:1001"]);
    assert_eq!((summary.selected, summary.replayed), (1, 1));
    assert_eq!(clock.0.elapsed(), Duration::ZERO, "and nothing was waited for");
}

#[tokio::test(start_paused = true)]
async fn what_a_limited_replay_leaves_when_it_stops_is_counted_up_to_the_limit() {
    let clock = Clock::start();
    let options = |limit| ReplayOptions {
        limit: Some(limit),
        ..ReplayOptions::default()
    };
    for (limit, left) in [(10, 0), (15, 5), (1_000, 20)] {
        let store = filled(letters(30)).await;
        let peer = Arc::new(Peer::new(clock, [], busy()));
        let replayer = replayer(clock, options(limit));
        let (summary, _) = replay(&replayer, &store, &peer, &CancellationToken::new()).await;
        let stopped = (left > 0).then_some(Stopped::Failures);
        assert_eq!(
            (summary.failed(), summary.left, summary.stopped),
            (10, left, stopped),
            "{limit}"
        );
        assert_eq!(summary.selected, 10 + left);
    }
    let store = filled(letters(3)).await;
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let (summary, _) = replay(&replayer(clock, options(0)), &store, &peer, &CancellationToken::new()).await;
    assert_eq!((summary.selected, peer.keys().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn two_operators_share_the_work() {
    let clock = Clock::start();
    let store = filled(letters(40)).await;
    let peer = Arc::new(Peer {
        takes: Duration::from_millis(130),
        ..Peer::new(clock, [], DELIVERED)
    });
    let (one, other) = tokio::join!(
        replay_by_default(clock, &store, &peer),
        replay_by_default(clock, &store, &peer)
    );
    let (one, other) = (one.0, other.0);
    let keys = peer.keys();
    assert_eq!(keys.len(), 40);
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 40, "nothing went out twice");
    assert_eq!(one.replayed + other.replayed, 40);
    assert!(one.replayed >= 10 && other.replayed >= 10, "{one:?} {other:?}");
    assert_eq!((one.replayed + one.gone, other.replayed + other.gone), (40, 40));
}

#[tokio::test(start_paused = true)]
async fn a_killed_replay_is_finished_by_the_next() {
    let clock = Clock::start();
    let store = filled(letters(5)).await;
    let peer = Arc::new(Peer {
        permits: Semaphore::new(2),
        ..Peer::new(clock, [], DELIVERED)
    });
    let killed = tokio::time::timeout(Duration::from_secs(1), replay_by_default(clock, &store, &peer)).await;
    assert!(killed.is_err());
    assert_eq!(peer.keys().len(), 3, "two were delivered and the third hangs");

    peer.permits.add_permits(100);
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!((summary.selected, summary.replayed, summary.held), (3, 3, 0));
    assert_eq!(peer.keys()[3..], ["r1:tool_end:4", "r1:tool_end:5", "r1:tool_end:3"]);
    assert_eq!(peer.times()[5], 30_200, "the dead run claimed it at 0.2 s, for 30 s");
    assert_eq!(contents(&store).await, []);
}

#[tokio::test(start_paused = true)]
async fn what_a_living_operator_keeps_is_held() {
    let clock = Clock::start();
    let store = filled(letters(3)).await;
    let (token, lease) = (LeaseToken::random(), Duration::from_secs(30));
    let (second, third) = (ids(&store).await[1].clone(), ids(&store).await[2].clone());
    for id in [&second, &third] {
        assert!(matches!(
            store.claim(id, &token, lease, clock.now()).await,
            Ok(Claim::Claimed(_))
        ));
    }
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let prolong = async {
        sleep(Duration::from_secs(20)).await;
        assert!(matches!(
            store.claim(&second, &token, lease, clock.now()).await,
            Ok(Claim::Claimed(_))
        ));
    };
    let ((summary, fates), ()) = tokio::join!(replay_by_default(clock, &store, &peer), prolong);
    assert_eq!((summary.replayed, summary.held), (2, 1));
    assert_eq!(
        fates,
        [Fate::Replayed, Fate::Held, Fate::Replayed],
        "the one that was let go of is waited out"
    );
    assert_eq!(contents(&store).await, [letter("r1:tool_end:2")]);
}

#[tokio::test(start_paused = true)]
async fn what_a_living_operator_finishes_is_not_waited_for() {
    let clock = Clock::start();
    let store = filled(letters(3)).await;
    let (token, lease) = (LeaseToken::random(), Duration::from_secs(30));
    let (first, second) = (ids(&store).await[0].clone(), ids(&store).await[1].clone());
    for id in [&first, &second] {
        let claimed = store.claim(id, &token, lease, clock.now()).await;
        assert!(matches!(claimed, Ok(Claim::Claimed(_))));
    }
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let other = async {
        sleep(Duration::from_secs(4)).await;
        let marked = store.mark_replayed(&first, &token, clock.now()).await;
        assert_eq!(marked.unwrap(), Settled::Done);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(store.release(&second, &token).await.unwrap(), Settled::Done);
    };
    let ((summary, fates), ()) = tokio::join!(replay_by_default(clock, &store, &peer), other);
    assert_eq!(fates, [Fate::Replayed, Fate::Gone, Fate::Replayed]);
    assert_eq!((summary.selected, summary.replayed, summary.gone), (3, 2, 1));
    assert!(
        clock.0.elapsed() <= Duration::from_secs(10),
        "their leases last for 30 s: {:?}",
        clock.0.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_stands_still_does_not_hang_it() {
    let clock = Clock::start();
    let store = filled(letters(1)).await;
    let id = ids(&store).await.remove(0);
    store
        .claim(&id, &LeaseToken::random(), Duration::from_secs(30), at(0))
        .await
        .unwrap();
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let standing = Replayer::new(ReplayOptions::default()).unwrap().with_clock(|| at(0));
    let (summary, _) = replay(&standing, &store, &peer, &CancellationToken::new()).await;
    assert_eq!((summary.held, summary.replayed), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn cancelling_finishes_the_attempt_in_flight() {
    let clock = Clock::start();
    let store = filled(letters(3)).await;
    let peer = Arc::new(Peer {
        takes: Duration::from_secs(2),
        ..Peer::new(clock, [], DELIVERED)
    });
    let cancel = CancellationToken::new();
    let replayer = replayer(clock, ReplayOptions::default());
    let stop = async {
        sleep(Duration::from_secs(3)).await;
        cancel.cancel();
    };
    let ((summary, _), ()) = tokio::join!(replay(&replayer, &store, &peer, &cancel), stop);
    assert_eq!(
        (summary.replayed, summary.left, summary.stopped),
        (2, 1, Some(Stopped::Cancelled))
    );
    assert_eq!(clock.0.elapsed(), Duration::from_secs(4));
    let id = ids(&store).await.remove(0);
    assert_eq!(
        store.load(&id).await.unwrap().unwrap().held_until,
        None,
        "nothing is held behind"
    );
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_a_wait_for_others() {
    let clock = Clock::start();
    let store = filled(letters(1)).await;
    let id = ids(&store).await.remove(0);
    store
        .claim(&id, &LeaseToken::random(), Duration::from_secs(30), clock.now())
        .await
        .unwrap();
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let cancel = CancellationToken::new();
    let replayer = replayer(clock, ReplayOptions::default());
    let stop = async {
        sleep(Duration::from_secs(3)).await;
        cancel.cancel();
    };
    let ((summary, _), ()) = tokio::join!(replay(&replayer, &store, &peer, &cancel), stop);
    assert_eq!((summary.left, summary.stopped), (1, Some(Stopped::Cancelled)));
    assert_eq!(clock.0.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_sink_without_a_target_is_left_alone() {
    let clock = Clock::start();
    let other = DeadLetter {
        sink: sink("audit"),
        ..letter("r1:tool_end:1")
    };
    let store = filled([other.clone(), letter("r1:tool_end:2")]).await;
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let (summary, _) = replay_by_default(clock, &store, &peer).await;
    assert_eq!((summary.no_target, summary.replayed), (1, 1));
    assert_eq!(contents(&store).await, [other]);
}

#[tokio::test(start_paused = true)]
async fn what_a_sink_can_never_send_is_refused_with_force_too() {
    let clock = Clock::start();
    let store = filled(letters(1)).await;
    let peer = Arc::new(Peer {
        refuses: Some("no dots"),
        ..Peer::new(clock, [], DELIVERED)
    });
    let forced = replayer(
        clock,
        ReplayOptions {
            force: true,
            ..ReplayOptions::default()
        },
    );
    let (summary, fates) = replay(&forced, &store, &peer, &CancellationToken::new()).await;
    assert_eq!(fates, [Fate::Refused(Refused::Unsendable(Refusal::new("no dots")))]);
    assert_eq!((summary.refused_unsendable, peer.keys().len()), (1, 0));
    assert_eq!(contents(&store).await, letters(1));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_is_cut_and_counts_as_maybe_delivered() {
    let clock = Clock::start();
    let store = filled(letters(1)).await;
    let peer = Arc::new(Peer {
        permits: Semaphore::new(0),
        ..Peer::new(clock, [], DELIVERED)
    });
    let (summary, fates) = replay_by_default(clock, &store, &peer).await;
    let cause = Cause::Transport(Transport::Timeout);
    assert_eq!(summary.failed_retry, 1);
    assert!(matches!(&fates[..], [Fate::Failed { cause: Some(told), .. }] if *told == cause));
    let letter = contents(&store).await.remove(0);
    assert!(letter.maybe_delivered);
    assert_eq!(letter.attempts[1].cause, Some(cause));
    assert_eq!(
        letter.attempts[1].elapsed,
        Duration::from_secs(6),
        "5 s and 1 s of grace"
    );
}

#[tokio::test(start_paused = true)]
async fn a_conflicting_letter_is_replayed_on_its_own() {
    let clock = Clock::start();
    let first = letter("r1:tool_end:1");
    let other = DeadLetter {
        message: Message::new(first.message.key().clone(), "other").unwrap(),
        ..first.clone()
    };
    let store = filled([first.clone(), other.clone()]).await;
    let conflicts = Filter {
        reason: Some(Reason::KeyConflict),
        ..Filter::default()
    };
    let peer = Arc::new(Peer::new(clock, [], DELIVERED));
    let replayer = replayer(clock, ReplayOptions::default());
    let summary = replayer
        .run(
            &store,
            &conflicts,
            &targets(&peer),
            &mut |_| (),
            &CancellationToken::new(),
        )
        .await
        .unwrap();
    assert_eq!(summary.replayed, 1);
    assert_eq!(peer.seen.lock().unwrap()[0].1, other.message);
    assert_eq!(contents(&store).await, [first]);
}
