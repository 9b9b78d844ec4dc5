//! Settlements, cancellations and lapses, against a world of the charges that were kept.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use tollgate::algebra::{List, Terms, Timestamp};
use tollgate::plan::{Answer, Call, CallName, Plan};
use tollgate::{
    CallError, DAY, Error, FitError, HOUR, Limit, LimitFault, LimitKind, LimitSpec, MINUTE, Receipt, Request, SECOND,
    Source, Tokens, first_of, split,
};

use crate::story::config;
use crate::world::{World, at, due, micros, sec, terms_of, tokens, used};

#[derive(Clone, Debug)]
enum Op {
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
enum Keeping {
    Plain,
    Lapses(u64),
    Tracked,
}

#[derive(Clone, Copy, Debug)]
enum Alter {
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
struct Span {
    /// Their instants.
    from: i64,
    to: i64,
    /// All that was granted and is kept of its charges.
    kept: i64,
    /// All that was granted, less the tokens that came back meanwhile.
    net: i64,
    /// Tokens that came back meanwhile from earlier charges, or by a credit or a reset.
    old: i64,
    /// The part of `old` that had been booked ahead.
    ahead: i64,
    /// Tokens that were meanwhile used beyond charges, or debited.
    beyond: i64,
    turns: i64,
}

/// A charge, and the part of it that is kept.
struct Charged {
    receipt: Option<Receipt>,
    name: Option<CallName>,
    cost: i64,
    kept: i64,
    /// Whether it was booked ahead.
    is_ahead: bool,
}

#[derive(Default)]
struct Told {
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
    fn spans(&self) -> Vec<Span> {
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

fn tell(limits: &[Limit], story: &[(i64, Op)]) -> Told {
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
                    _ if spec.kind == LimitKind::Concurrency => request,
                    Keeping::Plain => request,
                    Keeping::Lapses(span) => request.lapses_after(Duration::from_micros(*span)),
                    Keeping::Tracked => request.tracked_for(MINUTE),
                };
                let call = if *reserving { Call::reserve([request]) } else { Call::consume([request]) };
                if let Ok(Answer::Granted { decided_at, ready_at, receipt, .. }) = world.call(call, at(now))
                    && receipt.charges[0].cost > Tokens::ZERO
                {
                    told.is_written_by(which);
                    told.events.push(Event::Granted { charge: told.charged.len(), at: decided_at.micros() });
                    let cost = receipt.charges[0].cost.micros();
                    let name = world
                        .calls
                        .keys()
                        .find(|name| !told.charged.iter().any(|other| other.name.as_ref() == Some(name)));
                    let name = name.cloned();
                    let is_ahead = ready_at > decided_at;
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
                    Op::Settle { actual, .. } => Call::settle(receipt, micros(*actual)),
                    Op::Cancel { .. } => Call::cancel(receipt),
                    _ => {
                        world.call(Call::renew(&receipt), at(now)).ok();
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
                    Alter::Credit(amount) => Call::credit(request.clone().cost(micros(*amount))),
                    Alter::Debit(amount) => Call::debit(request.clone().cost(micros(*amount))),
                    Alter::Reset => Call::reset(request.clone()),
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
                    let settled = world.settled(Call::lapse(row), at(now)).unwrap();
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

fn stories(backward: bool, alters: bool) -> impl Strategy<Value = Vec<(i64, Op)>> {
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

fn limit(kind: LimitKind, rate: i64, period: u64, capacity: Option<i64>, max_reserved: i64, start: u64) -> Limit {
    let spec = LimitSpec::new("limit", kind, micros(rate), Duration::from_micros(period));
    let stands = matches!(kind, LimitKind::FixedWindow).then(|| Duration::from_micros(start));
    let spec = spec.with(|spec| (spec.capacity, spec.start) = (capacity.map(micros), stands));
    let counts = matches!(kind, LimitKind::SlidingWindow | LimitKind::Concurrency);
    spec.with(|spec| spec.max_reserved = if counts { Tokens::ZERO } else { micros(max_reserved) }).try_into().unwrap()
}

fn buckets() -> impl Strategy<Value = Limit> {
    let kind = prop_oneof![Just(LimitKind::TokenBucket), Just(LimitKind::SteppedBucket), Just(LimitKind::FixedWindow)];
    (kind, 1_i64..6, 1_u64..10, 1_i64..10, 0_i64..6, 0_u64..10)
        .prop_map(|(kind, rate, period, capacity, max, start)| limit(kind, rate, period, Some(capacity), max, start))
}

fn windows() -> impl Strategy<Value = Limit> {
    let kind = prop_oneof![Just(LimitKind::FixedWindow), Just(LimitKind::SlidingWindow)];
    (kind, 1_i64..9, 1_u64..10, 0_i64..6, 0_u64..10)
        .prop_map(|(kind, rate, period, max, start)| limit(kind, rate, period, None, max, start))
}

/// The tokens that may come back between two instants, each of which is the row's.
fn refilled(limit: &Limit, from: i64, to: i64) -> i64 {
    let spec = limit.spec();
    let (rate, period) = (spec.rate.micros(), i64::try_from(spec.period.as_micros()).unwrap());
    let length = (to - from).max(0);
    match spec.kind {
        LimitKind::TokenBucket => rate * length / period,
        LimitKind::FixedWindow => {
            let start = |at: i64| terms_of(&limit.global()).full(Timestamp::from_micros(at)).ts.micros();
            rate * ((start(to) - start(from)) / period).max(0)
        }
        LimitKind::SlidingWindow => rate * (length / period),
        // Steps of a row whose beginning is not known.
        _ => rate * ((length + period - 1) / period),
    }
}

/// The bound of a limit between the instants of two grants.
fn bound(limit: &Limit, from: i64, to: i64) -> i64 {
    room(limit) + refilled(limit, from, to)
}

/// The tokens that count beside the grants: those that were used beyond charges, from the row's instant on. A sliding
/// window forgives them after a period, however many they were.
fn counted_beyond(limit: &Limit, span: &Span) -> i64 {
    let period = i64::try_from(limit.spec().period.as_micros()).unwrap();
    let is_forgiven = limit.spec().kind == LimitKind::SlidingWindow && span.to - span.from >= period;
    if is_forgiven { 0 } else { span.beyond }
}

fn room(limit: &Limit) -> i64 {
    let spec = limit.spec();
    spec.capacity.unwrap().micros() + spec.max_reserved.micros()
}

proptest! {
    #![proptest_config(config())]

    /// The promise of windows: a call counts as the amount that it is settled at, netted with nothing, also where the
    /// clock goes back. Tokens that it used beyond its charge count from its settlement on. A charge that was booked
    /// ahead and is not ready comes back whole, with the part that windows that are over would have had of it.
    #[test]
    fn windows_are_exact_as_settled(
        limit in windows(),
        story in prop_oneof![stories(false, false), stories(true, false)],
    ) {
        for span in tell(std::slice::from_ref(&limit), &story).spans() {
            let Span { from, to, kept, ahead, .. } = span;
            if to < from && limit.spec().kind == LimitKind::SlidingWindow {
                continue;
            }
            let (bound, beyond) = (bound(&limit, from, to), counted_beyond(&limit, &span));
            prop_assert!(kept + beyond <= bound + ahead, "{kept}, {beyond} of {bound}, {ahead} from {from} to {to}");
        }
    }

    /// The promise of all kinds: the grants less the tokens that are handed back stay within the bound. So do the kept
    /// tokens, if the bound is raised by the tokens that came back from earlier charges, credits and resets. Tokens
    /// that are used beyond charges count, too.
    #[test]
    fn what_is_granted_less_what_is_handed_back_is_within_the_bound(
        limit in prop_oneof![buckets(), windows()],
        story in prop_oneof![stories(false, true), stories(true, true)],
    ) {
        for span in tell(std::slice::from_ref(&limit), &story).spans() {
            let Span { from, to, kept, net, old, .. } = span;
            if to < from && limit.spec().kind == LimitKind::SlidingWindow {
                continue;
            }
            let (bound, beyond) = (bound(&limit, from, to), counted_beyond(&limit, &span));
            prop_assert!(net + beyond <= bound, "{net} and {beyond} of {bound} from {from} to {to}");
            prop_assert!(kept + beyond <= bound + old, "{kept}, {beyond} of {bound} and {old} from {from} to {to}");
        }
    }

    /// Two definitions of any kinds take turns in one row, with receipts of both. At one instant nothing refills. So
    /// their grants, less the tokens that come back and with those used beyond charges, are within the larger capacity.
    #[test]
    fn two_kinds_of_limits_in_one_row_grant_no_more_than_the_larger_one(
        kinds in (0_usize..5, 0_usize..5),
        numbers in (1_i64..9, 1_i64..9, 1_u64..10, 1_u64..10),
        story in stories(false, true),
    ) {
        let kinds = [kinds.0, kinds.1].map(|kind| KINDS[kind]);
        let limits = [(kinds[0], numbers.0, numbers.2), (kinds[1], numbers.1, numbers.3)]
            .map(|(kind, n, period)| limit(kind, n, period, None, 0, 0));
        // Each step lies at the instant of the story, so nobody refills from the start of a step.
        let aligned = limits.clone().map(|limit| match limit.spec() {
            spec if spec.kind == LimitKind::FixedWindow => {
                let start = Duration::from_micros(1_000 % u64::try_from(spec.period.as_micros()).unwrap());
                spec.with(|spec| spec.start = Some(start)).try_into().unwrap()
            }
            _ => limit,
        });
        let at_once: Vec<_> = story.iter().map(|(_, op)| (0, op.clone())).collect();
        let most = limits.iter().map(room).max().unwrap();
        // A row that was reset has no list, so the smaller of two sliding windows finds nothing spent of it. It writes
        // a list without the tokens that were used of the row beyond a charge.
        let is_lost = kinds == [LimitKind::SlidingWindow; 2]
            && story.iter().any(|(_, op)| matches!(op, Op::Alter { how: Alter::Reset, .. }));
        for Span { net, beyond, .. } in tell(&aligned, &at_once).spans() {
            let beyond = if is_lost { 0 } else { beyond };
            prop_assert!(net + beyond <= most, "{net} and {beyond} of {most} in an instant");
        }
        // In time each microsecond refills by one of the two: by the one that takes the row across it. Entries of a
        // list leave by either, and the shorter period shortens those of the longer one.
        let per_period = |n: i64, period: u64, length: i64| n * length / i64::try_from(period).unwrap();
        let counts = |kind| matches!(kind, LimitKind::SlidingWindow | LimitKind::Concurrency);
        let refilled = |length| {
            if kinds[0] == kinds[1] && counts(kinds[0]) {
                per_period(most, numbers.2.min(numbers.3), length)
            } else {
                per_period(numbers.0, numbers.2, length).max(per_period(numbers.1, numbers.3, length))
            }
        };
        // A row of steps stands up to a period before its grant, and a step may lie right behind the instant at which
        // the other definition left the row. So the span, and each turn in it, begins up to a period earlier. A limit
        // that counts forgives, after its period, the tokens that were used beyond charges.
        let stands_early = |kind| matches!(kind, LimitKind::SteppedBucket | LimitKind::FixedWindow);
        let periods = [(kinds[0], numbers.2), (kinds[1], numbers.3)].into_iter();
        let early = periods.filter(|(kind, _)| stands_early(*kind)).map(|(_, period)| period).max().unwrap_or(0);
        for Span { from, to, net, beyond, turns, .. } in tell(&limits, &story).spans() {
            let beyond = if kinds.into_iter().any(counts) { 0 } else { beyond };
            let bound = most + refilled(to - from + i64::try_from(early).unwrap() * (1 + turns));
            prop_assert!(net + beyond <= bound, "{net}, {beyond} of {bound} from {from} to {to} in {turns} turns");
        }
    }

    /// In any order each charge of a request comes to at most its cost, but for the last one.
    #[test]
    fn a_request_of_several_rows_is_settled_as_one(cost in 1_i64..40, actual in 0_i64..60, spent in vec(0_i64..10, 4)) {
        let limit = limit(LimitKind::TokenBucket, 40, 1_000_000, None, 0, 0).spec().with(|spec| spec.shards = 4);
        let limit = Limit::try_from(limit).unwrap();
        let mut world = World::default();
        world.call(Call::debit(limit.global().cost(micros(spent.iter().sum()))), at(0)).unwrap();
        let before = world.look(limit.global(), at(0)).remaining.micros();
        prop_assume!(before > 0);
        let cost = cost.min(before);
        let receipt = world.taken(Call::consume([limit.global().cost(micros(cost))]), at(0));
        prop_assert_eq!(receipt.by_request().count(), 1);
        let settled = world.settled(Call::settle(receipt, micros(actual)), at(0)).unwrap();
        let kept: i64 = settled.charges.iter().map(|charge| charge.cost.micros()).sum();
        prop_assert_eq!(kept, actual);
        prop_assert_eq!(world.look(limit.global(), at(0)).remaining.micros(), before - actual);
    }

    #[test]
    fn a_list_comes_back_from_its_column(column in vec(-3_i64..9, 0..9)) {
        if let Some(list) = List::from_column(&column) {
            prop_assert!(list.entries().is_sorted_by_key(|entry| entry.ends_at));
            prop_assert_eq!(list.to_column(), Some(column));
        }
    }
}

const KINDS: [LimitKind; 5] = [
    LimitKind::TokenBucket,
    LimitKind::SteppedBucket,
    LimitKind::FixedWindow,
    LimitKind::SlidingWindow,
    LimitKind::Concurrency,
];

const ORG: Limit = Limit::fixed_window("org", 100, DAY).start(Duration::ZERO);
const USER: Limit = Limit::token_bucket("user", 10, MINUTE);
const WALLET: Limit = Limit::wallet("wallet").overdraft(5);

fn take(world: &mut World, request: Request, now: Timestamp) -> Receipt {
    world.taken(Call::consume([request]), now)
}

fn left(world: &World, limit: &Limit, now: Timestamp) -> Tokens {
    world.look(limit.global(), now).remaining
}

/// Takes all that is left under a definition; how much that was.
fn drain(world: &mut World, limit: &Limit, now: Timestamp) -> i64 {
    let left = left(world, limit, now).micros();
    if left <= 0 {
        0
    } else {
        world.granted(limit.global().cost(micros(left)), now);
        left / 1_000_000
    }
}

#[test]
fn a_bucket_and_a_window_that_take_turns_grant_what_one_of_them_holds() {
    let (window, bucket) = (Limit::sliding_window("x", 100, MINUTE), Limit::token_bucket("x", 100, MINUTE));
    let (mut world, mut granted) = (World::default(), 0);
    for _ in 0..200 {
        if left(&world, &window, sec(0)) >= tokens(1) {
            world.granted(window.global(), sec(0));
            granted += 1;
        }
        let most = left(&world, &bucket, sec(0)).micros() / 1_000_000 - 1;
        if most > 0 {
            world.granted(bucket.global().cost(most), sec(0));
            granted += most;
        }
    }
    assert_eq!(granted, 100);
}

#[test]
fn receipts_of_another_kind_fill_no_bucket() {
    let (window, bucket) = (Limit::sliding_window("x", 100, MINUTE), Limit::token_bucket("x", 100, MINUTE));
    let leases = Limit::concurrency("x", 100, MINUTE);
    for old in [window, leases] {
        let mut world = World::default();
        let receipts: Vec<_> = (0..50).map(|_| take(&mut world, old.global().cost(2), sec(0))).collect();
        let mut granted = 0;
        for receipt in receipts {
            if old.lease().is_some() {
                // The first lease lasts from now on, and none that the bucket no longer lists.
                let renewed = world.call(Call::renew(&receipt), sec(0));
                assert_eq!(renewed.is_ok(), granted == 0, "{renewed:?}");
                assert_eq!(drain(&mut world, &bucket, sec(0)), 0);
            }
            let call = if old.lease().is_some() { Call::release(&receipt) } else { Call::settle(receipt, tokens(1)) };
            world.call(call, sec(0)).ok();
            granted += drain(&mut world, &bucket, sec(0));
        }
        assert!(granted <= 2, "{granted} beyond 100, of which at most a lease came back");
    }
}

#[test]
fn old_receipts_refill_nothing_under_a_lowered_rate() {
    let old = Limit::token_bucket("x", 1_000, SECOND).capacity(100);
    let new = Limit::token_bucket("x", 1, HOUR).capacity(100);
    let mut world = World::default();
    let receipts: Vec<_> = (0..5).map(|_| take(&mut world, old.global().cost(2), sec(0))).collect();
    let _ = take(&mut world, old.global().cost(90), sec(0));
    let mut granted = 0;
    for (receipt, now) in receipts.into_iter().zip(1..) {
        world.settled(Call::settle(receipt, tokens(1)), at(now * 20_000)).unwrap();
        granted += drain(&mut world, &new, at(now * 20_000));
    }
    assert_eq!(granted, 5, "what came back, and no more");
}

#[test]
fn old_receipts_of_a_window_that_is_longer_by_now_give_back_once() {
    let (old, new) = (Limit::sliding_window("x", 10, SECOND), Limit::sliding_window("x", 10, MINUTE));
    let (mut world, mut granted) = (World::default(), 0);
    let receipts: Vec<_> = (0..10).map(|_| take(&mut world, old.global(), sec(0))).collect();
    for (receipt, now) in receipts.into_iter().zip(0..) {
        world.settled(Call::settle(receipt, tokens(0)), sec(now * 6)).unwrap();
        granted += drain(&mut world, &new, sec(now * 6));
    }
    assert!(granted <= 11, "{granted} of 10 in a minute, and what came back in the first second");
}

#[test]
fn a_drained_bucket_that_becomes_a_window_is_forgiven_nothing() {
    let (bucket, window) = (Limit::token_bucket("x", 10, DAY), Limit::sliding_window("x", 10, MINUTE));
    let mut world = World::default();
    let receipt = take(&mut world, bucket.global().cost(1).tracked_for(DAY), sec(0));
    let _ = take(&mut world, bucket.global().cost(9), sec(0));
    assert_eq!(left(&world, &window, sec(59)), tokens(0));
    world.settled(Call::settle(receipt, tokens(0)), sec(59)).unwrap();
    assert_eq!(left(&world, &window, sec(59)), tokens(1));
}

#[test]
fn a_shorter_window_counts_at_once_for_charges_that_are_tracked() {
    let (hour, minute) = (Limit::sliding_window("x", 10, HOUR), Limit::sliding_window("x", 10, MINUTE));
    let mut world = World::default();
    let _ = take(&mut world, hour.global().cost(10).tracked_for(HOUR), sec(0));
    assert_eq!(due(world.denied(minute.global(), sec(1)).retry_at), sec(60));
}

#[test]
fn a_window_takes_back_only_what_the_window_that_runs_was_charged() {
    let day = Limit::fixed_window("day", 1, DAY).start(Duration::ZERO);
    let (mut world, tomorrow) = (World::default(), sec(86_400));
    let first = take(&mut world, day.global(), sec(0));
    world.settled(Call::settle(first, tokens(0)), sec(0)).unwrap();
    let second = take(&mut world, day.global(), sec(0));
    let _ = take(&mut world, day.global(), tomorrow);
    // The clock went back, so by the clock the window of the charge runs again; by the row it does not.
    let settled = world.settled(Call::settle(second, tokens(0)), sec(1)).unwrap();
    assert_eq!(settled.charges[0].cost, tokens(1), "it counts as charged");
    world.denied(day.global(), sec(1));
}

#[test]
fn what_is_booked_ahead_can_be_cancelled_until_it_is_ready_and_not_later() {
    let day = Limit::fixed_window("day", 1, DAY).start(Duration::ZERO).max_reserved(7);
    let mut world = World::default();
    let _ = take(&mut world, day.global(), sec(0));
    let plain = world.taken(Call::reserve([day.global().cost(3)]), sec(10));
    let lapsing = world.taken(Call::reserve([day.global().lapses_after(HOUR)]), sec(10));
    assert_eq!(Timestamp::from(lapsing.charges[0].ready_at()), sec(4 * 86_400));
    world.settled(Call::cancel(plain), sec(2 * 86_400 + 5)).unwrap();
    let late = sec(4 * 86_400 + 5);
    let error = world.settled(Call::cancel(lapsing.clone()), late).unwrap_err();
    assert!(matches!(error, Error::TooLateToCancel { .. }), "{error}");
    assert_eq!(world.calls.len(), 1, "it lapses as if nobody had asked");
    world.settled(Call::settle(lapsing, tokens(1)), late).unwrap();
    assert!(world.calls.is_empty());
}

/// So a simulation, which knows when each call ends, needs no stored calls.
#[test]
fn a_lapse_is_a_settlement_at_nothing_at_its_instant() {
    let limits = [
        Limit::token_bucket("bucket", 40, MINUTE),
        Limit::token_bucket("spread", 40, MINUTE).shards(4),
        Limit::stepped_bucket("steps", 40, MINUTE),
        Limit::fixed_window("window", 40, MINUTE),
        Limit::sliding_window("sliding", 40, MINUTE),
        Limit::wallet("wallet").overdraft(40),
    ];
    for limit in limits {
        let request = || limit.key("k").cost(9);
        let [mut lapsed, mut settled] = [World::default(), World::default()];
        let _ = take(&mut lapsed, request().lapses_after(10 * SECOND), sec(0));
        let receipt = take(&mut settled, request(), sec(0));
        for world in [&mut lapsed, &mut settled] {
            let _ = take(world, request(), sec(5));
        }
        assert_ne!(lapsed, settled);
        lapsed.reap(sec(10));
        settled.settled(Call::settle(receipt, tokens(0)), sec(10)).unwrap();
        assert_eq!(lapsed, settled);
    }
}

#[test]
fn a_call_over_three_levels_is_settled_once_or_lapses_whole() {
    let team = Limit::token_bucket("team", 50, MINUTE);
    let mut world = World::default();
    let levels = || [ORG.global().cost(8).lapses_after(MINUTE), team.global().cost(8), USER.global().cost(8)];
    let values = |world: &World, now| [&ORG, &team, &USER].map(|limit| left(world, limit, now));
    let full = values(&world, sec(0));
    let receipt = world.taken(Call::consume(levels()), sec(0));
    assert_eq!(receipt.lapses_at().map(Timestamp::from), Some(sec(60)));
    world.settled(Call::settle(receipt.clone(), tokens(3)), sec(0)).unwrap();
    assert_eq!(values(&world, sec(0)), full.map(|full| full.checked_sub(tokens(3)).unwrap()));
    let used = |world: &mut World, now| world.settled(Call::settle(receipt.clone(), tokens(0)), now).unwrap_err();
    assert!(matches!(used(&mut world, sec(1)), Error::ReceiptUsed { .. }));
    assert!(matches!(used(&mut world, sec(60)), Error::Lapsed { .. }));
    // Nobody settles: the charge comes back when it is due, but for the tokens that were reported. A row that is
    // missing gets nothing.
    let receipt = world.taken(Call::consume(levels()), sec(120));
    world.calls.values_mut().for_each(|row| row.reported = tokens(2));
    world.reap(at(179_999_999));
    assert_eq!(world.calls.len(), 1);
    world.delete(&team.global());
    world.reap(sec(180));
    assert!(world.calls.is_empty());
    assert_eq!(left(&world, &ORG, sec(180)), tokens(95));
    assert!(matches!(world.settled(Call::settle(receipt, tokens(2)), sec(180)), Err(Error::Lapsed { .. })));
}

#[test]
fn one_cost_is_for_requests_that_are_counted_and_each_can_have_its_own() {
    let mut world = World::default();
    let requests = || [ORG.global().cost(1).flat(), USER.global().cost(8)];
    let receipt = world.taken(Call::consume(requests()), sec(0));
    world.settled(Call::settle(receipt, tokens(2)), sec(0)).unwrap();
    assert_eq!([&ORG, &USER].map(|limit| left(&world, limit, sec(0))), [tokens(99), tokens(8)]);
    let receipt = world.taken(Call::consume(requests()), sec(0));
    let error = world.settled(Call::settle_each(receipt.clone(), &[tokens(0)]), sec(0)).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::CostsMissing { costs: 1, requests: 2 }, .. }), "{error}");
    world.settled(Call::settle_each(receipt, &[tokens(0), tokens(9)]), sec(0)).unwrap();
    assert_eq!([&ORG, &USER].map(|limit| left(&world, limit, sec(0))), [tokens(99), tokens(-1)]);
}

#[test]
fn a_call_with_an_id_is_carried_out_once() {
    let mut world = World::default();
    let ask = |cost| Call::consume([ORG.global().cost(cost), USER.global().once("job 7")]);
    let receipt = world.taken(ask(8), sec(0));
    let Ok(Answer::Granted { source, receipt: again, .. }) = world.call(ask(8), sec(1)) else { panic!("granted") };
    assert_eq!((source, &again), (Source::Repeated, &receipt));
    let other = world.call(ask(9), sec(1)).unwrap_err();
    assert!(matches!(&other, Error::OnceMismatch { limit } if limit == "user"), "{other}");
    // Used, it still answers; and the receipt is good once.
    world.settled(Call::settle_each(again, &[tokens(8), tokens(1)]), sec(2)).unwrap();
    let Ok(Answer::Granted { source, receipt, .. }) = world.call(ask(8), sec(3)) else { panic!("granted") };
    assert_eq!(source, Source::Repeated);
    assert!(matches!(world.settled(Call::cancel(receipt), sec(3)), Err(Error::ReceiptUsed { .. })));
    let kept: Vec<_> = world.calls.values().map(|row| (row.name.id(), row.kept_until, row.lapses_at)).collect();
    assert_eq!(kept, [("job 7", sec(86_400), None)]);
    assert_eq!(left(&world, &ORG, sec(3)), tokens(92));
    // In one batch, too.
    let answers = world.batch([0, 1].map(|_| Call::consume([ORG.key(1).once("new")])), sec(4)).unwrap();
    let sources = answers.iter().map(|answer| match answer {
        Ok(Answer::Granted { source, .. }) => *source,
        other => panic!("{other:?}"),
    });
    assert_eq!(sources.collect::<Vec<_>>(), [Source::Database, Source::Repeated]);
    assert_eq!(world.look(ORG.key(1), sec(4)).remaining, tokens(99));
}

#[test]
fn an_id_is_good_for_one_call_and_each_other_one_is_an_error() {
    let team = Limit::token_bucket("team", 50, MINUTE);
    let user = || USER.global().once("job 7");
    let lapsing = || user().lapses_after(HOUR);
    let mut world = World::default();
    let receipt = world.taken(Call::consume([ORG.global().cost(8), lapsing()]), sec(0));
    let again = world.taken(Call::consume([lapsing(), ORG.global().cost(8)]), sec(1));
    assert_eq!(again, receipt, "in whatever order");
    let before = world.clone();
    for other in [
        Call::consume([team.global().cost(8), lapsing()]),
        Call::consume([ORG.key("k").cost(8), lapsing()]),
        Call::consume([ORG.global().cost(8), user().lapses_after(MINUTE)]),
        Call::consume([ORG.global().cost(8), user().tracked_for(HOUR)]),
        Call::consume([ORG.global().cost(8), user()]),
        Call::consume([ORG.global().cost(8).flat(), lapsing()]),
        Call::consume([ORG.global().cost(8), lapsing().flat()]),
        Call::consume([lapsing()]),
        Call::reserve([ORG.global().cost(8), lapsing()]),
        Call::credit(user()),
    ] {
        let what = format!("{other:?}");
        let error = world.call(other, sec(1)).unwrap_err();
        assert!(matches!(&error, Error::OnceMismatch { limit } if limit == "user"), "{error} {what}");
    }
    assert!(world == before);
    // An id is of a limit and a key.
    let _ = world.taken(Call::consume([ORG.global().cost(8), USER.key("k").once("job 7")]), sec(1));
    assert_eq!(left(&world, &ORG, sec(1)), tokens(84));
}

#[test]
fn a_debit_with_an_id_is_taken_once() {
    let mut world = World::default();
    let fee = |amount| WALLET.global().cost(amount).once("fee");
    world.balance(Call::credit(WALLET.global().cost(20)), sec(0));
    let first = world.balance(Call::debit(fee(3)), sec(0));
    assert_eq!((first.remaining, first.source), (tokens(17), Source::Database));
    let before = world.clone();
    let again = world.balance(Call::debit(fee(3)), sec(1));
    assert_eq!((again.remaining, again.source), (tokens(17), Source::Repeated));
    for other in [Call::debit(fee(4)), Call::credit(fee(3)), Call::consume([fee(3)])] {
        assert!(matches!(world.call(other, sec(1)), Err(Error::OnceMismatch { .. })));
    }
    assert!(world == before);
}

#[test]
fn a_lease_that_is_asked_again_is_the_same_lease_until_it_is_over() {
    let renders = Limit::concurrency("renders", 2, MINUTE);
    let mut world = World::default();
    let ask = || Call::consume([renders.global().once("film")]);
    let receipt = world.taken(ask(), sec(0));
    world.call(Call::renew(&receipt), sec(30)).unwrap();
    let again = world.taken(ask(), sec(31));
    assert_eq!(again.charges[0].lease_ends_at().map(Timestamp::from), Some(sec(90)));
    world.call(Call::release(&again), sec(32)).unwrap();
    assert!(matches!(world.call(ask(), sec(33)), Err(Error::ReceiptUsed { .. })));
}

#[test]
fn a_wallet_is_credited_once_for_each_payment_and_never_cut() {
    let mut world = World::default();
    let pay = |id| Call::credit(WALLET.global().cost(20).once(id));
    assert_eq!(world.balance(pay("p1"), sec(0)).remaining, tokens(20));
    let again = world.balance(pay("p1"), sec(1));
    assert_eq!((again.remaining, again.source, again.full_at), (tokens(20), Source::Repeated, None));
    let receipt = take(&mut world, WALLET.global().cost(25), sec(1));
    let denied = world.denied(WALLET.global(), sec(1));
    assert_eq!((denied.retry_at, denied.retry_after()), (None, None));
    assert_eq!(denied.to_string(), r#"limit "wallet" exhausted (only a credit fills it)"#);
    world.settled(Call::settle(receipt, tokens(20)), sec(9)).unwrap();
    assert_eq!(left(&world, &WALLET, sec(9_999)), tokens(0), "time brings nothing");
    // At rest it is swept, and tokens that come back later are there again.
    world.balance(pay("p2"), sec(10));
    let receipt = take(&mut world, WALLET.global().cost(20).lapses_after(MINUTE), sec(10));
    world.sweep(sec(11));
    assert_eq!(world.state(&WALLET.global()), None);
    world.reap(sec(70));
    assert_eq!(left(&world, &WALLET, sec(70)), tokens(20));
    assert!(matches!(world.settled(Call::settle(receipt, tokens(0)), sec(70)), Err(Error::Lapsed { .. })));
    // An amount that does not fit is an error, and stays owed.
    let receipt = take(&mut world, WALLET.global().cost(20).tracked_for(DAY), sec(71));
    world.balance(Call::credit(WALLET.global().cost(Tokens::MAX)), sec(71));
    for (call, now) in [(Call::credit(WALLET.global()), 71), (Call::settle(receipt, tokens(0)), 72)] {
        let before = world.state(&WALLET.global());
        assert!(matches!(world.call(call, sec(now)), Err(Error::DoesNotFit { source: FitError::BalanceTooLarge, .. })));
        assert_eq!(world.state(&WALLET.global()), before);
    }
}

#[test]
fn a_settlement_whose_debt_no_row_can_hold_changes_nothing() {
    let limit = Limit::token_bucket("ten", 10, Limit::MAX_PERIOD);
    let mut world = World::default();
    let [first, _] = [0, 1].map(|now| world.taken(Call::consume([limit.global()]), sec(now)));
    let deep = world.call(Call::settle(first, Tokens::MAX), sec(2));
    assert!(matches!(deep, Err(Error::DoesNotFit { source: FitError::DebtTooDeep, .. })), "{deep:?}");
    assert_eq!(world.look(limit.global(), sec(2)).remaining, tokens(8));
}

#[test]
fn what_is_cancelled_comes_back_to_a_wallet_that_was_swept() {
    let user = USER.spec().with(|spec| spec.max_reserved = tokens(10));
    let user = Limit::try_from(user).unwrap();
    for keep in [|request: Request| request, |request: Request| request.tracked_for(DAY)] {
        let mut world = World::default();
        world.balance(Call::credit(WALLET.global().cost(20)), sec(0));
        // Ready in a minute; the wallet is at rest meanwhile.
        let receipt = world.taken(Call::reserve([user.global().cost(20), keep(WALLET.global().cost(20))]), sec(0));
        world.sweep(sec(30));
        assert_eq!(world.state(&WALLET.global()), None);
        let cancelled = world.settled(Call::cancel(receipt), sec(30)).unwrap();
        assert_eq!(cancelled.charges.iter().map(|charge| charge.cost).collect::<Vec<_>>(), [tokens(0); 2]);
        assert_eq!(left(&world, &WALLET, sec(30)), tokens(20));
        world.sweep(sec(9_999));
        assert_eq!(left(&world, &WALLET, sec(9_999)), tokens(20), "no money is swept");
    }
}

#[test]
fn money_is_read_by_no_other_kind_and_the_reverse() {
    let bucket = Limit::token_bucket("wallet", 10, MINUTE);
    for (first, second) in [(&WALLET, &bucket), (&bucket, &WALLET)] {
        let mut world = World::default();
        let receipt = take(&mut world, first.global(), sec(0));
        for call in [Call::consume, Call::reserve] {
            assert!(matches!(
                world.call(call(vec![second.global()]), sec(0)),
                Err(Error::DoesNotFit { source: FitError::MixedMoney, .. })
            ));
        }
        for call in [Call::credit, Call::debit, Call::reset, Call::look] {
            assert!(matches!(
                world.call(call(second.global()), sec(0)),
                Err(Error::DoesNotFit { source: FitError::MixedMoney, .. })
            ));
        }
        let state = world.state(&first.global()).unwrap();
        world.delete(&first.global());
        let _ = take(&mut world, second.global(), sec(0));
        let settle = |receipt: Receipt| Call::settle(receipt, tokens(0));
        for call in [settle as fn(_) -> _, Call::cancel] {
            // A cancellation that is too late is a fault there, too.
            for now in [sec(0), sec(3)] {
                assert!(matches!(
                    world.settled(call(receipt.clone()), now),
                    Err(Error::DoesNotFit { source: FitError::MixedMoney, .. })
                ));
            }
        }
        assert!(Terms::of(second, &tollgate::Key::GLOBAL).full_at(&state) >= sec(0));
    }
}

#[test]
fn what_was_used_beyond_a_charge_delays_the_sweep_and_counts_on_a_missing_row() {
    let mut world = World::default();
    let receipts = [0, 0, 395].map(|now| take(&mut world, USER.global(), sec(now)));
    let [first, second, third] = receipts;
    world.settled(Call::settle(first, tokens(6)), sec(396)).unwrap();
    world.sweep(sec(426));
    assert!(world.state(&USER.global()).is_some(), "six of ten a minute take 36 seconds");
    world.sweep(sec(800));
    let settled = world.settled(Call::settle(second, tokens(6)), sec(800)).unwrap();
    assert_eq!((world.state(&USER.global()), settled.charges[0].cost), (Some(used(5, sec(800), sec(860))), tokens(6)));
    world.settled(Call::settle(third, tokens(3)), sec(801)).unwrap();
    assert_eq!([800, 830].map(|now| left(&world, &USER, sec(now))), [tokens(3), tokens(8)], "from its settlement on");
}

#[test]
fn what_was_used_beyond_a_charge_of_another_kind_lowers_the_row_and_drops_its_list() {
    let (window, bucket) = (Limit::sliding_window("x", 10, MINUTE), Limit::token_bucket("x", 10, MINUTE));
    let leases = Limit::concurrency("x", 10, MINUTE);
    for (old, new) in [(&window, &leases), (&bucket, &window), (&bucket, &leases)] {
        let mut world = World::default();
        let receipt = take(&mut world, old.global(), sec(0));
        let lease = take(&mut world, new.global().cost(2), sec(0));
        assert_eq!(world.state(&new.global()).unwrap().value, tokens(-3));
        world.settled(Call::settle(receipt, tokens(4)), sec(5)).unwrap();
        // The row is read as of its own instant: five seconds bring a bucket nothing more.
        assert_eq!(world.state(&new.global()).unwrap(), used(6, sec(0), world.state(&new.global()).unwrap().full_at));
        assert_eq!([&window, &leases].map(|limit| left(&world, limit, sec(5))), [tokens(4); 2]);
        let full_at = world.state(&new.global()).unwrap().full_at;
        if old.spec().kind != LimitKind::TokenBucket || new.lease().is_some() {
            assert_eq!(left(&world, new, at(full_at.micros() - 1)), tokens(4));
        }
        assert_eq!(left(&world, new, full_at), tokens(10));
        if new.lease().is_some() {
            assert!(matches!(world.call(Call::release(&lease), sec(5)), Err(Error::ReceiptUsed { .. })));
        }
    }
}

#[test]
fn what_cannot_be_stored_is_an_error_before_anything_is_taken() {
    let longest = Duration::from_hours(1_000 * 365 * 24);
    let long = longest + Duration::from_micros(1);
    // The longest there is: ids are measured in bytes, and an é has two.
    for kept in [
        USER.global().lapses_after(longest),
        USER.global().tracked_for(longest),
        USER.global().once_for(1, longest),
        USER.global().once("i".repeat(255)),
        USER.global().once(format!("i{}", "é".repeat(127))),
    ] {
        let _ = take(&mut World::default(), kept, sec(0));
    }
    for (call, expected) in [
        (Call::consume([USER.global().once("")]), CallError::IdEmpty),
        (Call::consume([USER.global().once("i".repeat(256))]), CallError::IdTooLong),
        (Call::consume([USER.global().once("é".repeat(128))]), CallError::IdTooLong),
        (Call::consume([USER.global().lapses_after(long)]), CallError::SpanTooLong),
        (Call::consume([USER.global().once_for(1, long)]), CallError::SpanTooLong),
        (Call::credit(USER.global().once_for(1, long)), CallError::SpanTooLong),
        (Call::consume([USER.global().once("\0")]), CallError::IdNul),
        (Call::consume([ORG.global().once(1), USER.global().once(1)]), CallError::TwoIds),
        (Call::consume([USER.global().lapses_after(Duration::ZERO)]), CallError::SpanZero),
        (Call::consume([USER.global().tracked_for(long)]), CallError::SpanTooLong),
        (Call::consume([USER.global().once_for(1, Duration::from_nanos(1))]), CallError::SpanNotWholeMicros),
        (Call::consume([ORG.global().lapses_after(HOUR), USER.global().lapses_after(DAY)]), CallError::SpansDiffer),
        (Call::consume([USER.global(), USER.global().flat()]), CallError::FlatDiffers),
        (Call::credit(USER.global().lapses_after(HOUR)), CallError::WithoutReceipt),
    ] {
        let error = World::default().call(call, sec(0)).unwrap_err();
        assert!(matches!(&error, Error::Call { source, .. } if *source == expected), "{error} {expected}");
        assert!(error.is_bad_input());
    }
    for (spec, fault) in [
        (WALLET.spec().with(|spec| spec.rate = tokens(1)), LimitFault::WalletWithMore),
        (WALLET.spec().with(|spec| spec.shards = 2), LimitFault::WalletWithMore),
        (WALLET.spec().with(|spec| spec.storage = tollgate::Storage::Ephemeral), LimitFault::EphemeralWallet),
        (WALLET.spec().with(|spec| spec.max_reserved = tokens(-1)), LimitFault::NegativeMaxReserved),
    ] {
        assert_eq!(Limit::try_from(spec).unwrap_err().fault, fault);
    }
    let text = r#"{ "name": "wallet", "kind": "wallet", "overdraft": 5 }"#;
    assert_eq!(serde_json::from_str::<Limit>(text).unwrap(), WALLET);
}

#[test]
fn names_are_locked_in_order_and_only_drawn_ones_need_no_reading() {
    let calls = [
        Call::consume([USER.global().lapses_after(HOUR)]).with_id(7),
        Call::consume([ORG.key(1).once("b")]),
        Call::consume([ORG.key(1).cost(2)]),
        Call::credit(ORG.key(1).once("a")),
    ];
    assert_eq!(calls.each_ref().map(Call::needs_id), [true, false, false, false]);
    let plan = Plan::new(calls).unwrap();
    let names: Vec<_> = plan.names().iter().map(|name| (name.name(), name.id())).collect();
    assert_eq!(names, [("org", "a"), ("org", "b"), ("user", "00000000000000000000000000000007")]);
    assert_eq!(plan.asked_names(), [0, 1]);
}

/// Stored by every release: fields that are not set are left out, and unknown fields are read over.
#[test]
fn receipts_and_charges_are_written_the_same_in_every_release() {
    let mut world = World::default();
    let shards = Limit::token_bucket("shards", 4, SECOND).shards(2);
    let leases = Limit::concurrency("leases", 4, SECOND);
    let sliding = Limit::sliding_window("sliding", 4, SECOND).ephemeral();
    let requests = [
        shards.key("k").cost(3).lapses_after(SECOND),
        ORG.global().flat(),
        leases.global(),
        sliding.global(),
        WALLET.global(),
    ];
    let receipt = world.taken(Call::consume(requests), sec(1));
    let charge = |limit: &str, more: serde_json::Value| {
        let mut charge = json!({ "limit": limit, "key": "", "cost": 1, "ready_at": 1_000_000 });
        charge.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        charge
    };
    let refill = json!({ "refill": 4, "period": 1_000_000 });
    let with = |more: serde_json::Value| {
        let mut all = refill.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let id = "00000000000000000000000000000001";
    let expected = json!({
        "charges": [
            charge("shards", json!({ "key": "k", "cost": 2, "refill": 2, "period": 1_000_000 })),
            charge("shards", json!({ "key": "k", "shard": 1, "before": 2, "refill": 2, "period": 1_000_000 })),
            charge("org", json!({ "flat": true, "kind": "window", "refill": 100, "period": 86_400_000_000_i64 })),
            charge("leases", with(json!({ "kind": "lease", "until": 2_000_000, "lease": id }))),
            charge("sliding", with(json!({ "kind": "sliding", "until": 2_000_000, "storage": "ephemeral" }))),
            charge("wallet", json!({ "kind": "wallet" })),
        ],
        "call": { "limit": "sliding", "key": "", "id": id },
        "lapses_at": 2_000_000,
    });
    let written = serde_json::to_value(&receipt).unwrap();
    assert_eq!(written, expected);
    let row = world.calls.values().next().unwrap();
    assert_eq!(serde_json::to_value(&row.charges).unwrap(), expected["charges"], "one encoding");
    let mut later = expected;
    later["new"] = json!(1);
    later["charges"][0]["new"] = json!({});
    assert_eq!(serde_json::from_value::<Receipt>(later.clone()).unwrap(), receipt);
    // This release does not settle a receipt of a version that it does not understand.
    later["charges"][0]["version"] = json!(1);
    let newer: Receipt = serde_json::from_value(later).unwrap();
    assert!(matches!(
        world.settled(Call::cancel(newer), sec(1)),
        Err(Error::Call { source: CallError::CorruptReceipt, .. })
    ));
}

/// Each row of a settlement is inserted if one is a wallet's: an empty wallet, and any other row full under every
/// definition. A wallet whose call was unlimited counts as one, too.
#[test]
fn a_settlement_inserts_rows_that_mean_the_same_as_missing_ones() {
    let charge = |limit, more: serde_json::Value| {
        let mut charge = json!({ "limit": limit, "key": "", "cost": 1, "ready_at": 0 });
        charge.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        charge
    };
    let charges = [
        charge("bucket", json!({ "refill": 1, "period": 60 })),
        charge("free", json!({ "kind": "free", "period": 60 })),
        charge("free_wallet", json!({ "kind": "free" })),
        charge("wallet", json!({ "kind": "wallet" })),
    ];
    let receipt: Receipt = serde_json::from_value(json!({ "charges": charges })).unwrap();
    let plan = Plan::new([Call::settle(receipt, tokens(0))]).unwrap();
    assert!(plan.inserts());
}

/// A receipt is no credential: it comes back from outside.
#[test]
fn a_receipt_that_no_release_has_written_is_an_error_with_a_name() {
    let mut world = World::default();
    let sliding = Limit::sliding_window("sliding", 100, SECOND);
    let receipts = (0..65).map(|now| take(&mut world, sliding.global(), at(now))).collect::<Vec<_>>();
    let written = serde_json::to_value(&receipts[0]).unwrap();
    for (field, value) in [
        ("period", json!(0)),
        ("period", json!(-1)),
        ("version", json!(1)),
        ("shard", json!(64)),
        ("cost", json!(-1)),
        ("before", json!(-1)),
        ("refill", json!(-1)),
        ("limit", json!("")),
    ] {
        let mut torn = written.clone();
        torn["charges"][0][field] = value.clone();
        let Ok(torn) = serde_json::from_value::<Receipt>(torn) else { continue };
        let error = world.settled(Call::settle(torn, tokens(3)), at(65)).unwrap_err();
        assert!(matches!(error, Error::Call { source: CallError::CorruptReceipt, .. }), "{field} {value}: {error:?}");
    }
}

/// Stored by every release. The halves of a lease's name stand in the order in which they are read.
#[test]
fn lists_are_written_the_same_in_every_release() {
    let (leases, sliding) = (Limit::concurrency("leases", 9, MINUTE), Limit::sliding_window("sliding", 9, MINUTE));
    let plan = Plan::new([Call::consume([leases.global().cost(2)]).with_id((3 << 64) | 4)]).unwrap();
    let list = plan.decide(&[None], &[], sec(1)).changes.remove(0).state.list;
    let column = [2, 61_000_000, 2_000_000, 3, 4];
    assert_eq!(list.to_column(), Some(column.into()));
    assert_eq!(List::from_column(&column), Some(list));
    let mut world = World::default();
    for (now, cost) in [(1, 2), (5, 3)] {
        world.granted(sliding.global().cost(cost), sec(now));
    }
    let column = vec![1, 61_000_000, 2_000_000, 65_000_000, 3_000_000];
    assert_eq!(world.state(&sliding.global()).unwrap().list.to_column(), Some(column));
    world.balance(Call::credit(WALLET.global()), sec(0));
    assert_eq!(world.state(&WALLET.global()).unwrap().list.to_column(), Some(vec![3]));
}

/// Stored by every release, as receipts are.
#[test]
fn what_a_call_was_answered_is_written_the_same_in_every_release() {
    let mut world = World::default();
    let mut answered = |call, now| {
        let before = world.calls.clone();
        let _ = world.taken(call, sec(now));
        let row = world.calls.values().find(|row| !before.contains_key(&row.name)).unwrap().clone();
        let written = serde_json::to_value(&row.answer).unwrap();
        let mut read = row.clone();
        read.answer = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(read, row);
        (written, row)
    };
    let (plain, mut row) = answered(Call::consume([USER.key(1).once(1)]), 0);
    assert_eq!(plain, json!({}));
    let (kept, _) = answered(Call::consume([USER.key(2).lapses_after(HOUR)]), 0);
    assert_eq!(kept, json!(null), "nobody repeats it");
    let ahead = Limit::try_from(USER.spec().with(|spec| spec.max_reserved = tokens(10))).unwrap();
    let (ahead, _) = answered(Call::reserve([ahead.key(3).cost(15).once(1)]), 0);
    assert_eq!(ahead, json!({ "ready_at": 30_000_000 }));
    let beyond = |least: i64| USER.key(4).cost(20).up_to(least);
    let tried = WALLET.global().cost(20).up_to(4).shadow();
    let (answer, _) = answered(Call::consume(first_of([vec![USER.key(3)], vec![beyond(4).once(1), tried]])), 5);
    let would_deny = json!([
        { "limit": "wallet", "key": "", "reason": "short", "remaining": 0, "retry_at": null },
    ]);
    assert_eq!(answer, json!({ "part": 10, "alternative": 1, "would_deny": would_deny }));
    // No call sets them all. Unknown fields are read over.
    let mut all = answer;
    all["ready_at"] = json!(30_000_000);
    let mut later = all.clone();
    later["new"] = json!(1);
    row.answer = serde_json::from_value(later).unwrap();
    assert_eq!(serde_json::to_value(&row.answer).unwrap(), all);
}

/// Stored by every release: under another number a repeat is an error. Computed once, outside this crate.
#[test]
fn what_a_call_asks_has_the_same_fingerprint_in_every_release() {
    let user = || USER.global().once("a");
    let part = user().cost(5).up_to(2).leaving(3);
    for (call, expected) in [
        (Call::consume([user()]), -5_436_575_794_920_659_913),
        (Call::consume([user().lapses_after(HOUR)]), -6_088_777_792_055_432_301),
        (Call::consume([user().tracked_for(HOUR)]), 6_349_322_691_516_691_043),
        (Call::reserve([user()]), -7_871_760_832_480_180_029),
        (Call::consume([user(), ORG.key("k").cost(2)]), -8_475_863_224_357_022_189),
        (Call::consume([ORG.key("k").cost(2), user()]), -8_475_863_224_357_022_189),
        (Call::consume([part]), 1_061_317_023_577_818_655),
        (Call::consume([user().flat(), ORG.global().shadow()]), -5_979_522_590_210_434_918),
        (Call::consume(first_of([[user()], [ORG.global()]])), -4_273_276_954_049_036_595),
        (Call::consume(split(4, [user(), ORG.global()])), -4_598_360_743_429_616_685),
        (Call::credit(user().cost(2)), 4_741_984_830_266_452_762),
        (Call::debit(user().cost(2)), 2_695_277_227_411_213_905),
    ] {
        let (mut world, what) = (World::default(), format!("{call:?}"));
        world.call(call, sec(0)).unwrap();
        assert_eq!(world.calls.values().map(|row| row.asked).collect::<Vec<_>>(), [expected], "{what}");
    }
}

#[test]
fn what_is_no_list_is_not_read() {
    for column in [&[][..], &[0], &[4], &[3, 1], &[1, 1], &[1, 2, 1, 1, 1], &[1, 1, -1], &[2, 1, 1, 0], &[2, 1, 1]] {
        assert_eq!(List::from_column(column), None, "{column:?}");
    }
    for text in ["", "1,2", "{1,x}", "{1,2}", "{1,2,1,1,1}"] {
        assert_eq!(List::from_text(text), None, "{text:?}");
    }
    assert_eq!(List::from_text("{3}"), Some(List::Wallet));
    assert_eq!(List::from_text("{1,5,7}").unwrap().to_column(), Some(vec![1, 5, 7]));
    assert_eq!(List::None.to_column(), None);
}
