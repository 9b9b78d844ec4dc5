//! Thresholds, against the exact model: the answer to the call that takes a balance below one says so, and no other
//! answer.

use num_bigint::BigInt;
use num_rational::BigRational;
use proptest::prelude::*;
use tollgate::plan::{Answer, Verb};
use tollgate::{CrossedError, Grant, Limit, MINUTE, SECOND, Source, Tokens};

use crate::model::{Model, whole};
use crate::story::{Event, Step, any_kind, config, limits, stories, tell};
use crate::world::{World, sec, terms_of, tokens};

/// Whether an answer says that it took the balance below the share.
fn told(limit: &Limit, event: &Event, share: f64) -> bool {
    match &event.answer {
        Ok(Answer::Granted { grant: Grant { standings, .. }, .. }) => standings[0].crossed(share),
        Ok(Answer::Denied(denied)) => denied.standings[0].crossed(share),
        Ok(Answer::Done(balance)) => balance.crossed(limit, share),
        Ok(Answer::Settled(settlement)) => settlement.crossed(limit, share),
        Err(_) => Ok(false),
    }
    .unwrap()
}

proptest! {
    #![proptest_config(config())]

    /// Grants, debits and settlements above a charge say so exactly where the exact balance falls below the share. With
    /// credits, resets and refunds in between, each fall is reported once.
    #[test]
    fn each_fall_is_told_by_who_made_it(
        limit in limits(any_kind()),
        story in stories(),
        millionths in 1_u32..=1_000_000,
    ) {
        let request = limit.global();
        let model = Model::of(&request);
        let share = f64::from(millionths) / 1e6;
        let edge = BigRational::new(&model.capacity * millionths, 1_000_000.into());
        let is_above = |balance: &BigInt| BigRational::from(balance.clone()) >= edge;
        for event in tell(&limit, &story).events {
            let balance = |row: &Option<_>| {
                let row = row.clone().unwrap_or_else(|| terms_of(&request).full(event.now));
                model.balance(&row, event.now).floor().to_integer()
            };
            let [before, after] = [&event.before, &event.after].map(balance);
            let lowers = matches!(event.step, Step::Take { .. } | Step::Debit(_) | Step::Settle(..));
            let falls = lowers && is_above(&before) && !is_above(&after);
            prop_assert_eq!(told(&limit, &event, share), falls, "{:?}: {} to {} of {}", event, before, after, edge);
            if let (Step::Take { cost, .. }, Ok(Answer::Granted { .. })) = (&event.step, &event.answer) {
                prop_assert_eq!(BigRational::from(before) - whole(*cost), BigRational::from(after));
            }
        }
    }
}

#[test]
fn a_repeat_and_a_check_are_told_of_no_fall_and_some_limits_have_none() {
    let user = Limit::sliding_window("user", 10, MINUTE);
    let mut world = World::default();
    let crossed = |world: &mut World, call, share| match world.call(call, sec(0)).unwrap() {
        Answer::Granted { grant: Grant { standings, source, .. }, .. } => (standings[0].crossed(share), source),
        other => panic!("{other:?}"),
    };
    let ask = || user.global().cost(8).once("job");
    assert_eq!(crossed(&mut world, Verb::check(ask()), 0.5), (Ok(false), Source::Database));
    assert_eq!(crossed(&mut world, Verb::consume(ask()), 0.5), (Ok(true), Source::Database));
    assert_eq!(crossed(&mut world, Verb::consume(ask()), 0.5), (Ok(false), Source::Repeated));
    let part = Verb::consume(user.global().cost(8).up_to(1));
    assert_eq!(crossed(&mut world, part, 0.2), (Ok(true), Source::Database));
    for (limit, share, error) in [
        (Limit::token_bucket("spread", 10, SECOND).shards(2), 0.5, CrossedError::Shards),
        (Limit::wallet("wallet").overdraft(5), 0.5, CrossedError::Wallet),
        (Limit::meter("usage"), 0.5, CrossedError::Meter),
        (Limit::token_bucket("plain", 10, SECOND), 0.0, CrossedError::Share),
        (Limit::token_bucket("plain", 10, SECOND), f64::NAN, CrossedError::Share),
        (Limit::token_bucket("plain", 10, SECOND), 1.000_001, CrossedError::Share),
    ] {
        assert_eq!(crossed(&mut World::default(), Verb::consume(limit.global()), share).0, Err(error));
        let balance = World::default().balance(Verb::debit(limit.global()), sec(0));
        assert_eq!(balance.crossed(&limit, share), Err(error));
    }
    assert_eq!(world.look(user.global(), sec(0)).crossed(&user, 1.0), Ok(false));
    assert_eq!(world.look(user.global(), sec(0)).remaining, tokens(0).max(Tokens::ZERO));
}
