//! Stories about a limit, played and played again.
//!
//! A story is a list of gaps and moves that seek out edges: grid steps, the instants that refusals named, and balances
//! that are just enough, each a microsecond or a micro-token to either side. Playing it once makes a script of plain
//! calls at plain instants, which can be played again with something added or left out.

mod limits;
mod moves;
mod script;

pub(crate) use self::limits::{
    Kind, all_but_first_use, any_kind, drip, extreme_limits, extremes, limit, limits, steps,
};
pub(crate) use self::moves::{Amount, Gap, Move, STORY, amounts, gaps, places, stories};
pub(crate) use self::script::{Event, Line, Stage, Step, Told};

use num_bigint::BigInt;
use num_traits::Zero;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate::algebra::Timestamp;
use tollgate::plan::Verb;
use tollgate::{Call, Limit, Tokens};

use crate::world::{World, at};

/// Tells a story: turns its edges into instants and amounts as it goes.
pub(crate) fn tell(limit: &Limit, story: &[(Gap, Move)]) -> Told {
    let (mut stage, mut events, mut now) = (Stage::default(), Vec::new(), at(EPOCH));
    for (id, (gap, step)) in story.iter().enumerate() {
        now = gap.after(limit, now, &events);
        let step = step.resolve(limit, &stage, now, &events);
        events.push(stage.play(limit, Line { id, now, step }));
    }
    Told { events, world: stage.world }
}

/// Tells a script, with something done before each line.
pub(crate) fn retell(limit: &Limit, script: &[Line], mut before: impl FnMut(&mut World, Timestamp)) -> Told {
    let (mut stage, mut events) = (Stage::default(), Vec::new());
    for line in script {
        before(&mut stage.world, line.now);
        events.push(stage.play(limit, line.clone()));
    }
    Told { events, world: stage.world }
}

/// Tells a story of two definitions that share a row and take turns; without resets, which are neither's.
pub(crate) fn take_turns(both: &[Limit; 2], story: &[(Gap, Move)], turns: &[usize]) -> Vec<Event> {
    let (mut stage, mut events, mut now) = (Stage::default(), Vec::new(), at(EPOCH));
    for (id, ((gap, step), turn)) in story.iter().zip(turns).enumerate() {
        let limit = &both[*turn];
        now = gap.after(limit, now, &events);
        let step = match step.resolve(limit, &stage, now, &events) {
            Step::Reset | Step::Cancel(_) | Step::Settle(..) => Step::Look,
            step => step,
        };
        events.push(stage.play(limit, Line { id, now, step }));
    }
    events
}

/// Deletes the row, if it is full.
pub(crate) fn sweep(world: &mut World, limit: &Limit, now: Timestamp) {
    let request = limit.global();
    if world.state(&request).is_some_and(|row| row.is_over(now)) {
        world.delete(&request);
    }
}

/// Every pair of grants, with all that was granted from the first to the last, less the tokens that were given back
/// between. The first one took something, because only a charge makes a row that stands at an instant.
pub(crate) fn spans(events: &[Event]) -> Vec<(&Event, &Event, BigInt)> {
    let mut spans = Vec::new();
    for (n, first) in
        events.iter().enumerate().filter(|(_, event)| event.granted().is_some_and(|cost| cost > Tokens::ZERO))
    {
        let mut total = BigInt::zero();
        for last in &events[n..] {
            total -= last.given_back();
            if let Some(cost) = last.granted() {
                total += cost.micros();
                spans.push((first, last, total.clone()));
            }
        }
    }
    spans
}

pub(crate) fn call(reserving: bool, call: impl Into<Call>) -> Verb {
    if reserving { Verb::reserve(call) } else { Verb::consume(call) }
}

pub(crate) fn capacity(limit: &Limit) -> Tokens {
    limit.spec().capacity.unwrap()
}

/// The same limit under a name of its own.
pub(crate) fn named(limit: &Limit, n: usize) -> Limit {
    limit.spec().named(format!("limit-{n}")).try_into().unwrap()
}

pub(crate) fn config() -> ProptestConfig {
    // Shrunken failures are committed beside the tests.
    let failure_persistence = Some(Box::new(FileFailurePersistence::WithSource("regressions")) as _);
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(512), failure_persistence, ..default }
}

/// Some instant of our time, in microseconds, on no grid in particular.
pub(crate) const EPOCH: i64 = 1_754_913_600_123_457;
