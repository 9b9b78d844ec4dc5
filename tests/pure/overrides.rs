//! The overrides of operators over limits, decided by the plan.

use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, AppliedOverride, CallWrite, Outcome, Plan, Ruling, Under, Verb};
use tollgate::{Call, Denied, Error, Grant, Key, Limit, MINUTE, Reason, Request, Source, Tokens, first_of, split};

const TEN: Limit = Limit::token_bucket("ten", 10, MINUTE);
const OTHER: Limit = Limit::token_bucket("other", 5, MINUTE);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn says(name: &str, applied: AppliedOverride) -> impl Fn(&Limit, &Key) -> Option<AppliedOverride> {
    move |limit, _| (limit.name() == name).then(|| applied.clone())
}

fn deny(until: Timestamp) -> AppliedOverride {
    AppliedOverride { ruling: Some(Ruling::Deny { until }), ..AppliedOverride::default() }
}

fn unlimited() -> AppliedOverride {
    AppliedOverride { ruling: Some(Ruling::Unlimited), ..AppliedOverride::default() }
}

fn numbers(limit: &Limit) -> AppliedOverride {
    AppliedOverride { numbers: Some(limit.clone()), ..AppliedOverride::default() }
}

fn decide(plan: Result<Plan, Error>, rows: &[Option<State>], now: Timestamp) -> Outcome {
    plan.unwrap().decide(rows, &[], now)
}

fn only(outcome: Outcome) -> Answer {
    outcome.answers.into_iter().next().unwrap().unwrap()
}

fn denied(answer: Answer) -> Denied {
    if let Answer::Denied(denied) = answer { denied } else { panic!("{answer:?}") }
}

fn under(verb: Verb, said: impl Fn(&Limit, &Key) -> Option<AppliedOverride>) -> Result<Plan, Error> {
    Plan::under([verb], &Under { overrides: Some(&said), ..Under::NOTHING })
}

fn of(call: impl Into<Call>, applied: AppliedOverride) -> Result<Plan, Error> {
    under(Verb::consume(call), says("ten", applied))
}

#[test]
fn what_is_denied_is_refused_until_its_end_whatever_is_there() {
    let call = || of([OTHER.key("k"), TEN.key("k")], deny(at(60)));
    let refused = denied(only(decide(call(), &[None, None], at(0))));
    assert_eq!((&*refused.limit, refused.reason, refused.source), ("ten", Reason::Override, Source::Override));
    assert_eq!(refused.retry_after(), Some(MINUTE));
    assert_eq!(refused.to_string(), r#"limit "ten" denied by an operator (retry in 60s)"#);
    assert!(refused.standings[0].overridden);
    // At the instant that it names it is granted.
    assert!(matches!(only(decide(call(), &[None, None], at(60))), Answer::Granted { .. }));
    let endless = denied(only(decide(of([TEN.key("k")], deny(Timestamp::MAX)), &[None], at(0))));
    assert_eq!(endless.retry_at, None);
    assert!(endless.to_string().ends_with("(until it is lifted)"), "{endless}");
}

#[test]
fn what_is_unlimited_is_charged_nothing_beside_what_is_not() {
    let requests = [TEN.key("k").cost(1_000), OTHER.key("k").cost(3)];
    let debt = State::new(Tokens::from_micros(-15_000_000), at(0));
    // In lock order: other, ten.
    let outcome = decide(of(requests.clone(), unlimited()), &[None, Some(debt)], at(0));
    assert_eq!(outcome.changes.iter().map(|change| change.row).collect::<Vec<_>>(), [0]);
    let Answer::Granted { grant: Grant { remaining, receipt, standings, source, .. }, .. } = only(outcome) else {
        panic!()
    };
    assert_eq!((remaining, source, standings.len()), (Tokens::new(2), Source::Database, 1));
    assert_eq!(receipt.charges.iter().map(|charge| charge.cost).collect::<Vec<_>>(), [Tokens::ZERO, Tokens::new(3)]);
    // A cost for each request, in the order asked: nothing is known of the first.
    let used = |whole: i64| Some(State::new(Tokens::from_micros(-whole * 1_000_000), at(0)));
    let rows = [used(3), used(10)];
    let settled =
        decide(Plan::new([Verb::SettleEach(receipt.clone(), vec![Tokens::new(9), Tokens::new(1)])]), &rows, at(1));
    assert_eq!(settled.changes.iter().map(|change| change.row).collect::<Vec<_>>(), [0]);
    let Answer::Settled(settled) = only(settled) else { panic!() };
    assert_eq!(settled.charges.iter().map(|charge| charge.cost).collect::<Vec<_>>(), [Tokens::ZERO, Tokens::ONE]);
    // One cost for all is the cost of the limit that was charged.
    let settled = decide(Plan::new([Verb::Settle(receipt, Tokens::ONE)]), &rows, at(1));
    assert_eq!(settled.changes.len(), 1);

    let Answer::Granted { grant: Grant { remaining, receipt, source, .. }, .. } =
        only(decide(of([TEN.key("k").cost(1_000)], unlimited()), &[None], at(0)))
    else {
        panic!()
    };
    assert_eq!((remaining, source), (Tokens::MAX, Source::Override));
    let spent = decide(Plan::new([Verb::Settle(receipt, Tokens::new(7))]), &[used(3)], at(1));
    assert!(spent.changes.is_empty());
}

#[test]
fn other_numbers_bound_what_is_asked_and_are_told() {
    let raised = Limit::token_bucket("ten", 1_000, MINUTE).capacity(50);
    let asked = |cost: u32, applied| of([TEN.key("k").cost(cost)], applied);
    assert!(matches!(asked(40, AppliedOverride::default()), Err(Error::CostExceedsCapacity { .. })));
    assert!(asked(40, numbers(&raised)).is_ok());
    assert!(matches!(asked(51, numbers(&raised)), Err(Error::CostExceedsCapacity { .. })));
    // Used tokens stay used, and a missing row is full at the new height.
    let there = State::new(Tokens::from_micros(-6_000_000), at(0));
    for (row, left) in [(Some(there), 43), (None, 49)] {
        let Answer::Granted { grant: Grant { remaining, standings, .. }, .. } =
            only(decide(of([TEN.key("k")], numbers(&raised)), &[row], at(0)))
        else {
            panic!()
        };
        assert_eq!(remaining, Tokens::new(left));
        assert_eq!(standings[0].limit, raised);
        assert!(standings[0].overridden);
    }
    // Also under a lower capacity.
    let lowered = Limit::token_bucket("ten", 1, MINUTE);
    let rich = Some(State::new(Tokens::from_micros(-1_000_000), at(0)));
    let Answer::Done(balance) =
        only(decide(under(Verb::Look(TEN.key("k")), says("ten", numbers(&lowered))), &[rich], at(0)))
    else {
        panic!()
    };
    assert_eq!((balance.remaining, balance.used), (Tokens::ZERO, Tokens::ONE));
}

/// A call of which all is unlimited takes as many as it asks for, and one of several shares goes by the others.
#[test]
fn a_part_is_whole_where_it_is_unlimited() {
    let asked = |requests: Vec<Request>| {
        let Answer::Granted { grant: Grant { amount, .. }, .. } =
            only(decide(of(requests.clone(), unlimited()), &vec![None; requests.len()], at(0)))
        else {
            panic!()
        };
        amount
    };
    assert_eq!(asked(vec![TEN.key("k").cost(100).up_to(1)]), Tokens::new(100));
    assert_eq!(asked(vec![TEN.key("k").cost(100).up_to(1), OTHER.key("k").cost(100).up_to(1)]), Tokens::new(5));
}

#[test]
fn of_alternatives_the_first_is_taken_that_is_not_denied() {
    let call = |applied| of(first_of([[TEN.key("k").cost(3)], [OTHER.key("k").cost(3)]]), applied);
    let rows = [None, None];
    let taken = |applied| {
        let outcome = decide(call(applied), &rows, at(0));
        let Answer::Granted { grant: Grant { alternative, .. }, .. } = outcome.answers[0].as_ref().unwrap() else {
            panic!()
        };
        (*alternative, outcome.changes.len())
    };
    assert_eq!(taken(AppliedOverride::default()), (0, 1));
    assert_eq!(taken(deny(at(60))), (1, 1));
    assert_eq!(taken(unlimited()), (0, 0));
    let all = under(Verb::consume(first_of([[TEN.key("k")], [OTHER.key("k")]])), |limit, _| {
        Some(deny(at(if limit.name() == "ten" { 60 } else { 30 })))
    });
    let refused = denied(only(decide(all, &rows, at(0))));
    assert_eq!((&*refused.limit, refused.reason), ("other", Reason::Override));
}

/// A cost that is split is charged to nobody where one of the limits is unlimited, and to none where one is denied.
#[test]
fn what_is_split_is_unlimited_or_denied_as_a_whole() {
    let call = |applied| of(split(12, [OTHER.key("k"), TEN.key("k")]), applied);
    let outcome = decide(call(unlimited()), &[None, None], at(0));
    assert!(outcome.changes.is_empty(), "{outcome:?}");
    let Answer::Granted { grant: Grant { receipt, source, .. }, .. } = only(outcome) else { panic!() };
    assert_eq!((source, receipt.by_request().count()), (Source::Override, 1));
    assert_eq!(denied(only(decide(call(deny(at(60))), &[None, None], at(0)))).reason, Reason::Override);
    assert_eq!(decide(call(AppliedOverride::default()), &[None, None], at(0)).changes.len(), 2);
}

/// Also where the definition is changed so, and where others of its alternatives can be granted still.
#[test]
fn a_repeat_is_answered_as_before_under_numbers_that_grant_it_no_more() {
    let slots = Limit::concurrency("slots", 10, MINUTE);
    for (large, small) in [
        (TEN, numbers(&Limit::token_bucket("ten", 5, MINUTE))),
        (slots, numbers(&Limit::concurrency("slots", 5, MINUTE))),
    ] {
        let asked = || large.key("k").cost(8);
        for has_other in [false, true] {
            let other = || has_other.then(|| vec![OTHER.key("k").cost(2)]);
            let call = || first_of([vec![asked()]].into_iter().chain(other())).once("id");
            let plan = Plan::new([Verb::consume(call())]).unwrap();
            let nothing = vec![None; plan.rows().len()];
            let outcome = plan.decide(&nothing, &[None], at(0));
            let mut rows = nothing.clone();
            for change in &outcome.changes {
                rows[change.row] = Some(change.state.clone());
            }
            let [CallWrite::Insert { row, .. }] = &outcome.calls[..] else { panic!("{:?}", outcome.calls) };
            let again = |rows: &[_], known| {
                let overrides = says(large.name(), small.clone());
                let under = Under { overrides: Some(&overrides), draw: &|| 8, ..Under::NOTHING };
                Plan::under([Verb::consume(call())], &under).unwrap().decide(rows, &[known], at(1))
            };
            let repeated = again(&rows, Some(row.clone()));
            assert!(repeated.changes.is_empty() && repeated.calls.is_empty());
            let Answer::Granted { grant: Grant { amount, source, standings, receipt, alternative, .. }, .. } =
                only(repeated)
            else {
                panic!()
            };
            assert_eq!((amount, source, standings.len(), alternative), (Tokens::new(8), Source::Repeated, 1, 0));
            assert_eq!(receipt.charges[0].cost, Tokens::new(8));
            // An alternative that was not granted before is left out, or an error, as without an id.
            let other = again(&nothing, None);
            match &other.answers[0] {
                Ok(Answer::Granted { grant: Grant { alternative, .. }, .. }) if rows.len() > 1 => {
                    assert_eq!(*alternative, 1);
                }
                Err(Error::CostExceedsCapacity { max, .. }) if rows.len() == 1 => assert_eq!(*max, Tokens::new(5)),
                answer => panic!("{answer:?}"),
            }
        }
    }
}
