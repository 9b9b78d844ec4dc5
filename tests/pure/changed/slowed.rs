//! A limit whose rate is cut, and grows back each second: a cut brings no more than the burst of every span.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::plan::{Answer, SlowedRate, Verb};
use tollgate::{Limit, SECOND, SlowDown, Tokens};

use crate::world::{World, at};

const CAPACITY: i64 = 50_000_000;
/// Each report counts.
const THEIRS: SlowDown = SlowDown::new().cool_down(Duration::ZERO);

/// An event after a gap of some milliseconds.
#[derive(Clone, Debug)]
struct Event {
    gap: i64,
    /// Whether trouble is reported first.
    is_cut: bool,
    /// The micro-tokens that a caller asks for, or all that there are.
    asks: Option<i64>,
}

fn limits() -> [Limit; 3] {
    let capacity = |limit: Limit| limit.capacity(CAPACITY.unsigned_abs() / 1_000_000);
    [
        capacity(Limit::token_bucket("theirs", 200, SECOND)),
        capacity(Limit::stepped_bucket("theirs", 20, SECOND / 10)),
        capacity(Limit::fixed_window("theirs", 20, SECOND / 10).start(Duration::ZERO)),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let gap = prop_oneof![4 => 0_i64..300, 2 => 300_i64..3_000, 1 => 3_000_i64..40_000];
    let asks = prop_oneof![3 => Just(None), 2 => (1_i64..CAPACITY).prop_map(Some)];
    let event = (gap, prop::bool::weighted(0.1), asks).prop_map(|(gap, is_cut, asks)| Event { gap, is_cut, asks });
    vec(event, 1..60)
}

/// The grants of a story: at each instant the tokens and the share.
fn play(limit: &Limit, events: &[Event]) -> Vec<(i64, i64, i64)> {
    let (mut world, mut now, mut slowed) = (World::default(), 0, None);
    let mut grants = Vec::new();
    for event in events {
        now += event.gap * 1_000;
        if event.is_cut {
            slowed = Some(SlowedRate::reported(slowed, &THEIRS, Duration::ZERO, at(now)));
        }
        let applied = slowed.and_then(|slowed| slowed.applied(limit, at(now))).unwrap_or_default();
        let share = i64::from(applied.share.unwrap_or(SlowedRate::WHOLE));
        let limit = applied.numbers.unwrap_or_else(|| limit.clone());
        let left = world.look(limit.global(), at(now)).remaining.micros();
        let cost = event.asks.unwrap_or(left).min(left);
        if cost > 0 {
            let answer = world.call(Verb::consume(limit.global().cost(Tokens::from_micros(cost))), at(now));
            assert!(matches!(answer, Ok(Answer::Granted { .. })), "{cost} of {left}: {answer:?}");
            grants.push((now, cost, share));
        }
    }
    grants
}

proptest! {
    /// In each span, no more is granted than the capacity and what the largest share of the span brings back. So a span
    /// that begins after a cut has no tokens of the rate before it, except for the burst.
    #[test]
    fn each_span_has_a_burst_and_its_largest_share(which in 0_usize..3, events in events()) {
        let limit = &limits()[which];
        let grants = play(limit, &events);
        let (rate, period) = (limit.spec().rate.micros(), i64::try_from(limit.spec().period.as_micros()).unwrap());
        // One step more may lie in a span.
        let step = if which == 0 { 0 } else { period };
        for first in 0..grants.len() {
            let (mut sum, mut largest) = (0, 0);
            for (now, cost, share) in &grants[first..] {
                sum += cost;
                largest = largest.max(*share);
                let span = i128::from(now - grants[first].0 + step);
                let refilled = i128::from(rate * largest / 1_000_000) * span / i128::from(period);
                let most = i128::from(CAPACITY) + refilled;
                prop_assert!(i128::from(sum) <= most, "{sum} in {span} us, at most {most}");
            }
        }
    }
}
