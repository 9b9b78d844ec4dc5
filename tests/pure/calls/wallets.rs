//! Wallets: money that no time brings, and no sweep takes.

use tollgate::algebra::Terms;
use tollgate::plan::Verb;
use tollgate::{Call, DAY, Error, FitError, Limit, MINUTE, Receipt, Source, Tokens};

use super::{USER, WALLET, left, take};
use crate::world::{World, sec, tokens};

#[test]
fn a_wallet_is_credited_once_for_each_payment_and_never_cut() {
    let mut world = World::default();
    let pay = |id| Verb::credit(WALLET.global().cost(20).once(id));
    assert_eq!(world.balance(pay("p1"), sec(0)).remaining, tokens(20));
    let again = world.balance(pay("p1"), sec(1));
    assert_eq!((again.remaining, again.source, again.full_at), (tokens(20), Source::Repeated, None));
    let receipt = take(&mut world, WALLET.global().cost(25), sec(1));
    let denied = world.denied(WALLET.global(), sec(1));
    assert_eq!((denied.retry_at, denied.retry_after()), (None, None));
    assert_eq!(denied.to_string(), r#"limit "wallet" exhausted (only a credit fills it)"#);
    world.settled(Verb::Settle(receipt, tokens(20)), sec(9)).unwrap();
    assert_eq!(left(&world, &WALLET, sec(9_999)), tokens(0), "time brings nothing");
    // At rest it is swept, and tokens that come back later are there again.
    world.balance(pay("p2"), sec(10));
    let receipt = take(&mut world, WALLET.global().cost(20).lapses_after(MINUTE), sec(10));
    world.sweep(sec(11));
    assert_eq!(world.state(&WALLET.global()), None);
    world.reap(sec(70));
    assert_eq!(left(&world, &WALLET, sec(70)), tokens(20));
    assert!(matches!(world.settled(Verb::Settle(receipt, tokens(0)), sec(70)), Err(Error::Lapsed { .. })));
    // An amount that does not fit is an error, and stays owed.
    let receipt = take(&mut world, WALLET.global().cost(20).tracked_for(DAY), sec(71));
    world.balance(Verb::credit(WALLET.global().cost(Tokens::MAX)), sec(71));
    for (call, now) in [(Verb::credit(WALLET.global()), 71), (Verb::Settle(receipt, tokens(0)), 72)] {
        let before = world.state(&WALLET.global());
        assert!(matches!(world.call(call, sec(now)), Err(Error::DoesNotFit { source: FitError::BalanceTooLarge, .. })));
        assert_eq!(world.state(&WALLET.global()), before);
    }
}

#[test]
fn what_is_cancelled_comes_back_to_a_wallet_that_was_swept() {
    let user = USER.spec().with(|spec| spec.max_reserved = tokens(10));
    let user = Limit::try_from(user).unwrap();
    for keep in [|call: Call| call, |call: Call| call.tracked_for(DAY)] {
        let mut world = World::default();
        world.balance(Verb::credit(WALLET.global().cost(20)), sec(0));
        // Ready in a minute; the wallet is at rest meanwhile.
        let receipt =
            world.taken(Verb::reserve(keep(Call::from([user.global().cost(20), WALLET.global().cost(20)]))), sec(0));
        world.sweep(sec(30));
        assert_eq!(world.state(&WALLET.global()), None);
        let cancelled = world.settled(Verb::Cancel(receipt), sec(30)).unwrap();
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
        for call in [Verb::consume, Verb::reserve] {
            assert!(matches!(
                world.call(call(vec![second.global()]), sec(0)),
                Err(Error::DoesNotFit { source: FitError::MixedMoney, .. })
            ));
        }
        for call in [Verb::credit, Verb::debit, Verb::Reset, Verb::Look] {
            assert!(matches!(
                world.call(call(second.global()), sec(0)),
                Err(Error::DoesNotFit { source: FitError::MixedMoney, .. })
            ));
        }
        let state = world.state(&first.global()).unwrap();
        world.delete(&first.global());
        let _ = take(&mut world, second.global(), sec(0));
        let settle = |receipt: Receipt| Verb::Settle(receipt, tokens(0));
        for call in [settle as fn(_) -> _, Verb::Cancel] {
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
