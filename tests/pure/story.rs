//! Stories about a limit, played and played again.
//!
//! A story is a list of gaps and moves that seek out edges: grid steps, the instants that refusals named, and balances
//! that are just enough, each a microsecond or a micro-token to either side. Playing it once makes a script of plain
//! calls at plain instants, which can be played again with something added or left out.

use std::collections::BTreeMap;
use std::time::Duration;

use num_bigint::BigInt;
use num_traits::Zero;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Call};
use tollgate::{Charge, DAY, Error, Limit, LimitKind, LimitSpec, MINUTE, Receipt, Request, SECOND, Tokens};

use crate::world::{World, at, due, left, micros, receipt, terms_of};

/// A line of a script: a plain call at a plain instant.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Its line in the story, for the lines that refer to it.
    pub(crate) id: usize,
    pub(crate) now: Timestamp,
    pub(crate) step: Step,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Take {
        cost: Tokens,
        reserving: bool,
    },
    Credit(Tokens),
    Debit(Tokens),
    Reset,
    Look,
    /// Cancels the charge of a line.
    Cancel(usize),
    /// Settles the charge of a line.
    Settle(usize, Tokens),
}

/// The outcome of a line.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: usize,
    pub(crate) now: Timestamp,
    pub(crate) step: Step,
    pub(crate) before: Option<State>,
    pub(crate) after: Option<State>,
    /// The balance before, and after.
    pub(crate) balances: [Tokens; 2],
    pub(crate) answer: Result<Answer, Error>,
    /// The charge of the receipt that was settled or cancelled.
    pub(crate) paid: Option<Charge>,
}

impl Event {
    pub(crate) fn line(&self) -> Line {
        Line { id: self.id, now: self.now, step: self.step.clone() }
    }

    pub(crate) fn asked(&self) -> Option<(Tokens, bool)> {
        match self.step {
            Step::Take { cost, reserving } => Some((cost, reserving)),
            _ => None,
        }
    }

    /// The cost of a call that was granted.
    pub(crate) fn granted(&self) -> Option<Tokens> {
        self.asked().filter(|_| matches!(self.answer, Ok(Answer::Granted { .. }))).map(|(cost, _)| cost)
    }

    /// Whether a receipt was used: the row is written as it was read, however much has come back to it meanwhile.
    pub(crate) fn settles(&self) -> bool {
        matches!(self.step, Step::Cancel(_) | Step::Settle(..))
    }

    /// The tokens that a receipt handed back, or that other moves added to the balance.
    pub(crate) fn given_back(&self) -> BigInt {
        if self.asked().is_some() {
            return BigInt::zero();
        }
        if self.settles() {
            let given = if self.before == self.after { Tokens::ZERO } else { self.change().max(Tokens::ZERO) };
            return given.micros().into();
        }
        let [before, after] = self.balances.map(|balance| BigInt::from(balance.micros()));
        (after - before).max(BigInt::zero())
    }

    /// The tokens that the step adds to a balance, before that is cut to the capacity.
    pub(crate) fn change(&self) -> Tokens {
        let minus = |amount: Tokens| micros(-amount.micros());
        let paid = || self.paid.as_ref().map_or(Tokens::ZERO, |charge| charge.cost);
        match self.step {
            Step::Take { cost, .. } | Step::Debit(cost) => minus(cost),
            Step::Credit(amount) => amount,
            Step::Settle(_, actual) => micros(paid().micros() - actual.micros()),
            Step::Cancel(_) => paid(),
            Step::Reset | Step::Look => Tokens::ZERO,
        }
    }
}

pub(crate) struct Told {
    pub(crate) events: Vec<Event>,
    pub(crate) world: World,
}

impl Told {
    pub(crate) fn script(&self) -> Vec<Line> {
        self.events.iter().map(Event::line).collect()
    }

    /// Answers have no equality of their own; their debug texts show all that they hold.
    pub(crate) fn answers(&self) -> Vec<String> {
        self.events.iter().map(|event| format!("{:?}", event.answer)).collect()
    }
}

/// A world that plays one line after another over the limit's global row.
#[derive(Default)]
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) charges: BTreeMap<usize, Charge>,
}

impl Stage {
    pub(crate) fn play(&mut self, limit: &Limit, line: Line) -> Event {
        let Line { id, now, step } = line;
        let request = limit.global();
        let paid = match step {
            Step::Cancel(taken) | Step::Settle(taken, _) => self.charges.get(&taken).cloned(),
            _ => None,
        };
        let call = match &step {
            Step::Take { cost, reserving } => call(*reserving, [request.clone().cost(*cost)]),
            Step::Credit(amount) => Call::credit(request.clone().cost(*amount)),
            Step::Debit(amount) => Call::debit(request.clone().cost(*amount)),
            Step::Reset => Call::reset(request.clone()),
            Step::Look => Call::look(request.clone()),
            Step::Cancel(_) | Step::Settle(..) if paid.is_none() => Call::look(request.clone()),
            Step::Cancel(_) => Call::cancel(receipt(paid.as_slice())),
            Step::Settle(_, actual) => Call::settle(receipt(paid.as_slice()), *actual),
        };
        let (before, held) = (self.world.state(&request), self.world.look(request.clone(), now).remaining);
        let answer = self.world.call(call, now);
        if let (Step::Cancel(taken) | Step::Settle(taken, _), Ok(_)) = (&step, &answer) {
            self.charges.remove(taken); // A receipt is used up, unless it failed.
        }
        if let Ok(Answer::Granted { receipt: Receipt { charges, .. }, .. }) = &answer {
            self.charges.insert(id, charges[0].clone());
        }
        let (after, holds) = (self.world.state(&request), self.world.look(request, now).remaining);
        Event { id, now, step, before, after, balances: [held, holds], answer, paid }
    }
}

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

pub(crate) fn call(reserving: bool, requests: impl IntoIterator<Item = Request>) -> Call {
    if reserving { Call::reserve(requests) } else { Call::consume(requests) }
}

pub(crate) fn capacity(limit: &Limit) -> Tokens {
    limit.spec().capacity.unwrap()
}

/// The same limit under a name of its own.
pub(crate) fn named(limit: &Limit, n: usize) -> Limit {
    limit.spec().named(format!("limit-{n}")).try_into().unwrap()
}

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

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Drip,
    FirstUse,
    Spread,
    /// Thousandths of a period.
    Start(u32),
}

pub(crate) fn config() -> ProptestConfig {
    // Shrunken failures are committed beside the tests.
    let failure_persistence = Some(Box::new(FileFailurePersistence::WithSource("regressions")) as _);
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(512), failure_persistence, ..default }
}

pub(crate) fn drip() -> impl Strategy<Value = Kind> {
    Just(Kind::Drip)
}

pub(crate) fn grids() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Spread), (0_u32..1_000).prop_map(Kind::Start)]
}

pub(crate) fn steps() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::FirstUse), grids()]
}

pub(crate) fn all_but_first_use() -> impl Strategy<Value = Kind> {
    prop_oneof![drip(), grids()]
}

pub(crate) fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![drip(), steps()]
}

/// Limits of a kind, under one name.
pub(crate) fn limits(kind: impl Strategy<Value = Kind>) -> impl Strategy<Value = Limit> {
    let rate = prop_oneof![
        Just(1),
        Just(1_000_000),
        2_i64..50,
        (1_i64..200).prop_map(|whole| whole * 1_000_000),
        1_i64..1_000_000_000_000,
    ];
    let period = prop_oneof![
        1_u64..20,
        Just(7_000_003),
        1_u64..100_000_000,
        Just(SECOND).prop_map(micros_of),
        Just(MINUTE).prop_map(micros_of),
        Just(DAY).prop_map(micros_of),
    ];
    let capacity = prop_oneof![
        4 => (0_i64..5, -1_i64..2).prop_map(|(times, off)| (times, off)),
        1 => (0_i64..1_000_000_000).prop_map(|micros| (0, micros)),
    ];
    let max_reserved = prop_oneof![Just(0), Just(1), 0_i64..50_000_000, 0_i64..1_000_000_000_000, Just(i64::MAX)];
    (kind, rate, period, capacity, max_reserved).prop_map(|(kind, rate, period, (times, off), max_reserved)| {
        limit(kind, rate, period, (rate * times + off).max(0), max_reserved)
    })
}

/// Limits over the whole range of every number.
pub(crate) fn extreme_limits() -> impl Strategy<Value = Limit> {
    let longest = micros_of(Limit::MAX_PERIOD);
    let positive = || prop_oneof![Just(1), Just(i64::MAX), 1..=i64::MAX, 1_i64..100];
    let amount = || prop_oneof![Just(0), Just(1), Just(i64::MAX), 0..=i64::MAX];
    let period = prop_oneof![Just(1), Just(longest), 1..=longest, 1_u64..100];
    // A row has to hold all that may be used of it.
    let bounded =
        |capacity: i64, reserved: i64| if reserved < i64::MAX { reserved.min(i64::MAX - capacity) } else { reserved };
    (any_kind(), positive(), period, amount(), amount()).prop_map(move |(kind, rate, period, capacity, reserved)| {
        limit(kind, rate, period, capacity, bounded(capacity, reserved))
    })
}

pub(crate) fn limit(kind: Kind, rate: i64, period: u64, capacity: i64, max_reserved: i64) -> Limit {
    let (kind, start) = match kind {
        Kind::Drip => (LimitKind::TokenBucket, None),
        Kind::FirstUse => (LimitKind::SteppedBucket, None),
        Kind::Spread => (LimitKind::FixedWindow, None),
        Kind::Start(part) => (LimitKind::FixedWindow, Some(Duration::from_micros(period) / 1_000 * part)),
    };
    let spec = LimitSpec::new("limit", kind, micros(rate), Duration::from_micros(period));
    let start = start.map(|start| Duration::from_micros(micros_of(start)));
    let (capacity, max_reserved) = (Some(micros(capacity)), micros(max_reserved));
    spec.with(|spec| (spec.capacity, spec.start, spec.max_reserved) = (capacity, start, max_reserved))
        .try_into()
        .unwrap()
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

pub(crate) fn extremes() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(i64::MIN),
        Just(i64::MAX),
        Just(Timestamp::MIN.micros()),
        Just(Timestamp::MAX.micros()),
        -2_i64..3,
        any::<i64>(),
    ]
}

pub(crate) fn micros_of(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

/// How long stories are: every pair of grants is looked at.
pub(crate) const STORY: usize = 30;

/// Some instant of our time, in microseconds, on no grid in particular.
pub(crate) const EPOCH: i64 = 1_754_913_600_123_457;
