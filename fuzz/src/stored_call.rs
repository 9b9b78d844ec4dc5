use serde::{Deserialize, Serialize};
use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, CallWrite, Given, Plan, StoredCall, Verb};
use tollgate::{Call, Charge, Grant, HOUR, Limit, MINUTE, Source, Tokens};

use crate::input::{Row, expect_round_trip, found, read};
use crate::settled::{Settling, answer, expect_named};

/// The row of a stored call, which anybody may have written. Somebody repeats the call, and it lapses, over rows that
/// hold anything.
///
/// Its charges and its answer are written and read as the same. A repeat takes nothing. A call that is not due changes
/// nothing. When one lapses, each row gets just what is no longer charged to it.
pub fn stored_call(bytes: &[u8]) {
    let Some(input) = read::<Input>(bytes) else { return };
    expect_round_trip(&input.charges);
    expect_round_trip(&input.answer);
    let asked = call(input.limit);
    let (row, now) = (input.row(&asked), Timestamp::from_micros(input.now));
    expect_repeated(&input, asked, row.clone(), now);
    let (charges, lapses_at) = (row.charges.clone(), row.lapses_at);
    let plan = match Plan::new([Verb::Lapse(row.clone())]) {
        Ok(plan) => plan,
        Err(error) => return expect_named(&error),
    };
    let (found, is_used) = (found(&input.rows, &plan), row.used);
    let outcome = plan.decide(&found, &[Some(row)], now);
    let Some(answer) = answer(&outcome) else { return };
    let Answer::Settled(settlement) = answer else { panic!("{answer:?} is no settlement") };
    if is_used || lapses_at.is_none_or(|lapses_at| lapses_at > now) {
        assert!(outcome.changes.is_empty() && outcome.calls.is_empty(), "it is not due: {outcome:?}");
    } else {
        assert_eq!(outcome.calls.len(), 1, "a call lapses once: {outcome:?}");
        Settling { charges: &charges, plan: &plan, found: &found, now }.expect_balanced(settlement, &outcome.changes);
    }
}

fn expect_repeated(input: &Input, asked: Call, row: StoredCall, now: Timestamp) {
    let plan = Plan::new([Verb::consume(asked)]).expect("the call is right");
    let outcome = plan.decide(&found(&input.rows, &plan), &[Some(row)], now);
    match answer(&outcome) {
        Some(Answer::Granted { grant: Grant { source: Source::Repeated, receipt, .. }, .. }) => {
            assert!(outcome.changes.is_empty() && outcome.calls.is_empty(), "a repeat takes something: {outcome:?}");
            expect_round_trip(receipt);
        }
        Some(other) => panic!("{other:?} is no repeat"),
        None => {}
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Input {
    limit: u8,
    now: i64,
    charged_at: i64,
    reported: i64,
    lapses_at: Option<i64>,
    kept_until: i64,
    used: bool,
    rows: Vec<Option<Row>>,
    charges: Vec<Charge>,
    answer: Option<Given>,
}

impl Input {
    /// The row of a call that asks this, with the fields that the input says.
    fn row(&self, asked: &Call) -> StoredCall {
        let plan = Plan::new([Verb::consume(asked.clone())]).expect("the call is right");
        let written = plan.decide(&vec![None; plan.rows().len()], &[None], Timestamp::from_micros(0)).calls;
        let Some(CallWrite::Insert { row, .. }) = written.into_iter().next() else { panic!("{asked:?} is not stored") };
        let [charged_at, kept_until] = [self.charged_at, self.kept_until].map(Timestamp::from_micros);
        StoredCall {
            charges: self.charges.clone(),
            charged_at,
            reported: Tokens::from_micros(self.reported),
            lapses_at: self.lapses_at.map(Timestamp::from_micros),
            kept_until,
            used: self.used,
            answer: self.answer.clone().map(Box::new),
            ..row
        }
    }
}

/// A call with an id.
fn call(limit: u8) -> Call {
    let limits = [
        Limit::token_bucket("bucket", 10, MINUTE),
        Limit::fixed_window("window", 10, HOUR),
        Limit::stepped_bucket("stepped", 10, MINUTE),
        Limit::sliding_window("sliding", 10, MINUTE),
        Limit::concurrency("leases", 10, MINUTE),
        Limit::wallet("money").overdraft(10),
        Limit::token_bucket("sharded", 10, MINUTE).shards(3),
    ];
    let limit_asked = &limits[usize::from(limit) % limits.len()];
    let request = limit_asked.key("k").cost(3);
    let call = if limit < 128 { request } else { request.up_to(1) }.once("id");
    // Leases end by themselves.
    if limit_asked.lease().is_some() { call } else { call.lapses_after(HOUR) }
}
