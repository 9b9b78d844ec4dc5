//! Stories of processes that take ahead, spend and give back.

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{Rest, State};
use tollgate::plan::{Answer, Verb};
use tollgate::{Grant, Limit, LimitKind, Receipt, Tokens};

use crate::story::{Kind, limit};
use crate::world::{World, at, micros, terms_of};

/// An event of a row; `process` is one of four that take ahead.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Pass(i64),
    Slice {
        process: usize,
        size: i64,
    },
    Spend {
        process: usize,
        most: i64,
    },
    GiveBack {
        process: usize,
    },
    Crash {
        process: usize,
    },
    Other {
        cost: i64,
        reserving: bool,
    },
    Sweep,
    /// The clock goes back.
    Back(i64),
    Accident(Accident),
    /// All processes take the other definition, and forget the tokens that they hold.
    Redefine,
}

/// A change that is made elsewhere, unseen by a process that holds tokens.
#[derive(Clone, Debug)]
pub(super) enum Accident {
    Settle(usize),
    Credit(i64),
    Reset,
    /// A crash empties the table of ephemeral limits.
    Lose,
}

/// A charge.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charged {
    at: i64,
    pub(super) spent: i64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Charge(usize),
    GiveBack {
        of: usize,
        amount: i64,
    },
    /// Tokens came from elsewhere.
    Rise(i64),
}

/// The slice that a process holds.
#[derive(Clone, Copy)]
struct Slice {
    charge: usize,
    rest: Rest,
    /// The instant by the clock of the process, which never goes back.
    sent: i64,
}

#[derive(Default)]
pub(super) struct Told {
    pub(super) charged: Vec<Charged>,
    events: Vec<Event>,
    /// When something was spent, by a clock that never goes back, and how much.
    pub(super) spends: Vec<(i64, i64)>,
    /// The row, after each of its changes, and what happened to it.
    pub(super) rows: Vec<(Deed, Option<State>)>,
}

/// A change of the row, for a world that is charged only the tokens that were finally spent.
#[derive(Clone, Copy)]
pub(super) enum Deed {
    Charge { of: usize, clock: i64 },
    Write { clock: i64 },
    Gone,
}

/// Numbers so small that edges are met.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) limits: [Limit; 2],
    pub(super) max_age: i64,
}

pub(super) fn tell(setting: &Setting, story: &[Op]) -> Told {
    let Setting { limits, max_age } = setting;
    let (mut told, mut world, mut now, mut off, mut which) = (Told::default(), World::default(), 1_000_i64, 0, 0);
    let mut slices: [Option<Slice>; 4] = [None; 4];
    let mut others: Vec<(usize, Receipt)> = Vec::new();
    // The known margin of a sweeper: not both.
    let sweeps = !story.iter().any(|op| matches!(op, Op::Back(_)));
    for op in story {
        let (clock, request) = (now + off, limits[which].global());
        match op {
            Op::Pass(span) => now += span,
            Op::Back(span) => off -= span,
            Op::Slice { process, size } if slices[*process].is_none() => {
                let capacity = limits[which].spec().capacity.unwrap();
                let request = request.clone().cost(micros(*size).min(capacity));
                if let Ok(Answer::Granted { grant: Grant { decided_at, receipt, .. }, stands_at, .. }) =
                    world.call(Verb::consume(request), at(clock))
                {
                    let (charge, until) = (told.charged.len(), at(decided_at.timestamp_micros() + max_age));
                    let rest = Rest { tokens: receipt.charges[0].cost, stood_at: stands_at, until };
                    slices[*process] = Some(Slice { charge, rest, sent: now });
                    told.charged.push(Charged { at: decided_at.timestamp_micros(), spent: 0 });
                    told.events.push(Event::Charge(charge));
                    told.rows.push((Deed::Charge { of: charge, clock }, None));
                }
            }
            Op::Spend { process, most } => {
                if let Some(slice) = slices[*process].as_mut().filter(|slice| now - slice.sent < *max_age) {
                    let spent = (*most).min(slice.rest.tokens.micros());
                    slice.rest.tokens = micros(slice.rest.tokens.micros() - spent);
                    told.charged[slice.charge].spent += spent;
                    told.spends.push((now, spent));
                }
            }
            Op::GiveBack { process } => {
                if let Some(Slice { charge, rest, .. }) = slices[*process].take() {
                    let before = world.look(request.clone(), at(clock)).remaining.micros();
                    let after = world.balance(Verb::GiveBack(request.clone(), rest), at(clock)).remaining.micros();
                    if after > before {
                        told.events.push(Event::GiveBack { of: charge, amount: after - before });
                        told.rows.push((Deed::Write { clock }, None));
                    }
                }
            }
            Op::Crash { process } => slices[*process] = None,
            Op::Other { cost, reserving } => {
                let spec = limits[which].spec();
                let most = spec.capacity.unwrap().micros() + if *reserving { spec.max_reserved.micros() } else { 0 };
                let cost = micros((*cost).min(most));
                let request = request.clone().cost(cost);
                let call = if *reserving { Verb::reserve(request) } else { Verb::consume(request) };
                if let Ok(Answer::Granted { grant: Grant { decided_at, receipt, .. }, .. }) =
                    world.call(call, at(clock))
                {
                    let charge = told.charged.len();
                    told.charged.push(Charged { at: decided_at.timestamp_micros(), spent: cost.micros() });
                    told.events.push(Event::Charge(charge));
                    told.spends.push((now, cost.micros()));
                    told.rows.push((Deed::Charge { of: charge, clock }, None));
                    others.push((charge, receipt));
                }
            }
            Op::Sweep => {
                let full = |limit: &Limit| {
                    let row = world.state(&limit.global());
                    row.is_some_and(|row| terms_of(&limit.global()).full_at(&row) <= at(clock))
                };
                if sweeps && limits.iter().all(full) {
                    world.delete(&request);
                    told.rows.push((Deed::Gone, None));
                }
            }
            Op::Redefine => {
                which = 1 - which;
                slices = [None; 4];
            }
            Op::Accident(accident) => told.strike(accident, &mut world, &mut others, &limits[which], clock),
            Op::Slice { .. } => {}
        }
        if let Some((_, row @ None)) = told.rows.last_mut() {
            *row = world.state(&limits[which].global());
        }
    }
    told
}

impl Told {
    /// Something happens elsewhere.
    fn strike(
        &mut self,
        accident: &Accident,
        world: &mut World,
        others: &mut Vec<(usize, Receipt)>,
        limit: &Limit,
        clock: i64,
    ) {
        let request = limit.global();
        let Some(before) = world.state(&request) else { return };
        let before = terms_of(&request).refill(&before, at(clock)).value.micros();
        match accident {
            Accident::Settle(other) if !others.is_empty() => {
                let (charge, receipt) = others.swap_remove(other % others.len());
                world.settled(Verb::Settle(receipt, Tokens::ZERO), at(clock)).unwrap();
                self.events.push(Event::Rise(self.charged[charge].spent));
            }
            Accident::Settle(_) => {}
            Accident::Credit(amount) => {
                world.balance(Verb::credit(request.cost(micros(*amount))), at(clock));
                self.events.push(Event::Rise(*amount));
            }
            Accident::Reset | Accident::Lose => {
                if matches!(accident, Accident::Lose) {
                    world.delete(&request);
                } else {
                    world.balance(Verb::Reset(request), at(clock));
                }
                self.events.push(Event::Rise(limit.spec().capacity.unwrap().micros() - before));
            }
        }
    }

    /// For each charge and each later one: the two instants, and the tokens spent of them and of all charges between.
    /// Then the tokens that came from elsewhere between, and those of earlier charges that were given back between.
    pub(super) fn spans(&self) -> Vec<(i64, i64, i64, i64, i64)> {
        let mut spans = Vec::new();
        for (n, first) in self.events.iter().enumerate() {
            let Event::Charge(first) = *first else { continue };
            let (mut spent, mut risen, mut old) = (0, 0, 0);
            for event in &self.events[n..] {
                match *event {
                    Event::Charge(charge) => {
                        spent += self.charged[charge].spent;
                        spans.push((self.charged[first].at, self.charged[charge].at, spent, risen, old));
                    }
                    Event::GiveBack { of, amount } => old += if of < first { amount } else { 0 },
                    Event::Rise(amount) => risen += amount,
                }
            }
        }
        spans
    }
}

impl Setting {
    /// The tokens that may be kept of so long a span, with all that comes back in it.
    pub(super) fn bound(&self, length: i64, redefined: bool) -> i64 {
        let of = |limit: &Limit| {
            let (rate, period) = (limit.spec().rate.micros(), i64::try_from(limit.spec().period.as_micros()).unwrap());
            let length = length.max(0);
            // Steps of a row whose beginning is not known.
            let steps = (length + period - 1) / period;
            if limit.spec().kind == LimitKind::TokenBucket { rate * length / period } else { rate * steps }
        };
        let capacity = |limit: &Limit| limit.spec().capacity.unwrap().micros();
        let [one, other] = &self.limits;
        let owed = one.spec().max_reserved.micros();
        if redefined {
            return capacity(one).max(capacity(other)) + owed + of(one) + of(other);
        }
        capacity(one) + owed + of(one)
    }
}

pub(super) fn settings() -> impl Strategy<Value = Setting> {
    let numbers = (1_i64..5, 1_i64..9);
    (any::<bool>(), numbers.clone(), numbers, 1_u64..5, 0_i64..4, 1_i64..7).prop_map(
        |(steps, one, other, period, owed, max_age)| {
            let kind = if steps { Kind::FirstUse } else { Kind::Drip };
            let limits = [one, other].map(|(rate, capacity)| limit(kind, rate, period, capacity, owed));
            Setting { limits, max_age }
        },
    )
}

pub(super) fn stories(backward: bool, accidents: bool, redefines: bool) -> impl Strategy<Value = Vec<Op>> {
    let accident = prop_oneof![
        2 => (0_usize..8).prop_map(Accident::Settle),
        1 => (1_i64..7).prop_map(Accident::Credit),
        1 => Just(Accident::Reset),
        1 => Just(Accident::Lose),
    ];
    let op = prop_oneof![
        5 => (1_i64..4).prop_map(Op::Pass),
        5 => (0_usize..4, 1_i64..9).prop_map(|(process, size)| Op::Slice { process, size }),
        5 => (0_usize..4, 1_i64..9).prop_map(|(process, most)| Op::Spend { process, most }),
        4 => (0_usize..4).prop_map(|process| Op::GiveBack { process }),
        1 => (0_usize..4).prop_map(|process| Op::Crash { process }),
        3 => (1_i64..12, prop::bool::weighted(0.3)).prop_map(|(cost, reserving)| Op::Other { cost, reserving }),
        1 => Just(Op::Sweep),
        u32::from(backward) => (1_i64..5).prop_map(Op::Back),
        3 * u32::from(accidents) => accident.prop_map(Op::Accident),
        u32::from(redefines) => Just(Op::Redefine),
    ];
    vec(op, 4..34)
}
