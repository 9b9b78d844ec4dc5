//! A token bucket that is paused for a while: the pause brings it nothing, so no burst follows.

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::Pause;
use tollgate::plan::{Answer, AppliedOverride, Verb};
use tollgate::{Key, Limit, SECOND, Tokens};

use crate::world::{World, at};

const CAPACITY: i64 = 20_000_000;
const RATE: i64 = 10_000_000;

fn limits() -> [Limit; 2] {
    [Limit::token_bucket("theirs", 10, SECOND).capacity(20), Limit::token_bucket("theirs", 1, SECOND / 10).capacity(20)]
}

/// A world under a pause, in seconds, that asks for the whole balance.
struct Paused {
    world: World,
    limit: Limit,
    pause: Option<Pause>,
}

impl Paused {
    fn new(limit: Limit, [from, until]: [i64; 2]) -> Self {
        let pause = Some(Pause { from: at(from * 1_000_000), until: at(until * 1_000_000) });
        Self { world: World::default(), limit, pause }
    }

    fn answer(&mut self, verb: Verb, micros: i64) -> Answer {
        let pause = self.pause;
        let overrides = |_: &Limit, _: &Key| Some(AppliedOverride { pause, ..AppliedOverride::default() });
        self.world.batch_under(&overrides, [verb], at(micros)).unwrap().remove(0).unwrap()
    }

    fn left(&mut self, micros: i64) -> i64 {
        let Answer::Done(balance) = self.answer(Verb::Look(self.limit.global()), micros) else { panic!("a look") };
        balance.remaining.micros()
    }

    fn take(&mut self, tokens: i64, micros: i64) {
        let request = self.limit.global().cost(Tokens::from_micros(tokens));
        let answer = self.answer(Verb::consume(request), micros);
        assert!(matches!(answer, Answer::Granted { .. }), "{answer:?}");
    }
}

#[test]
fn a_pause_brings_a_bucket_nothing() {
    for limit in limits() {
        let mut paused = Paused::new(limit, [1, 31]);
        paused.take(CAPACITY, 0);
        let left = [1_000_000, 20_000_000, 30_999_999, 31_000_000, 31_500_000, 32_000_000, 60_000_000];
        assert_eq!(left.map(|micros| paused.left(micros) / 1_000_000), [10, 10, 10, 10, 15, 20, 20]);
        // A write within the pause changes nothing.
        paused.take(5_000_000, 20_000_000);
        assert_eq!([31_000_000, 31_500_000].map(|micros| paused.left(micros) / 1_000_000), [5, 10]);
        // One after it is a write as any other.
        paused.take(5_000_000, 31_000_000);
        assert_eq!(paused.left(32_000_000), 10_000_000);
    }
}

/// It was full before, or brings its tokens at its own instants.
#[test]
fn a_full_bucket_and_a_window_are_as_without_a_pause() {
    let [bucket, _] = limits();
    let mut paused = Paused::new(bucket, [10, 20]);
    paused.take(CAPACITY, 0);
    assert_eq!(paused.left(20_000_000), CAPACITY, "full after two seconds");
    let window = Limit::fixed_window("theirs", 20, SECOND * 10).start(std::time::Duration::ZERO);
    let mut paused = Paused::new(window, [1, 31]);
    paused.take(CAPACITY, 0);
    assert_eq!(paused.left(31_000_000), CAPACITY);
    let mut paused = Paused::new(Limit::stepped_bucket("theirs", 1, SECOND * 10).capacity(20), [1, 31]);
    paused.take(CAPACITY, 0);
    // No write after the pause moves its grid.
    paused.take(1_000_000, 35_000_000);
    assert_eq!([39_999_999, 40_000_000].map(|micros| paused.left(micros)), [2_000_000, 3_000_000]);
}

proptest! {
    /// In each span, no more is granted than the capacity and what its time without the pause brings back.
    #[test]
    fn a_span_with_a_pause_has_a_burst_and_the_time_without_it(
        which in 0_usize..2,
        events in vec((0_i64..3_000, prop::option::of(1..CAPACITY)), 1..60),
        pause in [0_i64..20, 1..30],
    ) {
        let limit = limits()[which].clone();
        let [from, until] = [pause[0], pause[0] + pause[1]];
        let (mut paused, mut now, mut grants) = (Paused::new(limit, [from, until]), 0, Vec::new());
        let [from, until] = [from, until].map(|second| second * 1_000_000);
        for (gap, asks) in events {
            now += gap * 1_000;
            // It is denied meanwhile.
            if (from..until).contains(&now) {
                continue;
            }
            let left = paused.left(now);
            let cost = asks.unwrap_or(left).min(left);
            if cost > 0 {
                paused.take(cost, now);
                grants.push((now, cost));
            }
        }
        for (first, (began, _)) in grants.iter().enumerate() {
            let mut sum = 0;
            for (ended, cost) in &grants[first..] {
                sum += cost;
                let still = (until.min(*ended) - from.max(*began)).max(0);
                let refilled = (RATE / 1_000_000) * (ended - began - still);
                prop_assert!(sum <= CAPACITY + refilled, "{sum} in {began}..{ended}, paused {from}..{until}");
            }
        }
    }
}
