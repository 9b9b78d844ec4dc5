//! Known cases with known numbers, each by the letter under which limiters are compared, through SQL and in both
//! tables.

mod clocks;
mod credits;
mod grids;
mod reservations;

use std::error::Error as _;
use std::time::Duration;

use tollgate::{CallError, Decision, Error, KeyError, Limit, MINUTE, SECOND, Tokens, TokensError};

use crate::teller::{Teller, both, left, retry, tokens};
use crate::world::{World, limiter, second};

/// Windows that start at `second(0)`.
const ORIGIN: Duration = Duration::from_secs(1_700_000_000);

/// A token bucket and a fixed window that starts at `second(0)`, in both tables.
fn kinds(rate: u64, period: Duration, capacity: u64) -> [Limit; 4] {
    let [tb, fw] = owing_kinds(rate, period, capacity);
    let ([tb, tb_ephemeral], [fw, fw_ephemeral]) = (both(&tb), both(&fw));
    [tb, tb_ephemeral, fw, fw_ephemeral]
}

/// The same in the durable table, which can hold debts.
fn owing_kinds(rate: u64, period: Duration, capacity: u64) -> [Limit; 2] {
    [
        Limit::token_bucket("tb", rate, period).capacity(capacity),
        Limit::fixed_window("fw", rate, period).capacity(capacity).start(ORIGIN),
    ]
}

#[tokio::test]
async fn a_limit_of_one_is_used_up_by_one_call() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 1) {
        let ask = || limit.global();
        assert_eq!(left(teller.check(0.0, ask()).await), Tokens::ZERO);
        assert_eq!(teller.row(&limit, "").await, None, "a check writes nothing");
        assert_eq!(left(teller.consume(0.0, ask()).await), Tokens::ZERO);
        assert_eq!(teller.row(&limit, "").await, Some((Tokens::ZERO, second(0.0))));
        let before = teller.rows().await;
        assert_eq!(retry(teller.check(0.0, ask()).await), SECOND);
        assert_eq!(retry(teller.consume(0.0, ask()).await), SECOND);
        assert_eq!(retry(teller.consume(0.25, ask()).await), SECOND * 3 / 4);
        assert_eq!(teller.rows().await, before, "a refusal writes nothing");
    }
}

#[tokio::test]
async fn a_spread_window_opens_within_its_period() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::fixed_window("spread", 1, SECOND)) {
        left(teller.consume(0.0, limit.global()).await);
        let wait = retry(teller.consume(0.0, limit.global()).await);
        assert!(wait > Duration::ZERO && wait <= SECOND, "{wait:?}");
        assert!(teller.consume(wait.as_secs_f64(), limit.global()).await.is_granted());
    }
}

#[tokio::test]
async fn a_cost_beyond_the_capacity_is_an_error_and_no_refusal() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 1) {
        for error in [
            limiter().consume(&mut teller.tx, limit.key("simple").cost(2)).await.unwrap_err(),
            limiter().check(&mut teller.tx, limit.key("simple").cost(2)).await.unwrap_err(),
            limiter().reserve(&mut teller.tx, limit.key("simple").cost(2)).await.unwrap_err(),
            limiter().consume(&mut teller.tx, [limit.key(1), limit.key(1)]).await.unwrap_err(),
        ] {
            let Error::CostExceedsCapacity { limit: name, asked, max } = &error else { panic!("{error:?}") };
            assert_eq!((&**name, *asked, *max), (limit.name(), tokens(2), tokens(1)));
        }
    }
    assert_eq!(teller.rows().await, []);
}

#[tokio::test]
async fn keys_are_independent_of_each_other() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 1) {
        assert!(teller.consume(0.0, limit.key("key")).await.is_granted());
        assert!(teller.consume(0.0, limit.key("key2")).await.is_granted());
        assert!(teller.consume(0.0, limit.global()).await.is_granted());
        assert!(!teller.consume(0.0, limit.key("key")).await.is_granted());
    }
    for limit in kinds(1, SECOND, 3) {
        assert!(teller.check(0.0, limit.key("bar").cost(3)).await.is_granted());
        assert!(teller.consume(0.0, limit.key("foo").cost(3)).await.is_granted());
        assert!(!teller.consume(0.0, limit.key("foo")).await.is_granted());
        assert!(teller.check(0.0, limit.key("bar").cost(3)).await.is_granted());
    }
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
async fn all_of_a_capacity_goes_in_one_call() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 3) {
        teller.put(&limit, "", tokens(3), second(0.0)).await;
        assert_eq!(left(teller.consume(0.0, limit.global().cost(3)).await), Tokens::ZERO);
        assert_eq!(retry(teller.consume(0.0, limit.global()).await), SECOND);
    }
}

#[tokio::test]
async fn reading_tells_the_balance_and_changes_nothing() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(10, SECOND, 10) {
        let unused = teller.balance(0.0, limit.key(1)).await;
        assert_eq!((unused.remaining, unused.capacity, unused.is_full()), (tokens(10), tokens(10), true));
        assert_eq!((unused.as_of, unused.full_at), (second(0.0), Some(second(0.0))));
        assert_eq!(teller.row(&limit, "1").await, None);
        left(teller.consume(0.0, limit.key(1).cost(4)).await);
        let before = teller.rows().await;
        let [one, two] = [teller.balance(0.0, limit.key(1)).await, teller.balance(0.0, limit.key(1)).await];
        assert_eq!((one.remaining, one.capacity), (tokens(6), tokens(10)));
        assert_eq!(one, two);
        assert_eq!(teller.rows().await, before);
    }
}

#[tokio::test]
async fn three_sends_pass_and_the_fourth_is_an_error_for_whoever_wants_one() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, MINUTE, 3) {
        for _ in 0..3 {
            teller.consume(0.0, limit.key("ada")).await.granted().unwrap();
        }
        let refused = teller.consume(0.0, limit.key("ada")).await.granted().unwrap_err().to_string();
        assert_eq!(refused, format!("limit {:?} exhausted (retry in 60s)", limit.name()));
    }
}

/// Five a minute, in windows that begin with the first hit, or on a grid.
fn windows() -> impl Iterator<Item = Limit> {
    [Limit::stepped_bucket("first_hit", 5, MINUTE), Limit::fixed_window("grid", 5, MINUTE).start(ORIGIN)]
        .into_iter()
        .flat_map(|limit| both(&limit))
}

/// Five every ten seconds, at most twenty.
fn uploads() -> [Limit; 2] {
    both(&Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20))
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
async fn half_a_token_is_half_a_token() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, MINUTE, 1) {
        assert_eq!(left(teller.consume(0.0, limit.key(1).cost(0.5)).await), "0.5".parse().unwrap());
        assert_eq!(left(teller.consume(0.0, limit.key(1).cost(0.5)).await), Tokens::ZERO);
        assert!(!teller.consume(0.0, limit.key(1).cost(0.000_001)).await.is_granted());
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
            assert_eq!(error.to_string(), format!("the key asked of limit {:?} is invalid", limit.name()));
            assert_eq!(error.source().unwrap().downcast_ref(), Some(&fault));
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
