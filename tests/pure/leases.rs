//! Concurrency limits, against a list of their holders.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Verb};
use tollgate::{
    CallError, Charge, Error, Grant, Limit, LimitFault, LimitKind, LimitSpec, MINUTE, Reason, Receipt, SECOND, Tokens,
};

use crate::story::config;
use crate::world::{World, at, due, micros, receipt, sec, terms_of, tokens};

#[derive(Clone, Debug)]
enum Op {
    Acquire(i64),
    Release {
        which: usize,
        /// One of three verbs, which do the same here.
        verb: usize,
    },
    Renew(usize),
    /// Deletes a row that is full.
    Sweep,
    Redefine(i64),
    Reset,
}

/// A lease that was acquired.
#[derive(Clone, Debug)]
struct Held {
    charge: Charge,
    /// The part of it that counts; nothing once the row was reset.
    amount: i64,
    lapses_at: Timestamp,
    is_released: bool,
}

impl Held {
    fn is_live(&self, now: Timestamp) -> bool {
        !self.is_released && self.lapses_at > now
    }
}

const LEASE: i64 = 20;

fn limit(n: i64) -> Limit {
    let span = Duration::from_micros(LEASE.unsigned_abs());
    LimitSpec::new("held", LimitKind::Concurrency, micros(n), span).try_into().unwrap()
}

fn stories() -> impl Strategy<Value = Vec<(i64, Op)>> {
    let op = prop_oneof![
        6 => (1_i64..4).prop_map(Op::Acquire),
        3 => (0_usize..8, 0_usize..3).prop_map(|(which, verb)| Op::Release { which, verb }),
        3 => (0_usize..8).prop_map(Op::Renew),
        1 => Just(Op::Sweep),
        1 => (1_i64..8).prop_map(Op::Redefine),
        1 => Just(Op::Reset),
    ];
    // The clock goes back now and then.
    vec((prop_oneof![6 => 0_i64..6, 1 => 0_i64..60, 1 => -15_i64..0], op), 1..40)
}

fn paid(charge: &Charge) -> Receipt {
    receipt(std::slice::from_ref(charge))
}

fn release(charge: &Charge, verb: usize) -> Verb {
    let receipt = paid(charge);
    match verb {
        0 => Verb::Release(receipt.clone()),
        1 => Verb::Settle(receipt, charge.cost),
        _ => Verb::Cancel(receipt),
    }
}

proptest! {
    #![proptest_config(config())]

    /// Granted exactly where it fits, by the row's clock; refused until the very microsecond at which it fits.
    #[test]
    fn never_more_is_held_than_the_limit(first in 1_i64..8, story in stories()) {
        let (mut n, mut now, mut row_at) = (first, 1_000, Timestamp::MIN);
        let (mut world, mut held) = (World::default(), Vec::<Held>::new());
        for (gap, op) in story {
            now += gap;
            let limit = limit(n);
            // Time does not go back for a row.
            let clock = at(now).max(row_at);
            let live: i64 = held.iter().filter(|held| held.is_live(clock)).map(|held| held.amount).sum();
            match op {
                Op::Acquire(cost) if cost > n => {}
                Op::Acquire(cost) => {
                    let request = limit.global().cost(micros(cost));
                    let call = Verb::consume(request.clone());
                    match world.call(call, at(now)).unwrap() {
                        Answer::Granted { grant: Grant { receipt: Receipt { charges, .. }, remaining, .. }, .. } => {
                            prop_assert!(live + cost <= n, "{live} and {cost} of {n}");
                            prop_assert_eq!(remaining, micros(n - live - cost));
                            let lapses_at = clock.plus(Duration::from_micros(LEASE.unsigned_abs()));
                            prop_assert_eq!(charges[0].lease_ends_at(), Some(lapses_at.into()));
                            held.push(Held { charge: charges[0].clone(), amount: cost, lapses_at, is_released: false });
                            row_at = clock;
                        }
                        Answer::Denied(denied) => {
                            prop_assert!(live + cost > n, "{live} and {cost} of {n}");
                            let retry_at = due(denied.retry_at);
                            prop_assert!(retry_at > clock);
                            world.clone().granted(request.clone(), retry_at);
                            world.clone().denied(request, at(retry_at.micros() - 1));
                        }
                        Answer::Done(_) | Answer::Settled(_) => unreachable!(),
                    }
                }
                Op::Release { which, verb } => {
                    let Some(which) = which.checked_rem(held.len()) else { continue };
                    let held = &mut held[which];
                    let released = world.call(release(&held.charge, verb), at(now));
                    prop_assert_eq!(released.is_ok(), held.is_live(clock), "{:?}", released);
                    if released.is_ok() {
                        (held.is_released, row_at) = (true, clock);
                    }
                }
                Op::Renew(which) => {
                    let Some(which) = which.checked_rem(held.len()) else { continue };
                    let held = &mut held[which];
                    let receipt = paid(&held.charge);
                    let renewed = world.call(Verb::Renew(receipt.clone()), at(now));
                    prop_assert_eq!(renewed.is_ok(), held.is_live(clock), "{:?}", renewed);
                    if renewed.is_ok() {
                        (held.lapses_at, row_at) = (clock.plus(Duration::from_micros(LEASE.unsigned_abs())), clock);
                    }
                }
                Op::Sweep => {
                    let request = limit.global();
                    if let Some(row) = world.state(&request)
                        && terms_of(&request).full_at(&row) <= at(now)
                    {
                        // All have lapsed by now. Where the clock goes back, nobody knows of them; the margin is for
                        // that.
                        world.delete(&request);
                        row_at = Timestamp::MIN;
                        held.clear();
                    }
                }
                Op::Redefine(other) => n = other,
                Op::Reset => {
                    // A reset goes by the clock as it is: a row from the future comes back to the present.
                    if world.state(&limit.global()).is_some() {
                        row_at = at(now);
                    }
                    held.retain(|held| held.is_live(clock));
                    for held in &mut held {
                        held.amount = 0;
                    }
                    world.balance(Verb::Reset(limit.global()), at(now));
                }
            }
        }
    }
}

const RENDERS: Limit = Limit::concurrency("renders", 2, MINUTE);

fn acquired(world: &mut World, now: Timestamp) -> Charge {
    match world.call(Verb::consume(RENDERS.global()), now).unwrap() {
        Answer::Granted { grant: Grant { receipt: Receipt { mut charges, .. }, .. }, .. } => charges.remove(0),
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn what_is_released_is_free_at_once_and_what_nobody_renews_at_the_end_of_its_lease() {
    let mut world = World::default();
    let (first, second) = (acquired(&mut world, sec(0)), acquired(&mut world, sec(10)));
    assert_eq!(due(world.denied(RENDERS.global(), sec(20)).retry_at), sec(60));
    world.call(Verb::Renew(paid(&first)), sec(50)).unwrap();
    assert_eq!(due(world.denied(RENDERS.global(), sec(55)).retry_at), sec(70));
    world.call(Verb::Release(paid(&first)), sec(56)).unwrap();
    acquired(&mut world, sec(56));
    let gone = |charge: &Charge, call: fn(Receipt) -> Verb, now, world: &mut World| {
        world.call(call(paid(charge)), now).unwrap_err()
    };
    for call in [Verb::Renew, Verb::Release] {
        assert!(matches!(gone(&first, call, sec(57), &mut world), Error::ReceiptUsed { .. }));
        assert!(matches!(gone(&second, call, sec(70), &mut world), Error::Lapsed { .. }));
    }
}

#[test]
fn a_changed_number_counts_at_once() {
    let (mut world, four) = (World::default(), Limit::concurrency("renders", 4, MINUTE));
    let [first, second] = [sec(0), sec(1)].map(|now| acquired(&mut world, now));
    world.granted(four.global(), sec(2));
    world.granted(four.global(), sec(2));
    world.denied(four.global(), sec(2));
    // Back at two, while four are held: none is free until three are gone.
    for charge in [first, second] {
        world.denied(RENDERS.global(), sec(3));
        world.call(Verb::Release(paid(&charge)), sec(3)).unwrap();
    }
    assert_eq!(due(world.denied(RENDERS.global(), sec(3)).retry_at), sec(62));
}

#[test]
fn a_reset_lets_all_go_and_leaves_leases_valid() {
    let mut world = World::default();
    let first = acquired(&mut world, sec(0));
    acquired(&mut world, sec(0));
    assert_eq!(world.balance(Verb::Reset(RENDERS.global()), sec(1)).remaining, tokens(2));
    acquired(&mut world, sec(1));
    acquired(&mut world, sec(1));
    world.denied(RENDERS.global(), sec(1));
    world.call(Verb::Renew(paid(&first)), sec(2)).unwrap();
    world.call(Verb::Release(paid(&first)), sec(3)).unwrap();
    world.denied(RENDERS.global(), sec(3));
}

#[test]
fn a_lease_and_a_rate_are_taken_together_and_the_rate_stays_spent() {
    const RATE: Limit = Limit::token_bucket("rate", 3, MINUTE);
    let mut world = World::default();
    let both = || [RENDERS.global(), RATE.global()];
    let Ok(Answer::Granted { grant: Grant { receipt: Receipt { charges, .. }, .. }, .. }) =
        world.call(Verb::consume(both()), sec(0))
    else {
        panic!("granted")
    };
    let paid = receipt(&charges);
    assert_eq!(world.settled(Verb::Renew(paid.clone()), sec(1)).unwrap().charges.len(), 1);
    world.call(Verb::Release(paid.clone()), sec(2)).unwrap();
    assert_eq!(world.look(RENDERS.global(), sec(2)).remaining, tokens(2));
    assert!(world.look(RATE.global(), sec(2)).remaining < tokens(3));
    // Where nothing is left of the rate, nothing is held.
    world.granted(RATE.global().cost(2), sec(2));
    assert!(matches!(world.call(Verb::consume(both()), sec(2)), Ok(Answer::Denied(_))));
    assert_eq!(world.look(RENDERS.global(), sec(2)).remaining, tokens(2));
    let rate = receipt(&charges[1..]);
    for call in [Verb::Renew(rate.clone()), Verb::Release(rate.clone())] {
        assert!(matches!(world.call(call, sec(3)), Err(Error::Call { source: CallError::NothingAsked, .. })));
    }
}

#[test]
fn who_asks_for_nothing_holds_nothing() {
    let mut world = World::default();
    let nothing = || RENDERS.global().cost(0);
    for request in [nothing(), nothing()] {
        let Ok(Answer::Granted { grant: Grant { receipt: Receipt { charges, .. }, remaining, .. }, .. }) =
            world.call(Verb::consume(request), sec(0))
        else {
            panic!("granted")
        };
        assert_eq!((remaining, charges[0].lease_ends_at()), (tokens(2), None));
        assert!(matches!(
            world.call(Verb::Release(receipt(&charges)), sec(0)),
            Err(Error::Call { source: CallError::NothingAsked, .. })
        ));
    }
    assert_eq!(world.state(&RENDERS.global()), None, "no row is left behind");
    // Nothing more fits into a row of a thousand holders, and nothing still does.
    let crowded = Limit::concurrency("crowded", 1_000, MINUTE);
    for _ in 1..=1_000 {
        world.call(Verb::consume(crowded.global().cost(0.5)), sec(0)).unwrap();
    }
    let full = world.denied(crowded.global().cost(0.5).leaving(1), sec(0));
    assert_eq!(full.reason, Reason::Leased, "not held back: five hundred are left");
    assert_eq!(world.granted(crowded.global().cost(0), sec(0)), tokens(500));
}

#[test]
fn a_row_that_another_kind_of_limit_wrote_counts_for_a_lease() {
    let bucket = Limit::token_bucket("renders", 2, MINUTE);
    let mut world = World::default();
    world.granted(bucket.global().cost(2), sec(0));
    assert_eq!(due(world.denied(RENDERS.global(), sec(1)).retry_at), sec(60));
    acquired(&mut world, sec(60));
}

#[test]
fn what_is_no_concurrency_limit_is_a_fault_with_a_name() {
    let spec = || RENDERS.spec();
    for (spec, fault) in [
        (spec().with(|spec| (spec.rate, spec.capacity) = (tokens(1_001), None)), LimitFault::ConcurrencyTooLarge),
        (spec().with(|spec| (spec.rate, spec.capacity) = (Tokens::ZERO, None)), LimitFault::RateNotPositive),
        (spec().with(|spec| spec.period = Duration::ZERO), LimitFault::PeriodZero),
        (spec().with(|spec| spec.shards = 2), LimitFault::ShardsOfCounting),
        (spec().with(|spec| spec.max_reserved = tokens(1)), LimitFault::ReservationsOfCounting),
        (spec().with(|spec| spec.capacity = Some(tokens(20))), LimitFault::CapacityOfCounting),
        (spec().with(|spec| spec.start = Some(SECOND)), LimitFault::StartOfCounting),
        (spec().with(|spec| spec.resolution = Some(1)), LimitFault::ResolutionWithoutSliding),
    ] {
        assert_eq!(Limit::try_from(spec).unwrap_err().fault, fault);
    }
    let text = r#"{ "name": "renders", "kind": "concurrency", "rate": 2, "lease": "1m" }"#;
    assert_eq!(serde_json::from_str::<Limit>(text).unwrap(), RENDERS);
    assert_eq!(RENDERS.lease(), Some(MINUTE));
    assert_eq!(Limit::token_bucket("rate", 3, MINUTE).lease(), None);
}

#[test]
fn what_a_concurrency_limit_does_not_do_is_an_error_before_anything_is_taken() {
    for (call, expected) in [
        (Verb::consume(RENDERS.global().lapses_after(MINUTE)), CallError::Leased),
        (Verb::consume(RENDERS.global().tracked_for(MINUTE)), CallError::Leased),
        (Verb::credit(RENDERS.global()), CallError::Counted),
        (Verb::debit(RENDERS.global()), CallError::Counted),
    ] {
        let error = World::default().call(call, sec(0)).unwrap_err();
        assert!(
            matches!(&error, Error::Call { limit: Some(limit), source } if limit == "renders" && *source == expected),
            "{error}"
        );
    }
    let error = World::default().call(Verb::consume(RENDERS.global().cost(3)), sec(0)).unwrap_err();
    assert!(matches!(error, Error::CostExceedsCapacity { .. }), "{error}");
}
