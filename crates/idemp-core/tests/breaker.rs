//! The two rules, the half-open probe, and that nothing wedges.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails loudly"
)]

use std::time::Duration;

use idemp_core::{Admission, Breaker, BreakerConfig, BreakerState, OpenedBy, Permit, Signal};
use proptest::prelude::*;

const MS: u64 = 1_000;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn closed() -> Breaker {
    Breaker::new(BreakerConfig::default())
}

fn admitted(breaker: &mut Breaker, now: Duration) -> Permit {
    match breaker.admit(now) {
        Admission::Admit(permit) => permit,
        Admission::Refuse => panic!("refused at {now:?}"),
    }
}

/// One attempt from admission to its end, at one moment.
fn attempt(breaker: &mut Breaker, signal: Signal, now: Duration) {
    let permit = admitted(breaker, now);
    breaker.settle(permit, signal, now);
}

/// Feeds configuration-class letters at the given milliseconds, as long as the breaker admits; when did it open?
fn letters_at(times: impl IntoIterator<Item = u64>, look_until: u64) -> Option<(Duration, OpenedBy)> {
    let mut breaker = closed();
    for at in times {
        match breaker.admit(ms(at)) {
            Admission::Admit(permit) => breaker.settle(permit, Signal::Configuration, ms(at)),
            Admission::Refuse => break,
        }
    }
    // An admission on each later second gives the rule its chance to look.
    for second in 0..=look_until {
        if breaker.admit(ms(second * MS)) == Admission::Refuse {
            break;
        }
    }
    let opened = breaker.poll_transition()?;
    assert_eq!((opened.from, opened.to), (BreakerState::Closed, BreakerState::Open));
    Some((opened.at, opened.opened_by.unwrap()))
}

/// `count` letters at even distances over 60 seconds.
fn evenly(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |index| index * 60 * MS / count)
}

/// `rate` letters in each second of a range.
fn each_second(rate: u64, seconds: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
    seconds.flat_map(move |second| (0..rate).map(move |index| second * MS + index * MS / rate))
}

/// The labels `state` and `reason` of `idemp_breaker_transitions_total`.
#[test]
fn the_codes_of_states_and_causes_are_stable_and_documented() {
    let states = [
        (BreakerState::Closed, "closed"),
        (BreakerState::Open, "open"),
        (BreakerState::HalfOpen, "half_open"),
    ];
    let causes = [
        (OpenedBy::ExhaustedInARow, "exhausted_in_a_row"),
        (OpenedBy::LetterRate, "letter_rate"),
        (OpenedBy::ProbeFailed, "probe_failed"),
        (OpenedBy::ProbeLeaseExpired, "probe_lease_expired"),
    ];
    let docs = include_str!("../../../docs/metrics.md");
    let row = docs
        .lines()
        .find(|line| line.contains("`idemp_breaker_transitions_total`"))
        .unwrap();
    for (found, code) in (states.map(|(state, code)| (state.code(), code)).into_iter())
        .chain(causes.map(|(cause, code)| (cause.code(), code)))
    {
        assert_eq!(found, code);
        assert!(row.contains(&format!("`{code}`")), "{code}");
    }
}

#[test]
fn ten_exhausted_in_a_row_open_it() {
    let mut breaker = closed();
    for at in 0..9 {
        attempt(&mut breaker, Signal::Exhausted, ms(at));
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    attempt(&mut breaker, Signal::Exhausted, ms(9));
    assert_eq!(breaker.state(), BreakerState::Open);
    let opened = breaker.poll_transition().unwrap();
    assert_eq!((opened.opened_by, opened.at), (Some(OpenedBy::ExhaustedInARow), ms(9)));
    assert_eq!(breaker.poll_transition(), None);
}

#[test]
fn a_success_after_nine_resets_the_row() {
    let mut breaker = closed();
    for signal in [Signal::Exhausted; 9]
        .into_iter()
        .chain([Signal::Delivered])
        .chain([Signal::Exhausted; 9])
    {
        attempt(&mut breaker, signal, ms(0));
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    attempt(&mut breaker, Signal::Exhausted, ms(0));
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn rejects_of_single_events_waits_and_configuration_letters_leave_the_row_alone() {
    for signal in [Signal::Neutral, Signal::Retryable, Signal::Configuration] {
        let mut breaker = closed();
        for _ in 0..9 {
            attempt(&mut breaker, Signal::Exhausted, ms(0));
            attempt(&mut breaker, signal, ms(0));
        }
        assert_eq!(breaker.state(), BreakerState::Closed, "{signal:?} counts");
        attempt(&mut breaker, Signal::Exhausted, ms(0));
        assert_eq!(breaker.state(), BreakerState::Open, "{signal:?} resets");
    }
}

#[test]
fn rule_b_wants_more_than_600_letters_in_a_minute() {
    assert_eq!(letters_at(evenly(601), 120), Some((ms(60 * MS), OpenedBy::LetterRate)));
    assert_eq!(letters_at(evenly(600), 120), None);
}

#[test]
fn rule_b_wants_them_sustained() {
    assert_eq!(letters_at(each_second(5_000, 0..1), 120), None, "one burst");
    assert_eq!(letters_at(each_second(11, 0..59), 59), None, "59 s");
    assert_eq!(letters_at(each_second(11, 0..59), 120), None, "59 s, then silence");
    let fading = each_second(20, 0..30).chain(each_second(5, 30..200));
    assert_eq!(letters_at(fading, 200), None, "20 a second, then 5");
}

#[test]
fn rule_b_opens_at_60_s_and_not_before() {
    assert_eq!(
        letters_at(each_second(100, 0..200), 0),
        Some((ms(60 * MS), OpenedBy::LetterRate))
    );
    let later = each_second(100, 7..200);
    assert_eq!(
        letters_at(later, 0),
        Some((ms(67 * MS), OpenedBy::LetterRate)),
        "counted from the first letter"
    );
}

/// Threads may read their clocks in one order and come in another: what is late counts for the second before it.
#[test]
fn rule_b_takes_letters_out_of_order() {
    let one_late_in_each_second =
        |rate| each_second(rate, 1..100).flat_map(|at| if at % MS == 0 { [at, at - 1] } else { [at, at] });
    assert_eq!(
        letters_at(one_late_in_each_second(6), 0),
        Some((ms(61 * MS), OpenedBy::LetterRate)),
        "12 a second"
    );
    assert_eq!(letters_at(one_late_in_each_second(5), 200), None, "10 a second");
}

#[test]
fn successes_do_not_reset_rule_b() {
    let mut breaker = closed();
    for at in each_second(20, 0..61) {
        let Admission::Admit(permit) = breaker.admit(ms(at)) else {
            break;
        };
        breaker.settle(
            permit,
            if at % 200 == 0 {
                Signal::Delivered
            } else {
                Signal::Configuration
            },
            ms(at),
        );
    }
    assert_eq!(breaker.poll_transition().unwrap().opened_by, Some(OpenedBy::LetterRate));
}

#[test]
fn event_letters_do_not_count_for_rule_b() {
    let mut breaker = closed();
    for at in each_second(100, 0..100) {
        attempt(&mut breaker, Signal::Neutral, ms(at));
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
}

/// Opened by rule (a) at 0, and asked again once it is half-open.
fn half_open() -> (Breaker, Duration) {
    let mut breaker = closed();
    for _ in 0..10 {
        attempt(&mut breaker, Signal::Exhausted, ms(0));
    }
    assert_eq!(
        breaker.admit(ms(300 * MS - 1)),
        Admission::Refuse,
        "open for five minutes"
    );
    (breaker, ms(300 * MS))
}

#[test]
fn half_open_lets_one_of_a_hundred_through() {
    let (mut breaker, now) = half_open();
    let permits: Vec<_> = (0..100)
        .filter_map(|_| match breaker.admit(now) {
            Admission::Admit(permit) => Some(permit),
            Admission::Refuse => None,
        })
        .collect();
    assert_eq!(permits.len(), 1);
    assert!(permits[0].is_probe());
}

#[test]
fn a_probe_that_is_delivered_closes_it_and_clears_both_counts() {
    let (mut breaker, now) = half_open();
    attempt(&mut breaker, Signal::Delivered, now);
    assert_eq!(breaker.state(), BreakerState::Closed);
    for _ in 0..9 {
        attempt(&mut breaker, Signal::Exhausted, now);
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_probe_that_fails_opens_it_for_another_five_minutes() {
    for signal in [Signal::Retryable, Signal::Exhausted, Signal::Configuration] {
        let (mut breaker, now) = half_open();
        attempt(&mut breaker, signal, now);
        assert_eq!(breaker.admit(now + ms(300 * MS - 1)), Admission::Refuse, "{signal:?}");
        assert!(admitted(&mut breaker, now + ms(300 * MS)).is_probe());
        let by: Vec<_> = std::iter::from_fn(|| breaker.poll_transition())
            .filter_map(|change| change.opened_by)
            .collect();
        assert_eq!(by, [OpenedBy::ExhaustedInARow, OpenedBy::ProbeFailed]);
    }
}

#[test]
fn a_rejected_or_cancelled_probe_frees_its_place() {
    let (mut breaker, now) = half_open();
    attempt(&mut breaker, Signal::Neutral, now);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert!(admitted(&mut breaker, now).is_probe());
}

#[test]
fn the_probe_that_takes_a_freed_place_decides() {
    let mut breaker = closed();
    let late = admitted(&mut breaker, ms(0));
    for _ in 0..10 {
        attempt(&mut breaker, Signal::Exhausted, ms(0));
    }
    let now = ms(300 * MS);
    attempt(&mut breaker, Signal::Neutral, now);
    let probe = admitted(&mut breaker, now);
    breaker.settle(late, Signal::Exhausted, now);
    assert_eq!(breaker.state(), BreakerState::HalfOpen, "a late result decides nothing");
    assert_eq!(breaker.admit(now), Admission::Refuse);
    breaker.settle(probe, Signal::Delivered, now);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_probe_that_hangs_counts_as_failed_when_its_lease_ends() {
    let (mut breaker, now) = half_open();
    let hung = admitted(&mut breaker, now);
    let lease_end = now + ms(6 * MS);
    assert_eq!(breaker.admit(lease_end - ms(1)), Admission::Refuse);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert_eq!(breaker.admit(lease_end), Admission::Refuse);
    assert_eq!(breaker.state(), BreakerState::Open);

    breaker.settle(hung, Signal::Delivered, lease_end + ms(1));
    assert_eq!(breaker.state(), BreakerState::Open, "too late to close it");
    assert!(admitted(&mut breaker, lease_end + ms(300 * MS)).is_probe());
}

#[test]
fn a_late_result_from_before_moves_nothing() {
    let mut breaker = closed();
    let (late_success, late_failure) = (admitted(&mut breaker, ms(0)), admitted(&mut breaker, ms(0)));
    for _ in 0..10 {
        attempt(&mut breaker, Signal::Exhausted, ms(0));
    }
    breaker.settle(late_success, Signal::Delivered, ms(1));
    assert_eq!(breaker.state(), BreakerState::Open);

    attempt(&mut breaker, Signal::Delivered, ms(300 * MS));
    for _ in 0..9 {
        attempt(&mut breaker, Signal::Exhausted, ms(300 * MS));
    }
    breaker.settle(late_failure, Signal::Exhausted, ms(300 * MS));
    assert_eq!(
        breaker.state(),
        BreakerState::Closed,
        "nine in this generation, the tenth is from another"
    );
}

proptest! {
    /// Whatever happens, in whatever order, with permits kept for long or lost: one probe at most, and after five
    /// quiet minutes and a lease an attempt passes again.
    #[test]
    fn never_stuck(steps in prop::collection::vec((0u8..7, 0u64..90_000, any::<prop::sample::Index>()), 0..400)) {
        let mut breaker = closed();
        let mut now = Duration::ZERO;
        let mut out: Vec<Permit> = Vec::new();
        for (what, pause, which) in steps {
            match what {
                0 => now += ms(pause),
                1 | 2 => if let Admission::Admit(permit) = breaker.admit(now) {
                    if permit.is_probe() {
                        prop_assert_eq!(breaker.admit(now), Admission::Refuse);
                    }
                    out.push(permit);
                },
                3 => if !out.is_empty() {
                    drop(out.swap_remove(which.index(out.len())));
                },
                _ => if !out.is_empty() {
                    let permit = out.swap_remove(which.index(out.len()));
                    let signal = [Signal::Delivered, Signal::Exhausted, Signal::Configuration][usize::from(what) - 4];
                    breaker.settle(permit, signal, now);
                },
            }
        }
        // A lost probe holds its place for its lease, then opens it once more.
        let quiet = now + ms(6 * MS) + ms(300 * MS);
        let admission = breaker.admit(quiet);
        prop_assert!(matches!(admission, Admission::Admit(_)), "still refused: {:?}", breaker);
    }
}
