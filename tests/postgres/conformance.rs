//! Known cases of what the database adds: what a row keeps, which clock counts, and what a statement can be given. The
//! other cases are in `tests/pure/conformance`, and `replay.rs` sees that the database decides as the plan does.

mod clocks;

use std::error::Error as _;
use std::time::Duration;

use tollgate::{CallError, Decision, Error, KeyError, Limit, MINUTE, TokensError};

use crate::teller::{Teller, both, left, retry, tokens};
use crate::world::{World, limiter, second};

/// A token bucket and a fixed window that starts at `second(0)`, in both tables.
fn kinds(rate: u64, period: Duration, capacity: u64) -> [Limit; 4] {
    let windows = Limit::fixed_window("fw", rate, period).start(Duration::from_secs(1_700_000_000));
    let [tb, fw] = [Limit::token_bucket("tb", rate, period), windows].map(|limit| both(&limit.capacity(capacity)));
    let ([tb, tb_ephemeral], [fw, fw_ephemeral]) = (tb, fw);
    [tb, tb_ephemeral, fw, fw_ephemeral]
}

#[tokio::test]
async fn what_refills_is_taken_and_a_refusal_leaves_value_and_instant() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(10, MINUTE, 10) {
        let (later, value) = if limit.name() == "tb" { (6.0, 0) } else { (60.0, 4) };
        assert_eq!(left(teller.consume(0.0, limit.global().cost(5)).await), tokens(5));
        assert_eq!(left(teller.consume(later, limit.global().cost(6)).await), tokens(value));
        let before = teller.rows().await;
        assert_eq!(retry(teller.consume(later, limit.global().cost(10)).await), MINUTE);
        assert_eq!(teller.rows().await, before);
        assert_eq!(teller.row(&limit, "").await, Some((tokens(value), second(later))));
    }
}

#[tokio::test]
async fn only_the_ephemeral_table_is_unlogged() {
    let world = World::new().await;
    let sql = "select relname::text, relpersistence::text from pg_class join pg_namespace n on n.oid = relnamespace
               where nspname = 'tollgate' and relkind = 'r' and relname <> 'schema_history' order by 1";
    let tables: Vec<(String, String)> = sqlx::query_as(sql).fetch_all(&world.pool).await.unwrap();
    let expected = [("calls", "p"), ("durable", "p"), ("ephemeral", "u"), ("limits", "p"), ("overrides", "p")];
    assert_eq!(tables, expected.map(|(table, kind)| (table.to_owned(), kind.to_owned())));
}

#[tokio::test]
async fn a_cost_that_is_no_number_changes_nothing() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(10, MINUTE, 10) {
        left(teller.consume(0.0, limit.key(1)).await);
        let before = teller.rows().await;
        for (cost, fault) in [
            (f64::NAN, TokensError::NotFinite),
            (f64::INFINITY, TokensError::NotFinite),
            (f64::NEG_INFINITY, TokensError::NotFinite),
            (-1.0, TokensError::Negative),
        ] {
            let error = limiter().consume(&mut teller.tx, limit.key(1).cost(cost)).await.unwrap_err();
            assert!(
                matches!(&error, Error::Call { source: CallError::Cost(source), .. } if *source == fault),
                "{error:?}"
            );
        }
        assert_eq!(teller.rows().await, before);
    }
}

#[tokio::test]
async fn a_key_is_stored_as_it_is_or_an_error_with_a_name() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, MINUTE, 1) {
        let (long, nul) = ("x".repeat(513), "a\0b");
        for (key, fault) in [("", KeyError::Empty), (nul, KeyError::Nul), (&*long, KeyError::TooLong { bytes: 513 })] {
            let error = limiter().consume(&mut teller.tx, limit.key(key)).await.unwrap_err();
            assert!(matches!(&error, Error::Key { .. }), "{error:?}");
            assert_eq!(error.to_string(), format!("the key asked of limit {:?} is invalid: {fault}", limit.name()));
            assert!(error.source().is_none(), "the text has the reason, so it is told once");
        }
        left(teller.consume(0.0, limit.key("Ærøskøbing 東京 🚦")).await);
        assert!(teller.row(&limit, "Ærøskøbing 東京 🚦").await.is_some());
    }
}

#[tokio::test]
async fn a_new_capacity_counts_what_is_used() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for (ten, five) in std::iter::zip(kinds(10, MINUTE, 10), kinds(10, MINUTE, 5)) {
        teller.put(&ten, "shrunk", tokens(8), second(0.0)).await;
        assert_eq!(teller.balance(0.0, five.key("shrunk")).await.remaining, tokens(3));
        assert_eq!(left(teller.consume(0.0, five.key("shrunk")).await), tokens(2));

        teller.put(&five, "grown", tokens(2), second(0.0)).await;
        assert_eq!(teller.balance(0.0, ten.key("grown")).await.remaining, tokens(7));
        let Decision::Denied(denied) = teller.consume(0.0, ten.key("grown").cost(8)).await else { panic!() };
        assert_eq!(denied.remaining, tokens(7));
    }
}
