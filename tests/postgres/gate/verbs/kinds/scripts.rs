//! The calls that every kind of gate gets, and a limiter.

use std::time::Duration;

use tollgate::{Call, DAY, HOUR, Limit, Request, Tokens, first_of, split};

use crate::gate::kind::{HOT, WARM};
use crate::gate::stage::EVER;
use crate::world::second;

const FEW: Limit = Limit::fixed_window("few", 5, EVER);
const LAST: Limit = Limit::sliding_window("last", 5, EVER);
const BROAD: Limit = Limit::token_bucket("broad", 400, EVER).shards(4);
pub(super) const MONEY: Limit = Limit::wallet("money").overdraft(5);
pub(super) const SLOTS: Limit = Limit::concurrency("slots", 2, HOUR);
const MONTH: Limit = Limit::monthly("month", 10);
const PLAN: Limit = Limit::billing("plan", 10);
pub(super) const LIMITS: [Limit; 9] = [HOT, WARM, FEW, LAST, BROAD, MONEY, SLOTS, MONTH, PLAN];

/// A call. Receipts are those of the last grants, the latest first.
#[derive(Clone, Debug)]
pub(in crate::gate::verbs) enum Step {
    Balance(Request),
    Cancel,
    Check(Call),
    Consume(Call),
    ConsumeEach(Vec<Call>),
    Credit(Call),
    Debit(Call),
    /// A guard that is dropped, or released.
    Lease(Request, bool),
    Release,
    Renew,
    Reserve(Call),
    Reset(Request),
    Settle(u32),
    SettleEach(Vec<Tokens>),
    /// The tokens used of an estimate; the guard is dropped, or settled.
    Stream(Call, u32, bool),
    Wait(Call),
}

/// Asks a gate, or a limiter in a transaction, for what both do.
macro_rules! told {
    ($step:expr, $receipts:expr, $hand:expr $(, $tx:expr)?) => {
        match $step {
            Step::Balance(request) => Told::balance($hand.balance($($tx,)? request).await),
            Step::Cancel => Told::settlement($hand.cancel($($tx,)? $receipts.pop().unwrap()).await),
            Step::Check(call) => Told::grant($hand.check($($tx,)? call).await, &mut Vec::new()),
            Step::Consume(call) => Told::grant($hand.consume($($tx,)? call).await, $receipts),
            Step::Credit(call) => Told::balance($hand.credit($($tx,)? call).await),
            Step::Debit(call) => Told::balance($hand.debit($($tx,)? call).await),
            Step::Release => Told::settlement($hand.release($($tx,)? $receipts.pop().unwrap()).await),
            Step::Renew => {
                let renewed = $hand.renew($($tx,)? $receipts.last().unwrap()).await.unwrap();
                let told = Told::new(&charges(&renewed.charges));
                *$receipts.last_mut().unwrap() = renewed;
                told
            }
            Step::Reserve(call) => Told::booking($hand.reserve($($tx,)? call).await, $receipts),
            Step::Reset(request) => Told::balance($hand.reset($($tx,)? request).await),
            Step::Settle(actual) => Told::settlement($hand.settle($($tx,)? $receipts.pop().unwrap(), actual).await),
            Step::SettleEach(costs) => {
                Told::settlement($hand.settle_each($($tx,)? $receipts.pop().unwrap(), &costs).await)
            }
            other => unreachable!("each has its own way: {other:?}"),
        }
    };
}
pub(super) use told;

use Step::{
    Balance as Look, Cancel, Check, Consume, ConsumeEach, Credit, Debit, Lease as Hold, Release, Renew, Reserve, Reset,
    Settle, SettleEach, Stream, Wait,
};

/// The name of a key, and the calls for it.
pub(super) type Script = (&'static str, Vec<Step>);

fn script(name: &'static str, steps: impl Fn(&dyn Fn(&Limit, u32) -> Request) -> Vec<Step>) -> Script {
    (name, steps(&|limit, cost| limit.key(name).cost(cost)))
}

pub(super) fn scripts() -> Vec<Script> {
    [verbs(), settlements(), options(), guards()].concat()
}

fn verbs() -> Vec<Script> {
    vec![
        script("consume", |of| {
            vec![Consume(of(&HOT, 3).into()), Consume(of(&HOT, 40_000).into()), Consume(of(&HOT, 1).into())]
        }),
        script("all", |of| {
            let one = Call::from([of(&HOT, 2), of(&WARM, 3)]);
            let two = Call::from([of(&HOT, 1), of(&HOT, 2), of(&MONEY, 4)]);
            vec![Consume(one.clone()), Consume(two), Consume(one), Consume(Call::from([of(&HOT, 1), of(&BROAD, 9)]))]
        }),
        script("all_denied", |of| {
            let both = Call::from([of(&HOT, 1), of(&LAST, 5)]);
            vec![Consume(both.clone()), Consume(both.clone()), Consume(both), Consume(of(&HOT, 100_000).into())]
        }),
        script("each", |of| {
            let each = [of(&HOT, 1), of(&MONEY, 9), of(&LAST, 6), of(&WARM, 7)];
            vec![ConsumeEach(each.map(Call::from).into())]
        }),
        script("check", |of| {
            let least = |cost| Check(of(&HOT, cost).into());
            vec![least(99_900), least(99_901), Check(Call::from([of(&HOT, 99_900), of(&WARM, 99_901)]))]
        }),
        script("reserve", |of| {
            let one = |cost| Reserve(of(&HOT, cost).into());
            vec![one(5), one(9), Cancel, Settle(2), Reserve(Call::from([of(&HOT, 6), of(&HOT, 1)]))]
        }),
        script("debt", |of| vec![Reserve(of(&HOT, 100_000).into()), Consume(of(&HOT, 1).into()), Look(of(&HOT, 1))]),
        script("balance", |of| LIMITS.iter().map(|limit| Look(of(limit, 1))).collect()),
        script("credit", |of| {
            vec![
                Credit(of(&HOT, 7).into()),
                Credit(of(&MONEY, 7).into()),
                Consume(of(&HOT, 1).into()),
                Credit(of(&HOT, 500).into()),
            ]
        }),
        script("debit", |of| {
            vec![Debit(of(&HOT, 7).into()), Debit(of(&MONEY, 200).into()), Consume(of(&HOT, 1).into())]
        }),
        script("reset", |of| {
            vec![Reset(of(&HOT, 1)), Consume(of(&HOT, 1).into()), Reset(of(&MONEY, 1)), Reset(of(&WARM, 1))]
        }),
    ]
}

fn settlements() -> Vec<Script> {
    vec![
        script("settle", |of| {
            let ten = || Consume(of(&HOT, 10).into());
            vec![
                ten(),
                Settle(4),
                ten(),
                Settle(14),
                ten(),
                Settle(0),
                ten(),
                ten(),
                Settle(3),
                Settle(30),
                ten(),
                Settle(200),
            ]
        }),
        script("settle_each", |of| {
            let both = || Consume(Call::from([of(&HOT, 10), of(&WARM, 10)]));
            let costs = |one: u32, two: u32| SettleEach(vec![Tokens::new(one), Tokens::new(two)]);
            vec![both(), costs(3, 12), both(), costs(0, 0), both(), costs(11, 300)]
        }),
        script("cancel", |of| {
            vec![Consume(of(&HOT, 10).into()), Cancel, Consume(Call::from([of(&HOT, 9), of(&FEW, 2)])), Cancel]
        }),
        script("once", |of| {
            let job = |cost| Consume(of(&HOT, cost).once("job"));
            let paid = || Credit(of(&HOT, 50).once("paid"));
            vec![job(5), job(5), job(6), Settle(2), job(5), paid(), paid(), Debit(of(&HOT, 9).once("fee"))]
        }),
        script("lapses", |of| {
            let call = |span| Consume(Call::from([of(&HOT, 9), of(&FEW, 1)]).lapses_after(span));
            vec![call(HOUR), Settle(2), call(HOUR), Cancel, Consume(of(&HOT, 1).into()), call(MOMENT)]
        }),
        script("tracked", |of| {
            let call = || Consume(of(&HOT, 9).tracked_for(HOUR));
            vec![call(), Settle(2), call(), Settle(12), call()]
        }),
    ]
}

fn options() -> Vec<Script> {
    vec![
        script("first_of", |of| {
            let either = || Consume(first_of([vec![of(&FEW, 2)], vec![of(&HOT, 3)], vec![of(&MONEY, 1)]]));
            vec![either(), either(), either(), either(), Settle(1), either()]
        }),
        script("first_is_hot", |of| {
            let either = |cost| Consume(first_of([vec![of(&HOT, cost)], vec![of(&FEW, 2), of(&WARM, 1)]]));
            vec![either(1), either(99_000), either(99_000), either(99_000), either(99_000), either(1)]
        }),
        script("split", |of| {
            let whole = |cost| Consume(split(cost, [of(&FEW, 1), of(&HOT, 1), of(&WARM, 1)]));
            vec![whole(7), whole(7), Settle(3), whole(120_000), whole(120_000)]
        }),
        script("up_to", |of| {
            let some = |limit, cost, least: u32| Consume(of(limit, cost).up_to(least).into());
            vec![some(&FEW, 3, 1), some(&FEW, 3, 1), some(&FEW, 3, 1), some(&HOT, 100_000, 50), some(&HOT, 5, 1)]
        }),
        script("leaving", |of| {
            let all = |limit, cost, left: u32| Consume(of(limit, cost).leaving(left).into());
            vec![all(&HOT, 1, 99_899), all(&HOT, 1, 99_899), all(&FEW, 2, 3), all(&FEW, 2, 3), all(&MONEY, 90, 10)]
        }),
        script("wait", |of| {
            vec![Wait(of(&HOT, 1).into()), Wait(Call::from([of(&FEW, 5), of(&HOT, 1)])), Wait(of(&FEW, 1).into())]
        }),
        script("refused", |of| {
            let few = |cost| Consume(of(&FEW, cost).into());
            let raised =
                [few(5), few(1), few(1), Settle(3), few(2), few(1), few(1), Credit(of(&FEW, 1).into()), few(1)];
            raised.into_iter().chain([few(1), Reset(of(&FEW, 1)), few(5), few(1), Cancel, few(5)]).collect()
        }),
        script("period", |of| {
            let (start, end) = (second(0.0), second(0.0) + 36_500 * DAY);
            let paid = |cost| Consume(of(&PLAN, cost).period(start, end).into());
            let (credit, reset) = (Credit(of(&PLAN, 4).into()), Reset(of(&PLAN, 1)));
            vec![paid(9), paid(2), paid(1), paid(1), Settle(3), credit, paid(3), reset, paid(10), Cancel, paid(1)]
        }),
    ]
}

fn guards() -> Vec<Script> {
    vec![
        script("slots", |of| {
            let one = || Consume(of(&SLOTS, 1).into());
            vec![
                one(),
                one(),
                one(),
                Renew,
                Release,
                one(),
                Release,
                Release,
                Consume(Call::from([of(&HOT, 1), of(&SLOTS, 1)])),
                Renew,
            ]
        }),
        script("lease", |of| {
            let hold = |dropped| Hold(of(&SLOTS, 1), dropped);
            vec![hold(true), hold(false), hold(false), hold(true), Consume(of(&SLOTS, 2).into()), hold(true)]
        }),
        script("stream", |of| {
            let stream = |used, dropped| Stream(of(&HOT, 50).lapses_after(HOUR), used, dropped);
            vec![stream(20, true), stream(70, false), stream(0, true), Stream(of(&HOT, 50).into(), 9, false)]
        }),
    ]
}

/// After so long a call has lapsed once anybody looks.
const MOMENT: Duration = Duration::from_micros(1);
