//! Facts that hold while the definition of a limit changes: used tokens stay used, and nobody sees a sweep.

use std::slice;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Call};
use tollgate::{Charge, DAY, HOUR, Limit, LimitKind, LimitSpec, MINUTE, Receipt, Tokens};

use crate::story::config;
use crate::world::{World, at, due, micros, receipt, sec, terms_of, tokens};

// The scenes.

#[test]
fn a_raised_limit_counts_at_once() {
    let both = |numbers: [u64; 2]| {
        [
            numbers.map(|n| Limit::fixed_window("plan", n, DAY).start(Duration::ZERO)),
            numbers.map(|n| Limit::token_bucket("plan", n, DAY)),
            numbers.map(|n| Limit::stepped_bucket("plan", n, DAY)),
            numbers.map(|n| Limit::sliding_window("plan", n, DAY)),
        ]
    };
    for [small, large] in both([1_000, 10_000]) {
        let mut world = World::default();
        world.granted(small.global().cost(1_000), sec(9));
        world.denied(small.global(), sec(9));
        let balance = world.look(large.global(), sec(9));
        assert_eq!((balance.remaining, balance.used), (tokens(9_000), tokens(1_000)), "{}", large.spec().kind);
        assert_eq!(world.granted(large.global().cost(9_000), sec(9)), tokens(0));
        world.denied(large.global(), sec(9));
    }
}

#[test]
fn a_lowered_limit_forgives_nothing_and_grants_again_when_the_larger_one_would_be_full() {
    let window = |n| Limit::fixed_window("plan", n, DAY).start(Duration::ZERO);
    let bucket = |n| Limit::token_bucket("plan", n, DAY);
    let sliding = |n| Limit::sliding_window("plan", n, DAY);
    let stepped = |n| Limit::stepped_bucket("plan", n, DAY);
    for ([large, small], full_at) in [
        ([window(10_000), window(1_000)], sec(86_400)),
        ([bucket(10_000), bucket(1_000)], at(9 * 8_640_000_000 + 3_600_000_000)),
        ([sliding(10_000), sliding(1_000)], sec(90_000)),
        ([stepped(10_000), stepped(1_000)], sec(90_000)),
    ] {
        let mut world = World::default();
        world.granted(large.global().cost(9_000), sec(3_600));
        let denied = world.denied(small.global(), sec(3_600));
        assert_eq!((denied.remaining, due(denied.retry_at)), (tokens(-8_000), full_at), "{}", small.spec().kind);
        assert_eq!(world.granted(small.global().cost(1_000), full_at), tokens(0));
    }
}

#[test]
fn the_end_of_larger_numbers_takes_back_what_they_gave_on_one_grid() {
    let own = Limit::fixed_window("plan", 10, DAY).start(Duration::ZERO);
    let larger = Limit::fixed_window("plan", 1_000, DAY).start(Duration::ZERO);
    let mut world = World::default();
    world.granted(own.global().cost(10), sec(9));
    world.granted(larger.global().cost(40), sec(9));
    let balance = world.look(own.global(), sec(10));
    assert_eq!((balance.remaining, balance.used, due(balance.full_at)), (tokens(-40), tokens(50), sec(86_400)));
    assert_eq!(world.granted(own.global(), sec(86_400)), tokens(9));
    // A larger rate makes the row full sooner: that is within the bound of both.
    let faster = Limit::token_bucket("plan", 1_000, HOUR);
    let slow = Limit::token_bucket("plan", 10, DAY);
    let mut world = World::default();
    world.granted(slow.global().cost(10), sec(0));
    world.granted(faster.global(), sec(0));
    assert_eq!(world.look(slow.global(), sec(39)).remaining, micros(-995_487));
    world.denied(slow.global(), at(39_599_999));
    assert_eq!(world.granted(slow.global().cost(10), at(39_600_000)), tokens(0));
}

/// A call under the smaller plan adds the time in which its tokens come back, and no more.
#[test]
fn a_call_under_a_smaller_plan_keeps_the_end_of_what_the_larger_one_used() {
    let [large, small] = [10_000, 1_000].map(|n| Limit::token_bucket("plan", n, 30 * DAY));
    let mut world = World::default();
    world.granted(large.global().cost(500), sec(0));
    world.granted(small.global().cost(100), sec(0));
    let day = 86_400;
    assert_eq!(due(world.look(small.global(), sec(0)).full_at), sec(day * 3 / 2 + 3 * day));
    let full = world.look(small.global(), sec(day * 9 / 2)).remaining;
    assert_eq!(full, tokens(1_000));
}

#[test]
fn who_changes_plans_each_day_gets_no_more_than_the_larger_one_in_its_period() {
    let start = |limit: Limit| limit.start(Duration::ZERO);
    let (free, pro) =
        (start(Limit::fixed_window("plan", 100, DAY)), start(Limit::fixed_window("plan", 10_000, 30 * DAY)));
    let (mut world, mut got) = (World::default(), 0);
    for day in 0..30 {
        let now = sec(day * 86_400);
        if let Ok(Answer::Granted { .. }) = world.call(Call::consume([free.global()]), now) {
            got += 1;
        }
        let left = world.look(pro.global(), now).remaining;
        if left > Tokens::ZERO {
            world.granted(pro.global().cost(left), now);
            got += left.micros() / 1_000_000;
        }
    }
    assert_eq!(got, 10_000);
}

#[test]
fn what_was_used_beyond_a_charge_is_not_lost_on_a_swept_row() {
    let limit = Limit::token_bucket("plan", 10, MINUTE);
    for swept in [false, true] {
        let mut world = World::default();
        let receipt = world.taken(Call::consume([limit.global()]), sec(0));
        if swept {
            world.sweep(sec(100));
        }
        world.settled(Call::settle(receipt, tokens(6)), sec(100)).unwrap();
        assert_eq!(world.look(limit.global(), sec(100)).remaining, tokens(5), "swept: {swept}");
    }
}

/// However many settlements come to more than their charges, a lowered plan waits no longer than the larger one needs to
/// bring all of it back.
#[test]
fn settlements_above_their_charges_put_the_end_off_no_further_than_their_own_rate() {
    let month = 30 * DAY;
    let window = |n| Limit::fixed_window("plan", n, month).start(Duration::ZERO);
    let bucket = |n| Limit::token_bucket("plan", n, month);
    let stepped = |n| Limit::stepped_bucket("plan", n, month);
    for [large, small] in [[10_000, 1_000].map(window), [10_000, 1_000].map(bucket), [10_000, 1_000].map(stepped)] {
        let mut world = World::default();
        let receipts: Vec<_> =
            (0..9).map(|_| world.taken(Call::consume([large.global().cost(1_000)]), sec(0))).collect();
        for receipt in receipts {
            world.settled(Call::settle(receipt, tokens(1_001)), sec(0)).unwrap();
        }
        let kind = large.spec().kind;
        assert_eq!(due(world.denied(small.global(), sec(0)).retry_at), sec(30 * 86_400), "{kind}");
        assert_eq!(world.granted(small.global(), sec(30 * 86_400)), tokens(999), "{kind}");
    }
}

/// A charge of a faster definition that is settled late ends no use of a slower one.
#[test]
fn a_settlement_above_its_charge_makes_no_row_full_sooner() {
    let [fast, slow] = [Limit::token_bucket("plan", 1_000, HOUR), Limit::token_bucket("plan", 10, DAY)];
    let mut world = World::default();
    let receipt = world.taken(Call::consume([fast.global()]), sec(0));
    world.granted(slow.global().cost(10), sec(100));
    world.settled(Call::settle(receipt, tokens(2)), sec(200)).unwrap();
    assert_eq!(due(world.denied(slow.global().cost(10), sec(200)).retry_at), sec(86_500));
}

/// A row that another kind has used comes back by the terms of that kind, though an operator changes it under a sliding
/// window.
#[test]
fn a_credit_or_a_debit_of_a_sliding_window_ends_no_use_of_another_kind() {
    let [bucket, sliding] = [Limit::token_bucket("plan", 10_000, 30 * DAY), Limit::sliding_window("plan", 100, MINUTE)];
    for (change, left) in [
        (Call::credit as fn(tollgate::Request) -> Call, -8_899),
        (Call::debit as fn(tollgate::Request) -> Call, -8_901),
    ] {
        let mut world = World::default();
        world.granted(bucket.global().cost(9_000), sec(0));
        let Ok(Answer::Done(balance)) = world.call(change(sliding.global()), sec(1)) else { panic!("it was changed") };
        assert_eq!(balance.remaining, tokens(left));
        assert_eq!(due(world.denied(sliding.global(), sec(120)).retry_at), sec(27 * 86_400));
        assert!(world.look(bucket.global(), sec(120)).remaining < tokens(1_002));
    }
}

/// A row that a hand has written above full reads as full.
#[test]
fn a_row_above_full_reads_as_full() {
    for limit in [Limit::token_bucket("plan", 10, MINUTE), Limit::fixed_window("plan", 10, MINUTE)] {
        let mut world = World::holding(&limit.global(), State::new(Tokens::MAX, sec(0)).full_at(sec(1_000)));
        let balance = world.look(limit.global(), sec(0));
        assert_eq!((balance.remaining, balance.used), (tokens(10), Tokens::ZERO));
        assert_eq!(world.granted(limit.global(), sec(0)), tokens(9));
    }
}

// The properties.

#[derive(Clone, Debug)]
enum Op {
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
enum Event {
    Granted {
        id: usize,
        /// By which definition.
        which: usize,
        at: i64,
        cost: i64,
    },
    /// Tokens that came back of a grant, or altered the balance; negative for a use beyond the charge.
    Back { of: Option<usize>, amount: i64 },
}

struct Told {
    events: Vec<Event>,
    /// Each refusal: its definition, cost and verb, the rows, and the instant.
    refused: Vec<(usize, i64, bool, World, i64)>,
    /// The balance by each definition, after each step.
    balances: Vec<Vec<Tokens>>,
}

fn tell(limits: &[Limit], story: &[(i64, Op)], sweeps: bool) -> Told {
    let (mut world, mut now) = (World::default(), 1_000_i64);
    let (mut receipts, mut id) = (Vec::<(usize, Receipt)>::new(), 0);
    let mut told = Told { events: Vec::new(), refused: Vec::new(), balances: Vec::new() };
    for (gap, op) in story {
        now += gap;
        match *op {
            Op::Take { which, cost, reserving } => {
                let limit = &limits[which % limits.len()];
                let spec = limit.spec();
                let most = spec.capacity.unwrap().micros() + if reserving { spec.max_reserved.micros() } else { 0 };
                let (cost, before) = (cost.min(most), world.clone());
                let request = limit.global().cost(micros(cost));
                let call = if reserving { Call::reserve([request]) } else { Call::consume([request]) };
                match world.call(call, at(now)).unwrap() {
                    Answer::Granted { decided_at, receipt, .. } if cost > 0 => {
                        told.events.push(Event::Granted {
                            id,
                            which: which % limits.len(),
                            at: decided_at.micros(),
                            cost,
                        });
                        receipts.push((id, receipt));
                        id += 1;
                    }
                    Answer::Denied(_) => told.refused.push((which % limits.len(), cost, reserving, before, now)),
                    _ => {}
                }
            }
            Op::Credit { which, .. } | Op::Debit { which, .. } | Op::Reset { which } => {
                let request = limits[which % limits.len()].global();
                let before = world.look(request.clone(), at(now)).remaining;
                let call = match *op {
                    Op::Credit { amount, .. } => Call::credit(request.cost(micros(amount))),
                    Op::Debit { amount, .. } => Call::debit(request.cost(micros(amount))),
                    _ => Call::reset(request),
                };
                let after = match world.call(call, at(now)) {
                    Ok(Answer::Done(balance)) => balance.remaining,
                    // Leases come back alone.
                    _ => before,
                };
                told.events.push(Event::Back { of: None, amount: after.micros() - before.micros() });
            }
            Op::Settle { which, .. } | Op::Cancel { which } => {
                let Some(which) = which.checked_rem(receipts.len()) else { continue };
                let (of, kept) = receipts.swap_remove(which);
                let sum = |charges: &[Charge]| charges.iter().map(|charge| charge.cost.micros()).sum::<i64>();
                let cost = sum(&kept.charges);
                let call = match *op {
                    Op::Settle { actual, .. } => Call::settle(kept, micros(actual)),
                    _ => Call::cancel(kept),
                };
                // A lease that has ended is not there to be settled.
                let Ok(settled) = world.settled(call, at(now)) else { continue };
                told.events.push(Event::Back { of: Some(of), amount: cost - sum(&settled.charges) });
            }
            Op::Sweep if sweeps => world.sweep(at(now)),
            Op::Sweep => {}
            Op::Back(span) => now -= span,
        }
        told.balances.push(limits.iter().map(|limit| world.look(limit.global(), at(now)).remaining).collect());
    }
    told
}

/// All that was granted from one grant to another, less what came back: the instants of the two, and the sum.
fn spans(events: &[Event]) -> Vec<(i64, i64, i64)> {
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
                Event::Back { amount, .. } => net -= amount.max(0),
            }
        }
    }
    spans
}

fn stories(overages: bool, backward: bool) -> impl Strategy<Value = Vec<(i64, Op)>> {
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

/// Definitions of one kind and one grid, up to four that take turns.
fn of_one_grid() -> impl Strategy<Value = Vec<Limit>> {
    let kind = prop_oneof![Just(LimitKind::TokenBucket), Just(LimitKind::SteppedBucket), Just(LimitKind::FixedWindow)];
    let numbers = vec((1_i64..20, 1_i64..80, prop_oneof![Just(0_i64), 0_i64..40], 1_u64..40), 1..4);
    (kind, 1_u64..40, 0_u64..40, numbers).prop_map(|(kind, period, start, numbers)| {
        let limit = |(rate, capacity, reserved, own): (i64, i64, i64, u64)| {
            // Token buckets have no grid.
            limit(
                kind,
                rate,
                if kind == LimitKind::TokenBucket { own } else { period },
                capacity,
                reserved,
                start % period,
            )
        };
        numbers.into_iter().map(limit).collect()
    })
}

/// Definitions of any kinds, in any numbers of rows.
fn of_any_kind(kinds: &[LimitKind]) -> impl Strategy<Value = Vec<Limit>> {
    let kind = prop::sample::select(kinds.to_vec());
    let numbers = (1_i64..20, 1_u64..40, 1_i64..80, 0_i64..20, 0_u64..40);
    vec((kind, numbers, prop_oneof![3 => Just(1_u16), 1 => 2_u16..4]), 1..4).prop_map(|definitions| {
        let limit =
            |(kind, (rate, period, capacity, reserved, start), shards): (_, (i64, u64, _, _, u64), _)| match kind {
                LimitKind::SlidingWindow | LimitKind::Concurrency => limit(kind, rate, period, rate, 0, 0),
                LimitKind::SteppedBucket => limit(kind, rate, period, capacity, reserved, 0),
                _ => limit(kind, rate + 3, period, capacity + 3, reserved, start % period).shards(shards),
            };
        definitions.into_iter().map(limit).collect()
    })
}

/// All but the stepped bucket, whose grid goes with its row, and wallets, which are money.
const KINDS: [LimitKind; 4] =
    [LimitKind::TokenBucket, LimitKind::FixedWindow, LimitKind::SlidingWindow, LimitKind::Concurrency];

fn limit(kind: LimitKind, rate: i64, period: u64, capacity: i64, max_reserved: i64, start: u64) -> Limit {
    let start = (kind == LimitKind::FixedWindow).then(|| Duration::from_micros(start));
    let spec = LimitSpec::new("limit", kind, micros(rate), Duration::from_micros(period));
    spec.with(|spec| {
        (spec.capacity, spec.max_reserved, spec.start) = (Some(micros(capacity)), micros(max_reserved), start);
    })
    .try_into()
    .unwrap()
}

/// How much the fastest of some definitions of one grid brings between two instants.
fn refilled(limits: &[Limit], from: i64, to: i64) -> i64 {
    let of = |limit: &Limit| {
        let spec = limit.spec();
        let (rate, period) = (spec.rate.micros(), i64::try_from(spec.period.as_micros()).unwrap());
        match spec.kind {
            LimitKind::TokenBucket => rate * (to - from) / period,
            LimitKind::FixedWindow => {
                let start = |now| terms_of(&limit.global()).full(Timestamp::from_micros(now)).ts.micros();
                rate * ((start(to) - start(from)) / period)
            }
            _ => rate * ((to - from) / period + 1),
        }
    };
    limits.iter().map(of).max().unwrap()
}

/// The most that a definition grants at once.
fn room(limit: &Limit) -> i64 {
    limit.spec().capacity.unwrap().micros() + limit.spec().max_reserved.micros()
}

/// How often another kind had its turn, from one instant to another, where one of the two counts in steps.
fn turns(limits: &[Limit], events: &[Event], from: i64, to: i64) -> i64 {
    let kinds: Vec<_> = events
        .iter()
        .filter_map(|event| match *event {
            Event::Granted { which, at, .. } if (from..=to).contains(&at) => Some(limits[which].spec().kind),
            _ => None,
        })
        .collect();
    let in_steps = |kind| matches!(kind, LimitKind::SteppedBucket | LimitKind::FixedWindow);
    let is_turn = |two: &&[LimitKind]| two[0] != two[1] && two.iter().any(|kind| in_steps(*kind));
    i64::try_from(kinds.windows(2).filter(is_turn).count()).unwrap()
}

proptest! {
    #![proptest_config(config())]

    /// Live definitions of one kind and grid add nothing beyond the larger capacity, the deeper debt and the larger
    /// rate, whatever is settled, credited, debited and swept.
    #[test]
    fn definitions_that_change_grant_no_more_than_the_largest(
        limits in of_one_grid(),
        // A clock that goes back finds a deleted row missing, and grants anew.
        (story, sweeps) in prop_oneof![(stories(true, false), Just(true)), (stories(true, true), Just(false))],
    ) {
        let most = limits.iter().map(room).max().unwrap();
        for (from, to, net) in spans(&tell(&limits, &story, sweeps).events) {
            let bound = most + refilled(&limits, from, to);
            prop_assert!(net <= bound, "{net} of {bound} from {from} to {to}");
        }
    }

    /// Live definitions of any kinds, grids and numbers of rows grant no more than all of them would, each by itself. A
    /// row that counts in steps stands at the start of one: so where kinds take turns, each turn may bring a capacity.
    #[test]
    fn definitions_of_any_kinds_grant_no_more_than_their_sum(
        limits in of_any_kind(&[KINDS.as_slice(), &[LimitKind::SteppedBucket]].concat()),
        story in stories(true, false),
    ) {
        let events = tell(&limits, &story, true).events;
        let largest = limits.iter().map(room).max().unwrap();
        for (from, to, net) in spans(&events) {
            let of_each = limits.iter().map(|limit| room(limit) + refilled(slice::from_ref(limit), from, to));
            let bound = of_each.sum::<i64>() + turns(&limits, &events, from, to) * largest;
            prop_assert!(net <= bound, "{net} of {bound} from {from} to {to}");
        }
    }

    /// Nobody sees a sweep, whatever definitions and kinds come later.
    #[test]
    fn a_sweep_changes_nothing(limits in of_any_kind(&KINDS), story in stories(true, false)) {
        let [kept, swept] = [false, true].map(|sweeps| tell(&limits, &story, sweeps));
        prop_assert_eq!(kept.events, swept.events);
        prop_assert_eq!(kept.balances, swept.balances);
    }

    /// A refused call succeeds at the instant that the refusal names, and not a microsecond earlier, whichever
    /// definition has written the row.
    #[test]
    fn waits_are_exact_while_definitions_change(
        limits in prop_oneof![of_one_grid(), of_any_kind(&KINDS), of_any_kind(&[LimitKind::SteppedBucket])],
        story in prop_oneof![stories(true, false), stories(true, true)],
    ) {
        for (which, cost, reserving, world, now) in tell(&limits, &story, true).refused {
            let limit = &limits[which];
            let ask = |now| {
                let request = [limit.global().cost(micros(cost))];
                let call = if reserving { Call::reserve(request) } else { Call::consume(request) };
                world.clone().call(call, now)
            };
            let Ok(Answer::Denied(denied)) = ask(at(now)) else { panic!("it was refused") };
            let retry_at = due(denied.retry_at);
            let (early, then) = (ask(at(retry_at.micros() - 1)), ask(retry_at));
            prop_assert!(matches!(early, Ok(Answer::Denied(_))), "{world:?} early: {early:?}");
            prop_assert!(matches!(then, Ok(Answer::Granted { .. })), "{world:?} then: {then:?}");
        }
    }

    /// Under one definition all is as in rows that store what is left and no instant at which they are full. Only
    /// settlements above a charge differ, and a clock that goes back behind that instant.
    #[test]
    fn under_one_definition_all_is_as_if_rows_said_what_is_left(
        limits in of_one_grid(),
        story in stories(false, false),
    ) {
        let limit = &limits[..1];
        let mut left = Left::default();
        let (events, balances) = left.tell(&limit[0], &story);
        let told = tell(limit, &story, false);
        // One model cuts a settlement on a full row, and the other ignores it.
        let is_grant = |event: &Event| matches!(event, Event::Granted { .. });
        let grants = |events: Vec<Event>| events.into_iter().filter(is_grant).collect::<Vec<_>>();
        prop_assert_eq!(grants(told.events), grants(events));
        prop_assert_eq!(told.balances.into_iter().flatten().map(Tokens::micros).collect::<Vec<_>>(), balances);
    }
}

/// A row that says what is left at an instant.
#[derive(Default)]
struct Left {
    row: Option<(i64, i64)>,
}

impl Left {
    fn read(&self, limit: &Limit, now: i64) -> (i64, i64) {
        let spec = limit.spec();
        let capacity = spec.capacity.unwrap().micros();
        let Some((left, ts)) = self.row else { return (capacity, terms_of(&limit.global()).full(at(now)).ts.micros()) };
        let (now, rate, period) = (now.max(ts), spec.rate.micros(), i64::try_from(spec.period.as_micros()).unwrap());
        let (gained, ts) = match spec.kind {
            LimitKind::TokenBucket => (rate * (now - ts) / period, now),
            LimitKind::SteppedBucket => (rate * ((now - ts) / period), ts + (now - ts) / period * period),
            _ => {
                let step = |now| terms_of(&limit.global()).full(at(now)).ts.micros();
                let steps = (step(now) - step(ts)) / period;
                (rate * steps, if steps > 0 { step(now) } else { ts })
            }
        };
        (capacity.min(left + gained), ts)
    }

    /// The events, and the balance after each step.
    fn tell(&mut self, limit: &Limit, story: &[(i64, Op)]) -> (Vec<Event>, Vec<i64>) {
        let spec = limit.spec();
        let capacity = spec.capacity.unwrap().micros();
        // Of each charge its cost, and the instants of the decision and of its end.
        let (mut now, mut id, mut open) = (1_000_i64, 0, Vec::<(usize, i64, i64, i64)>::new());
        let (mut events, mut balances) = (Vec::new(), Vec::new());
        for (gap, op) in story {
            now += gap;
            let (left, ts) = self.read(limit, now);
            let decided_at = self.row.map_or(now, |(_, ts)| ts.max(now));
            match *op {
                Op::Take { cost, reserving, .. } => {
                    let bound = if reserving { spec.max_reserved.micros() } else { 0 };
                    let cost = cost.min(capacity + bound);
                    if left - cost >= -bound && cost > 0 {
                        self.row = Some((left - cost, ts));
                        let ready_at = self.ready_at(limit, decided_at);
                        events.push(Event::Granted { id, which: 0, at: decided_at, cost });
                        open.push((id, cost, decided_at, ready_at));
                        id += 1;
                    }
                }
                Op::Credit { amount, .. } => {
                    let given = amount.min(capacity - left);
                    if given > 0 {
                        self.row = Some((left + given, ts));
                    }
                    events.push(Event::Back { of: None, amount: given });
                }
                Op::Debit { amount, .. } => {
                    self.row = Some((left - amount, ts));
                    events.push(Event::Back { of: None, amount: -amount });
                }
                Op::Settle { which, .. } | Op::Cancel { which } => {
                    let Some(which) = which.checked_rem(open.len()) else { continue };
                    let (of, cost, charged_at, ready_at) = open.swap_remove(which);
                    let is_late = matches!(op, Op::Cancel { .. }) && decided_at > ready_at;
                    let until = if ready_at > charged_at { ready_at - 1 } else { charged_at };
                    let row = self.row.filter(|(_, ts)| spec.kind != LimitKind::FixedWindow || *ts <= until);
                    // The next reader cuts it at the capacity.
                    if let (Some((left, ts)), false) = (row, is_late) {
                        self.row = Some((left + cost, ts));
                    }
                    let back = if row.is_some() && !is_late { cost } else { 0 };
                    events.push(Event::Back { of: Some(of), amount: back });
                }
                Op::Reset { .. } => {
                    self.row = self.row.map(|_| (capacity, terms_of(&limit.global()).full(at(decided_at)).ts.micros()));
                    events.push(Event::Back { of: None, amount: capacity - left });
                }
                Op::Sweep => {}
                Op::Back(span) => now -= span,
            }
            balances.push(self.read(limit, now).0);
        }
        (events, balances)
    }

    /// The first instant from one on at which the row is out of debt.
    fn ready_at(&self, limit: &Limit, now: i64) -> i64 {
        (now..now + 100_000).find(|now| self.read(limit, *now).0 >= 0).unwrap()
    }
}

/// A receipt is right under any definition: it says all that it needs.
#[test]
fn a_receipt_of_a_larger_definition_gives_back_under_a_smaller_one() {
    let [large, small] = [100, 10].map(|n| Limit::token_bucket("plan", n, DAY));
    let mut world = World::default();
    let taken = world.taken(Call::consume([large.global().cost(50)]), sec(0));
    assert_eq!(world.look(small.global(), sec(0)).remaining, tokens(-40));
    world.settled(Call::settle(receipt(&taken.charges), tokens(45)), sec(0)).unwrap();
    assert_eq!(world.look(small.global(), sec(0)).remaining, tokens(-35));
    world.settled(Call::settle(receipt(&taken.charges), tokens(5)), sec(0)).unwrap();
    assert_eq!(world.look(small.global(), sec(0)).remaining, tokens(10), "no more than is missing");
}
