//! A story of charges grants no more than the bound of its limit.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::{Limit, LimitKind, LimitSpec, Tokens};

use super::story::{Alter, Op, Span, stories, tell};
use crate::story::config;
use crate::world::{micros, terms_of};

pub(super) fn limit(
    kind: LimitKind,
    rate: i64,
    period: u64,
    capacity: Option<i64>,
    max_reserved: i64,
    start: u64,
) -> Limit {
    let spec = LimitSpec::new("limit", kind, micros(rate), Duration::from_micros(period));
    let stands = matches!(kind, LimitKind::FixedWindow).then(|| Duration::from_micros(start));
    let spec = spec.with(|spec| (spec.capacity, spec.start) = (capacity.map(micros), stands));
    let counts = matches!(kind, LimitKind::SlidingWindow | LimitKind::Concurrency);
    spec.with(|spec| spec.max_reserved = if counts { Tokens::ZERO } else { micros(max_reserved) }).try_into().unwrap()
}

fn buckets() -> impl Strategy<Value = Limit> {
    let kind = prop_oneof![Just(LimitKind::TokenBucket), Just(LimitKind::SteppedBucket), Just(LimitKind::FixedWindow)];
    (kind, 1_i64..6, 1_u64..10, 1_i64..10, 0_i64..6, 0_u64..10)
        .prop_map(|(kind, rate, period, capacity, max, start)| limit(kind, rate, period, Some(capacity), max, start))
}

fn windows() -> impl Strategy<Value = Limit> {
    let kind = prop_oneof![Just(LimitKind::FixedWindow), Just(LimitKind::SlidingWindow)];
    (kind, 1_i64..9, 1_u64..10, 0_i64..6, 0_u64..10)
        .prop_map(|(kind, rate, period, max, start)| limit(kind, rate, period, None, max, start))
}

/// The tokens that may come back between two instants, each of which is the row's.
fn refilled(limit: &Limit, from: i64, to: i64) -> i64 {
    let spec = limit.spec();
    let (rate, period) = (spec.rate.micros(), i64::try_from(spec.period.as_micros()).unwrap());
    let length = (to - from).max(0);
    match spec.kind {
        LimitKind::TokenBucket => rate * length / period,
        LimitKind::FixedWindow => {
            let start = |at: i64| terms_of(&limit.global()).full(Timestamp::from_micros(at)).ts.micros();
            rate * ((start(to) - start(from)) / period).max(0)
        }
        LimitKind::SlidingWindow => rate * (length / period),
        // Steps of a row whose beginning is not known.
        _ => rate * ((length + period - 1) / period),
    }
}

/// The bound of a limit between the instants of two grants.
fn bound(limit: &Limit, from: i64, to: i64) -> i64 {
    room(limit) + refilled(limit, from, to)
}

/// The tokens that count beside the grants: those that were used beyond charges, from the row's instant on. A sliding
/// window forgives them after a period, however many they were.
fn counted_beyond(limit: &Limit, span: &Span) -> i64 {
    let period = i64::try_from(limit.spec().period.as_micros()).unwrap();
    let is_forgiven = limit.spec().kind == LimitKind::SlidingWindow && span.to - span.from >= period;
    if is_forgiven { 0 } else { span.beyond }
}

fn room(limit: &Limit) -> i64 {
    let spec = limit.spec();
    spec.capacity.unwrap().micros() + spec.max_reserved.micros()
}

proptest! {
    #![proptest_config(config())]

    /// The promise of windows: a call counts as the amount that it is settled at, netted with nothing, also where the
    /// clock goes back. Tokens that it used beyond its charge count from its settlement on. A charge that was booked
    /// ahead and is not ready comes back whole, with the part that windows that are over would have had of it.
    #[test]
    fn windows_are_exact_as_settled(
        limit in windows(),
        story in prop_oneof![stories(false, false), stories(true, false)],
    ) {
        for span in tell(std::slice::from_ref(&limit), &story).spans() {
            let Span { from, to, kept, ahead, .. } = span;
            if to < from && limit.spec().kind == LimitKind::SlidingWindow {
                continue;
            }
            let (bound, beyond) = (bound(&limit, from, to), counted_beyond(&limit, &span));
            prop_assert!(kept + beyond <= bound + ahead, "{kept}, {beyond} of {bound}, {ahead} from {from} to {to}");
        }
    }

    /// The promise of all kinds: the grants less the tokens that are handed back stay within the bound. So do the kept
    /// tokens, if the bound is raised by the tokens that came back from earlier charges, credits and resets. Tokens
    /// that are used beyond charges count, too.
    #[test]
    fn what_is_granted_less_what_is_handed_back_is_within_the_bound(
        limit in prop_oneof![buckets(), windows()],
        story in prop_oneof![stories(false, true), stories(true, true)],
    ) {
        for span in tell(std::slice::from_ref(&limit), &story).spans() {
            let Span { from, to, kept, net, old, .. } = span;
            if to < from && limit.spec().kind == LimitKind::SlidingWindow {
                continue;
            }
            let (bound, beyond) = (bound(&limit, from, to), counted_beyond(&limit, &span));
            prop_assert!(net + beyond <= bound, "{net} and {beyond} of {bound} from {from} to {to}");
            prop_assert!(kept + beyond <= bound + old, "{kept}, {beyond} of {bound} and {old} from {from} to {to}");
        }
    }

    /// Two definitions of any kinds take turns in one row, with receipts of both. At one instant nothing refills. So
    /// their grants, less the tokens that come back and with those used beyond charges, are within the larger capacity.
    #[test]
    fn two_kinds_of_limits_in_one_row_grant_no_more_than_the_larger_one(
        kinds in (0_usize..5, 0_usize..5),
        numbers in (1_i64..9, 1_i64..9, 1_u64..10, 1_u64..10),
        story in stories(false, true),
    ) {
        let kinds = [kinds.0, kinds.1].map(|kind| KINDS[kind]);
        let limits = [(kinds[0], numbers.0, numbers.2), (kinds[1], numbers.1, numbers.3)]
            .map(|(kind, n, period)| limit(kind, n, period, None, 0, 0));
        // Each step lies at the instant of the story, so nobody refills from the start of a step.
        let aligned = limits.clone().map(|limit| match limit.spec() {
            spec if spec.kind == LimitKind::FixedWindow => {
                let start = Duration::from_micros(1_000 % u64::try_from(spec.period.as_micros()).unwrap());
                spec.with(|spec| spec.start = Some(start)).try_into().unwrap()
            }
            _ => limit,
        });
        let at_once: Vec<_> = story.iter().map(|(_, op)| (0, op.clone())).collect();
        let most = limits.iter().map(room).max().unwrap();
        // A row that was reset has no list, so the smaller of two sliding windows finds nothing spent of it. It writes
        // a list without the tokens that were used of the row beyond a charge.
        let is_lost = kinds == [LimitKind::SlidingWindow; 2]
            && story.iter().any(|(_, op)| matches!(op, Op::Alter { how: Alter::Reset, .. }));
        for Span { net, beyond, .. } in tell(&aligned, &at_once).spans() {
            let beyond = if is_lost { 0 } else { beyond };
            prop_assert!(net + beyond <= most, "{net} and {beyond} of {most} in an instant");
        }
        // In time each microsecond refills by one of the two: by the one that takes the row across it. Entries of a
        // list leave by either, and the shorter period shortens those of the longer one.
        let per_period = |n: i64, period: u64, length: i64| n * length / i64::try_from(period).unwrap();
        let counts = |kind| matches!(kind, LimitKind::SlidingWindow | LimitKind::Concurrency);
        let refilled = |length| {
            if kinds[0] == kinds[1] && counts(kinds[0]) {
                per_period(most, numbers.2.min(numbers.3), length)
            } else {
                per_period(numbers.0, numbers.2, length).max(per_period(numbers.1, numbers.3, length))
            }
        };
        // A row of steps stands up to a period before its grant, and a step may lie right behind the instant at which
        // the other definition left the row. So the span, and each turn in it, begins up to a period earlier. A limit
        // that counts forgives, after its period, the tokens that were used beyond charges.
        let stands_early = |kind| matches!(kind, LimitKind::SteppedBucket | LimitKind::FixedWindow);
        let periods = [(kinds[0], numbers.2), (kinds[1], numbers.3)].into_iter();
        let early = periods.filter(|(kind, _)| stands_early(*kind)).map(|(_, period)| period).max().unwrap_or(0);
        for Span { from, to, net, beyond, turns, .. } in tell(&limits, &story).spans() {
            let beyond = if kinds.into_iter().any(counts) { 0 } else { beyond };
            let bound = most + refilled(to - from + i64::try_from(early).unwrap() * (1 + turns));
            prop_assert!(net + beyond <= bound, "{net}, {beyond} of {bound} from {from} to {to} in {turns} turns");
        }
    }
}

const KINDS: [LimitKind; 5] = [
    LimitKind::TokenBucket,
    LimitKind::SteppedBucket,
    LimitKind::FixedWindow,
    LimitKind::SlidingWindow,
    LimitKind::Concurrency,
];
