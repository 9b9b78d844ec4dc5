//! Calls and plans describe themselves to the gate and the store. Without these tests only a server would show a wrong
//! description.

mod ledger;

use super::target::Target;
use super::{Answer, AppliedOverride, Operation, Outcome, Plan, Ruling, SlowedRate, Under, Verb};
use crate::algebra::{Rest, State, Timestamp};
use crate::call::{Call, CallError};
use crate::error::Error;
use crate::parts::Parts;
use crate::{Grant, HOUR, Key, Limit, MINUTE, Receipt, Request, Tokens, first_of, split};

pub(super) const NOW: Timestamp = Timestamp::from_micros(1_000_000);
pub(super) const BUCKET: Limit = Limit::token_bucket("bucket", 10, MINUTE);
pub(super) const SHARDED: Limit = Limit::token_bucket("sharded", 300, MINUTE).shards(3);
pub(super) const SLOTS: Limit = Limit::concurrency("slots", 2, MINUTE);
pub(super) const WALLET: Limit = Limit::wallet("wallet");

/// Each thing that is true of a call, and what it counts.
fn said(call: Verb) -> String {
    let call = Operation::of(call, &Under::NOTHING).unwrap();
    let facts = [
        ("takes", call.takes()),
        ("looks", call.looks()),
        ("settles", call.settles()),
        ("may repeat", call.is_once()),
        ("stored", call.is_stored()),
        ("held", call.is_held()),
        ("inserts", call.inserts()),
    ];
    let mut said: Vec<_> = facts.iter().filter(|(_, is_true)| *is_true).map(|(fact, _)| (*fact).to_owned()).collect();
    said.extend(call.lapses().map(|span| format!("lapses after {span:?}")));
    said.extend(call.stale().map(|row| format!("stale from shard {}", row.shard())));
    let raised = |(row, is_lease): (&super::RowId, bool)| {
        format!("{} of {}", if is_lease { "lease" } else { "tokens" }, row.name())
    };
    said.extend(call.raises().map(raised));
    said.push(format!("{} rows", call.count_rows()));
    said.join(", ")
}

pub(super) fn decided(calls: impl IntoIterator<Item = Verb>, found: &[Option<State>]) -> Outcome {
    let plan = Plan::new(calls).unwrap();
    plan.decide(found, &vec![None; plan.names().len()], NOW)
}

/// The receipt of a granted call over missing rows.
pub(super) fn receipt(call: impl Into<Call>) -> Receipt {
    let plan = Plan::new([Verb::consume(call)]).unwrap();
    let mut outcome = plan.decide(&vec![None; plan.rows().len()], &vec![None; plan.names().len()], NOW);
    let Ok(Answer::Granted { grant: Grant { receipt, .. }, .. }) = outcome.answers.remove(0) else {
        panic!("{plan:?}")
    };
    receipt
}

/// A row of `BUCKET` of which so much is used.
pub(super) fn used(tokens: u32) -> State {
    let changes = decided([Verb::consume(BUCKET.key("k").cost(tokens))], &[None]).changes;
    changes.into_iter().next().unwrap().state
}

#[test]
fn a_call_that_takes_inserts_and_one_that_looks_does_not() {
    for (call, expected) in [
        (Verb::consume(BUCKET.key("k")), "takes, inserts, 1 rows"),
        (Verb::consume(BUCKET.key("k").cost(0)), "takes, 1 rows"),
        (Verb::consume([BUCKET.key("k").cost(0), SHARDED.key("k")]), "takes, inserts, 4 rows"),
        (Verb::reserve([BUCKET.key("k"), BUCKET.key("l")]), "takes, inserts, 2 rows"),
        (Verb::consume(SLOTS.key("k")), "takes, held, inserts, 1 rows"),
        (Verb::consume(BUCKET.key("k").once("id")), "takes, may repeat, stored, inserts, 1 rows"),
        (Verb::consume(BUCKET.key("k").lapses_after(MINUTE)), "takes, stored, inserts, lapses after 60s, 1 rows"),
        (Verb::consume(BUCKET.key("k").tracked_for(MINUTE)), "takes, stored, inserts, 1 rows"),
        (Verb::check(SHARDED.key("k")), "looks, 3 rows"),
        (Verb::Look(SHARDED.key("k")), "looks, 3 rows"),
    ] {
        assert_eq!(said(call), expected);
    }
}

#[test]
fn a_call_that_alters_says_what_it_raises() {
    let rest = Rest { tokens: Tokens::ONE, stood_at: NOW, until: NOW };
    for (call, expected) in [
        (Verb::credit(BUCKET.key("k")), "tokens of bucket, 1 rows"),
        (Verb::credit(WALLET.key("k")), "inserts, tokens of wallet, 1 rows"),
        (Verb::credit(BUCKET.key("k").once("id")), "may repeat, stored, tokens of bucket, 1 rows"),
        (Verb::credit(SHARDED.key("k")), "inserts, tokens of sharded, 3 rows"),
        (Verb::debit(BUCKET.key("k")), "inserts, 1 rows"),
        (Verb::debit(BUCKET.key("k").cost(0)), "1 rows"),
        (Verb::GiveBack(BUCKET.key("k"), rest), "tokens of bucket, 1 rows"),
        (Verb::GiveBack(SHARDED.key("k"), rest), "inserts, tokens of sharded, 3 rows"),
        (Verb::Reset(SHARDED.key("k")), "inserts, stale from shard 3, tokens of sharded, 3 rows"),
        (Verb::Reset(SLOTS.key("k")), "stale from shard 1, lease of slots, 1 rows"),
    ] {
        assert_eq!(said(call), expected);
    }
}

#[test]
fn a_settlement_says_what_it_raises_and_whether_it_takes_more() {
    let charged = || receipt([BUCKET.key("k").cost(2), SLOTS.key("k")]);
    let both = "settles, tokens of bucket, lease of slots, 2 rows";
    for (call, expected) in [
        (Verb::Settle(charged(), Tokens::ONE), both),
        (Verb::Settle(charged(), Tokens::new(2)), "settles, lease of slots, 2 rows"),
        (Verb::Settle(charged(), Tokens::new(3)), "settles, inserts, lease of slots, 2 rows"),
        (Verb::Cancel(charged()), both),
        (Verb::Renew(charged().clone()), "settles, 1 rows"),
        (Verb::Release(charged().clone()), "settles, lease of slots, 1 rows"),
        (Verb::Cancel(receipt(BUCKET.key("k").lapses_after(MINUTE))), "settles, stored, tokens of bucket, 1 rows"),
    ] {
        assert_eq!(said(call), expected);
    }
}

#[test]
fn a_stored_call_that_lapses_gives_its_tokens_back() {
    let request = || BUCKET.key("k").lapses_after(MINUTE);
    let row = decided([Verb::consume(request())], &[None]).calls.remove(0).row().unwrap().clone();
    assert_eq!(said(Verb::Lapse(row)), "settles, stored, inserts, tokens of bucket, 1 rows");
}

#[test]
fn a_call_lies_in_a_part_if_all_its_rows_do() {
    let parts = Parts::new(8);
    let part = |calls: &[Request], parts| {
        Operation::of(Verb::consume(calls.to_vec()), &Under { parts, ..Under::NOTHING }).unwrap().part()
    };
    let of = |key: &str| part(&[BUCKET.key(key)], parts);
    let other = (0..99).map(|key| key.to_string()).find(|key| of(key) != of("k")).unwrap();
    assert_eq!(of("k"), Some(parts.of(&Key::new("k").unwrap())));
    assert_eq!(part(&[BUCKET.key("k"), SHARDED.key("k")], parts), of("k"));
    assert_eq!(part(&[BUCKET.key("k"), BUCKET.key(&other)], parts), None);
    assert_eq!(part(&[BUCKET.key("k"), BUCKET.key(&other)], Parts::new(0)), Some(0));
}

#[test]
fn the_first_row_of_each_shard_is_the_same() {
    let plan = Plan::new([Verb::Look(SHARDED.key("k"))]).unwrap();
    assert!(plan.rows().iter().all(|row| row.first() == plan.rows()[0]));
}

#[test]
fn one_row_needs_a_balance_if_only_that_can_refuse_its_call() {
    let need = |calls: Vec<Verb>| Plan::new(calls).unwrap().need().map(|need| need.balance);
    let of = |call: Call| need(vec![Verb::consume(call)]);
    assert_eq!(of(BUCKET.key("k").cost(3).into()), Some(Tokens::new(3)));
    assert_eq!(of(BUCKET.key("k").once("id")), None);
    assert_eq!(of(SHARDED.key("k").into()), None);
    assert_eq!(need(vec![Verb::consume([BUCKET.key("k"), BUCKET.key("l")])]), None);
    assert_eq!(need(vec![Verb::consume(BUCKET.key("k")), Verb::consume(BUCKET.key("k"))]), None);
    assert_eq!(need(vec![Verb::check(BUCKET.key("k"))]), None);
    let free = Under { overrides: Some(&|_, _| Some(unlimited(""))), ..Under::NOTHING };
    assert!(Plan::under([Verb::consume(BUCKET.key("k"))], &free).unwrap().need().is_none());
}

#[test]
fn a_need_is_missed_by_a_lower_balance_of_a_row() {
    let need = |cost: u32| Plan::new([Verb::consume(BUCKET.key("k").cost(cost))]).unwrap().need().unwrap();
    let row = used(8);
    let is_missed = |cost| need(cost).is_missed(Some(&row), NOW);
    assert_eq!([1, 2, 3].map(is_missed), [false, false, true]);
    assert!(!need(10).is_missed(None, NOW), "a missing row is full");
}

#[test]
fn an_absent_row_is_trusted_by_a_call_that_inserts_nothing() {
    let plan = |calls: [Verb; 2]| Plan::new(calls).unwrap();
    let (take, look) = (|key: &str| Verb::consume(BUCKET.key(key)), |key: &str| Verb::check(BUCKET.key(key)));
    assert!(plan([take("k"), look("l")]).trusts_absence(&[Some(used(1)), None]));
    assert!(!plan([take("k"), look("l")]).trusts_absence(&[None, Some(used(1))]));
    assert!(!plan([take("k"), take("l")]).trusts_absence(&[None, None]));
    let inserts = |calls| plan(calls).inserts();
    assert_eq!([[take("k"), look("l")], [look("k"), look("l")]].map(inserts), [true, false]);
}

#[test]
fn a_plan_of_calls_that_take_may_be_refused_and_one_of_looks_locks_nothing() {
    let plan = |calls: [Verb; 2]| Plan::new(calls).unwrap();
    let (take, look) = (|| Verb::consume(BUCKET.key("k")), || Verb::Look(BUCKET.key("k")));
    let facts = |calls| {
        let plan = plan(calls);
        (plan.takes(), plan.looks())
    };
    assert_eq!(
        [[take(), take()], [take(), look()], [look(), look()]].map(facts),
        [(true, false), (false, false), (false, true)]
    );
}

#[test]
fn a_plan_has_a_choice_among_alternatives_or_the_rows_of_one_limit() {
    let has_choice = |calls: Vec<Verb>| Plan::new(calls).unwrap().has_choice();
    let (one, sharded) = (|| Verb::consume(BUCKET.key("k")), || Verb::consume(SHARDED.key("k")));
    assert!(has_choice(vec![sharded()]));
    assert!(has_choice(vec![one(), Verb::consume(first_of([[BUCKET.key("k")], [BUCKET.key("l")]]))]));
    for calls in [
        vec![one()],
        vec![sharded(), sharded()],
        vec![Verb::check(SHARDED.key("k"))],
        vec![Verb::consume(SHARDED.key("k").cost(0))],
    ] {
        assert!(!has_choice(calls));
    }
}

#[test]
fn a_call_with_an_id_has_a_name_and_may_repeat() {
    let (without, once) = (|| Verb::consume(BUCKET.key("k")), || Verb::consume(BUCKET.key("k").once("id")));
    let plan = Plan::new([without(), once()]).unwrap();
    assert_eq!(([plan.name_of(0), plan.name_of(1)], plan.may_repeat()), ([None, Some(0)], true));
    let plan = Plan::new([without(), Verb::consume(BUCKET.key("k").lapses_after(MINUTE))]).unwrap();
    assert_eq!((plan.name_of(1), plan.may_repeat()), (Some(0), false));
}

/// A settlement needs no reading, unless another call has the same name.
#[test]
fn the_stored_call_of_a_settlement_is_assumed_to_be_there() {
    let request = || BUCKET.key("k").cost(2).once("id").lapses_after(MINUTE);
    let charged = || receipt(request());
    let assumed = |calls: Vec<Verb>| Plan::new(calls).unwrap().assumed();
    let rows = assumed(vec![Verb::consume(BUCKET.key("l")), Verb::Settle(charged(), Tokens::ONE)]);
    let [Some(row)] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((&row.charges, row.used), (&charged().charges, false));
    assert_eq!(assumed(vec![Verb::Settle(charged(), Tokens::ONE), Verb::consume(request())]), [None]);
    assert_eq!(assumed(vec![Verb::Cancel(charged())]), [None]);
    assert_eq!(assumed(vec![Verb::consume(BUCKET.key("k"))]), []);
}

#[test]
fn a_call_that_was_cut_and_refused_falls_short_of_the_whole() {
    let of = |costs: [u32; 2]| {
        Plan::new([Verb::consume(first_of(costs.map(|cost| [BUCKET.key(cost).cost(cost)])))]).unwrap()
    };
    let falls_short = |found: &[Option<State>; 2], whole: &Plan, to: usize| {
        let granted = whole.decide(&[None, None], &[], NOW).answers;
        let cut = if to == 0 { whole.through(&granted) } else { Plan::of(vec![whole.call(0).clone()]) };
        let answers = cut.decide(&found[..cut.rows().len()], &[], NOW).answers;
        cut.falls_short(whole, &answers)
    };
    let whole = of([3, 4]);
    assert!(falls_short(&[Some(used(8)), None], &whole, 0));
    assert!(!falls_short(&[None, None], &whole, 0), "it is granted");
    assert!(!falls_short(&[Some(used(8)), Some(used(8))], &whole, 1), "no alternative was left out");
}

#[test]
fn a_share_of_a_split_names_the_others() {
    let call =
        Operation::of(Verb::consume(split(3, [BUCKET.key("k"), BUCKET.key("l"), BUCKET.key("m")])), &Under::NOTHING)
            .unwrap();
    let with = |place: usize| -> Vec<_> {
        call.split_with(&call.asked()[place]).map(|item| item.target.key().as_str()).collect()
    };
    assert_eq!([0, 1, 2].map(with), [["l", "m"], ["k", "m"], ["k", "l"]]);
}

#[test]
fn the_fraction_of_a_call_is_not_stored() {
    let call = Operation::of(Verb::consume(BUCKET.key("k").once("id")), &Under::NOTHING).unwrap();
    assert!(!call.fraction(0.5).unwrap().is_stored());
}

pub(super) fn unlimited(label: &str) -> AppliedOverride {
    AppliedOverride { ruling: Some(Ruling::Unlimited), label: label.to_owned(), ..AppliedOverride::default() }
}

fn denied(label: &str) -> AppliedOverride {
    let ruling = Some(Ruling::Deny { until: NOW.plus(HOUR) });
    AppliedOverride { ruling, label: label.to_owned(), ..AppliedOverride::default() }
}

#[test]
fn a_call_says_which_overrides_apply_to_it() {
    let call = |said: fn(&str) -> Option<AppliedOverride>| -> Operation {
        let under = Under { overrides: Some(&|limit, _| said(limit.name())), ..Under::NOTHING };
        Operation::of(Verb::consume([BUCKET.key("k"), SHARDED.key("k")]), &under).unwrap()
    };
    let plain = call(|_| None);
    let labelled = call(|name| (name == "sharded").then(|| denied("abuse")));
    let other = call(|name| (name == "sharded").then(|| denied("other")));
    assert_eq!([&plain, &labelled].map(Operation::is_overridden), [false, true]);
    assert_eq!(plain.overridden().count(), 0);
    assert_eq!(labelled.overridden().collect::<Vec<_>>(), [("sharded", "abuse")]);
    let is_as = |one: &Operation, other| one.is_overridden_as(other);
    assert_eq!([is_as(&labelled, &labelled), is_as(&labelled, &other), is_as(&plain, &labelled)], [true, false, false]);
    assert_eq!(labelled.targets().map(Target::override_label).collect::<Vec<_>>(), ["", "abuse"]);
}

#[test]
fn the_first_alternative_that_is_not_denied_is_told() {
    let undenied = |keys: &'static [&'static str]| {
        let call = Verb::consume(first_of([[BUCKET.key("k")], [BUCKET.key("l")]]));
        let overrides = |_: &Limit, key: &Key| keys.contains(&key.as_str()).then(|| denied(""));
        Operation::of(call, &Under { overrides: Some(&overrides), ..Under::NOTHING }).unwrap().undenied(NOW)
    };
    assert_eq!(undenied(&[]), Ok(0));
    assert_eq!(undenied(&["k"]), Ok(1));
    assert!(undenied(&["k", "l"]).is_err());
}

#[test]
fn an_answer_tells_how_long_its_call_is_stored() {
    let stored_for = |call: Call| decided([Verb::consume(call)], &[None]).answers[0].as_ref().unwrap().stored_for();
    assert_eq!(stored_for(BUCKET.key("k").into()), None);
    assert_eq!(stored_for(BUCKET.key("k").lapses_after(HOUR)), Some(HOUR));
}

#[test]
fn a_limit_in_both_tables_is_two_definitions_in_a_call_of_any_length() {
    for keys in [2, 20] {
        let requests = (0..keys).map(|key| BUCKET.key(key)).chain([BUCKET.ephemeral().key(1)]);
        let fault = Plan::new([Verb::consume(requests.collect::<Call>())]).unwrap_err();
        assert!(matches!(fault, Error::Call { source: CallError::ConflictingDefinitions, .. }), "{fault}");
    }
}

#[test]
fn a_cut_leaves_a_share_of_the_rate_and_a_wallet_has_none() {
    let (starts_at, ends_at) = (NOW, NOW.plus(HOUR));
    let slowed = SlowedRate { share: 250_000, reported_at: NOW, starts_at, ends_at, forgotten_at: None };
    let slow = slowed.applied(&BUCKET, NOW).unwrap();
    assert_eq!((slow.share, slow.ruling, slow.numbers), (Some(250_000), None, BUCKET.slowed(250_000)));
    assert_eq!([slowed.applied(&WALLET, NOW), slowed.applied(&BUCKET, slowed.ends_at)], [None, None]);
}

#[test]
fn other_numbers_keep_the_period_that_the_caller_names() {
    const BILLING: Limit = Limit::billing("billing", 10);
    let until = NOW.plus(HOUR);
    let request = || BILLING.key("k").cost(4).period(Timestamp::from_micros(0).into(), until.into());
    let numbers = |_: &Limit, _: &Key| {
        Some(AppliedOverride { numbers: Some(Limit::billing("billing", 5)), ..AppliedOverride::default() })
    };
    let under = Under { overrides: Some(&numbers), ..Under::NOTHING };
    let decided = |row| Plan::under([Verb::consume(request())], &under).unwrap().decide(&[row], &[], NOW);
    let row = decided(None).changes.remove(0).state;
    let Ok(Answer::Denied(denied)) = decided(Some(row)).answers.remove(0) else { panic!("5 are enough") };
    assert_eq!(denied.retry_at, Some(until.into()));
    // A later period may be longer, and no row may be swept too early.
    assert_eq!(receipt([request()]).charges[0].period, 3_601_000_000 * 9 / 8);
}
