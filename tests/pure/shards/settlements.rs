//! Receipts over several rows.

use tollgate::algebra::State;
use tollgate::plan::{Answer, Plan, Verb};
use tollgate::{CallError, Error, Grant, Limit, MINUTE, Receipt, SECOND};

use super::{Shards, call};
use crate::world::{micros, receipt, sec, tokens};

/// A receipt of ten rows is settled though the limit has one row by now. Its charge is given back to the row that it
/// was taken from, and no row is cut to the part that it once had.
#[test]
fn settling_never_cuts_a_row() {
    let ten = Limit::token_bucket("cut", 100, SECOND).shards(10);
    let Ok(Answer::Granted { grant: Grant { receipt: Receipt { charges, .. }, .. }, .. }) =
        Shards::of(&ten).pooled(call(&ten, 3_000_000, false), sec(0))
    else {
        panic!("refused")
    };
    for actual in [micros(0), tokens(5)] {
        let mut rows = Shards::of(&ten);
        rows.rows.fill(Some(State::new(tokens(-20), sec(0))));
        rows.pooled(Verb::Settle(receipt(&charges), actual), sec(0)).unwrap();
        let left = if actual == tokens(5) { tokens(-22) } else { tokens(-20) };
        let lowest = rows.rows.iter().flatten().map(|row| row.value).min();
        assert_eq!(lowest, Some(left), "a row holds what the current definition lets it");
    }
}

/// A charge of a shard that its limit does not have any more is settled in its own row; one of none that there can be
/// is no charge.
#[test]
fn a_charge_of_a_shard_that_is_not_there_is_settled_where_it_was_made() {
    let limit = Limit::token_bucket("settled", 4, SECOND).shards(4);
    let Ok(Answer::Granted { grant: Grant { receipt: Receipt { mut charges, .. }, .. }, .. }) =
        Shards::of(&limit).pooled(call(&limit, 1_000_000, false), sec(0))
    else {
        panic!("refused")
    };
    charges[0].shard = 6;
    let plan = Plan::new([Verb::Cancel(receipt(&charges))]).unwrap();
    assert_eq!(plan.rows().iter().map(tollgate::plan::RowId::shard).collect::<Vec<_>>(), [6]);
    charges[0].shard = 64;
    let error = Plan::new([Verb::Cancel(receipt(&charges))]).unwrap_err();
    assert!(matches!(error, Error::Call { source: CallError::CorruptReceipt, .. }), "{error}");
}

#[test]
fn what_one_call_took_from_several_shards_is_settled_as_one_sum() {
    let limit = Limit::token_bucket("settle", 4, MINUTE).shards(4);
    let spend = |cost| {
        let mut shards = Shards::of(&limit);
        let Ok(Answer::Granted { grant: Grant { receipt: Receipt { charges, .. }, .. }, .. }) =
            shards.pooled(call(&limit, cost, false), sec(0))
        else {
            panic!("refused")
        };
        (shards, receipt(&charges))
    };
    for (cost, actual, left) in
        [(3_000_000, 1_000_000, 3), (3_000_000, 0, 4), (2_000_000, 4_000_000, 0), (4_000_000, 6_000_000, -2)]
    {
        let (mut shards, receipt) = spend(cost);
        assert!(receipt.charges.len() > 1);
        assert_eq!(receipt.by_request().count(), 1);
        shards.pooled(Verb::Settle(receipt, micros(actual)), sec(0)).unwrap();
        assert_eq!(shards.balance(sec(0)), tokens(left), "{cost} {actual}");
    }
    let (mut shards, receipt) = spend(3_000_000);
    shards.pooled(Verb::Cancel(receipt), sec(0)).unwrap();
    assert_eq!(shards.balance(sec(0)), tokens(4));
}
