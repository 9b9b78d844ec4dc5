//! Calls with an id: carried out once, and answered again.

use std::cell::Cell;

use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Plan, Under, Verb};
use tollgate::{Error, Grant, HOUR, Limit, MINUTE, Source};

use super::{ORG, USER, WALLET, left};
use crate::world::{World, sec, tokens};

#[test]
fn a_call_with_an_id_is_carried_out_once() {
    let mut world = World::default();
    let ask = |cost| Verb::consume(USER.global().once("job 7").and(ORG.global().cost(cost)));
    let receipt = world.taken(ask(8), sec(0));
    let Ok(Answer::Granted { grant: Grant { source, receipt: again, .. }, .. }) = world.call(ask(8), sec(1)) else {
        panic!("granted")
    };
    assert_eq!((source, &again), (Source::Repeated, &receipt));
    let other = world.call(ask(9), sec(1)).unwrap_err();
    assert!(matches!(&other, Error::OnceMismatch { limit } if limit == "user"), "{other}");
    // Used, it still answers; and the receipt is good once.
    world.settled(Verb::SettleEach(again, vec![tokens(1), tokens(8)]), sec(2)).unwrap();
    let Ok(Answer::Granted { grant: Grant { source, receipt, .. }, .. }) = world.call(ask(8), sec(3)) else {
        panic!("granted")
    };
    assert_eq!(source, Source::Repeated);
    assert!(matches!(world.settled(Verb::Cancel(receipt), sec(3)), Err(Error::ReceiptUsed { .. })));
    let kept: Vec<_> = world.calls.values().map(|row| (row.name.id(), row.kept_until, row.lapses_at)).collect();
    assert_eq!(kept, [("job 7", sec(86_400), None)]);
    assert_eq!(left(&world, &ORG, sec(3)), tokens(92));
    // In one batch, too.
    let answers = world.batch([0, 1].map(|_| Verb::consume(ORG.key(1).once("new"))), sec(4)).unwrap();
    let sources = answers.iter().map(|answer| match answer {
        Ok(Answer::Granted { grant: Grant { source, .. }, .. }) => *source,
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
    let org = || ORG.global().cost(8);
    let mut world = World::default();
    let receipt = world.taken(Verb::consume(lapsing().and([team.global(), org()])), sec(0));
    let again = world.taken(Verb::consume(lapsing().and([org(), team.global()])), sec(1));
    assert_eq!(again, receipt, "the others in whatever order");
    let before = world.clone();
    for other in [
        Verb::consume(lapsing().and([team.global().cost(2), org()])),
        Verb::consume(lapsing().and([team.global(), ORG.key("k").cost(8)])),
        Verb::consume(user().lapses_after(MINUTE).and([team.global(), org()])),
        Verb::consume(user().tracked_for(HOUR).and([team.global(), org()])),
        Verb::consume(user().and([team.global(), org()])),
        Verb::consume(lapsing().and([team.global(), org().flat()])),
        Verb::consume(USER.global().flat().once("job 7").lapses_after(HOUR).and([team.global(), org()])),
        Verb::consume(lapsing()),
        Verb::reserve(lapsing().and([team.global(), org()])),
        Verb::credit(user()),
    ] {
        let what = format!("{other:?}");
        let error = world.call(other, sec(1)).unwrap_err();
        assert!(matches!(&error, Error::OnceMismatch { limit } if limit == "user"), "{error} {what}");
    }
    assert!(world == before);
    // An id is of the limit and key of the first request.
    for first in [USER.key("k"), team.global()] {
        let _ = world.taken(Verb::consume(first.once("job 7").and(org())), sec(1));
    }
    assert_eq!(left(&world, &ORG, sec(1)), tokens(76));
}

#[test]
fn a_debit_with_an_id_is_taken_once() {
    let mut world = World::default();
    let fee = |amount| WALLET.global().cost(amount).once("fee");
    world.balance(Verb::credit(WALLET.global().cost(20)), sec(0));
    let first = world.balance(Verb::debit(fee(3)), sec(0));
    assert_eq!((first.remaining, first.source), (tokens(17), Source::Database));
    let before = world.clone();
    let again = world.balance(Verb::debit(fee(3)), sec(1));
    assert_eq!((again.remaining, again.source), (tokens(17), Source::Repeated));
    for other in [Verb::debit(fee(4)), Verb::credit(fee(3)), Verb::consume(fee(3))] {
        assert!(matches!(world.call(other, sec(1)), Err(Error::OnceMismatch { .. })));
    }
    assert!(world == before);
}

#[test]
fn a_lease_that_is_asked_again_is_the_same_lease_until_it_is_over() {
    let renders = Limit::concurrency("renders", 2, MINUTE);
    let mut world = World::default();
    let ask = || Verb::consume(renders.global().once("film"));
    let receipt = world.taken(ask(), sec(0));
    world.call(Verb::Renew(receipt.clone()), sec(30)).unwrap();
    let again = world.taken(ask(), sec(31));
    assert_eq!(again.charges[0].lease_ends_at().map(Timestamp::from), Some(sec(90)));
    world.call(Verb::Release(again.clone()), sec(32)).unwrap();
    assert!(matches!(world.call(ask(), sec(33)), Err(Error::ReceiptUsed { .. })));
}

#[test]
fn names_are_locked_in_order_and_only_drawn_ones_need_no_reading() {
    let calls = [
        Verb::consume(USER.global().lapses_after(HOUR)),
        Verb::consume(ORG.key(1).once("b")),
        Verb::consume(ORG.key(1).cost(2)),
        Verb::credit(ORG.key(1).once("a")),
    ];
    let drawn = Cell::new(0);
    let draw = || {
        drawn.set(drawn.get() + 1);
        7
    };
    let plan = Plan::under(calls, &Under { draw: &draw, ..Under::NOTHING }).unwrap();
    assert_eq!(drawn.get(), 1);
    let names: Vec<_> = plan.names().iter().map(|name| (name.name(), name.id())).collect();
    assert_eq!(names, [("org", "a"), ("org", "b"), ("user", "00000000000000000000000000000007")]);
    assert_eq!(plan.asked_names(), [0, 1]);
}
