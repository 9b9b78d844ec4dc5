//! Calls under definitions that take turns, and their outcomes.

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Verb};
use tollgate::{Charge, Grant, Receipt, Request, Tokens};

use super::definitions::Definitions;
use crate::world::{World, at, micros};

#[derive(Clone, Debug)]
pub(super) enum Op {
    Take {
        which: usize,
        cost: i64,
        reserving: bool,
    },
    Credit {
        which: usize,
        amount: i64,
    },
    Debit {
        which: usize,
        amount: i64,
    },
    Settle {
        which: usize,
        actual: i64,
    },
    Cancel {
        which: usize,
    },
    Reset {
        which: usize,
    },
    Sweep,
    /// The clock goes back.
    Back(i64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event {
    Granted {
        id: usize,
        /// The definition that is used.
        which: usize,
        at: i64,
        cost: i64,
    },
    /// Tokens that came back of a grant; negative for a use beyond the charge.
    Back { of: usize, amount: i64 },
    /// Tokens by which a credit, a debit or a reset raised the balance.
    Altered {
        /// The definition under which the row was written.
        which: usize,
        at: i64,
        amount: i64,
    },
}

pub(super) struct Told {
    pub(super) events: Vec<Event>,
    pub(super) refused: Vec<Refused>,
    /// The balance by each definition, after each step.
    pub(super) balances: Vec<Vec<Tokens>>,
}

/// A refused call, and the rows that it met.
#[derive(Debug)]
pub(super) struct Refused {
    request: Request,
    reserving: bool,
    rows: World,
    now: i64,
}

impl Refused {
    pub(super) fn again(&self) -> Answer {
        self.at(at(self.now))
    }

    /// The same call at another instant.
    pub(super) fn at(&self, now: Timestamp) -> Answer {
        self.rows.clone().call(take(self.request.clone(), self.reserving), now).unwrap()
    }
}

fn take(request: Request, reserving: bool) -> Verb {
    if reserving { Verb::reserve(request) } else { Verb::consume(request) }
}

pub(super) fn tell(definitions: &Definitions, story: &[(i64, Op)], sweeps: bool) -> Told {
    let (mut world, mut now) = (World::default(), definitions.begin());
    let (mut receipts, mut id) = (Vec::<(usize, Receipt)>::new(), 0);
    let mut told = Told { events: Vec::new(), refused: Vec::new(), balances: Vec::new() };
    for (gap, op) in story {
        now += gap * definitions.unit();
        match *op {
            Op::Take { which, cost, reserving } => {
                let (which, rows) = (definitions.turn(which), world.clone());
                let request = definitions.ask(which, now);
                let spec = request.limit().spec();
                let most = spec.capacity.unwrap().micros() + if reserving { spec.max_reserved.micros() } else { 0 };
                let cost = cost.min(most);
                let request = request.cost(micros(cost));
                match world.call(take(request.clone(), reserving), at(now)).unwrap() {
                    Answer::Granted { grant: Grant { decided_at, receipt, .. }, .. } if cost > 0 => {
                        told.events.push(Event::Granted { id, which, at: decided_at.timestamp_micros(), cost });
                        receipts.push((id, receipt));
                        id += 1;
                    }
                    Answer::Denied(_) => told.refused.push(Refused { request, reserving, rows, now }),
                    _ => {}
                }
            }
            Op::Credit { which, .. } | Op::Debit { which, .. } | Op::Reset { which } => {
                let which = definitions.turn(which);
                let request = definitions.ask(which, now);
                // A reset empties the row under each definition: one may count as used what another has refilled.
                let counted = match *op {
                    Op::Reset { .. } => definitions.ask_each(now).collect(),
                    _ => vec![request.clone()],
                };
                let look = |world: &World| -> Vec<_> {
                    counted.iter().map(|request| world.look(request.clone(), at(now)).remaining.micros()).collect()
                };
                let before = look(&world);
                let call = match *op {
                    Op::Credit { amount, .. } => Verb::credit(request.cost(micros(amount))),
                    Op::Debit { amount, .. } => Verb::debit(request.cost(micros(amount))),
                    _ => Verb::Reset(request),
                };
                // Leases come back alone.
                let _ = world.call(call, at(now));
                let amounts = look(&world).into_iter().zip(before).map(|(after, before)| after - before);
                let amount = amounts.max().expect("a definition is asked");
                told.events.extend((amount != 0).then_some(Event::Altered { which, at: now, amount }));
            }
            Op::Settle { which, .. } | Op::Cancel { which } => {
                let Some(which) = which.checked_rem(receipts.len()) else { continue };
                let (of, kept) = receipts.swap_remove(which);
                let sum = |charges: &[Charge]| charges.iter().map(|charge| charge.cost.micros()).sum::<i64>();
                let cost = sum(&kept.charges);
                let call = match *op {
                    Op::Settle { actual, .. } => Verb::Settle(kept, micros(actual)),
                    _ => Verb::Cancel(kept),
                };
                // A lease that has ended cannot be settled, and a charge that is ready cannot be cancelled.
                if let Ok(settled) = world.settled(call, at(now)) {
                    told.events.push(Event::Back { of, amount: cost - sum(&settled.charges) });
                }
            }
            Op::Sweep if sweeps => world.sweep(at(now)),
            Op::Sweep => {}
            Op::Back(span) => now -= span * definitions.unit(),
        }
        told.balances.push(definitions.ask_each(now).map(|request| world.look(request, at(now)).remaining).collect());
    }
    told
}

/// All that was granted from one grant to another, less what came back: the instants of the two, and the sum.
pub(super) fn spans(events: &[Event]) -> Vec<(i64, i64, i64)> {
    let mut spans = Vec::new();
    for (n, first) in events.iter().enumerate() {
        let Event::Granted { at: from, .. } = *first else { continue };
        let mut net = 0;
        for event in &events[n..] {
            match *event {
                Event::Granted { at: to, cost, .. } => {
                    net += cost;
                    spans.push((from, to, net));
                }
                // A debit grants nothing to anybody.
                Event::Back { amount, .. } | Event::Altered { amount, .. } => net -= amount.max(0),
            }
        }
    }
    spans
}

pub(super) fn stories(overages: bool, backward: bool) -> impl Strategy<Value = Vec<(i64, Op)>> {
    let actual = if overages { 0_i64..30 } else { 0_i64..1 };
    let op = prop_oneof![
        9 => (0_usize..4, prop_oneof![1_i64..12, Just(1_000)], prop::bool::weighted(0.4))
            .prop_map(|(which, cost, reserving)| Op::Take { which, cost, reserving }),
        3 => (0_usize..6, actual).prop_map(|(which, actual)| Op::Settle { which, actual }),
        1 => (0_usize..6).prop_map(|which| Op::Cancel { which }),
        1 => (0_usize..4, 1_i64..9).prop_map(|(which, amount)| Op::Credit { which, amount }),
        1 => (0_usize..4, 1_i64..9).prop_map(|(which, amount)| Op::Debit { which, amount }),
        // A reset stands at the clock.
        u32::from(!backward) => (0_usize..4).prop_map(|which| Op::Reset { which }),
        3 => Just(Op::Sweep),
        2 * u32::from(backward) => (1_i64..30).prop_map(Op::Back),
    ];
    vec((prop_oneof![4 => 0_i64..3, 1 => 0_i64..60], op), 2..40)
}
