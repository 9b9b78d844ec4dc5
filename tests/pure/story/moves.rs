//! Moves of a story that seek out edges: how far to go on, what to ask, and from where.

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::Answer;
use tollgate::{Limit, LimitKind, Request, Tokens};

use super::capacity;
use super::script::{Event, Stage, Step};
use crate::world::{World, at, due, left, micros, terms_of};

/// How far to go on.
#[derive(Clone, Debug)]
pub(crate) enum Gap {
    Micros(i64),
    /// Whole periods, and a little more or less.
    Periods(i64, i64),
    /// Thousandths of a period.
    Part(i64),
    /// The instant that the last refusal named, or a little to either side.
    Retry(i64),
    /// The instant at which the row is full, or a little to either side.
    Full(i64),
    /// The next step of a grid, or a little to either side.
    Step(i64),
}

impl Gap {
    /// Never back, and never beyond the end of time.
    pub(crate) fn after(&self, limit: &Limit, now: Timestamp, events: &[Event]) -> Timestamp {
        let period = i64::try_from(limit.spec().period.as_micros()).unwrap();
        let from = now.micros();
        let to = match self {
            Self::Micros(micros) => from.saturating_add(*micros),
            Self::Periods(count, off) => from.saturating_add(period.saturating_mul(*count)).saturating_add(*off),
            Self::Part(thousandths) => {
                let part = i128::from(period) * i128::from(*thousandths) / 1_000;
                from.saturating_add(i64::try_from(part).unwrap())
            }
            Self::Retry(off) => {
                let named = events.iter().rev().find_map(|event| match &event.answer {
                    Ok(Answer::Denied(denied)) => Some(due(denied.retry_at).micros()),
                    _ => None,
                });
                named.unwrap_or(from).saturating_add(*off)
            }
            Self::Full(off) => {
                let row = events.last().and_then(|event| event.after.as_ref());
                let full_at = row.map_or(from, |row| terms_of(&limit.global()).full_at(row).micros());
                full_at.saturating_add(*off)
            }
            Self::Step(off) => {
                let last = terms_of(&limit.global()).full(now).ts.micros();
                last.saturating_add(period).saturating_add(*off)
            }
        };
        // A story that ran into the end of time would stay there: nothing more is learnt than from one that stops
        // before.
        at(to.min(Timestamp::MAX.micros() / 2).max(from))
    }
}

/// How much to ask for.
#[derive(Clone, Debug)]
pub(crate) enum Amount {
    Micros(i64),
    /// All that the row has left, and a little more or less.
    Left(i64),
    /// The largest cost of one call, and a little less.
    Most(i64),
    /// Thousandths of the capacity.
    Part(i64),
    Rate(i64),
}

impl Amount {
    /// An amount that a plan accepts: not negative, and not more than could ever be granted.
    pub(crate) fn resolve(&self, world: &World, request: &Request, now: Timestamp, reserving: bool) -> Tokens {
        let spec = request.limit().spec();
        let bound = if reserving { spec.max_reserved.micros() } else { 0 };
        let (capacity, rate) = (capacity(request.limit()).micros(), spec.rate.micros());
        let most = capacity.saturating_add(bound);
        let amount = match self {
            Self::Micros(micros) => *micros,
            Self::Left(off) => {
                world.look(request.clone(), now).remaining.micros().saturating_add(bound).saturating_add(*off)
            }
            Self::Most(off) => most.saturating_add(*off),
            Self::Part(thousandths) => i64::try_from(i128::from(capacity) * i128::from(*thousandths) / 1_000).unwrap(),
            Self::Rate(off) => rate.saturating_add(*off),
        };
        micros(amount.clamp(0, most))
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Move {
    Consume(Amount),
    Reserve(Amount),
    Credit(Amount),
    Debit(Amount),
    Reset,
    Look,
    Cancel(prop::sample::Index),
    Settle(prop::sample::Index, Amount),
}

impl Move {
    pub(crate) fn resolve(&self, limit: &Limit, stage: &Stage, now: Timestamp, events: &[Event]) -> Step {
        let amount = |amount: &Amount, reserving| amount.resolve(&stage.world, &limit.global(), now, reserving);
        let taken =
            |index: &prop::sample::Index| if events.is_empty() { 0 } else { events[index.index(events.len())].id };
        match self {
            Self::Consume(cost) => Step::Take { cost: amount(cost, false), reserving: false },
            Self::Reserve(cost) => Step::Take { cost: amount(cost, true), reserving: true },
            Self::Credit(given) => Step::Credit(amount(given, false)),
            Self::Debit(taken) => Step::Debit(amount(taken, false)),
            Self::Reset => Step::Reset,
            Self::Look => Step::Look,
            Self::Cancel(index) => Step::Cancel(taken(index)),
            Self::Settle(index, actual) => Step::Settle(taken(index), amount(actual, false)),
        }
    }
}

/// Where a row stands: a value, and an instant around now.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Thousandths of the capacity, and a little more or less.
    pub(crate) value: (i64, i64),
    /// Thousandths of a period before now, and a little more or less.
    pub(crate) ts: (i64, i64),
}

impl Place {
    /// A row as a limit itself might have left it: not above the capacity, and its steps on the grid.
    pub(crate) fn state(&self, request: &Request, now: Timestamp) -> State {
        let spec = request.limit().spec();
        let capacity = capacity(request.limit()).micros();
        let value = i128::from(capacity) * i128::from(self.value.0) / 1_000 + i128::from(self.value.1);
        let value = micros(i64::try_from(value.clamp(i64::MIN.into(), capacity.into())).unwrap());
        let period = i128::try_from(spec.period.as_micros()).unwrap();
        let ago = period * i128::from(self.ts.0) / 1_000 + i128::from(self.ts.1);
        let ts = at(i64::try_from(i128::from(now.micros()) - ago).unwrap_or(i64::MIN));
        let ts = if spec.kind == LimitKind::FixedWindow { terms_of(request).full(ts).ts } else { ts };
        left(request, value, ts)
    }
}

pub(crate) fn stories() -> impl Strategy<Value = Vec<(Gap, Move)>> {
    vec((gaps(), moves()), 1..STORY)
}

pub(crate) fn gaps() -> impl Strategy<Value = Gap> {
    prop_oneof![
        2 => Just(Gap::Micros(0)),
        1 => (0_i64..20).prop_map(Gap::Micros),
        1 => (0_i64..1_000_000_000).prop_map(Gap::Micros),
        2 => (0_i64..4, -1_i64..2).prop_map(|(count, off)| Gap::Periods(count, off)),
        2 => (0_i64..2_500).prop_map(Gap::Part),
        2 => (-1_i64..2).prop_map(Gap::Retry),
        1 => (-1_i64..2).prop_map(Gap::Full),
        2 => (-1_i64..2).prop_map(Gap::Step),
    ]
}

pub(crate) fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![
        1 => (0_i64..3).prop_map(Amount::Micros),
        2 => Just(Amount::Micros(1_000_000)),
        1 => (0_i64..1_000_000_000).prop_map(Amount::Micros),
        3 => (-1_i64..2).prop_map(Amount::Left),
        1 => (-1_i64..1).prop_map(Amount::Most),
        2 => (0_i64..=1_000).prop_map(Amount::Part),
        1 => (-1_i64..2).prop_map(Amount::Rate),
    ]
}

pub(crate) fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        8 => amounts().prop_map(Move::Consume),
        4 => amounts().prop_map(Move::Reserve),
        1 => amounts().prop_map(Move::Credit),
        1 => amounts().prop_map(Move::Debit),
        1 => Just(Move::Reset),
        1 => Just(Move::Look),
        1 => any::<prop::sample::Index>().prop_map(Move::Cancel),
        1 => (any::<prop::sample::Index>(), amounts()).prop_map(|(index, actual)| Move::Settle(index, actual)),
    ]
}

pub(crate) fn places() -> impl Strategy<Value = Place> {
    let value = (prop_oneof![Just(0_i64), Just(1_000), -3_000_i64..=1_000], -1_i64..2);
    let ts = (prop_oneof![Just(0_i64), Just(1_000), -2_000_i64..3_000], -1_i64..2);
    (value, ts).prop_map(|(value, ts)| Place { value, ts })
}

/// How long stories are: every pair of grants is looked at.
pub(crate) const STORY: usize = 30;
