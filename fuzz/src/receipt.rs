use serde::{Deserialize, Serialize};
use tollgate::algebra::Timestamp;
use tollgate::plan::{self, Answer, CallId, Plan, StoredCall};
use tollgate::{Receipt, Tokens};

use crate::input::{Row, expect_round_trip, found, read};
use crate::settled::{Settling, answer, expect_named};

/// A receipt that was stored, or made up, and how somebody ends it over rows that hold anything.
///
/// It is written and read as the same. Either ending it is a named error that changes nothing, or each row gets just
/// what is no longer charged to it. A receipt that was used is an error.
pub fn receipt(bytes: &[u8]) {
    let Some(Input { now, verb, stored, rows, receipt }) = read::<Input>(bytes) else { return };
    expect_round_trip(&receipt);
    let _ = (receipt.is_charged(), receipt.lapses_at(), receipt.by_request().count());
    for charge in &receipt.charges {
        let _ = (charge.ready_at(), charge.lease_ends_at());
    }
    let plan = match Plan::new([verb.of(receipt.clone())]) {
        Ok(plan) => plan,
        Err(error) => return expect_named(&error),
    };
    let found = found(&rows, &plan);
    let known: Vec<_> = plan.names().iter().map(|name| stored.row(name, &receipt)).collect();
    let now = Timestamp::from_micros(now);
    let outcome = plan.decide(&found, &known, now);
    let Some(answer) = answer(&outcome) else { return };
    let Answer::Settled(settlement) = answer else { panic!("{answer:?} is no settlement") };
    assert!(plan.names().is_empty() || stored == Stored::Unused, "a call that is not stored was settled: {outcome:?}");
    expect_round_trip(&settlement.charges);
    match verb {
        Verb::Renew => assert!(
            outcome
                .changes
                .iter()
                .all(|change| { found[change.row].as_ref().is_some_and(|before| before.value == change.state.value) })
        ),
        // The settlement of a release has only the leases.
        Verb::Release if settlement.charges.len() < receipt.charges.len() => {}
        _ => Settling { charges: &receipt.charges, plan: &plan, found: &found, now }
            .expect_balanced(settlement, &outcome.changes),
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Input {
    now: i64,
    verb: Verb,
    stored: Stored,
    rows: Vec<Option<Row>>,
    receipt: Receipt,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verb {
    Settle(i64),
    SettleEach(Vec<i64>),
    Cancel,
    Renew,
    Release,
}

impl Verb {
    fn of(&self, receipt: Receipt) -> plan::Verb {
        match self {
            Self::Settle(cost) => plan::Verb::Settle(receipt, Tokens::from_micros(*cost)),
            Self::SettleEach(costs) => {
                let costs: Vec<_> = costs.iter().map(|cost| Tokens::from_micros(*cost)).collect();
                plan::Verb::SettleEach(receipt, costs)
            }
            Self::Cancel => plan::Verb::Cancel(receipt),
            Self::Renew => plan::Verb::Renew(receipt),
            Self::Release => plan::Verb::Release(receipt),
        }
    }
}

/// The state of the stored call that the receipt names, if it names one.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Stored {
    Unused,
    Used,
    Gone,
}

impl Stored {
    fn row(self, name: &CallId, receipt: &Receipt) -> Option<StoredCall> {
        let at = Timestamp::from_micros(0);
        let row = StoredCall {
            name: name.clone(),
            asked: 0,
            charges: receipt.charges.clone(),
            charged_at: at,
            reported: Tokens::ZERO,
            lapses_at: receipt.lapses_at().map(Into::into),
            kept_until: at,
            used: self == Self::Used,
            answer: None,
        };
        (self != Self::Gone).then_some(row)
    }
}
