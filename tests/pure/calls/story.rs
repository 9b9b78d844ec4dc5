//! Stories of charges and of their settlements, with the tokens that come back meanwhile.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::plan::{Answer, CallId, Verb};
use tollgate::{Call, Grant, Limit, LimitKind, MINUTE, Receipt, Tokens};

use crate::world::{World, at, micros};

#[derive(Clone, Debug)]
pub(super) enum Op {
    Take {
        which: usize,
        cost: i64,
        reserving: bool,
        keeping: Keeping,
    },
    Settle {
        which: usize,
        actual: i64,
    },
    Cancel {
        which: usize,
    },
    Renew {
        which: usize,
    },
    Alter {
        which: usize,
        how: Alter,
    },
    Reap,
    Sweep,
    /// The clock goes back.
    Back(i64),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Keeping {
    Plain,
    Lapses(u64),
    Tracked,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Alter {
    Credit(i64),
    Debit(i64),
    Reset,
}

/// An event in the life of a row; events are listed in the row's order.
#[derive(Clone, Copy, Debug)]
enum Event {
    Granted {
        charge: usize,
        at: i64,
    },
    /// Tokens that came back from a charge, or from a verb that alters the balance. The amount is negative for tokens
    /// that were used beyond a charge, and for a debit.
    Back {
        of: Option<usize>,
        amount: i64,
    },
    /// Another definition writes the row than the one before, or it begins anew.
    Turn,
}

/// The events from one grant to another.
pub(super) struct Span {
    /// Their instants.
    pub(super) from: i64,
    pub(super) to: i64,
    /// All that was granted and is kept of its charges.
    pub(super) kept: i64,
    /// All that was granted, less the tokens that came back meanwhile.
    pub(super) net: i64,
    /// Tokens that came back meanwhile from earlier charges, or by a credit or a reset.
    pub(super) old: i64,
    /// The part of `old` that had been booked ahead.
    pub(super) ahead: i64,
    /// Tokens that were meanwhile used beyond charges, or debited.
    pub(super) beyond: i64,
    pub(super) turns: i64,
}

/// A charge, and the part of it that is kept.
struct Charged {
    receipt: Option<Receipt>,
    name: Option<CallId>,
    cost: i64,
    kept: i64,
    /// Whether it was booked ahead.
    is_ahead: bool,
}

#[derive(Default)]
pub(super) struct Told {
    charged: Vec<Charged>,
    events: Vec<Event>,
    /// Which definition wrote the row last.
    writer: Option<usize>,
}

impl Told {
    fn brings_back(&mut self, charge: usize, kept: i64) {
        let charged = &mut self.charged[charge];
        let amount = charged.kept - kept;
        charged.kept = kept;
        self.events.push(Event::Back { of: Some(charge), amount });
    }

    fn is_written_by(&mut self, which: usize) {
        if self.writer.replace(which).is_some_and(|writer| writer != which) {
            self.events.push(Event::Turn);
        }
    }

    /// The spans from each grant to each later one.
    pub(super) fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        for (n, first) in self.events.iter().enumerate() {
            let Event::Granted { charge: first, at: from } = *first else { continue };
            let (mut kept, mut net, mut old, mut ahead, mut beyond, mut turns) = (0, 0, 0, 0, 0, 0);
            for event in &self.events[n..] {
                match *event {
                    Event::Granted { charge, at: to } => {
                        let Charged { cost, kept: is_kept, .. } = self.charged[charge];
                        kept += is_kept.min(cost);
                        net += cost;
                        spans.push(Span { from, to, kept, net, old, ahead, beyond, turns });
                    }
                    Event::Back { amount, .. } if amount < 0 => beyond -= amount,
                    Event::Back { of, amount } => {
                        net -= amount;
                        old += if of.is_none_or(|of| of < first) { amount } else { 0 };
                        let is_ahead = |of: usize| of < first && self.charged[of].is_ahead;
                        ahead += if of.is_some_and(is_ahead) { amount } else { 0 };
                    }
                    Event::Turn => turns += 1,
                }
            }
        }
        spans
    }
}

pub(super) fn tell(limits: &[Limit], story: &[(i64, Op)]) -> Told {
    let (mut told, mut world, mut now) = (Told::default(), World::default(), 1_000_i64);
    let sweeps = !story.iter().any(|(_, op)| matches!(op, Op::Back(_)));
    for (gap, op) in story {
        now += gap;
        match op {
            Op::Take { which, cost, reserving, keeping } => {
                let which = which % limits.len();
                let spec = limits[which].spec();
                let most = spec.capacity.unwrap().micros() + if *reserving { spec.max_reserved.micros() } else { 0 };
                let request = limits[which].global().cost(micros((*cost).min(most)));
                let request = match keeping {
                    _ if spec.kind == LimitKind::Concurrency => request.into(),
                    Keeping::Plain => Call::from(request),
                    Keeping::Lapses(span) => request.lapses_after(Duration::from_micros(*span)),
                    Keeping::Tracked => request.tracked_for(MINUTE),
                };
                let call = if *reserving { Verb::reserve(request) } else { Verb::consume(request) };
                if let Ok(Answer::Granted { grant: Grant { decided_at, receipt, .. }, ready_at, .. }) =
                    world.call(call, at(now))
                    && receipt.charges[0].cost > Tokens::ZERO
                {
                    told.is_written_by(which);
                    told.events.push(Event::Granted { charge: told.charged.len(), at: decided_at.timestamp_micros() });
                    let cost = receipt.charges[0].cost.micros();
                    let name = world
                        .calls
                        .keys()
                        .find(|name| !told.charged.iter().any(|other| other.name.as_ref() == Some(name)));
                    let name = name.cloned();
                    let is_ahead = ready_at > decided_at.into();
                    told.charged.push(Charged { receipt: Some(receipt), name, cost, kept: cost, is_ahead });
                }
            }
            Op::Settle { which, .. } | Op::Cancel { which } | Op::Renew { which } => {
                let live: Vec<_> =
                    (0..told.charged.len()).filter(|charge| told.charged[*charge].receipt.is_some()).collect();
                let Some(which) = which.checked_rem(live.len()) else { continue };
                let charge = live[which];
                let Some(receipt) = told.charged[charge].receipt.clone() else { continue };
                let call = match op {
                    Op::Settle { actual, .. } => Verb::Settle(receipt, micros(*actual)),
                    Op::Cancel { .. } => Verb::Cancel(receipt),
                    _ => {
                        world.call(Verb::Renew(receipt.clone()), at(now)).ok();
                        continue;
                    }
                };
                if let Ok(settled) = world.settled(call, at(now)) {
                    told.charged[charge].receipt = None;
                    told.brings_back(charge, settled.charges[0].cost.micros());
                }
            }
            Op::Alter { which, how } => {
                let which = which % limits.len();
                let (request, before) = (limits[which].global(), world.state(&limits[which].global()));
                let held = world.look(request.clone(), at(now)).remaining.micros();
                let call = match how {
                    Alter::Credit(amount) => Verb::credit(request.clone().cost(micros(*amount))),
                    Alter::Debit(amount) => Verb::debit(request.clone().cost(micros(*amount))),
                    Alter::Reset => Verb::Reset(request.clone()),
                };
                // Leases are not credited and debited.
                if world.call(call, at(now)).is_ok() && world.state(&request) != before {
                    told.is_written_by(which);
                    told.events.extend(matches!(how, Alter::Reset).then_some(Event::Turn));
                    let amount = match how {
                        Alter::Debit(amount) => -amount,
                        // A credit or a reset adds as much as there was room for.
                        _ => world.look(request, at(now)).remaining.micros() - held,
                    };
                    told.events.push(Event::Back { of: None, amount });
                }
            }
            Op::Reap => {
                for row in world.lapsing() {
                    let name = row.name.clone();
                    let settled = world.settled(Verb::Lapse(row), at(now)).unwrap();
                    if let [charge] = settled.charges.as_slice() {
                        let lapsed =
                            told.charged.iter().position(|charged| charged.name.as_ref() == Some(&name)).unwrap();
                        told.charged[lapsed].receipt = None;
                        told.brings_back(lapsed, charge.cost.micros());
                    }
                }
            }
            Op::Sweep => {
                if sweeps {
                    world.sweep(at(now));
                    told.events.push(Event::Turn);
                }
            }
            Op::Back(span) => now -= span,
        }
    }
    told
}

pub(super) fn stories(backward: bool, alters: bool) -> impl Strategy<Value = Vec<(i64, Op)>> {
    let keeping = prop_oneof![Just(Keeping::Plain), (1_u64..12).prop_map(Keeping::Lapses), Just(Keeping::Tracked)];
    // A reset brings a row back from the future: no bound counts on that.
    let alter = prop_oneof![
        2 => (1_i64..5).prop_map(Alter::Credit),
        2 => (1_i64..5).prop_map(Alter::Debit),
        u32::from(!backward) => Just(Alter::Reset),
    ];
    let op = prop_oneof![
        9 => (0_usize..2, 1_i64..8, prop::bool::weighted(0.3), keeping)
            .prop_map(|(which, cost, reserving, keeping)| Op::Take { which, cost, reserving, keeping }),
        5 => (0_usize..6, prop_oneof![3 => 0_i64..4, 1 => 4_i64..12])
            .prop_map(|(which, actual)| Op::Settle { which, actual }),
        1 => (0_usize..6).prop_map(|which| Op::Cancel { which }),
        1 => (0_usize..6).prop_map(|which| Op::Renew { which }),
        2 => Just(Op::Reap),
        2 * u32::from(alters) => (0_usize..2, alter).prop_map(|(which, how)| Op::Alter { which, how }),
        u32::from(backward) => (1_i64..10).prop_map(Op::Back),
        1 => Just(Op::Sweep),
    ];
    vec((prop_oneof![3 => 0_i64..3, 1 => 0_i64..20], op), 2..30)
}
