//! One event on its way to one sink: a machine that is told facts and says what to do next.

use std::time::{Duration, SystemTime};

use crate::{Cause, Detail, Next, Outcome, Reason, RetrySchedule, Verdict};

/// What has happened to one event at one sink so far.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    attempts: Vec<AttemptRecord>,
    waited: Duration,
    /// How many of the attempts count for the schedule.
    tries: usize,
    /// How often the peer has pushed back since it last did not.
    pushed_back: u32,
    maybe_delivered: bool,
    not_before: Option<SystemTime>,
}

/// One attempt, as the dead letter keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// 1 for the first.
    pub number: u32,
    /// Time of day at its start.
    pub started: SystemTime,
    /// How long it took.
    pub elapsed: Duration,
    /// Why it failed; `None` where it did not.
    pub cause: Option<Cause>,
    /// A word for the operator.
    pub detail: Detail,
}

/// What to do after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing more.
    Delivered,
    /// Try again after this long.
    Wait(Duration),
    /// Give the event up, for this reason.
    DeadLetter(Reason),
}

impl Delivery {
    /// The attempts so far.
    #[must_use]
    pub fn attempts(&self) -> &[AttemptRecord] {
        &self.attempts
    }

    /// Number of the next attempt: 1 for the first.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.attempts.last().map_or(1, |last| last.number.saturating_add(1))
    }

    /// How long the waits between attempts were, together.
    #[must_use]
    pub const fn waited(&self) -> Duration {
        self.waited
    }

    /// Whether the event may have arrived although no attempt said so. Once true it stays true.
    #[must_use]
    pub const fn maybe_delivered(&self) -> bool {
        self.maybe_delivered
    }

    /// Before when the next attempt would be too early, if the peer said so in the last one.
    #[must_use]
    pub const fn not_before(&self) -> Option<SystemTime> {
        self.not_before
    }

    /// Takes in what an attempt found out, `verdict` being what it means, and says what follows.
    ///
    /// `started` and `now` are the times of day at the attempt's start and settlement, `elapsed` the time between
    /// on the monotonic clock.
    pub fn settle(
        &mut self,
        outcome: &Outcome,
        verdict: Verdict,
        schedule: &RetrySchedule,
        started: SystemTime,
        elapsed: Duration,
        now: SystemTime,
    ) -> Step {
        let mut record = AttemptRecord {
            number: self.next_number(),
            started,
            elapsed,
            cause: None,
            detail: Detail::default(),
        };
        let mut asked = None;
        match outcome {
            Outcome::Delivered { status } => {
                if verdict != Verdict::Delivered {
                    // The peer has it, though this sink's policy wants another answer.
                    record.cause = status.map(Cause::Status);
                    self.maybe_delivered = true;
                }
            }
            Outcome::Failed(failure) => {
                record.cause = Some(failure.cause);
                record.detail = failure.detail.clone();
                asked = failure.retry_after.map(|retry_after| retry_after.delay(now));
                self.maybe_delivered |= failure.maybe_delivered;
            }
        }
        self.attempts.push(record);
        if verdict == Verdict::PushBack {
            self.pushed_back = self.pushed_back.saturating_add(1);
        } else {
            self.tries += 1;
            self.pushed_back = 0;
        }

        self.not_before = asked
            .filter(|delay| !delay.is_zero())
            .map(|delay| now.checked_add(delay).map_or_else(far, |at| at.min(far())));
        let reason = match verdict {
            Verdict::Delivered => return Step::Delivered,
            Verdict::RejectsEvent => Reason::EventRejected,
            Verdict::RejectsConfiguration => Reason::ConfigurationRejected,
            Verdict::Retry => return self.follow(schedule.next(self.tries, self.waited, asked)),
            Verdict::PushBack => return self.follow(schedule.push_back(self.pushed_back, self.waited, asked)),
        };
        Step::DeadLetter(reason)
    }

    fn follow(&mut self, next: Next) -> Step {
        match next {
            Next::Wait(wait) => {
                self.waited += wait;
                Step::Wait(wait)
            }
            Next::Exhausted => Step::DeadLetter(Reason::RetriesExhausted),
            Next::RetryAfterExceedsBudget => Step::DeadLetter(Reason::RetryAfterExceedsBudget),
        }
    }

    /// Takes in that an attempt was given up before it settled: the event may have arrived.
    pub fn abandon(&mut self, started: SystemTime, elapsed: Duration) {
        self.maybe_delivered = true;
        self.attempts.push(AttemptRecord {
            number: self.next_number(),
            started,
            elapsed,
            cause: Some(Cause::Transport(crate::Transport::Timeout)),
            detail: Detail::new("given up before it settled"),
        });
    }
}

/// A time of day after every other that a record can hold: 9999-12-30T00:00:00Z.
fn far() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_128_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorClass, Failure, RetryAfter, StatusPolicy, Transport};

    const START: SystemTime = SystemTime::UNIX_EPOCH;

    /// Runs a delivery against a peer that always answers the same; returns when attempts began, in seconds, and the end.
    fn transcript(outcome: &Outcome) -> (Vec<u64>, Step, Delivery) {
        let (policy, schedule) = (StatusPolicy::default(), RetrySchedule::default());
        let (mut delivery, mut now, mut begun) = (Delivery::default(), START, Vec::new());
        loop {
            begun.push(now.duration_since(START).unwrap().as_secs());
            let verdict = policy.classify(outcome);
            match delivery.settle(outcome, verdict, &schedule, now, Duration::ZERO, now) {
                Step::Wait(wait) => now += wait,
                end => return (begun, end, delivery),
            }
        }
    }

    fn busy(seconds: u64) -> Outcome {
        Failure::status(503)
            .with_retry_after(RetryAfter::parse(seconds.to_string().as_bytes(), START))
            .into()
    }

    fn seconds(delivery: &Delivery) -> Option<u64> {
        delivery
            .not_before()
            .map(|at| at.duration_since(START).unwrap().as_secs())
    }

    #[test]
    fn always_failing_is_tried_at_0_1_6_and_36_seconds() {
        for outcome in [
            Failure::status(500),
            Failure::status(408),
            Failure::transport(Transport::Dns),
        ] {
            let (begun, end, _) = transcript(&outcome.into());
            assert_eq!(begun, [0, 1, 6, 36]);
            assert_eq!(end, Step::DeadLetter(Reason::RetriesExhausted));
        }
    }

    #[test]
    fn what_will_not_pass_is_tried_once() {
        for (status, reason) in [
            (400, Reason::EventRejected),
            (404, Reason::ConfigurationRejected),
            (410, Reason::ConfigurationRejected),
            (302, Reason::ConfigurationRejected),
        ] {
            let (begun, end, delivery) = transcript(&Failure::status(status).into());
            assert_eq!(
                (begun.as_slice(), end),
                ([0].as_slice(), Step::DeadLetter(reason)),
                "{status}"
            );
            assert!(!delivery.maybe_delivered());
        }
    }

    #[test]
    fn retry_after_is_honoured_within_the_budget() {
        for (asked, at, reason, not_before) in [
            (7, vec![0, 7, 14, 36], Reason::RetriesExhausted, 43),
            (20, vec![0, 20], Reason::RetryAfterExceedsBudget, 40),
            (40, vec![0], Reason::RetryAfterExceedsBudget, 40),
        ] {
            let (begun, end, delivery) = transcript(&busy(asked));
            assert_eq!((begun, end), (at, Step::DeadLetter(reason)), "{asked}");
            assert_eq!(seconds(&delivery), Some(not_before), "{asked}");
        }
    }

    #[test]
    fn a_push_back_waits_out_of_the_budget_and_is_none_of_the_four_attempts() {
        let pushed = Failure::code(ErrorClass::PushBack, "QueueFull").into();
        let (begun, end, delivery) = transcript(&pushed);
        assert_eq!(begun, [0, 1, 3, 7, 15, 31, 36]);
        assert_eq!(end, Step::DeadLetter(Reason::RetriesExhausted));
        assert_eq!(delivery.waited(), Duration::from_secs(36));
        assert!(!delivery.maybe_delivered());
    }

    #[test]
    fn after_a_push_back_the_schedule_goes_on_where_it_was() {
        let (policy, schedule) = (StatusPolicy::default(), RetrySchedule::default());
        let pushed: Outcome = Failure::code(ErrorClass::PushBack, "QueueFull").into();
        let failed: Outcome = Failure::code(ErrorClass::Transient, "NotEnoughReplicas").into();
        let mut delivery = Delivery::default();
        let steps = [&pushed, &failed, &pushed, &failed, &failed].map(|outcome| {
            let verdict = policy.classify(outcome);
            delivery.settle(outcome, verdict, &schedule, START, Duration::ZERO, START)
        });
        let waits = [1, 1, 1, 5, 28].map(|seconds| Step::Wait(Duration::from_secs(seconds)));
        assert_eq!(steps, waits, "the last one is cut to what is left of the budget");
        assert_eq!(delivery.next_number(), 6, "every request is in the record");
    }

    #[test]
    fn each_class_of_code_leads_where_it_says() {
        for (class, attempts, end, maybe_delivered) in [
            (ErrorClass::Transient, 4, Reason::RetriesExhausted, false),
            (ErrorClass::Ambiguous, 4, Reason::RetriesExhausted, true),
            (ErrorClass::RejectsEvent, 1, Reason::EventRejected, false),
            (
                ErrorClass::RejectsConfiguration,
                1,
                Reason::ConfigurationRejected,
                false,
            ),
        ] {
            let (begun, step, delivery) = transcript(&Failure::code(class, "X").into());
            assert_eq!((begun.len(), step), (attempts, Step::DeadLetter(end)), "{class:?}");
            assert_eq!(delivery.maybe_delivered(), maybe_delivered, "{class:?}");
        }
    }

    #[test]
    fn a_push_back_is_the_end_where_there_is_one_attempt() {
        let pushed: Outcome = Failure::code(ErrorClass::PushBack, "Throttling").into();
        let mut delivery = Delivery::default();
        let schedule = RetrySchedule::once();
        let step = delivery.settle(&pushed, Verdict::PushBack, &schedule, START, Duration::ZERO, START);
        assert_eq!(step, Step::DeadLetter(Reason::RetriesExhausted));
    }

    #[test]
    fn retry_after_as_a_date_counts_from_the_settlement() {
        let date = RetryAfter::parse(b"Thu, 01 Jan 1970 00:00:09 GMT", START);
        let outcome: Outcome = Failure::status(429).with_retry_after(date).into();
        assert_eq!(
            transcript(&outcome).0,
            [0, 9, 14, 36],
            "9 s off at first, past from then on; the last wait is cut"
        );
    }

    #[test]
    fn an_absurd_retry_after_neither_panics_nor_loops() {
        let absurd: Outcome = Failure::status(503)
            .with_retry_after(RetryAfter::parse(b"99999999999999999999", START))
            .into();
        let (begun, end, delivery) = transcript(&absurd);
        assert_eq!(begun, [0]);
        assert_eq!(end, Step::DeadLetter(Reason::RetryAfterExceedsBudget));
        assert_eq!(
            seconds(&delivery),
            Some(253_402_128_000),
            "clamped to a date that a record can hold"
        );
    }

    #[test]
    fn maybe_delivered_sticks() {
        let (policy, schedule) = (StatusPolicy::default(), RetrySchedule::default());
        let mut delivery = Delivery::default();
        for (failure, after) in [
            (Failure::transport(Transport::Connect), false),
            (Failure::transport(Transport::Timeout), true),
            (Failure::status(429), true),
        ] {
            let outcome = failure.into();
            delivery.settle(
                &outcome,
                policy.classify(&outcome),
                &schedule,
                START,
                Duration::ZERO,
                START,
            );
            assert_eq!(delivery.maybe_delivered(), after);
        }
    }

    #[test]
    fn an_attempt_that_was_given_up_may_have_delivered_and_stands_in_the_record() {
        let mut delivery = Delivery::default();
        let busy: Outcome = Failure::status(429).into();
        delivery.settle(
            &busy,
            Verdict::Retry,
            &RetrySchedule::default(),
            START,
            Duration::ZERO,
            START,
        );
        assert!(!delivery.maybe_delivered());
        let (started, elapsed) = (START + Duration::from_secs(1), Duration::from_millis(250));
        delivery.abandon(started, elapsed);
        assert!(delivery.maybe_delivered());
        let given_up = AttemptRecord {
            number: 2,
            started,
            elapsed,
            cause: Some(Cause::Transport(Transport::Timeout)),
            detail: Detail::new("given up before it settled"),
        };
        assert_eq!(delivery.attempts()[1..], [given_up]);
        assert_eq!(delivery.next_number(), 3);
    }

    #[test]
    fn a_success_that_the_policy_does_not_take_for_one_may_be_one_all_the_same() {
        let policy = StatusPolicy::default().with(202, Verdict::Retry);
        let outcome = Outcome::Delivered { status: Some(202) };
        let mut delivery = Delivery::default();
        let schedule = RetrySchedule::default();
        let step = delivery.settle(
            &outcome,
            policy.classify(&outcome),
            &schedule,
            START,
            Duration::ZERO,
            START,
        );
        assert_eq!(step, Step::Wait(Duration::from_secs(1)));
        assert!(delivery.maybe_delivered());
        assert_eq!(delivery.attempts()[0].cause, Some(Cause::Status(202)));
    }
}
