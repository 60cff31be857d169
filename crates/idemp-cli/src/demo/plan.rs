//! Who gets which fault: a pure function of the seed and the number of events.

use std::ops::Range;

use idemp_core::BreakerConfig;

/// What the receiver, or the way to it, does to one copy of an event that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fault {
    /// 503, without a look at the event.
    Unavailable,
    /// 429 with `Retry-After: 1`.
    RateLimited,
    /// The connection is closed before anything is done.
    HangUpBefore,
    /// The connection is closed while the handler is at work, so that the next copy comes in the middle of it.
    HangUpDuring,
    /// The effect is done, and the connection is closed in place of the reply.
    HangUpAfter,
    /// The handler takes its time and answers within the attempt's.
    SlowHandler,
    /// The effect is done, and the reply comes when the sender has given up waiting for it.
    SlowReply,
    /// The copy is held up on its way, and processed when the sender has given up on it.
    LateCopy,
    /// The handler fails before it has done anything.
    HandlerFails,
}

impl Fault {
    pub(super) const ALL: [Self; 9] = [
        Self::Unavailable,
        Self::RateLimited,
        Self::HangUpBefore,
        Self::HangUpDuring,
        Self::HangUpAfter,
        Self::SlowHandler,
        Self::SlowReply,
        Self::LateCopy,
        Self::HandlerFails,
    ];

    /// Those that happen before the event is looked at: the event makes no difference to them.
    const AT_THE_DOOR: [Self; 3] = [Self::Unavailable, Self::RateLimited, Self::HangUpBefore];

    /// Stable code for machines.
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::RateLimited => "rate_limited",
            Self::HangUpBefore => "hang_up_before",
            Self::HangUpDuring => "hang_up_during",
            Self::HangUpAfter => "hang_up_after",
            Self::SlowHandler => "slow_handler",
            Self::SlowReply => "slow_reply",
            Self::LateCopy => "late_copy",
            Self::HandlerFails => "handler_fails",
        }
    }

    /// What a person reads.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Unavailable => "answered 503, unseen",
            Self::RateLimited => "answered 429, Retry-After: 1",
            Self::HangUpBefore => "hung up before processing",
            Self::HangUpDuring => "hung up while processing",
            Self::HangUpAfter => "hung up after processing",
            Self::SlowHandler => "slow, but in time",
            Self::SlowReply => "processed, replied too late",
            Self::LateCopy => "held up, processed too late",
            Self::HandlerFails => "handler failed, answered 500",
        }
    }

    /// Whether the sender tries again after it.
    const fn fails(self) -> bool {
        !matches!(self, Self::SlowHandler)
    }

    /// Whether the effect is done although the sender does not hear of it.
    const fn processes_unheard(self) -> bool {
        matches!(
            self,
            Self::HangUpDuring | Self::HangUpAfter | Self::SlowReply | Self::LateCopy
        )
    }
}

/// How the events, in the order in which they are sent, fall into the acts of the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acts {
    /// Sent to a receiver that misbehaves.
    pub(super) rough: Range<usize>,
    /// Sent when the others are settled, and delivered: after it the breaker counts from zero, so that the next ten
    /// open it.
    pub(super) calm: Range<usize>,
    /// Sent while the receiver is down, each tried to the end: as many as it takes to open the breaker.
    pub(super) down: Range<usize>,
    /// Sent while the receiver is down and the breaker is open.
    pub(super) refused: Range<usize>,
}

/// Events that are sent while the receiver is down and the breaker is open.
const REFUSED: usize = 9;

impl Acts {
    pub(super) fn new(events: usize) -> Self {
        let down = BreakerConfig::default().exhausted_in_a_row as usize;
        let refused = events.saturating_sub(REFUSED)..events;
        let down = refused.start.saturating_sub(down)..refused.start;
        let calm = down.start.saturating_sub(1)..down.start;
        Self {
            rough: 0..calm.start,
            calm,
            down,
            refused,
        }
    }
}

/// What happens to the copies of each event, in the order in which they arrive. Copies beyond that meet no fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    faults: Vec<Vec<Fault>>,
}

/// Events that meet each fault once, and nothing else.
const ONCE_EACH: usize = 3;
const TWICE: usize = 10;
const THREE_TIMES: usize = 6;
/// Events that fail four times, never processed, and so become dead letters.
const HOPELESS: usize = 2;
/// Events that are processed the first time without the sender's knowing, and then fail until they are dead letters.
const HOPELESS_BUT_PROCESSED: usize = 2;
/// Dead letters whose first replay is processed and cut before the reply, so that they are replayed again.
const REPLAYS_CUT: usize = 2;

impl Plan {
    /// The same for the same seed. Which faults there are, and how often, hardly depends on the seed; who meets them does.
    pub(super) fn new(seed: u64, acts: &Acts) -> Self {
        let mut dice = Dice(seed);
        let mut rough: Vec<Vec<Fault>> = Vec::new();
        for fault in Fault::ALL {
            rough.extend(std::iter::repeat_n(vec![fault], ONCE_EACH));
        }
        rough.extend((0..TWICE).map(|_| several(2, &mut dice)));
        rough.extend((0..THREE_TIMES).map(|_| several(3, &mut dice)));
        rough.extend((0..HOPELESS).map(|_| (0..4).map(|_| dice.pick(&Fault::AT_THE_DOOR)).collect()));
        rough.extend((0..HOPELESS_BUT_PROCESSED).map(|_| {
            let first = dice.pick(&[Fault::HangUpAfter, Fault::LateCopy]);
            let rest = (0..3).map(|_| dice.pick(&Fault::AT_THE_DOOR));
            std::iter::once(first).chain(rest).collect()
        }));
        let replayed = vec![vec![Fault::HangUpAfter]; REPLAYS_CUT];

        let mut faults = vec![Vec::new(); acts.refused.end];
        for (range, mut dealt) in [
            (acts.rough.clone(), rough),
            (acts.down.start..acts.refused.end, replayed),
        ] {
            dealt.resize(range.len(), Vec::new());
            dice.shuffle(&mut dealt);
            for (place, dealt) in faults[range].iter_mut().zip(dealt) {
                *place = dealt;
            }
        }
        Self { faults }
    }

    /// The faults that the copies of this event meet.
    pub(super) fn faults(&self, event: usize) -> &[Fault] {
        self.faults.get(event).map_or(&[], Vec::as_slice)
    }
}

/// So many faults for one event, each of which can happen after those before it.
fn several(count: usize, dice: &mut Dice) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::with_capacity(count);
    while faults.len() < count {
        let fault = dice.pick(&Fault::ALL);
        let last = faults.len() + 1 == count;
        let unprocessed = !faults.iter().any(|fault| fault.processes_unheard());
        if (last || fault.fails()) && (unprocessed || Fault::AT_THE_DOOR.contains(&fault)) {
            faults.push(fault);
        }
    }
    faults
}

/// SplitMix64 (Steele, Lea and Flood, 2014): small, and the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is small, so that the remainder is even enough.
    fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }

    fn pick(&mut self, from: &[Fault]) -> Fault {
        from[self.below(from.len())]
    }

    /// Fisher and Yates.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const EVENTS: usize = 80;

    fn plan(seed: u64) -> Plan {
        Plan::new(seed, &Acts::new(EVENTS))
    }

    #[test]
    fn acts_follow_each_other_and_cover_all_events() {
        let acts = Acts::new(EVENTS);
        assert_eq!(
            acts,
            Acts {
                rough: 0..60,
                calm: 60..61,
                down: 61..71,
                refused: 71..80
            }
        );
    }

    #[test]
    fn the_generator_is_split_mix_64() {
        let mut dice = Dice(1_234_567);
        // The published sequence of that seed.
        let rolls = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423_u64,
        ];
        assert_eq!(rolls.map(|_| dice.roll()), rolls);
    }

    #[test]
    fn a_plan_depends_on_the_seed_alone() {
        assert_eq!(plan(36), plan(36));
        let plans: Vec<_> = (0..100).map(plan).collect();
        for (seed, one) in plans.iter().enumerate() {
            assert!(!plans[..seed].contains(one), "{seed}");
        }
        // Worked out by a second program, so that a seed means the same on every machine and in every version.
        let pinned = [
            vec![],
            vec![Fault::RateLimited],
            vec![Fault::HangUpBefore, Fault::HandlerFails],
        ];
        assert_eq!(plan(36).faults[..3], pinned);
        assert_eq!(
            plan(36).faults(36),
            [
                Fault::LateCopy,
                Fault::Unavailable,
                Fault::Unavailable,
                Fault::Unavailable
            ],
        );
    }

    #[test]
    fn every_plan_has_every_fault_and_dead_letters() {
        for seed in (0..1_000).chain([u64::MAX, super::super::SEED]) {
            let plan = plan(seed);
            let acts = Acts::new(EVENTS);
            let rough = &plan.faults[acts.rough.clone()];
            let met: BTreeSet<Fault> = rough.iter().flatten().copied().collect();
            assert_eq!(met, BTreeSet::from(Fault::ALL), "{seed}");
            let hopeless: Vec<_> = rough.iter().filter(|faults| faults.len() >= 4).collect();
            assert_eq!(hopeless.len(), 4, "{seed}");
            assert_eq!(
                hopeless.iter().filter(|faults| faults[0].processes_unheard()).count(),
                2,
                "{seed}"
            );
            assert!(
                hopeless.iter().all(|faults| faults.iter().all(|fault| fault.fails())),
                "{seed}"
            );
            // Three of each of four kinds alone, and two of those that have no chance.
            let unheard = rough
                .iter()
                .filter(|faults| faults.iter().any(|fault| fault.processes_unheard()));
            assert!(unheard.count() >= 3 * 4 + 2, "{seed}");
            assert_eq!(plan.faults(acts.calm.start), [], "{seed}");
            let replayed = &plan.faults[acts.down.start..];
            let cut: Vec<_> = replayed.iter().filter(|faults| !faults.is_empty()).collect();
            assert_eq!(cut, [&[Fault::HangUpAfter], &[Fault::HangUpAfter]], "{seed}");
        }
    }

    #[test]
    fn every_planned_fault_can_happen() {
        for seed in 0..1_000 {
            for faults in plan(seed).faults {
                assert!(faults.len() <= 4, "there are four attempts");
                let done = faults.iter().position(|fault| !fault.fails());
                assert!(
                    done.is_none_or(|at| at + 1 == faults.len()),
                    "none after a success: {faults:?}"
                );
                let processed = faults.iter().position(|fault| fault.processes_unheard());
                let after = processed.map_or(&[][..], |at| &faults[at + 1..]);
                assert!(
                    after.iter().all(|fault| Fault::AT_THE_DOOR.contains(fault)),
                    "{faults:?}"
                );
            }
        }
    }

    #[test]
    fn faults_are_told_apart() {
        assert_eq!(
            Fault::ALL.map(Fault::code).iter().collect::<BTreeSet<_>>().len(),
            Fault::ALL.len()
        );
        assert_eq!(
            Fault::ALL.map(Fault::text).iter().collect::<BTreeSet<_>>().len(),
            Fault::ALL.len()
        );
    }
}
