//! Known cases with known numbers, each by the letter under which limiters are compared, through SQL and in both
//! tables.

use std::error::Error as _;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tollgate::{CallError, DAY, Decision, Error, HOUR, KeyError, Limit, MINUTE, SECOND, Tokens, TokensError};

use crate::teller::{Teller, both, left, retry, tokens, wait};
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
async fn a_reservation_borrows_from_the_time_to_come() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let [tb, fw] = owing_kinds(10, MINUTE, 10).map(Limit::unbounded_reservations);
    for (limit, later, first, second_wait, second_value) in [(tb, 6.0, -10, 60, -10), (fw, 60.0, -6, 90, -11)] {
        assert_eq!(left(teller.consume(0.0, limit.global().cost(5)).await), tokens(5));
        assert_eq!(wait(teller.reserve(later, limit.global().cost(16)).await), MINUTE);
        assert_eq!(teller.row(&limit, "").await, Some((tokens(first), second(later))));
        let wait = wait(teller.reserve(later + 30.0, limit.global().cost(5)).await);
        assert_eq!(wait, Duration::from_secs(second_wait));
        assert_eq!(teller.row(&limit, "").await.unwrap().0, tokens(second_value));
    }
}

#[tokio::test]
async fn reset_fills_one_key_and_no_other() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 1) {
        assert_eq!(teller.reset(0.0, limit.key("a")).await, tokens(1));
        assert_eq!(teller.row(&limit, "a").await, None, "an absent row is full already");
        for ask in [limit.global(), limit.key("a"), limit.key("b")] {
            assert!(teller.consume(0.0, ask.clone()).await.is_granted());
            assert!(!teller.consume(0.0, ask).await.is_granted());
        }
        for (reset, other) in [(limit.global(), limit.key("a")), (limit.key("a"), limit.key("b"))] {
            assert_eq!(teller.reset(0.0, reset.clone()).await, tokens(1));
            assert!(!teller.check(0.0, other).await.is_granted());
            assert!(teller.consume(0.0, reset.clone()).await.is_granted());
            assert!(!teller.consume(0.0, reset).await.is_granted());
        }
    }
}

#[tokio::test]
async fn a_debt_delays_whoever_comes_next() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in owing_kinds(1, HOUR, 1).map(Limit::unbounded_reservations) {
        assert!(teller.check(0.0, limit.key("fresh")).await.is_granted());
        assert_eq!(wait(teller.reserve(0.0, limit.key("fresh").cost(100)).await), 99 * HOUR);
        assert_eq!(retry(teller.check(0.0, limit.key("fresh")).await), 100 * HOUR);

        teller.put(&limit, "empty", Tokens::ZERO, second(0.0)).await;
        assert_eq!(wait(teller.reserve(0.0, limit.key("empty").cost(100)).await), 100 * HOUR);
        assert_eq!(retry(teller.consume(0.0, limit.key("empty")).await), 101 * HOUR);
    }
    let spread = Limit::fixed_window("spread", 1, HOUR).unbounded_reservations();
    let wait = wait(teller.reserve(0.0, spread.global().cost(100)).await);
    assert!(wait > 98 * HOUR && wait <= 99 * HOUR, "{wait:?}");
}

#[tokio::test]
async fn reservations_stop_at_their_bound() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in owing_kinds(1, HOUR, 1).map(|limit| limit.max_reserved(1)) {
        assert_eq!(wait(teller.reserve(0.0, limit.global().cost(2)).await), HOUR);
        assert_eq!(teller.row(&limit, "").await, Some((tokens(-1), second(0.0))));
        assert_eq!(retry(teller.check(0.0, limit.global()).await), 2 * HOUR);
        assert_eq!(retry(teller.consume(0.0, limit.global()).await), 2 * HOUR);
    }
    for limit in owing_kinds(1, SECOND, 1).map(|limit| limit.max_reserved(2)) {
        let error = limiter().reserve(&mut teller.tx, limit.key(4).cost(4)).await.unwrap_err();
        assert!(matches!(error, Error::CostExceedsCapacity { max, .. } if max == tokens(3)), "{error:?}");
    }
    for limit in owing_kinds(1, SECOND, 2).map(|limit| limit.max_reserved(1)) {
        teller.put(&limit, "half", tokens(1), second(0.0)).await;
        let before = teller.rows().await;
        assert_eq!(retry(teller.reserve(0.0, limit.key("half").cost(3)).await), SECOND);
        assert_eq!(teller.rows().await, before);
    }
}

#[tokio::test]
async fn a_debt_of_one_is_two_periods_from_one_token() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 1) {
        for key in ["key", "", "otherKey"] {
            teller.put(&limit, key, tokens(-1), second(0.0)).await;
        }
        let before = teller.rows().await;
        assert_eq!(retry(teller.check(0.0, limit.key("key")).await), 2 * SECOND);
        assert_eq!(retry(teller.consume(0.0, limit.key("key")).await), 2 * SECOND);
        assert_eq!(teller.rows().await, before);
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
async fn a_limit_that_says_nothing_owes_nothing() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(1, SECOND, 1) {
        teller.put(&limit, "", Tokens::ZERO, second(0.0)).await;
        let before = teller.rows().await;
        assert_eq!(retry(teller.reserve(0.0, limit.global()).await), SECOND);
        assert_eq!(teller.rows().await, before);
        assert_eq!(wait(teller.reserve(0.0, limit.key("full")).await), Duration::ZERO);
    }
}

#[tokio::test]
async fn a_reservation_that_fits_is_no_refusal() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let limit = Limit::token_bucket("queue", 1, SECOND).capacity(0).unbounded_reservations();
    for nth in 1..=5 {
        let booked = teller.reserve(0.0, limit.global()).await.granted().unwrap();
        assert_eq!((booked.wait(), booked.is_ready()), (nth * SECOND, false), "perfectly spaced");
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

#[tokio::test]
async fn a_window_of_five() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in windows() {
        for (at, key) in [(61.0, "after"), (60.0, "boundary")] {
            for remaining in (0..5).rev() {
                assert_eq!(left(teller.consume(0.0, limit.key(key)).await), tokens(remaining));
                assert_eq!(teller.balance(0.0, limit.key(key)).await.full_at, Some(second(60.0)));
            }
            let refused = teller.consume(0.0, limit.key(key)).await.denied().unwrap();
            assert_eq!((refused.remaining, refused.retry_at), (Tokens::ZERO, Some(second(60.0))));
            assert!(!teller.consume(59.999_999, limit.key(key)).await.is_granted());
            assert_eq!(left(teller.consume(at, limit.key(key)).await), tokens(4));
        }
    }
}

#[tokio::test]
async fn refused_calls_do_not_count() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in windows() {
        left(teller.consume(0.0, limit.key(1).cost(5)).await);
        for _ in 0..100 {
            assert!(!teller.consume(0.0, limit.key(1)).await.is_granted());
        }
        assert_eq!(teller.credit(0.0, limit.key(1)).await, tokens(1));
        assert_eq!(left(teller.consume(0.0, limit.key(1)).await), Tokens::ZERO);
    }
}

/// Five every ten seconds, at most twenty.
fn uploads() -> [Limit; 2] {
    both(&Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20))
}

#[tokio::test]
async fn to_f18_a_stepped_bucket_counts_whole_steps_and_keeps_its_grid() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in uploads() {
        assert_eq!(left(teller.consume(0.0, limit.key("f11")).await), tokens(19));

        left(teller.consume(0.0, limit.key("f12").cost(15)).await);
        assert_eq!(left(teller.consume(10.0, limit.key("f12")).await), tokens(9));

        left(teller.consume(0.0, limit.key("f13").cost(2)).await);
        assert_eq!(left(teller.consume(3_600.0, limit.key("f13")).await), tokens(19));

        left(teller.consume(0.0, limit.key("f14").cost(20)).await);
        for _ in 0..5 {
            let refused = teller.consume(0.0, limit.key("f14")).await.denied().unwrap();
            assert_eq!((refused.remaining, refused.retry_at), (Tokens::ZERO, Some(second(10.0))));
        }
        assert_eq!(retry(teller.consume(9.0, limit.key("f14")).await), SECOND);
        assert_eq!(left(teller.consume(10.0, limit.key("f14")).await), tokens(4));

        left(teller.consume(0.0, limit.key("f16").cost(15)).await);
        assert_eq!(left(teller.consume(15.0, limit.key("f16")).await), tokens(9));
        assert_eq!(left(teller.consume(20.0, limit.key("f16")).await), tokens(13));
    }
    let continuous = Limit::token_bucket("drips", 5, Duration::from_secs(10)).capacity(20);
    left(teller.consume(0.0, continuous.global().cost(15)).await);
    assert_eq!(left(teller.consume(15.0, continuous.global()).await), "11.5".parse().unwrap());
    assert_eq!(left(teller.consume(20.0, continuous.global()).await), tokens(13));
}

#[tokio::test]
async fn a_steady_caller_below_the_rate_is_never_refused() {
    let world = World::new().await;
    let ten = |name| Limit::stepped_bucket(name, 10, MINUTE).capacity(10);
    let stories = [
        (Limit::stepped_bucket("f19", 5, Duration::from_secs(10)).capacity(20), 9.0, 400),
        (ten("f20"), 7.0, 515),
        (ten("f20_tight"), 6.0, 600),
        (Limit::stepped_bucket("f21", 100, SECOND).capacity(100), 0.02, 3_000),
    ];
    for (limit, apart, calls) in stories {
        let mut teller = Teller::of(&world).await;
        for nth in 0..calls {
            if nth % 100 == 99 {
                // Row versions that one transaction writes over and over cannot be pruned before it ends.
                std::mem::replace(&mut teller, Teller::of(&world).await).commit().await;
            }
            let decision = teller.consume(f64::from(nth) * apart, limit.global()).await;
            assert!(decision.is_granted(), "{} call {nth}: {decision:?}", limit.name());
        }
    }
}

#[tokio::test]
async fn a_bucket_that_was_full_keeps_its_grid() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in uploads() {
        for (at, remaining) in [(0.0, 19), (12.0, 19), (20.0, 19), (29.0, 18), (30.0, 19)] {
            assert_eq!(left(teller.consume(at, limit.global()).await), tokens(remaining), "at {at} s");
        }
    }
}

#[tokio::test]
async fn weights_and_credits_stay_between_nothing_and_full() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::fixed_window("weighted", 10, MINUTE)) {
        assert_eq!(left(teller.consume(0.0, limit.key(1).cost(5)).await), tokens(5));
        assert_eq!(left(teller.consume(0.0, limit.key(1).cost(5)).await), Tokens::ZERO);
        assert!(!teller.consume(0.0, limit.key(1)).await.is_granted());
    }
    for limit in windows().chain(uploads()) {
        let capacity = limit.spec().capacity.unwrap();
        left(teller.consume(0.0, limit.key("credit").cost(3)).await);
        assert_eq!(teller.credit(0.0, limit.key("credit").cost(10)).await, capacity);
        let before = teller.rows().await;
        assert_eq!(teller.credit(0.0, limit.key("credit").cost(10)).await, capacity);
        assert_eq!(teller.credit(0.0, limit.key("absent").cost(10)).await, capacity);
        assert_eq!(teller.rows().await, before, "there was no room for more");
    }
}

#[tokio::test]
async fn a_credit_after_its_window_adds_nothing_to_the_new_one() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in windows() {
        left(teller.consume(0.0, limit.key(1).cost(3)).await);
        assert_eq!(teller.credit(61.0, limit.key(1).cost(3)).await, tokens(5));
        assert_eq!(left(teller.consume(61.0, limit.key(1)).await), tokens(4));
    }
}

#[tokio::test]
async fn a_cost_of_zero_asks_whether_there_is_a_debt() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(10, MINUTE, 10) {
        let nothing = || limit.key(1).cost(0);
        assert_eq!(left(teller.consume(0.0, nothing()).await), tokens(10));
        assert_eq!(teller.row(&limit, "1").await, None);
        left(teller.consume(0.0, limit.key(1).cost(10)).await);
        let empty = teller.rows().await;
        assert_eq!(left(teller.consume(0.0, nothing()).await), Tokens::ZERO);
        assert_eq!(teller.credit(0.0, nothing()).await, Tokens::ZERO);
        assert_eq!(teller.debit(0.0, nothing()).await, Tokens::ZERO);
        assert_eq!(teller.rows().await, empty);
        assert_eq!(teller.debit(0.0, limit.key(1)).await, tokens(-1));
        let owing = teller.rows().await;
        assert_eq!(retry(teller.consume(0.0, nothing()).await), if limit.name() == "tb" { 6 * SECOND } else { MINUTE });
        assert_eq!(teller.rows().await, owing);
    }
}

#[tokio::test]
async fn a_credit_settles_the_refill_first() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("drips", 10, MINUTE)) {
        teller.put(&limit, "", tokens(1), second(0.0)).await;
        assert_eq!(teller.credit(30.0, limit.global().cost(2)).await, tokens(8));
        assert_eq!(teller.row(&limit, "").await, Some((tokens(8), second(30.0))));
        assert_eq!(teller.balance(36.0, limit.global()).await.remaining, tokens(9));
    }
}

#[tokio::test]
async fn remaining_is_read_and_reset_starts_over() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in windows().chain(uploads()) {
        let capacity = limit.spec().capacity.unwrap();
        let minus = |n| capacity.checked_sub(tokens(n)).unwrap();
        assert_eq!(teller.balance(0.0, limit.key(1)).await.remaining, capacity);
        left(teller.consume(0.0, limit.key(1).cost(2)).await);
        assert_eq!(teller.balance(0.0, limit.key(1)).await.remaining, minus(2));
        assert_eq!(teller.balance(0.0, limit.key(1)).await.remaining, minus(2));
        left(teller.consume(0.0, limit.key(1).cost(minus(2))).await);
        assert!(!teller.consume(0.0, limit.key(1)).await.is_granted());
        assert_eq!(teller.reset(0.0, limit.key(1)).await, capacity);
        assert_eq!(left(teller.consume(0.0, limit.key(1)).await), minus(1));
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
async fn time_stands_still_where_the_clock_goes_back() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in kinds(10, MINUTE, 10) {
        teller.put(&limit, "", tokens(5), second(60.0)).await;
        let balance = teller.balance(0.0, limit.global()).await;
        assert_eq!((balance.remaining, balance.as_of, balance.ahead()), (tokens(5), second(60.0), MINUTE));
        let grant = teller.consume(0.0, limit.global()).await.granted().unwrap();
        assert_eq!((grant.remaining, grant.decided_at), (tokens(4), second(60.0)));
        assert_eq!(grant.observed_at, second(0.0));
        assert_eq!(teller.row(&limit, "").await, Some((tokens(4), second(60.0))));
        // First the clock has to catch up.
        let wait = MINUTE + if limit.name() == "tb" { 36 * SECOND } else { MINUTE };
        assert_eq!(retry(teller.consume(0.0, limit.global().cost(10)).await), wait);
    }
}

#[tokio::test]
async fn in_a_transaction_begun_long_ago_refill_uses_the_present() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::token_bucket("present", 1_000, SECOND)) {
        let began: DateTime<Utc> =
            sqlx::query_scalar("select transaction_timestamp()").fetch_one(&mut *teller.tx).await.unwrap();
        teller.put(&limit, "", Tokens::ZERO, began).await;
        let balance = limiter().balance(&mut teller.tx, limit.global()).await.unwrap();
        let elapsed = (balance.observed_at - began).num_microseconds().unwrap();
        assert!(elapsed > 0, "{balance:?} after {began}");
        assert_eq!(balance.remaining, Tokens::from_micros(elapsed * 1_000).min(tokens(1_000)));

        let one = limit.global().cost(Tokens::from_micros(1));
        let grant = limiter().consume(&mut teller.tx, one).await.unwrap().granted().unwrap();
        assert!(grant.decided_at > balance.observed_at);
        let (_, ts) = teller.row(&limit, "").await.unwrap();
        assert_eq!(ts, grant.decided_at);
    }
}

#[tokio::test]
async fn a_start_in_the_future_is_aligned_backwards() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    for limit in both(&Limit::fixed_window("future", 1, MINUTE).start(ORIGIN + 400 * DAY + 10 * SECOND)) {
        assert!(teller.consume(0.0, limit.global()).await.is_granted());
        assert_eq!(teller.row(&limit, "").await, Some((Tokens::ZERO, second(-50.0))));
        assert_eq!(retry(teller.consume(0.0, limit.global()).await), 10 * SECOND);
    }
}

#[tokio::test]
async fn a_clock_that_jumps_ten_years_ahead_finds_a_full_bucket() {
    let world = World::new().await;
    let mut teller = Teller::of(&world).await;
    let ten_years = 10.0 * 365.0 * 86_400.0;
    for limit in kinds(10, SECOND, 10) {
        left(teller.consume(0.0, limit.global().cost(10)).await);
        assert_eq!(teller.balance(ten_years, limit.global()).await.remaining, tokens(10));
        assert_eq!(left(teller.consume(ten_years, limit.global().cost(10)).await), Tokens::ZERO);
        assert_eq!(teller.row(&limit, "").await, Some((Tokens::ZERO, second(ten_years))));
    }
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
