//! Meters: what is used, without a bound.

use tollgate::plan::{Answer, Verb};
use tollgate::{Call, CallError, Error, Limit, Source, Tokens, first_of, split};

use super::{USER, WALLET, left, take};
use crate::world::{World, sec, tokens};

const USAGE: Limit = Limit::meter("usage");

#[test]
fn a_meter_refuses_nobody_and_its_use_is_no_remainder() {
    let mut world = World::default();
    let mut remaining = |call: Call| match world.call(Verb::consume(call), sec(0)).unwrap() {
        Answer::Granted { grant, .. } => (grant.remaining, grant.source),
        other => panic!("{other:?}"),
    };
    let both = || Call::from([USAGE, USER].map(|limit| limit.global().cost(4))).once("job");
    assert_eq!(remaining(both()), (tokens(6), Source::Database));
    assert_eq!(remaining(both()), (tokens(6), Source::Repeated));
    assert_eq!(remaining(USAGE.global().cost(1_000).into()), (Tokens::MAX, Source::Database));
    let balance = world.look(USAGE.global(), sec(9_999));
    assert_eq!((balance.used, balance.full_at), (tokens(1_004), None), "time brings nothing");
}

/// The plan pays what it has, and the bill gets the rest.
#[test]
fn a_meter_behind_a_plan_counts_the_use_beyond_it() {
    let mut world = World::default();
    let receipt = take(&mut world, split(tokens(15), [USER.global(), USAGE.global()]), sec(0));
    assert_eq!(receipt.charges.iter().map(|charge| charge.cost).collect::<Vec<_>>(), [tokens(10), tokens(5)]);
    world.settled(Verb::Settle(receipt, tokens(12)), sec(0)).unwrap();
    assert_eq!((left(&world, &USER, sec(0)), world.look(USAGE.global(), sec(0)).used), (tokens(0), tokens(2)));
    let receipt = take(&mut world, first_of([USER.global().cost(7), USAGE.global().cost(7)]), sec(0));
    assert_eq!(receipt.charges[0].limit(), "usage");
    assert_eq!(world.look(USAGE.global(), sec(0)).used, tokens(9));
}

#[test]
fn a_bill_is_corrected_and_never_reset() {
    let mut world = World::default();
    world.balance(Verb::debit(USAGE.global().cost(9)), sec(0));
    assert_eq!(world.balance(Verb::credit(USAGE.global().cost(2)), sec(0)).used, tokens(7));
    let error = world.call(Verb::Reset(USAGE.global()), sec(0)).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::ResetOfMeter, .. }), "{error}");
    assert_eq!(world.look(USAGE.global(), sec(0)).used, tokens(7));
}

#[test]
fn a_wallet_may_become_a_meter() {
    let mut world = World::default();
    world.balance(Verb::credit(WALLET.global().cost(20)), sec(0));
    let _ = take(&mut world, Limit::meter("wallet").global().cost(50), sec(1));
    assert_eq!(left(&world, &WALLET, sec(1)), Tokens::from_micros(-30_000_000));
}
