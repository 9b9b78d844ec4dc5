//! Tokens taken ahead: charged for calls to come, spent later, and given back as far as time has not brought them back.
//!
//! The promise is about the tokens spent, dated at the instant of their slice's charge, and netted with nothing. The
//! grants less the tokens that are given back would say nearly nothing: a plain settlement keeps that, too.

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{Rest, State, Timestamp};
use tollgate::plan::{Answer, Call};
use tollgate::{Limit, LimitKind, MINUTE, Receipt, Tokens};

use crate::story::{Kind, config, limit};
use crate::world::{World, at, micros, ms, sec, terms_of, tokens, used};

/// An event of a row; `process` is one of four that take ahead.
#[derive(Clone, Debug)]
enum Op {
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
enum Accident {
    Settle(usize),
    Credit(i64),
    Reset,
    /// A crash empties the table of ephemeral limits.
    Lose,
}

/// A charge.
#[derive(Clone, Copy, Debug, Default)]
struct Charged {
    at: i64,
    spent: i64,
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
struct Told {
    charged: Vec<Charged>,
    events: Vec<Event>,
    /// When something was spent, by a clock that never goes back, and how much.
    spends: Vec<(i64, i64)>,
    /// The row, after each of its changes, and what happened to it.
    rows: Vec<(Deed, Option<State>)>,
}

/// A change of the row, for a world that is charged only the tokens that were finally spent.
#[derive(Clone, Copy)]
enum Deed {
    Charge { of: usize, clock: i64 },
    Write { clock: i64 },
    Gone,
}

/// Numbers so small that edges are met.
#[derive(Clone, Debug)]
struct Setting {
    limits: [Limit; 2],
    max_age: i64,
}

fn tell(setting: &Setting, story: &[Op]) -> Told {
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
                if let Ok(Answer::Granted { decided_at, stands_at, receipt, .. }) =
                    world.call(Call::consume([request]), at(clock))
                {
                    let (charge, until) = (told.charged.len(), at(decided_at.micros() + max_age));
                    let rest = Rest { tokens: receipt.charges[0].cost, stood_at: stands_at, until };
                    slices[*process] = Some(Slice { charge, rest, sent: now });
                    told.charged.push(Charged { at: decided_at.micros(), spent: 0 });
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
                    let after = world.balance(Call::give_back(request.clone(), rest), at(clock)).remaining.micros();
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
                let call = if *reserving { Call::reserve([request]) } else { Call::consume([request]) };
                if let Ok(Answer::Granted { decided_at, receipt, .. }) = world.call(call, at(clock)) {
                    let charge = told.charged.len();
                    told.charged.push(Charged { at: decided_at.micros(), spent: cost.micros() });
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
                world.settled(Call::settle(receipt, Tokens::ZERO), at(clock)).unwrap();
                self.events.push(Event::Rise(self.charged[charge].spent));
            }
            Accident::Settle(_) => {}
            Accident::Credit(amount) => {
                world.balance(Call::credit(request.cost(micros(*amount))), at(clock));
                self.events.push(Event::Rise(*amount));
            }
            Accident::Reset | Accident::Lose => {
                if matches!(accident, Accident::Lose) {
                    world.delete(&request);
                } else {
                    world.balance(Call::reset(request), at(clock));
                }
                self.events.push(Event::Rise(limit.spec().capacity.unwrap().micros() - before));
            }
        }
    }

    /// For each charge and each later one: the two instants, and the tokens spent of them and of all charges between.
    /// Then the tokens that came from elsewhere between, and those of earlier charges that were given back between.
    fn spans(&self) -> Vec<(i64, i64, i64, i64, i64)> {
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
    fn bound(&self, length: i64, redefined: bool) -> i64 {
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

fn settings() -> impl Strategy<Value = Setting> {
    let numbers = (1_i64..5, 1_i64..9);
    (any::<bool>(), numbers.clone(), numbers, 1_u64..5, 0_i64..4, 1_i64..7).prop_map(
        |(steps, one, other, period, owed, max_age)| {
            let kind = if steps { Kind::FirstUse } else { Kind::Drip };
            let limits = [one, other].map(|(rate, capacity)| limit(kind, rate, period, capacity, owed));
            Setting { limits, max_age }
        },
    )
}

fn stories(backward: bool, accidents: bool, redefines: bool) -> impl Strategy<Value = Vec<Op>> {
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

proptest! {
    #![proptest_config(config())]

    /// The promise, by the instants at which slices were charged.
    #[test]
    fn what_is_spent_is_within_the_bound_at_the_instants_of_the_charges(
        setting in settings(),
        story in prop_oneof![stories(false, false, false), stories(true, false, false)],
    ) {
        for (from, to, spent, ..) in tell(&setting, &story).spans() {
            let bound = setting.bound(to - from, false);
            prop_assert!(spent <= bound, "{spent} of {bound} from {from} to {to}");
        }
    }

    /// The promise, by the instants at which callers were granted: a span is longer by less than `max_age`.
    #[test]
    fn what_is_spent_in_a_span_is_within_the_bound_of_a_span_longer_by_max_age(
        setting in settings(),
        story in prop_oneof![stories(false, false, false), stories(true, false, false)],
    ) {
        let spends = tell(&setting, &story).spends;
        for (n, (from, _)) in spends.iter().enumerate() {
            let mut spent = 0;
            for (to, amount) in &spends[n..] {
                spent += amount;
                let bound = setting.bound(to - from + setting.max_age - 1, false);
                prop_assert!(spent <= bound, "{spent} of {bound} from {from} to {to}");
            }
        }
    }

    /// Stronger: the row never holds more than one that was charged, at the same instants, only the tokens that were
    /// spent.
    #[test]
    fn the_row_is_never_above_one_that_was_charged_what_was_spent(
        setting in settings(),
        story in prop_oneof![stories(false, false, false), stories(true, false, false)],
    ) {
        let (told, request) = (tell(&setting, &story), setting.limits[0].global());
        let (terms, mut other) = (terms_of(&request), World::default());
        for (deed, row) in &told.rows {
            // Each write rounds down what came back.
            let written = |world: &World, clock| {
                let row = world.state(&request).unwrap_or_else(|| terms.full(at(clock)));
                terms.refill(&row, at(clock))
            };
            match *deed {
                Deed::Charge { of, clock } => {
                    let row = written(&other, clock);
                    let value = micros(row.value.micros() - told.charged[of].spent);
                    other.put(&request, State::new(value, row.ts));
                }
                Deed::Write { clock } => other.put(&request, written(&other, clock)),
                Deed::Gone => other.delete(&request),
            }
            if let (Some(row), Some(other)) = (row, other.state(&request)) {
                prop_assert!(row.value <= other.value, "{row:?} above {other:?}");
            }
        }
    }

    /// A process forgets its slice whenever its definition changes, also where it changes back, so the slice is never
    /// given back by the rate of another definition.
    #[test]
    fn what_is_spent_is_within_the_bound_where_definitions_change(
        setting in settings(),
        story in prop_oneof![stories(false, false, true), stories(true, false, true)],
    ) {
        for (from, to, spent, ..) in tell(&setting, &story).spans() {
            let bound = setting.bound(to - from, true);
            prop_assert!(spent <= bound, "{spent} of {bound} from {from} to {to}");
        }
    }

    /// After any accident elsewhere, the only tokens beyond the bound are those that are given back of slices that were
    /// open when the span began. So the size of a slice bounds all accidents. (Where the clock goes back, a reset
    /// begins it anew.)
    #[test]
    fn accidents_add_no_more_than_what_lay_in_memory(
        setting in settings(),
        story in stories(false, true, true),
    ) {
        for (from, to, spent, risen, old) in tell(&setting, &story).spans() {
            let bound = setting.bound(to - from, true) + risen + old;
            prop_assert!(spent <= bound, "{spent} of {bound} from {from} to {to}");
        }
    }

    /// A sixteenth of the balance, in whole tokens where the cost is; nothing where that is less than two calls.
    #[test]
    fn a_slice_is_a_sixteenth_of_what_is_there_at_most(
        capacity in 32_i64..2_000,
        taken in 0_i64..2_000,
        demand in 2_i64..200,
    ) {
        let limit = limit(Kind::Drip, 1, 1_000_000, capacity * 1_000_000, 0);
        let (mut world, request, now) = (World::default(), limit.global(), sec(1));
        world.call(Call::debit(request.clone().cost(tokens(taken))), now).unwrap();
        let there = world.look(request.clone(), now).remaining.micros();
        let size = demand.min(there / 16_000_000);
        match world.call(Call::ahead(request.clone().cost(tokens(demand)).up_to(2)), now) {
            Ok(Answer::Granted { amount, .. }) => {
                prop_assert!(size >= 2 && amount == tokens(size), "{amount} of {there}");
            }
            Ok(Answer::Denied(_)) => prop_assert!(size < 2, "nothing of {there}"),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

/// One of a second, of which one is taken ahead at 0. The row has gained one by the time that it is given back.
#[test]
fn what_time_has_brought_back_is_not_given_back() {
    let (mut world, limit) = (World::default(), limit(Kind::Drip, 1_000_000, 1_000_000, 1_000_000, 0));
    let rest = taken_ahead(&mut world, &limit, 1, sec(0));
    assert_eq!(world.granted(limit.global(), sec(1)), Tokens::ZERO);
    assert_eq!(world.balance(Call::give_back(limit.global(), rest), sec(1)).remaining, Tokens::ZERO);
    // Half of the time brings half of it back.
    let mut world = World::default();
    let rest = taken_ahead(&mut world, &limit, 1, sec(0));
    let balance = world.balance(Call::give_back(limit.global(), rest), ms(500));
    assert_eq!(balance.remaining, tokens(1));
    assert_eq!(world.state(&limit.global()), Some(used(0, ms(500), ms(500))));
}

/// The row's step lies at 0, the charge at 3, the next step at 4: what this brought it brought in the place of the
/// rest.
#[test]
fn steps_are_counted_from_where_the_row_stood() {
    let (mut world, limit) = (World::default(), limit(Kind::FirstUse, 1_000_000, 4_000_000, 1_000_000, 0));
    world.put_left(&limit.global(), tokens(1), sec(0));
    let rest = taken_ahead(&mut world, &limit, 1, sec(3));
    assert_eq!(rest.stood_at, sec(0));
    assert_eq!(world.granted(limit.global(), sec(4)), Tokens::ZERO);
    assert_eq!(world.balance(Call::give_back(limit.global(), rest), sec(4)).remaining, Tokens::ZERO);
}

#[test]
fn a_row_that_is_missing_gets_nothing_back() {
    let (mut world, limit) = (World::default(), limit(Kind::Drip, 1_000_000, 1_000_000, 5_000_000, 0));
    let rest = taken_ahead(&mut world, &limit, 2, sec(0));
    world.delete(&limit.global());
    world.balance(Call::give_back(limit.global(), rest), ms(1));
    assert_eq!(world.state(&limit.global()), None);
}

#[test]
fn what_is_late_is_not_given_back() {
    let (mut world, limit) = (World::default(), Limit::token_bucket("limit", 1, MINUTE).capacity(5));
    let rest = Rest { until: ms(100), ..taken_ahead(&mut world, &limit, 2, sec(0)) };
    let back = |world: &mut World, now| world.balance(Call::give_back(limit.global(), rest), now).remaining;
    assert!(back(&mut world.clone(), at(99_999)) > tokens(4));
    assert!(back(&mut world, ms(100)) < tokens(4));
}

fn taken_ahead(world: &mut World, limit: &Limit, size: i64, now: Timestamp) -> Rest {
    match world.call(Call::consume([limit.global().cost(tokens(size))]), now).unwrap() {
        Answer::Granted { stands_at, .. } => Rest { tokens: tokens(size), stood_at: stands_at, until: Timestamp::MAX },
        other => panic!("not granted: {other:?}"),
    }
}
