//! Holds: what may come back, against a world in which only those charges were ever made that were kept.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{Holds, State, Timestamp};
use tollgate::plan::{Answer, Call, Plan};
use tollgate::{
    Charge, DAY, Error, HoldError, HoldId, Limit, LimitFault, LimitKind, LimitSpec, MINUTE, Receipt, Request, SECOND,
    Source,
};

use crate::story::{call, config};
use crate::world::{World, at, micros, ms, receipt, sec, terms_of, tokens};

#[derive(Clone, Debug)]
enum Op {
    /// With a hold of so many microseconds, which keeps or gives back.
    Take {
        cost: i64,
        hold: Option<(u64, bool)>,
        reserving: bool,
    },
    Settle {
        which: usize,
        actual: i64,
    },
    Cancel {
        which: usize,
    },
    Credit(i64),
    /// Writes the row as it is by then.
    Save,
}

/// What was taken, and what became of it.
#[derive(Clone, Debug)]
struct Taken {
    at: i64,
    charge: Charge,
    keeps: bool,
    settled: Option<i64>,
}

impl Taken {
    fn cost(&self) -> i64 {
        self.charge.cost.micros()
    }

    fn lapses_at(&self) -> Option<Timestamp> {
        self.charge.hold.map(|held| held.lapses_at.into())
    }

    fn is_live(&self, now: i64) -> bool {
        self.settled.is_none() && self.lapses_at().is_some_and(|lapse| lapse > at(now))
    }

    /// What was not given back.
    fn kept(&self) -> i64 {
        match self.settled {
            Some(actual) => actual.min(self.cost()),
            None if self.charge.hold.is_some() && !self.keeps => 0,
            None => self.cost(),
        }
    }
}

struct Told {
    taken: Vec<Taken>,
    /// What was taken and given without a receipt.
    others: Vec<(i64, i64)>,
    writes: i128,
    /// Once all holds are gone.
    end: State,
    now: i64,
}

/// Rate, period, capacity and bound in micro-tokens and microseconds, so small that edges meet.
fn buckets() -> impl Strategy<Value = Limit> {
    let kind = prop_oneof![
        Just((LimitKind::TokenBucket, None)),
        Just((LimitKind::SteppedBucket, None)),
        (0_u64..10).prop_map(|start| (LimitKind::FixedWindow, Some(Duration::from_micros(start)))),
    ];
    (1_i64..6, 1_u64..10, 1_i64..12, 0_i64..8, kind).prop_map(
        |(rate, period, capacity, max_reserved, (kind, start))| {
            let spec = LimitSpec::new("limit", kind, micros(rate), Duration::from_micros(period));
            let (capacity, max_reserved) = (Some(micros(capacity)), micros(max_reserved));
            spec.with(|spec| (spec.capacity, spec.max_reserved, spec.start) = (capacity, max_reserved, start))
                .try_into()
                .unwrap()
        },
    )
}

fn stories() -> impl Strategy<Value = Vec<(i64, Op)>> {
    let hold = || prop::option::weighted(0.6, (1_u64..25, any::<bool>()));
    let op = prop_oneof![
        6 => (0_i64..8, hold(), any::<bool>()).prop_map(|(cost, hold, reserving)| Op::Take { cost, hold, reserving }),
        2 => (0_usize..8, 0_i64..9).prop_map(|(which, actual)| Op::Settle { which, actual }),
        1 => (0_usize..8).prop_map(|which| Op::Cancel { which }),
        1 => (1_i64..6).prop_map(Op::Credit),
        1 => Just(Op::Save),
    ];
    vec((prop_oneof![3 => 0_i64..4, 1 => 0_i64..30], op), 1..30)
}

fn numbers(limit: &Limit) -> [i64; 4] {
    let spec = limit.spec();
    let period = i64::try_from(spec.period.as_micros()).unwrap();
    [spec.rate.micros(), period, spec.capacity.unwrap().micros(), spec.max_reserved.micros()]
}

/// A request of what can be granted at all.
fn request(limit: &Limit, cost: i64, hold: Option<(u64, bool)>, reserving: bool) -> Request {
    let [_, _, capacity, max_reserved] = numbers(limit);
    let request = limit.global().cost(micros(cost.min(capacity + if reserving { max_reserved } else { 0 })));
    match hold {
        Some((span, true)) => request.tracked_for(Duration::from_micros(span)),
        Some((span, false)) => request.lapses_after(Duration::from_micros(span)),
        None => request,
    }
}

/// A world whose row stands at the beginning of time.
fn begin(limit: &Limit) -> World {
    World::holding(&limit.global(), terms_of(&limit.global()).full(at(0)))
}

fn tell(limit: &Limit, story: &[(i64, Op)]) -> Told {
    let [_, _, capacity, _] = numbers(limit);
    let (request_of, mut world) = (limit.global(), begin(limit));
    let mut told = Told { taken: Vec::new(), others: Vec::new(), writes: 1, end: State::new(micros(0), at(0)), now: 0 };
    let mut now = 0;
    for (gap, op) in story {
        now += gap;
        told.writes += 1;
        match op {
            Op::Take { cost, hold, reserving } => take(limit, &mut world, now, &mut told, (*cost, *hold, *reserving)),
            Op::Settle { which, actual } => use_up(&mut world, now, &mut told, *which, Some(*actual)),
            Op::Cancel { which } => use_up(&mut world, now, &mut told, *which, None),
            Op::Credit(amount) => {
                world.balance(Call::credit(request_of.clone().cost(micros(*amount))), at(now));
                told.others.push((now, -amount));
            }
            Op::Save => {
                let row = terms_of(&request_of).refill(&world.state(&request_of).unwrap(), at(now));
                world.put(&request_of, row);
            }
        }
        // What the bound rests on.
        let row = world.state(&request_of).unwrap();
        let held: i64 = row.holds.iter().map(|hold| hold.amount.micros()).sum();
        assert!(row.holds.iter().all(|hold| hold.amount >= micros(0)), "{row:?}");
        assert!(row.value.micros() + held <= capacity, "{row:?}");
    }
    let row = world.state(&request_of).unwrap();
    let last = row.holds.iter().map(|hold| hold.lapses_at.micros()).max().unwrap_or(now).max(now);
    Told { end: terms_of(&request_of).refill(&row, at(last)), now: last, ..told }
}

fn take(limit: &Limit, world: &mut World, now: i64, told: &mut Told, ask: (i64, Option<(u64, bool)>, bool)) {
    let (cost, hold, reserving) = ask;
    let id = HoldId::new(1 + told.taken.len() as u64);
    let take = || call(reserving, [request(limit, cost, hold, reserving)]).with_id(id);
    let before = world.clone();
    match world.call(take(), at(now)).unwrap() {
        Answer::Granted { mut charges, ready_at, .. } => {
            let charge = charges.remove(0);
            assert_eq!(charge.hold.map(|held| held.id), hold.map(|_| id));
            if limit.spec().kind != LimitKind::SlidingWindow {
                let lapses_at = hold.map(|(span, _)| ready_at.plus(Duration::from_micros(span)));
                assert_eq!(charge.hold.map(|held| Timestamp::from(held.lapses_at)), lapses_at);
            }
            told.taken.push(Taken { at: now, charge, keeps: hold.is_some_and(|(_, keeps)| keeps), settled: None });
        }
        Answer::Denied(denied) => {
            assert_eq!(*world, before, "a refusal changes nothing");
            let retry_at = Timestamp::from(denied.retry_at).micros();
            assert!(retry_at > now, "{denied:?}");
            let granted = |instant| matches!(before.clone().call(take(), at(instant)), Ok(Answer::Granted { .. }));
            assert!(granted(retry_at), "late: {before:?} {denied:?}");
            assert!(!granted(retry_at - 1), "early: {before:?} {denied:?}");
        }
        Answer::Done(_) => unreachable!(),
    }
}

/// Settles at an actual cost, or cancels; of what was taken with a hold.
fn use_up(world: &mut World, now: i64, told: &mut Told, which: usize, actual: Option<i64>) {
    let held: Vec<_> = (0..told.taken.len()).filter(|taken| told.taken[*taken].charge.hold.is_some()).collect();
    let Some(which) = (!held.is_empty()).then(|| held[which % held.len()]) else { return };
    let taken = &mut told.taken[which];
    let (receipt, before) = (receipt(std::slice::from_ref(&taken.charge)), world.clone());
    let call = actual.map_or_else(|| Call::cancel(receipt.clone()), |cost| Call::settle(receipt.clone(), micros(cost)));
    let answer = world.call(call, at(now));
    if !taken.is_live(now) {
        let has_lapsed = taken.lapses_at().unwrap() <= at(now);
        assert!(
            matches!(
                (&answer, has_lapsed),
                (Err(Error::Lapsed { .. }), true) | (Err(Error::ReceiptUsed { .. }), false)
            ),
            "{taken:?} at {now}: {answer:?}"
        );
        assert_eq!(*world, before, "an error changes nothing");
        return;
    }
    assert!(answer.is_ok(), "{taken:?} at {now}: {answer:?}");
    let is_ready = at(now) > taken.charge.ready_at.into();
    let actual = actual.unwrap_or(if is_ready { taken.cost() } else { 0 });
    taken.settled = Some(actual);
    if actual > taken.cost() {
        told.others.push((now, actual - taken.cost()));
    }
}

/// What comes back between two instants, times the period.
fn refilled(limit: &Limit, from: i64, to: i64) -> i128 {
    let ([rate, period, ..], spec) = (numbers(limit).map(i128::from), limit.spec());
    let start = spec.start.map_or(0, |start| i128::try_from(start.as_micros()).unwrap());
    let step = |instant: i64| (i128::from(instant) - start).div_euclid(period);
    match spec.kind {
        LimitKind::TokenBucket => rate * i128::from(to - from),
        _ => rate * (step(to) - step(from)) * period,
    }
}

/// What the row would hold, times the period, if only that had ever been taken which was kept, when it was taken.
fn world_of_kept_charges(limit: &Limit, told: &Told) -> i128 {
    let [_, period, capacity, _] = numbers(limit).map(i128::from);
    let kept = told.taken.iter().map(|taken| (taken.at, taken.kept()));
    let mut events: Vec<_> = kept.chain(told.others.iter().copied()).collect();
    events.sort_by_key(|event| event.0);
    events.push((told.now, 0));
    let (mut level, mut last) = (capacity * period, 0);
    for (now, cost) in events {
        level = (level + refilled(limit, last, now)).min(capacity * period) - i128::from(cost) * period;
        level = level.min(capacity * period);
        last = now;
    }
    level
}

/// Sliding windows, exact or in steps.
fn windows() -> impl Strategy<Value = Limit> {
    (1_i64..12, 1_u64..20, prop::option::of(1_u16..8)).prop_map(|(n, period, resolution)| window(n, period, resolution))
}

fn window(n: i64, period: u64, resolution: Option<u16>) -> Limit {
    let spec = LimitSpec::new("limit", LimitKind::SlidingWindow, micros(n), Duration::from_micros(period));
    spec.with(|spec| spec.resolution = resolution).try_into().unwrap()
}

fn buckets_and_windows() -> impl Strategy<Value = Limit> {
    prop_oneof![2 => buckets(), 1 => windows()]
}

proptest! {
    #![proptest_config(config())]

    /// A sliding window is the log of its grants: it grants if and only if they leave room. In steps it is never over,
    /// and no stricter than a window that is a step longer.
    #[test]
    fn a_sliding_window_is_a_log_of_its_grants(limit in windows(), story in stories()) {
        let [n, period, ..] = numbers(&limit);
        let tick = limit.spec().resolution.map_or(1, |steps| (period - 1) / i64::from(steps) + 1);
        let (mut world, mut now) = (begin(&limit), 0);
        let mut told = Told { taken: Vec::new(), others: Vec::new(), writes: 0, end: State::new(micros(0), at(0)), now };
        for (gap, op) in &story {
            now += gap;
            // What counts in a window that is so long.
            let counted = |told: &Told, period: i64| -> i64 {
                let counts = |taken: &&Taken| now < taken.at + period;
                let held = |taken: &Taken| match taken.settled {
                    None if taken.charge.hold.is_some() && !taken.is_live(now) => 0,
                    _ => taken.settled.unwrap_or(taken.cost()).min(taken.cost()),
                };
                told.taken.iter().filter(counts).map(held).sum()
            };
            match op {
                Op::Take { cost, hold, .. } => {
                    let (used, longer) = (counted(&told, period), counted(&told, period + tick - 1));
                    let (before, cost) = (told.taken.len(), (*cost).min(n));
                    take(&limit, &mut world, now, &mut told, (cost, *hold, false));
                    if told.taken.len() > before {
                        prop_assert!(used + cost <= n, "over: {used} + {cost} of {n} at {now}");
                    } else {
                        prop_assert!(longer + cost > n, "too strict: {longer} + {cost} of {n} at {now}");
                    }
                }
                Op::Settle { which, actual } => {
                    let most = told.taken.iter().map(Taken::cost).min().unwrap_or(0);
                    use_up(&mut world, now, &mut told, *which, Some((*actual).min(most)));
                }
                Op::Cancel { .. } | Op::Credit(_) | Op::Save => {
                    if let Some(row) = world.state(&limit.global()) {
                        world.put(&limit.global(), terms_of(&limit.global()).refill(&row, at(now)));
                    }
                }
            }
        }
    }

    /// A sliding window whose n changes, whose period gets shorter, and whose clock goes back: each grant keeps within
    /// the definition of its day, and nobody waits for longer than a period.
    #[test]
    fn a_changed_sliding_window_counts_at_once(
        story in vec((0_i64..6, 1_i64..6, prop::option::weighted(0.2, (1_i64..9, 0_u64..6)), 0_i64..20), 1..30),
    ) {
        let (mut n, mut period) = (5_i64, 30_u64);
        let (mut world, mut log, mut now) = (World::default(), Vec::<(i64, i64)>::new(), 100);
        for (gap, cost, change, back) in story {
            now += gap;
            if let Some((other, shorter)) = change {
                (n, period) = (other, period.saturating_sub(shorter).max(1));
            }
            let limit = window(n, period, None);
            let row = world.state(&limit.global());
            // For a row that is further on, time stands still.
            let asked = if back == 0 { now - 15 } else { now };
            let instant = row.as_ref().map_or(asked, |row| asked.max(row.ts.micros()));
            let span = i64::try_from(period).unwrap();
            match world.call(Call::consume([limit.global().cost(micros(cost.min(n)))]), at(asked)).unwrap() {
                Answer::Granted { .. } => {
                    log.push((instant, cost.min(n)));
                    let used: i64 = log.iter().filter(|(at, _)| *at > instant - span).map(|(_, cost)| cost).sum();
                    prop_assert!(used <= n, "{used} of {n} in {span} at {instant}");
                }
                Answer::Denied(denied) => {
                    let retry_at = Timestamp::from(denied.retry_at).micros();
                    prop_assert!(retry_at <= row.unwrap().ts.micros() + span, "{denied:?}");
                }
                Answer::Done(_) => unreachable!(),
            }
        }
    }

    /// To give back is to undo. Once all holds are gone, the row holds no more than if just the kept charges had ever
    /// been made; and as much, if nothing was kept of what had a hold.
    #[test]
    fn what_comes_back_is_as_if_it_had_never_been_taken(limit in buckets(), story in stories()) {
        let told = tell(&limit, &story);
        let [_, period, ..] = numbers(&limit).map(i128::from);
        let (held, world) = (i128::from(told.end.value.micros()) * period, world_of_kept_charges(&limit, &told));
        prop_assert!(held <= world, "{held} > {world} / {period}: {:?}", told.taken);
        let all_back = told.taken.iter().all(|taken| taken.charge.hold.is_none() || taken.kept() == 0 && taken.settled.unwrap_or(0) == 0);
        if all_back && told.others.is_empty() {
            // A write of a drip loses less than a micro-token.
            let lost = if limit.spec().kind == LimitKind::TokenBucket { told.writes * period } else { 0 };
            prop_assert!(held >= world - lost, "{held} < {world} / {period}: {:?}", told.taken);
        }
    }

    /// Of every span: what was granted and kept is within the bound. What comes back is netted with nothing.
    #[test]
    fn never_over_with_holds(limit in buckets(), story in stories()) {
        let story: Vec<_> = story.into_iter().filter(|(_, op)| !matches!(op, Op::Credit(_))).collect();
        let told = tell(&limit, &story);
        let [_, period, capacity, max_reserved] = numbers(&limit).map(i128::from);
        for (nth, first) in told.taken.iter().enumerate() {
            let mut kept = 0;
            for last in &told.taken[nth..] {
                kept += i128::from(last.kept());
                let bound = capacity + max_reserved + refilled(&limit, first.at, last.at) / period;
                prop_assert!(kept <= bound, "{first:?} to {last:?}");
            }
        }
    }

    /// To write a row in between changes nothing: exactly for steps, within a micro-token for a drip.
    #[test]
    fn time_can_be_split_with_holds(limit in buckets_and_windows(), story in stories(), one in 0_i64..30, two in 0_i64..30) {
        let (row, now) = row_after(&limit, &story);
        let terms = terms_of(&limit.global());
        let direct = terms.refill(&row, at(now + one + two));
        let in_between = terms.refill(&terms.refill(&row, at(now + one)), at(now + one + two));
        if limit.spec().kind == LimitKind::TokenBucket {
            prop_assert_eq!(direct.holds.len(), in_between.holds.len());
            for (direct, in_between) in sums(&direct).into_iter().zip(sums(&in_between)) {
                prop_assert!((0..=1).contains(&(direct - in_between)), "{direct} {in_between}");
            }
        } else {
            prop_assert_eq!(direct, in_between);
        }
    }

    /// A row that is full and without holds answers as a missing one.
    #[test]
    fn a_full_row_without_holds_equals_a_missing_one(
        limit in buckets_and_windows(), story in stories(), rest in 0_i64..5, cost in 0_i64..12,
    ) {
        if limit.spec().kind == LimitKind::SteppedBucket {
            return Ok(()); // Its grid may start anew.
        }
        let (row, now) = row_after(&limit, &story);
        let full_at = terms_of(&limit.global()).full_at(&row).micros();
        prop_assert!(row.holds.iter().all(|hold| hold.lapses_at <= at(full_at)));
        let now = at(full_at.max(now) + rest);
        let mut there = World::holding(&limit.global(), row);
        let mut missing = World::default();
        let ask = || call(true, [request(&limit, cost, None, true)]);
        prop_assert_eq!(format!("{:?}", there.call(ask(), now)), format!("{:?}", missing.call(ask(), now)));
    }

    /// One row under several definitions in turn: no more than each allows, and no call waits for ever.
    #[test]
    fn any_row_can_be_read_under_any_definition(limits in vec(buckets_and_windows(), 2..5), story in stories()) {
        let (mut world, mut now) = (World::default(), 50);
        for (nth, (gap, op)) in story.iter().enumerate() {
            now += gap;
            let limit = &limits[nth % limits.len()];
            let Op::Take { cost, hold, reserving } = op else { continue };
            let id = HoldId::new(1 + nth as u64);
            let ask = || call(*reserving, [request(limit, *cost, *hold, *reserving)]).with_id(id);
            match world.call(ask(), at(now)).unwrap() {
                Answer::Granted { remaining, .. } => prop_assert!(remaining <= limit.spec().capacity.unwrap()),
                Answer::Denied(denied) => {
                    let then = world.clone().call(ask(), denied.retry_at.into());
                    prop_assert!(matches!(then, Ok(Answer::Granted { .. })), "{:?} {:?}", world, denied);
                }
                Answer::Done(_) => unreachable!(),
            }
        }
    }

    #[test]
    fn the_column_gives_back_what_was_written(limit in buckets_and_windows(), story in stories()) {
        let (row, _) = row_after(&limit, &story);
        let column = row.holds.to_column();
        prop_assert_eq!(column.is_none(), row.holds.is_none());
        let read = |column: Vec<i64>| Holds::from_column(&column).unwrap();
        prop_assert_eq!(column.map_or(Holds::NONE, read), row.holds);
    }
}

/// What is asked of two limits under an id of the caller's.
#[derive(Clone, Debug)]
enum OnceOp {
    Ask {
        /// The first limit, the second, or both.
        limits: usize,
        id: usize,
        cost: i64,
        span: u64,
        keeps: bool,
        reserving: bool,
    },
    Settle {
        which: usize,
        actual: i64,
    },
    Cancel {
        which: usize,
    },
}

fn once_stories() -> impl Strategy<Value = Vec<(i64, OnceOp)>> {
    let ask = (0_usize..3, 0_usize..3, 1_i64..3, prop_oneof![Just(6_u64), Just(20)], any::<bool>(), any::<bool>());
    let ask = ask.prop_map(|(limits, id, cost, span, keeps, reserving)| {
        // Mostly the same under the same id.
        let (cost, keeps) = if span == 6 { (1, true) } else { (cost, keeps) };
        OnceOp::Ask { limits, id, cost, span, keeps, reserving }
    });
    let op = prop_oneof![
        5 => ask,
        2 => (0_usize..8, 0_i64..3).prop_map(|(which, actual)| OnceOp::Settle { which, actual }),
        1 => (0_usize..8).prop_map(|which| OnceOp::Cancel { which }),
    ];
    vec((0_i64..5, op), 1..40)
}

/// One life of a hold: what was asked under an id, and what came of it.
#[derive(Clone, Debug)]
struct Life {
    limit: usize,
    id: usize,
    asked: (i64, u64, bool),
    granted_at: i64,
    charge: Charge,
    used: bool,
}

impl Life {
    fn is_live(&self, now: i64) -> bool {
        Timestamp::from(self.charge.hold.unwrap().lapses_at) > at(now)
    }
}

proptest! {
    #![proptest_config(config())]

    /// However an id is asked, settled and asked again: in each life of its hold each limit is charged for it once.
    #[test]
    fn an_id_is_charged_once_in_each_life_of_its_hold(
        one in buckets_and_windows(), two in buckets_and_windows(), story in once_stories(),
    ) {
        let limits = [one, Limit::try_from(two.spec().named("other")).unwrap()];
        let (mut world, mut lives, mut now) = (World::default(), Vec::<Life>::new(), 100);
        for (gap, op) in &story {
            now += gap;
            let before = world.clone();
            let left = |world: &World, limit: usize| world.look(limits[limit].global(), at(now)).value.micros();
            let (which, amend): (_, fn(Receipt, i64) -> Call) = match op {
                OnceOp::Ask { limits: asked, id, cost, span, keeps, reserving } => {
                    let asked = [&[0][..], &[1], &[1, 0]][*asked];
                    let cost = (*cost).min(asked.iter().map(|limit| numbers(&limits[*limit])[2]).min().unwrap());
                    let ask = |limit: usize| {
                        request(&limits[limit], cost, Some((*span, *keeps)), false).once(format!("id {id}"))
                    };
                    let found = |limit: usize| {
                        lives.iter().rposition(|life| (life.limit, life.id) == (limit, *id) && life.is_live(now))
                    };
                    let answer = world.call(call(*reserving, asked.iter().map(|limit| ask(*limit))), at(now));
                    let same = |life: usize| lives[life].asked == (cost, *span, *keeps);
                    if asked.iter().any(|limit| found(*limit).is_some_and(|life| !same(life))) {
                        prop_assert!(matches!(answer, Err(Error::OnceMismatch { .. })), "{answer:?}");
                        prop_assert_eq!(&world, &before, "an error changes nothing");
                        continue;
                    }
                    let repeated = asked.iter().all(|limit| found(*limit).is_some());
                    match answer.unwrap() {
                        Answer::Granted { charges, source, ready_at, .. } => {
                            prop_assert_eq!(source == Source::Repeated, repeated);
                            let lasting = charges.iter().map(|charge| Timestamp::from(charge.ready_at)).max().unwrap();
                            prop_assert_eq!(ready_at, lasting.max(at(now)));
                            let mut new = Vec::new();
                            for (limit, charge) in asked.iter().zip(charges) {
                                let taken = left(&before, *limit) - left(&world, *limit);
                                let Some(life) = found(*limit) else {
                                    prop_assert_eq!(taken, cost);
                                    let asked = (cost, *span, *keeps);
                                    let (limit, id, granted_at) = (*limit, *id, now);
                                    new.push(Life { limit, id, asked, granted_at, charge, used: false });
                                    continue;
                                };
                                prop_assert_eq!(taken, 0, "charged twice");
                                let first = &lives[life].charge;
                                prop_assert_eq!((first.hold, first.cost), (charge.hold, charge.cost));
                                // A window's tokens were ready at once, though another limit of that call was not.
                                let is_window = limits[*limit].spec().kind == LimitKind::SlidingWindow;
                                let ready_at = if is_window { at(lives[life].granted_at).into() } else { first.ready_at };
                                prop_assert!(charge.ready_at >= ready_at, "{:?} {:?}", charge, first);
                                let is_coarse = limits[*limit].spec().resolution.is_some();
                                if asked.len() == 1 && !is_coarse {
                                    prop_assert_eq!(charge.ready_at, ready_at);
                                }
                            }
                            lives.extend(new);
                            if repeated {
                                prop_assert_eq!(&world, &before, "nothing is written");
                            }
                        }
                        Answer::Denied(_) => {
                            prop_assert!(!repeated, "it was granted before");
                            prop_assert_eq!(&world, &before, "a refusal changes nothing");
                        }
                        Answer::Done(_) => unreachable!(),
                    }
                    continue;
                }
                OnceOp::Settle { which, .. } => (which, |receipt, actual| Call::settle(receipt, micros(actual))),
                OnceOp::Cancel { which } => (which, |receipt, _| Call::cancel(receipt)),
            };
            if lives.is_empty() {
                continue;
            }
            let which = which % lives.len();
            let actual = if let OnceOp::Settle { actual, .. } = op { *actual } else { 0 };
            let life = &mut lives[which];
            let answer = world.call(amend(receipt(std::slice::from_ref(&life.charge)), actual), at(now));
            match (life.is_live(now), life.used) {
                (true, false) => prop_assert!(answer.is_ok(), "{life:?} at {now}: {answer:?}"),
                (true, true) => prop_assert!(matches!(answer, Err(Error::ReceiptUsed { .. })), "{answer:?}"),
                (false, _) => prop_assert!(matches!(answer, Err(Error::Lapsed { .. })), "{answer:?}"),
            }
            if answer.is_err() {
                prop_assert_eq!(&world, &before, "an error changes nothing");
            }
            life.used |= answer.is_ok();
            for limit in &limits {
                let Some(row) = world.state(&limit.global()) else { continue };
                let read = |column: Vec<i64>| Holds::from_column(&column).unwrap();
                prop_assert_eq!(row.holds.to_column().map_or(Holds::NONE, read), row.holds);
            }
        }
    }
}

/// What a story leaves, and when; its takes alone.
fn row_after(limit: &Limit, story: &[(i64, Op)]) -> (State, i64) {
    let takes: Vec<_> = story.iter().filter(|(_, op)| matches!(op, Op::Take { .. })).cloned().collect();
    let (mut world, mut now) = (begin(limit), 0);
    let mut told = Told { taken: Vec::new(), others: Vec::new(), writes: 0, end: State::new(micros(0), at(0)), now };
    for (gap, op) in takes {
        now += gap;
        if let Op::Take { cost, hold, reserving } = op {
            take(limit, &mut world, now, &mut told, (cost, hold, reserving));
        }
    }
    (world.state(&limit.global()).unwrap(), now)
}

/// The value, and what it would be if the first, the first two, … holds came back.
fn sums(row: &State) -> Vec<i64> {
    let mut sums = vec![row.value.micros()];
    sums.extend(row.holds.iter().scan(row.value.micros(), |sum, hold| {
        *sum += hold.amount.micros();
        Some(*sum)
    }));
    sums
}

/// One a second, ten at once.
const TEN: Limit = Limit::token_bucket("ten", 10, Duration::from_secs(10));

fn granted(world: &mut World, request: Request, now: i64) -> Receipt {
    match world.call(Call::consume([request]).with_id(HoldId::new(7)), sec(now)) {
        Ok(Answer::Granted { charges, .. }) => receipt(&charges),
        other => panic!("not granted: {other:?}"),
    }
}

/// Ten in any minute.
const SLIDING: Limit = Limit::sliding_window("sliding", 10, MINUTE);

#[test]
fn a_sliding_window_gives_back_each_grant_a_period_later() {
    let mut world = World::default();
    for (now, cost) in [(0, 4), (20, 4), (50, 2)] {
        let _ = granted(&mut world, SLIDING.global().cost(cost), now);
    }
    for (cost, retry) in [(1, 60), (4, 60), (5, 80), (8, 80), (9, 110)] {
        let denied = world.denied(SLIDING.global().cost(cost), sec(55));
        assert_eq!(Timestamp::from(denied.retry_at), sec(retry), "{cost}");
    }
    assert_eq!(world.look(SLIDING.global(), sec(110)).value, tokens(10));
    assert_eq!(Timestamp::from(world.look(SLIDING.global(), sec(55)).full_at), sec(110));
}

#[test]
fn where_two_counts_let_a_window_pass_twice_a_sliding_window_lets_it_pass_once() {
    // n at the end of a window, and as many as the fading count allows in the next one.
    let hundred = Limit::sliding_window("hundred", 100, MINUTE);
    let mut world = World::default();
    let _ = granted(&mut world, hundred.global().cost(100), 59);
    assert_eq!(world.look(hundred.global(), at(118_999_999)).value, tokens(0));
    assert_eq!(world.look(hundred.global(), sec(119)).value, tokens(100));
}

#[test]
fn more_than_64_grants_in_a_period_count_for_a_63rd_of_it_longer_at_most() {
    let wide = Limit::sliding_window("wide", 1_000, MINUTE);
    let (mut world, step) = (World::default(), 60_000_000_i64 / 63 + 1);
    for nth in 0..600 {
        let _ = world.granted(wide.global(), ms(nth * 100));
        let holds = world.state(&wide.global()).unwrap().holds;
        assert!(holds.len() <= 65, "{} after {nth}", holds.len());
    }
    for nth in 1..=600 {
        let left = |instant| world.look(wide.global(), instant).value;
        let instant = ms(60_000 + (nth - 1) * 100);
        assert!(left(instant) <= tokens(400 + nth), "never over");
        assert!(left(at(instant.micros() + step)) >= tokens(400 + nth), "{nth}");
    }
}

#[test]
fn a_receipt_of_a_sliding_window_gives_back_what_was_spared_and_the_rest_leaves_with_its_grant() {
    let mut world = World::default();
    let receipt = granted(&mut world, SLIDING.global().cost(8).lapses_after(30 * SECOND), 0);
    assert_eq!(world.balance(Call::settle(receipt.clone(), tokens(3)), sec(20)).value, tokens(7));
    assert!(matches!(world.call(Call::settle(receipt, tokens(3)), sec(20)), Err(Error::ReceiptUsed { .. })));
    assert_eq!(world.look(SLIDING.global(), at(59_999_999)).value, tokens(7));
    assert_eq!(world.look(SLIDING.global(), sec(60)).value, tokens(10));
    // More than was charged counts from when it is known.
    let receipt = granted(&mut world, SLIDING.global().cost(2).tracked_for(SECOND), 100);
    assert_eq!(world.balance(Call::settle(receipt, tokens(5)), sec(130)).value, tokens(5), "good while it counts");
    assert_eq!(world.look(SLIDING.global(), sec(160)).value, tokens(7));
    assert_eq!(world.look(SLIDING.global(), sec(190)).value, tokens(10));
    // What nobody settles comes back when it lapses.
    let _ = granted(&mut world, SLIDING.global().cost(6).lapses_after(SECOND), 200);
    assert_eq!(world.look(SLIDING.global(), sec(201)).value, tokens(10));
}

#[test]
fn credits_debits_and_resets_of_a_sliding_window() {
    let mut world = World::default();
    let receipt = granted(&mut world, SLIDING.global().cost(2).tracked_for(MINUTE), 0);
    let _ = granted(&mut world, SLIDING.global().cost(4), 10);
    let _ = granted(&mut world, SLIDING.global().cost(4), 20);
    assert_eq!(world.balance(Call::credit(SLIDING.global().cost(5)), sec(30)).value, tokens(5));
    assert_eq!(world.look(SLIDING.global(), sec(70)).value, tokens(7), "of what leaves soonest");
    assert_eq!(world.balance(Call::debit(SLIDING.global().cost(9)), sec(30)).value, tokens(-4));
    assert_eq!(world.look(SLIDING.global(), sec(89)).value, tokens(1));
    assert_eq!(world.look(SLIDING.global(), sec(90)).value, tokens(10));
    assert_eq!(world.balance(Call::reset(SLIDING.global()), sec(40)).value, tokens(10));
    assert_eq!(world.balance(Call::settle(receipt, tokens(1)), sec(40)).value, tokens(10), "it was forgiven");
}

#[test]
fn a_row_that_another_kind_of_limit_wrote_counts_for_a_period() {
    let bucket = Limit::token_bucket("sliding", 1, DAY).capacity(10);
    let mut world = World::default();
    let _ = granted(&mut world, bucket.global().cost(9), 0);
    assert_eq!(world.look(SLIDING.global(), sec(59)).value, tokens(1));
    assert_eq!(world.look(SLIDING.global(), sec(60)).value, tokens(10));
}

#[test]
fn what_is_no_sliding_window_is_a_fault_with_a_name() {
    let spec = || SLIDING.spec();
    for (spec, fault) in [
        (spec().with(|spec| spec.shards = 2), LimitFault::ShardsOfCounting),
        (spec().with(|spec| spec.max_reserved = tokens(1)), LimitFault::ReservationsOfCounting),
        (spec().with(|spec| spec.capacity = Some(tokens(20))), LimitFault::CapacityOfCounting),
        (spec().with(|spec| spec.start = Some(SECOND)), LimitFault::StartOfCounting),
        (spec().with(|spec| spec.resolution = Some(0)), LimitFault::ResolutionOutOfRange),
        (spec().with(|spec| spec.resolution = Some(64)), LimitFault::ResolutionOutOfRange),
        (TEN.spec().with(|spec| spec.resolution = Some(1)), LimitFault::ResolutionWithoutSliding),
    ] {
        assert_eq!(Limit::try_from(spec).unwrap_err().fault, fault);
    }
    let coarse = SLIDING.resolution(10).ephemeral();
    assert_eq!(Limit::try_from(coarse.spec()).unwrap(), coarse);
    let text = serde_json::to_string(&coarse).unwrap();
    assert_eq!(serde_json::from_str::<Limit>(&text).unwrap(), coarse, "{text}");
}

#[test]
fn what_a_refill_has_brought_back_does_not_come_back_twice() {
    let mut world = World::default();
    let _ = granted(&mut world, TEN.global().cost(10).lapses_after(10 * SECOND), 0);
    // Full again, and spent again; now the first charge lapses.
    let _ = granted(&mut world, TEN.global().cost(10), 10);
    assert_eq!(world.look(TEN.global(), sec(10)).value, tokens(0));
    assert_eq!(world.look(TEN.global(), sec(11)).value, tokens(1));
}

#[test]
fn a_charge_that_nobody_settles_comes_back_when_it_lapses() {
    let budget = Limit::fixed_window("budget", 100, DAY).start(Duration::ZERO);
    let mut world = World::default();
    let estimate = || budget.global().cost(80).lapses_after(MINUTE);
    let _ = granted(&mut world, estimate(), 0);
    let denied = world.denied(budget.global().cost(30), sec(1));
    assert_eq!(Timestamp::from(denied.retry_at), sec(60), "the lapse, not the next day");
    assert_eq!(world.look(budget.global(), sec(59)).value, tokens(20));
    assert_eq!(world.look(budget.global(), sec(60)).value, tokens(100));
    // One that is settled in time costs what it cost, for good.
    let receipt = granted(&mut world, estimate(), 60);
    assert_eq!(world.balance(Call::settle(receipt, tokens(30)), sec(70)).value, tokens(70));
    assert_eq!(world.look(budget.global(), sec(3_600)).value, tokens(70));
}

#[test]
fn a_receipt_of_yesterday_does_not_lift_today_above_the_window() {
    let day = Limit::fixed_window("day", 10, DAY).start(Duration::ZERO);
    let (evening, morning) = (24 * 3_600 - 60, 24 * 3_600 + 60);
    let mut world = World::default();
    let yesterday = granted(&mut world, day.global().cost(8).tracked_for(DAY), evening);
    let _ = granted(&mut world, day.global().cost(5), morning);
    assert_eq!(world.balance(Call::settle(yesterday, tokens(0)), sec(morning)).value, tokens(5));
}

#[test]
fn settling_takes_what_was_missing_and_gives_back_what_was_spared_once() {
    for (actual, left) in [(0, 10), (2, 8), (6, 4), (9, 1), (15, -5)] {
        let mut world = World::default();
        let receipt = granted(&mut world, TEN.global().cost(6).tracked_for(MINUTE), 0);
        assert_eq!(world.balance(Call::settle(receipt.clone(), tokens(actual)), sec(0)).value, tokens(left));
        for again in [Call::settle(receipt.clone(), tokens(actual)), Call::cancel(receipt.clone())] {
            let error = world.call(again, sec(1)).unwrap_err();
            assert!(matches!(error, Error::ReceiptUsed { .. }), "{error:?}");
        }
        let error = world.call(Call::settle(receipt, tokens(actual)), sec(60)).unwrap_err();
        assert!(matches!(error, Error::Lapsed { .. }), "{error:?}");
    }
}

#[test]
fn a_receipt_of_several_limits_is_used_once_or_not_at_all() {
    let (one, two) = (TEN, Limit::token_bucket("two", 1, DAY).capacity(10));
    let mut world = World::default();
    let asked = [one.global(), two.global()].map(|request| request.cost(4).tracked_for(MINUTE));
    let Ok(Answer::Granted { charges, .. }) = world.call(Call::consume(asked), sec(0)) else { panic!() };
    world.balance(Call::settle(receipt(&charges[1..]), tokens(4)), sec(0));
    let before = world.clone();
    let error = world.call(Call::settle(receipt(&charges), tokens(0)), sec(0)).unwrap_err();
    assert!(matches!(error, Error::ReceiptUsed { limit } if limit == "two"));
    assert_eq!(world, before, "the first is not settled either");
    assert_eq!(world.balance(Call::settle(receipt(&charges[..1]), tokens(0)), sec(0)).value, tokens(10));
}

#[test]
fn a_reservation_is_ready_by_refill_alone_and_its_hold_lasts_from_then_on() {
    let limit = TEN.max_reserved(20);
    let mut world = World::default();
    let _ = granted(&mut world, limit.global().cost(10).lapses_after(SECOND), 0);
    let reserve = Call::reserve([limit.global().cost(5).lapses_after(2 * SECOND)]).with_id(HoldId::new(8));
    let Ok(Answer::Granted { ready_at, charges, .. }) = world.call(reserve, sec(0)) else { panic!() };
    assert_eq!(ready_at, sec(5), "the first charge may be settled, and then nothing comes back");
    assert_eq!(Timestamp::from(charges[0].hold.unwrap().lapses_at), sec(7));
    let balance = world.balance(Call::cancel(receipt(&charges)), sec(5));
    assert_eq!(balance.value, tokens(10), "cancelled when it was ready");
}

#[test]
fn a_reset_forgives_and_leaves_receipts_valid() {
    let mut world = World::default();
    let receipt = granted(&mut world, TEN.global().cost(8).tracked_for(MINUTE), 0);
    assert_eq!(world.balance(Call::reset(TEN.global()), sec(0)).value, tokens(10));
    let full_at = world.look(TEN.global(), sec(0)).full_at;
    assert_eq!(Timestamp::from(full_at), sec(60), "not to be swept while a receipt lives");
    assert_eq!(world.balance(Call::settle(receipt, tokens(3)), sec(0)).value, tokens(10), "it was forgiven");
}

#[test]
fn a_row_has_room_for_a_thousand_holds_and_refuses_one_more_until_the_first_lapses() {
    let wide = Limit::token_bucket("wide", 2_000, DAY);
    let mut world = World::default();
    let tracked = |span: u64| wide.global().tracked_for(Duration::from_secs(span));
    for nth in 0..1_000 {
        let _ = granted(&mut world, tracked(if nth == 500 { 5 } else { 60 + nth }), 0);
    }
    let denied = world.denied(tracked(1), sec(1));
    assert_eq!(Timestamp::from(denied.retry_at), sec(5));
    assert!(denied.remaining >= tokens(1_000), "not for a lack of tokens");
    let _ = granted(&mut world, wide.global(), 1);
    assert!(matches!(world.clone().call(Call::consume([tracked(1)]), at(4_999_999)), Ok(Answer::Denied(_))));
    let _ = granted(&mut world, tracked(1), 5);
}

#[test]
fn a_name_that_is_taken_is_not_taken_twice() {
    let mut world = World::default();
    let [one, two] = [0, 0].map(|now| granted(&mut world, TEN.global().tracked_for(MINUTE), now));
    assert_ne!(one.charges[0].hold.unwrap().id, two.charges[0].hold.unwrap().id);
    for receipt in [one, two] {
        world.balance(Call::settle(receipt, tokens(0)), sec(0));
    }
}

#[test]
fn a_hold_that_is_none_is_an_error_before_anything_is_taken() {
    let sharded = TEN.shards(2);
    let long = Limit::MAX_PERIOD + SECOND;
    for (request, expected) in [
        (TEN.global().tracked_for(Duration::ZERO), HoldError::SpanZero),
        (TEN.global().lapses_after(Duration::ZERO), HoldError::SpanZero),
        (TEN.global().lapses_after(Duration::from_nanos(1_500)), HoldError::SpanNotWholeMicros),
        (TEN.global().tracked_for(long), HoldError::SpanTooLong),
        (sharded.global().tracked_for(MINUTE), HoldError::Shards),
    ] {
        let error = World::default().call(Call::consume([request]), sec(0)).unwrap_err();
        assert!(matches!(&error, Error::Hold { limit, source } if limit == "ten" && *source == expected), "{error}");
    }
    let both = [TEN.global().tracked_for(MINUTE), TEN.global().lapses_after(MINUTE)];
    let error = World::default().call(Call::consume(both), sec(0)).unwrap_err();
    assert!(matches!(error, Error::Hold { source: HoldError::Conflicting, .. }), "{error}");
    let mut world = World::default();
    let alike = [TEN.global().tracked_for(MINUTE), TEN.global().tracked_for(MINUTE)];
    assert!(
        matches!(world.call(Call::consume(alike), sec(0)), Ok(Answer::Granted { charges, .. }) if charges.len() == 1)
    );
}

#[test]
fn what_is_no_list_of_holds_is_not_read() {
    let lapse = 1_000_000;
    assert!(Holds::from_column(&[lapse, -1, 2, lapse, 5]).is_some());
    for column in [
        &[lapse][..],
        &[lapse, -1],
        &[lapse, -1, 0],
        &[lapse, -1, 1],
        &[lapse, -1, -2],
        &[lapse, -1, 2, lapse],
        &[lapse, -1, 2].repeat(1_200),
        &[lapse, i64::MIN, 1],
        // Used, and of a random id; used, and without one.
        &[lapse, i64::MIN, 7 << 1],
        &[lapse, i64::MIN],
    ] {
        assert_eq!(Holds::from_column(column), None, "{column:?}");
    }
}

#[test]
fn requests_and_receipts_with_holds_come_back_as_they_were() {
    for request in [TEN.global().tracked_for(MINUTE), TEN.key("k").lapses_after(90 * SECOND)] {
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request, "{text}");
    }
    let receipt = granted(&mut World::default(), TEN.global().tracked_for(MINUTE), 0);
    let text = serde_json::to_string(&receipt).unwrap();
    assert!(text.contains(r#""id":"7""#), "{text}: not all readers of JSON hold 62 bits");
    assert_eq!(serde_json::from_str::<Receipt>(&text).unwrap(), receipt);
    assert!(serde_json::from_str::<HoldId>("\"0\"").is_err());
    assert!(serde_json::from_str::<HoldId>("\"4611686018427387904\"").is_err());
    assert_eq!(HoldId::new(u64::MAX).to_string(), "2305843009213693951", "the bit above is of ids that callers choose");
}

/// The charges of a grant, and who decided it.
fn asked_once(world: &mut World, call: Call, now: i64) -> (Vec<Charge>, Source) {
    match world.call(call, sec(now)) {
        Ok(Answer::Granted { charges, source, .. }) => (charges, source),
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn who_asks_again_with_an_id_is_granted_again_and_charged_once() {
    for limit in [TEN, SLIDING, Limit::fixed_window("ten", 10, DAY), Limit::stepped_bucket("ten", 10, DAY)] {
        let mut world = World::default();
        let ask = |id: &str| Call::consume([limit.global().cost(6).lapses_after(30 * SECOND).once(id)]);
        // Ids that a limiter or a gate draws change nothing.
        let (first, source) = asked_once(&mut world, ask("a").with_id(HoldId::new(1)), 0);
        assert_eq!(source, Source::Database);
        let row = world.state(&limit.global());
        // The second would not be granted by the balance.
        assert!(matches!(world.clone().call(ask("b"), sec(1)), Ok(Answer::Denied(_))));
        assert_eq!(asked_once(&mut world, ask("a").with_id(HoldId::new(2)), 1), (first.clone(), Source::Repeated));
        assert_eq!(world.state(&limit.global()), row, "nothing is written");
        world.balance(Call::settle(receipt(&first), tokens(5)), sec(2));
        let left = world.look(limit.global(), sec(29)).value;
        assert_eq!(asked_once(&mut world, ask("a"), 29), (first.clone(), Source::Repeated), "a late duplicate");
        assert_eq!(world.look(limit.global(), sec(29)).value, left);
        let error = world.call(Call::settle(receipt(&first), tokens(0)), sec(29)).unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        // After the lapse it is a new call.
        let new = world.call(Call::consume([limit.global().cost(1).lapses_after(MINUTE).once("a")]), sec(30));
        assert!(matches!(new, Ok(Answer::Granted { source: Source::Database, .. })), "{new:?}");
    }
}

#[test]
fn calls_of_one_batch_with_one_id_are_charged_once() {
    let mut world = World::default();
    let ask = || Call::consume([TEN.global().cost(7).tracked_for(MINUTE).once(42)]);
    let answers = world.batch([ask(), ask(), ask()], sec(0)).unwrap();
    let source = |answer: &Result<Answer, Error>| match answer {
        Ok(Answer::Granted { source, .. }) => *source,
        other => panic!("{other:?}"),
    };
    let sources: Vec<_> = answers.iter().map(source).collect();
    assert_eq!(sources, [Source::Database, Source::Repeated, Source::Repeated]);
    assert_eq!(world.look(TEN.global(), sec(0)).value, tokens(3));
}

#[test]
fn of_several_limits_those_that_have_the_id_take_nothing_and_the_others_take_all_or_none() {
    let two = Limit::token_bucket("two", 1, DAY).capacity(3);
    let ask = |limit: &Limit| limit.global().cost(2).tracked_for(MINUTE).once("job");
    let mut world = World::default();
    let (first, _) = asked_once(&mut world, Call::consume([ask(&TEN)]), 0);
    let (both, source) = asked_once(&mut world, Call::consume([ask(&two), ask(&TEN)]), 1);
    assert_eq!((&both[1], source), (&first[0], Source::Database));
    assert_eq!(world.look(TEN.global(), sec(1)).value, tokens(9), "eight, and one has come back");
    assert_eq!(world.look(two.global(), sec(1)).value, tokens(1));
    // The third limit refuses, so nobody is charged.
    let three = Limit::token_bucket("three", 1, DAY).capacity(2);
    let _ = granted(&mut world, three.global(), 1);
    let before = world.clone();
    let all = || Call::consume([ask(&TEN), ask(&two), ask(&three)]);
    let denied = world.call(all(), sec(1));
    assert!(matches!(&denied, Ok(Answer::Denied(denied)) if denied.limit == "three"), "{denied:?}");
    assert_eq!(world, before);
}

#[test]
fn an_id_that_was_granted_something_else_is_an_error_and_nothing_is_taken() {
    let other = Limit::token_bucket("other", 10, DAY);
    let mut world = World::default();
    let ask = || TEN.global().cost(2).tracked_for(MINUTE).once("job");
    let _ = asked_once(&mut world, Call::consume([ask()]), 0);
    let before = world.clone();
    for request in [ask().cost(3), ask().tracked_for(2 * MINUTE), ask().lapses_after(MINUTE)] {
        for call in [Call::consume([other.global(), request.clone()]), Call::check([request.clone()])] {
            let error = world.call(call, sec(1)).unwrap_err();
            assert!(matches!(&error, Error::OnceMismatch { limit } if limit == "ten"), "{error}");
            assert_eq!(world, before);
        }
    }
    // The sum of two requests for one key is one charge.
    let halves = || [ask().cost(1), ask().cost(1)];
    assert_eq!(asked_once(&mut world, Call::consume(halves()), 1).1, Source::Repeated);
    let error = world.call(Call::consume([ask(), TEN.global().tracked_for(MINUTE)]), sec(1)).unwrap_err();
    assert!(matches!(error, Error::Hold { source: HoldError::Conflicting, .. }), "{error}");
    // Costs near each other all differ.
    for cost in 3..10 {
        assert!(world.call(Call::consume([ask().cost(cost)]), sec(1)).is_err(), "{cost}");
    }
}

#[test]
fn a_check_says_what_a_repeated_call_would_come_to() {
    let mut world = World::default();
    let ask = || TEN.global().cost(9).tracked_for(MINUTE).once("job");
    assert_eq!(asked_once(&mut world, Call::check([ask()]), 0), (Vec::new(), Source::Database));
    let _ = asked_once(&mut world, Call::consume([ask()]), 0);
    assert_eq!(asked_once(&mut world, Call::check([ask()]), 0), (Vec::new(), Source::Repeated));
}

#[test]
fn a_repeated_reservation_is_ready_when_the_first_one_was() {
    let limit = TEN.max_reserved(20);
    for once in [limit.global().cost(15).lapses_after(30 * SECOND), limit.global().cost(15).tracked_for(MINUTE)] {
        let ask = || Call::reserve([once.clone().once("job")]);
        let mut world = World::default();
        let ready = |world: &mut World, now| match world.call(ask(), sec(now)) {
            Ok(Answer::Granted { ready_at, charges, .. }) => (ready_at, charges),
            other => panic!("{other:?}"),
        };
        let (ready_at, first) = ready(&mut world, 0);
        assert_eq!(ready_at, sec(5));
        // Somebody stands behind it: that makes it no later.
        let _ = world.reserved(limit.global().cost(5), sec(1));
        assert_eq!(ready(&mut world, 2), (sec(5), first.clone()));
        assert_eq!(ready(&mut world, 8), (sec(8), first.clone()), "at once, with the same charge");
    }
}

#[test]
fn a_lease_that_is_asked_again_is_the_same_lease_until_it_is_released() {
    let two = Limit::concurrency("two", 2, MINUTE);
    let ask = |id: &str| Call::consume([two.global().once(id)]);
    let mut world = World::default();
    let (first, _) = asked_once(&mut world, ask("a"), 0);
    let (again, source) = asked_once(&mut world, ask("a"), 10);
    assert_eq!((again[0].hold, source), (first[0].hold, Source::Repeated));
    assert_eq!(world.look(two.global(), sec(10)).value, tokens(1));
    world.balance(Call::renew(&receipt(&first)), sec(20));
    let (renewed, _) = asked_once(&mut world, ask("a"), 30);
    assert_eq!(Timestamp::from(renewed[0].hold.unwrap().lapses_at), sec(80));
    assert_eq!(Timestamp::from(renewed[0].ready_at), sec(20));
    // Another length of the lease, in the next release, is no other request.
    let longer = Limit::concurrency("two", 2, 2 * MINUTE);
    let (_, source) = asked_once(&mut world, Call::consume([longer.global().once("a")]), 30);
    assert_eq!(source, Source::Repeated);
    // Released, it counts nothing, and who asks again holds nothing.
    assert_eq!(world.balance(Call::release(&receipt(&renewed)), sec(40)).value, tokens(2));
    let before = world.clone();
    for call in [
        ask("a"),
        Call::check([two.global().once("a")]),
        Call::renew(&receipt(&renewed)),
        Call::release(&receipt(&renewed)),
    ] {
        let error = world.call(call, sec(79)).unwrap_err();
        assert!(matches!(error, Error::ReceiptUsed { .. }), "{error}");
        assert_eq!(world, before);
    }
    for id in ["b", "c"] {
        assert_eq!(asked_once(&mut world, ask(id), 79).1, Source::Database);
    }
    assert!(matches!(world.call(ask("a"), sec(80)), Ok(Answer::Denied(_))), "a new lease, for which there is no room");
}

#[test]
fn who_asks_again_needs_no_room_among_the_holds_of_a_row() {
    let wide = Limit::token_bucket("wide", 2_000, DAY);
    let mut world = World::default();
    let ask = |id: i32| Call::consume([wide.global().tracked_for(MINUTE).once(id)]);
    for id in 0..1_000 {
        let _ = asked_once(&mut world, ask(id), 0);
    }
    assert_eq!(asked_once(&mut world, ask(500), 1).1, Source::Repeated);
    assert!(matches!(world.clone().call(ask(1_000), sec(1)), Ok(Answer::Denied(_))));
    // A place is free when the hold lapses, not when its receipt is used.
    let (charges, _) = asked_once(&mut world, ask(0), 1);
    world.balance(Call::settle(receipt(&charges), tokens(0)), sec(1));
    assert!(matches!(world.call(ask(1_000), sec(1)), Ok(Answer::Denied(_))));
}

#[test]
fn a_reset_and_a_swept_row_of_an_id() {
    let mut world = World::default();
    let ask = || Call::consume([TEN.global().cost(8).tracked_for(MINUTE).once("job")]);
    let (charges, _) = asked_once(&mut world, ask(), 0);
    world.balance(Call::settle(receipt(&charges), tokens(0)), sec(0));
    assert_eq!(Timestamp::from(world.look(TEN.global(), sec(0)).full_at), sec(60), "not swept while the id is known");
    world.balance(Call::reset(TEN.global()), sec(1));
    assert_eq!(asked_once(&mut world, ask(), 2).1, Source::Repeated, "a reset forgives, and forgets no id");
    assert_eq!(world.look(TEN.global(), sec(2)).value, tokens(10));
}

#[test]
fn a_low_balance_proves_nothing_for_a_call_with_an_id() {
    let ask = || TEN.global().tracked_for(MINUTE);
    assert!(Plan::new([Call::consume([ask()])]).unwrap().need().is_some());
    assert!(Plan::new([Call::consume([ask().once("job")])]).unwrap().need().is_none());
}

/// Rows keep these for as long as a hold lives, and processes of several releases ask for them.
#[test]
fn the_id_of_a_hold_that_its_caller_named_is_the_same_in_every_release() {
    let lease = Limit::concurrency("lease", 2, MINUTE);
    for (request, id) in [
        (TEN.global().tracked_for(MINUTE).once("job-7"), "3506517949233807130"),
        (TEN.global().tracked_for(MINUTE).once("job-8"), "4597286147166396186"),
        (TEN.global().tracked_for(MINUTE).once("job-7").cost(2), "3506517949233801190"),
        (TEN.global().lapses_after(MINUTE).once("job-7"), "3506517949233802791"),
        (lease.global().once("job-7"), "3506517949233800924"),
    ] {
        let (charges, _) = asked_once(&mut World::default(), Call::consume([request]), 0);
        assert_eq!(charges[0].hold.unwrap().id.to_string(), id);
        let stored: u64 = id.parse().unwrap();
        assert_eq!(stored >> 61, 1, "random ids lack this bit");
    }
}

#[test]
fn what_an_id_cannot_be_is_an_error_before_anything_is_taken() {
    let lease = Limit::concurrency("lease", 2, MINUTE);
    let held = || TEN.global().tracked_for(MINUTE);
    let [consume, reserve, check] =
        [|request| Call::consume([request]), |request| Call::reserve([request]), |request| Call::check([request])];
    for (request, calls, expected) in [
        (held().once(""), [consume, reserve, check], HoldError::IdEmpty),
        (lease.global().once(""), [consume, reserve, check], HoldError::IdEmpty),
        (TEN.global().once("job"), [consume, reserve, check], HoldError::IdWithoutHold),
        (held().once("job"), [Call::credit, Call::debit, Call::debit], HoldError::IdWithoutHold),
        (TEN.shards(2).global().tracked_for(MINUTE).once("job"), [consume, reserve, check], HoldError::Shards),
    ] {
        for call in calls {
            let error = World::default().call(call(request.clone()), sec(0)).unwrap_err();
            assert!(matches!(&error, Error::Hold { source, .. } if *source == expected), "{error}");
        }
    }
}

#[test]
fn requests_with_ids_come_back_as_they_were() {
    let request = TEN.key("k").once("job-7").tracked_for(MINUTE);
    let text = serde_json::to_string(&request).unwrap();
    assert!(text.contains(r#""once":"job-7""#), "{text}");
    assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    assert_eq!(serde_json::to_string(&Source::Repeated).unwrap(), r#""repeated""#);
}
