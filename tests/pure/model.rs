//! An exact model of one row: fractions of big integers, and nothing that rounds.
//!
//! It shares no formula with the algebra. A balance is a function of time over a row as it stands, drips are fractions,
//! and steps are counted by where they lie. It knows no waiting times: the tests check them by its balances on both
//! sides of an instant.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;
use tollgate::algebra::{State, Timestamp};
use tollgate::{LimitKind, Request, Tokens};

use crate::world::{at, terms_of};

/// The numbers of a limit for one row, in micro-tokens and microseconds.
pub(crate) struct Model {
    pub(crate) rate: BigInt,
    pub(crate) period: BigInt,
    pub(crate) capacity: BigInt,
    pub(crate) max_reserved: BigInt,
    pub(crate) flow: Flow,
}

pub(crate) enum Flow {
    Drip,
    /// Steps lie whole periods after the row's instant.
    FromRow,
    /// Steps lie whole periods before and after an instant.
    Grid(BigInt),
}

impl Model {
    pub(crate) fn of(request: &Request) -> Self {
        let spec = request.limit().spec();
        let flow = match (spec.kind, spec.start) {
            (LimitKind::TokenBucket, _) => Flow::Drip,
            (LimitKind::SteppedBucket, _) => Flow::FromRow,
            (LimitKind::FixedWindow, Some(start)) => Flow::Grid(start.as_micros().into()),
            // The phase is a hash that other tests pin; here it is learnt from where a row would begin.
            (LimitKind::FixedWindow, None) => Flow::Grid(terms_of(request).full(at(0)).ts.micros().into()),
            _ => unreachable!("sliding windows and leases are compared with a log, in other files"),
        };
        Self {
            rate: spec.rate.micros().into(),
            period: spec.period.as_micros().into(),
            capacity: spec.capacity.unwrap_or(spec.rate).micros().into(),
            max_reserved: spec.max_reserved.micros().into(),
            flow,
        }
    }

    /// The exact balance of a row at an instant, by this definition alone. Before the row's own instant, time stands
    /// still.
    pub(crate) fn balance(&self, row: &State, now: Timestamp) -> BigRational {
        self.grown(&self.left(row), row.ts, now)
    }

    /// The balance of a row at its own instant.
    pub(crate) fn left(&self, row: &State) -> BigRational {
        whole(row.value) + &self.capacity
    }

    /// The value at `now` of a balance that had this value at `from`.
    pub(crate) fn grown(&self, value: &BigRational, from: Timestamp, now: Timestamp) -> BigRational {
        let now = now.max(from);
        let gained = match self.flow {
            Flow::Drip => self.dripped(from, now),
            Flow::FromRow | Flow::Grid(_) => BigRational::from(&self.rate * self.steps(from, from, now)),
        };
        (value + gained).min(self.capacity.clone().into())
    }

    /// The tokens that drip from one instant to another, with no regard to the capacity.
    pub(crate) fn dripped(&self, from: Timestamp, to: Timestamp) -> BigRational {
        BigRational::new(&self.rate * span(from, to), self.period.clone())
    }

    /// The tokens that come back between two instants, in whole micro-tokens and with no regard to the capacity.
    pub(crate) fn refilled(&self, anchor: Timestamp, after: Timestamp, until: Timestamp) -> BigInt {
        match self.flow {
            Flow::Drip => self.dripped(after, until).floor().to_integer(),
            Flow::FromRow | Flow::Grid(_) => &self.rate * self.steps(anchor, after, until),
        }
    }

    /// How many steps lie after one instant and not after another. `anchor` is a step, where rows bring their own.
    pub(crate) fn steps(&self, anchor: Timestamp, after: Timestamp, until: Timestamp) -> BigInt {
        let origin = match &self.flow {
            Flow::Grid(phase) => phase.clone(),
            Flow::Drip | Flow::FromRow => anchor.micros().into(),
        };
        let number = |instant: Timestamp| {
            BigRational::new(BigInt::from(instant.micros()) - &origin, self.period.clone()).floor().to_integer()
        };
        number(until) - number(after)
    }

    /// Whether a row lets this through, by the exact balance.
    pub(crate) fn allows(&self, row: &State, now: Timestamp, cost: Tokens, reserving: bool) -> bool {
        let bound = if reserving { self.max_reserved.clone() } else { BigInt::zero() };
        self.balance(row, now) - whole(cost) >= BigRational::from(-bound)
    }
}

/// Microseconds from one instant to another.
pub(crate) fn span(from: Timestamp, to: Timestamp) -> BigInt {
    BigInt::from(to.micros()) - BigInt::from(from.micros())
}

/// An amount as a fraction.
pub(crate) fn whole(tokens: Tokens) -> BigRational {
    BigInt::from(tokens.micros()).into()
}

#[test]
fn the_model_counts_steps_as_a_walk_over_all_microseconds_does() {
    for (phase, period) in [(0, 1), (0, 7), (3, 7), (6, 7), (-20, 7)] {
        let flow = Flow::Grid(phase.into());
        let model = Model { rate: 1.into(), period: period.into(), capacity: 1.into(), max_reserved: 0.into(), flow };
        for after in -25..25_i64 {
            let mut walked = 0;
            for until in after..25 {
                if until > after && (until - phase).rem_euclid(period) == 0 {
                    walked += 1;
                }
                assert_eq!(model.steps(at(0), at(after), at(until)), walked.into(), "{phase} {period} {after} {until}");
            }
        }
    }
}
