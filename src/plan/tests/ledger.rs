//! A ledger in cases that no other test of the core meets.

use crate::algebra::{State, Timestamp};
use crate::call::Call;
use crate::plan::tests::{BUCKET, NOW, SLOTS, decided, receipt, unlimited, used};
use crate::plan::{Answer, Outcome, Plan, StoredCall, Under, Verb};
use crate::{DAY, Error, Grant, HOUR, Key, Limit, Receipt, SECOND, Tokens, split};

/// The outcome of calls over rows, and over stored calls.
fn over(calls: Vec<Verb>, found: &[Option<State>], known: &[Option<StoredCall>]) -> Outcome {
    Plan::new(calls).unwrap().decide(found, known, NOW)
}

/// A call over missing rows: its receipt and its stored call.
fn stored(call: impl Into<Call>) -> (Receipt, StoredCall) {
    let plan = Plan::new([Verb::consume(call)]).unwrap();
    let mut outcome = plan.decide(&vec![None; plan.rows().len()], &[None], NOW);
    let row = outcome.calls[0].row().unwrap().clone();
    let Ok(Answer::Granted { grant: Grant { receipt, .. }, .. }) = outcome.answers.remove(0) else {
        panic!("the rows are full")
    };
    (receipt, row)
}

#[test]
fn a_settlement_that_takes_two_rows_down_is_told() {
    let charged = receipt([BUCKET.key("k"), BUCKET.key("l")]);
    let answers = decided([Verb::Settle(charged, Tokens::new(6))], &[Some(used(1)), Some(used(1))]).answers;
    let Ok(Answer::Settled(settlement)) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(settlement.crossed(&BUCKET, 0.5), Ok(true));
    assert_eq!(settlement.crossed(&BUCKET, 0.3), Ok(false));
}

#[test]
fn a_repeat_tells_the_standings_of_what_counts() {
    let requests = || Call::from([BUCKET.key("k"), BUCKET.key("l")]).once("id");
    let (_, row) = stored(requests());
    let overrides = |_: &Limit, key: &Key| (key.as_str() == "l").then(|| unlimited(""));
    let plan =
        Plan::under([Verb::consume(requests())], &Under { overrides: Some(&overrides), ..Under::NOTHING }).unwrap();
    let answers = plan.decide(&[Some(used(1)), Some(used(1))], &[Some(row)], NOW).answers;
    let Ok(Answer::Granted { grant: Grant { standings, .. }, .. }) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(standings.iter().map(|standing| standing.key.as_str()).collect::<Vec<_>>(), ["k"]);
}

/// The receipt of a call that was settled no longer lapses: it is kept as long as its id.
#[test]
fn a_repeat_behind_the_settlement_does_not_lapse() {
    let request = || BUCKET.key("k").once_for("id", DAY).lapses_after(HOUR);
    let (receipt, row) = stored(request());
    let kept_until = row.kept_until;
    let calls = vec![Verb::Settle(receipt, Tokens::ONE), Verb::consume(request())];
    let answers = over(calls, &[Some(used(1))], &[Some(row)]).answers;
    let Ok(Answer::Granted { grant: Grant { receipt, .. }, .. }) = &answers[1] else { panic!("{answers:?}") };
    assert_eq!((receipt.lapses_at, kept_until), (Some(kept_until), NOW.plus(DAY)));
}

/// An id may be used again once its call is gone. Then an old receipt settles nothing of the new call.
#[test]
fn a_receipt_settles_no_later_call_with_its_id() {
    let (old, _) = stored(BUCKET.key("k").cost(2).once("id"));
    let (_, row) = stored(BUCKET.key("k").cost(3).once("id"));
    let answers = over(vec![Verb::Settle(old, Tokens::ONE)], &[Some(used(3))], &[Some(row)]).answers;
    assert!(matches!(answers[0], Err(Error::ReceiptUsed { .. })), "{answers:?}");
}

#[test]
fn a_lease_that_holds_nothing_or_is_over_keeps_no_stored_call_from_its_settlement() {
    let charged = receipt([SLOTS.key("k").cost(0), BUCKET.key("k").cost(2)]);
    let answers = decided([Verb::Settle(charged, Tokens::ONE)], &[Some(used(2)), None]).answers;
    assert!(matches!(answers[0], Ok(Answer::Settled(_))), "{answers:?}");
    let (receipt, row) = stored(Call::from([SLOTS.key("k"), BUCKET.key("k").cost(2)]).lapses_after(HOUR));
    let answers = over(vec![Verb::Settle(receipt, Tokens::ONE)], &[Some(used(2)), None], &[Some(row)]).answers;
    assert!(matches!(answers[0], Ok(Answer::Settled(_))), "{answers:?}");
}

#[test]
fn a_row_that_gives_nothing_to_a_split_is_not_charged() {
    let call = || Verb::consume(split(3, [BUCKET.key("k"), BUCKET.key("l")]));
    let answers = decided([call()], &[Some(used(10)), None]).answers;
    let Ok(Answer::Granted { grant: Grant { receipt, .. }, .. }) = &answers[0] else { panic!("{answers:?}") };
    let charged = receipt.charges.iter().map(|charge| (charge.key.as_str(), charge.cost));
    assert_eq!(charged.collect::<Vec<_>>(), [("l", Tokens::new(3))]);
}

#[test]
fn a_split_over_an_unlimited_limit_asks_no_row() {
    let call = Verb::consume(split(3, [BUCKET.key("k"), BUCKET.key("l")]));
    let overrides = |_: &Limit, key: &Key| (key.as_str() == "k").then(|| unlimited(""));
    let plan = Plan::under([call], &Under { overrides: Some(&overrides), ..Under::NOTHING }).unwrap();
    let answers = plan.decide(&[Some(used(10)), Some(used(10))], &[], NOW).answers;
    assert!(matches!(answers[0], Ok(Answer::Granted { .. })), "{answers:?}");
}

#[test]
fn a_split_of_nothing_charges_nothing_to_its_first_row() {
    let charged = receipt(split(0, [BUCKET.key("k"), BUCKET.key("l")])).charges;
    assert_eq!(charged.iter().map(|charge| charge.key.as_str()).collect::<Vec<_>>(), ["k"]);
}

#[test]
fn a_debt_refuses_what_is_asked_beside_a_split() {
    let in_debt = decided([Verb::debit(BUCKET.key("d").cost(11))], &[None]).changes.remove(0).state;
    let call = split(1, [BUCKET.key("k"), BUCKET.key("l")]).and(BUCKET.key("d").cost(0));
    let answers = decided([Verb::consume(call)], &[Some(in_debt), None, None]).answers;
    assert!(matches!(answers[0], Ok(Answer::Denied(_))), "{answers:?}");
}

#[test]
fn a_change_of_a_stored_call_names_the_call_that_makes_it() {
    let call = |id: &str| Verb::consume(BUCKET.key("k").once(id));
    let calls = over(vec![call("a"), call("b")], &[None], &[None, None]).calls;
    assert_eq!(calls.iter().map(|change| (change.name(), change.call())).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
}

/// A tenth of a token is there sooner than a whole one. A limit that would grant keeps its own instant.
#[test]
fn a_refusal_says_when_each_limit_has_more() {
    let tenth = Tokens::from_micros(100_000);
    let call = Verb::consume([BUCKET.key("k").cost(tenth), BUCKET.key("l")]);
    let answers = decided([call], &[Some(used(10)), Some(used(9))]).answers;
    let Ok(Answer::Denied(denied)) = &answers[0] else { panic!("{answers:?}") };
    let more_at: Vec<_> = denied.standings.iter().map(|standing| standing.more_at).collect();
    // A token comes each six seconds.
    let expected = [NOW.plus(SECOND * 6 / 10), NOW.plus(SECOND * 6)].map(|at: Timestamp| Some(at.into()));
    assert_eq!(more_at, expected);
}

/// A token comes each six seconds: the first key lacks two then, the second five.
#[test]
fn answers_say_when_all_is_back() {
    let call = || Verb::consume([BUCKET.key("k"), BUCKET.key("l")]);
    let answers = decided([call(), call()], &[Some(used(1)), Some(used(4))]).answers;
    let Ok(Answer::Granted { grant, .. }) = &answers[0] else { panic!("{answers:?}") };
    let full_at: Vec<_> = grant.standings.iter().map(|standing| standing.full_at).collect();
    assert_eq!(full_at, [12, 30].map(|seconds| Some(NOW.plus(SECOND * seconds).into())));
    assert_eq!(grant.full_at(), full_at[1]);
    let wallet = Limit::wallet("wallet").overdraft(1);
    let answers = decided([Verb::consume([BUCKET.key("k"), wallet.key("w")])], &[None, None]).answers;
    let Ok(Answer::Granted { grant, .. }) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(grant.full_at(), None, "nobody pays a debt by waiting");
}
