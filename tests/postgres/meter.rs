//! Meters: the sum of what calls cost in the end.

use std::collections::BTreeMap;

use tollgate::{HOUR, Limit, Limiter, Overrides, Source, Tokens, split};

use crate::functions::fails;
use crate::gate::stage::{EVER, pool};
use crate::teller::{run, tokens};
use crate::world::{OWNER, World, patient, sweeper};

const BUDGET: Limit = Limit::fixed_window("budget", 150, EVER);
const USAGE: Limit = Limit::meter("usage");

/// The ends of granted calls; any other call stays as it was charged.
const SETTLED: u32 = 0;
const GIVEN_BACK: u32 = 1;
const LAPSED: u32 = 2;

#[tokio::test]
async fn a_month_of_usage_is_the_sum_of_what_its_calls_cost_in_the_end() {
    let world = World::new().await;
    let shared = pool(&world.url(), 3).await;
    let gates = [patient(&shared).build(), patient(&shared).prefetch(HOUR).build()];
    let (mut sums, [mut repeats, mut refusals]) = (BTreeMap::<u32, i64>::new(), [0; 2]);
    for call in 0..300_u32 {
        // Each call comes twice, the second time through the other gate.
        let (id, gate) = (call / 2, &gates[call as usize % 2]);
        let (user, cost, end) = (id % 3, id % 9 + 1, id % 5);
        let [budget, usage] = [BUDGET.key(user), USAGE.key(("2026-11", user))].map(|request| request.cost(cost));
        let call = budget.once(id).and(usage);
        let call = if end == LAPSED { call.lapses_after(HOUR) } else { call };
        let Ok(grant) = gate.consume(call).await.unwrap().granted() else {
            refusals += 1;
            continue;
        };
        if grant.source == Source::Repeated {
            repeats += 1;
            continue;
        }
        let spent = match end {
            SETTLED | GIVEN_BACK => {
                let spent = if end == SETTLED { cost + 3 } else { 0 };
                gate.settle(grant, spent).await.unwrap();
                spent
            }
            LAPSED => 0,
            _ => cost,
        };
        *sums.entry(user).or_default() += i64::from(spent);
    }
    assert!(repeats > 20 && refusals > 20, "{repeats} repeats, {refusals} refusals");
    world.sql("update tollgate.calls set lapses_at = 'epoch' where lapses_at is not null").await;
    sweeper().reap(&world.pool).await.unwrap();
    for (user, sum) in sums {
        let balance = gates[0].balance(USAGE.key(("2026-11", user))).await.unwrap();
        assert_eq!(balance.used.micros(), sum * 1_000_000, "user {user}");
    }
}

/// A wallet that becomes a meter may have overrides. An unlimited one would lose the bill, and a deny would refuse.
#[tokio::test]
async fn no_override_applies_to_a_meter_and_nobody_resets_it_by_sql() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    run(&mut conn, "select tollgate.define('usage', 'wallet', max_reserved => 9)").await;
    for effect in ["unlimited", "deny"] {
        let set = format!("select tollgate.set_override('usage', '{effect}', '{effect}', reason => 'a test')");
        run(&mut conn, &set).await;
    }
    run(&mut conn, "select tollgate.define('usage', 'meter')").await;
    let overrides = Overrides::read(&mut conn).await.unwrap();
    let (limiter, mut tx) = (Limiter::new().overrides(&overrides), world.pool.begin().await.unwrap());
    for key in ["unlimited", "deny"] {
        let grant = limiter.consume(&mut tx, USAGE.key(key).cost(5)).await.unwrap().granted().unwrap();
        assert_eq!((grant.source, grant.remaining), (Source::Database, Tokens::MAX));
    }
    tx.commit().await.unwrap();
    for key in ["unlimited", "deny"] {
        let all = format!("array[tollgate.request('usage', '{key}', 2)]");
        for call in [format!("consume('usage', '{key}', 20)"), format!("consume_all({all})")] {
            let sql = format!("select granted and remaining is null from tollgate.{call}");
            assert!(sqlx::query_scalar::<_, bool>(sqlx::AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap());
        }
        let settle = format!("select tollgate.settle('usage', '{key}', 20, 10, clock_timestamp())");
        run(&mut conn, &settle).await;
        let balance = format!("select tollgate.balance('usage', '{key}')::int4");
        let balance = sqlx::query_scalar::<_, i32>(sqlx::AssertSqlSafe(balance)).fetch_one(&mut conn).await.unwrap();
        assert_eq!(balance, -17, "{key}");
        assert_eq!(fails(&mut conn, &format!("select tollgate.reset('usage', '{key}')")).await, "TG002");
    }
}

/// By every door.
#[tokio::test]
async fn a_meter_refuses_nobody_whatever_should_stay_behind() {
    let world = World::new().await;
    let mut conn = world.connect_as(OWNER).await;
    run(&mut conn, "select tollgate.define('usage', 'meter')").await;
    let asked = || USAGE.key(1).cost(5).leaving(1_000);
    let (gate, mut tx) = (patient(&pool(&world.url(), 1).await).build(), world.pool.begin().await.unwrap());
    Limiter::new().consume(&mut tx, asked()).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    gate.consume(split(5, [BUDGET.key(1), asked()])).await.unwrap().granted().unwrap();
    for part in [asked(), asked().up_to(1)] {
        assert_eq!(gate.consume(part).await.unwrap().granted().unwrap().amount, tokens(5));
    }
    let granted = "select granted from tollgate.consume('usage', '1', 5, leaving => 1000)";
    assert!(sqlx::query_scalar::<_, bool>(granted).fetch_one(&mut conn).await.unwrap());
    assert_eq!(fails(&mut conn, "select tollgate.consume('usage', '1', 5, leaving => 'NaN')").await, "TG002");
    assert_eq!(gate.balance(USAGE.key(1)).await.unwrap().used, tokens(20));
}
