//! Calls whose rows change after they were read: they decide again, and leave what the changed rows call for.

use sqlx::PgConnection;
use tollgate::Limit;

use super::asked::one;
use super::{define, owner};
use crate::gate::stage::EVER;
use crate::teller::{both, run};
use crate::world::{World, soon};

/// A change of any column counts, also of that alone.
#[tokio::test]
async fn a_row_that_changed_is_read_again() {
    let world = World::new().await;
    let (mut holder, mut caller) = (owner(&world).await, owner(&world).await);
    let limits = [Limit::token_bucket("ten", 10, EVER), Limit::fixed_window("ten", 10, EVER)];
    for limit in limits.iter().flat_map(both) {
        define(&mut holder, &limit).await;
        for (change, left) in [
            ("value = -6000000", "-9"),
            ("ts = '2100-01-01'", "-5 2100"),
            // By now it is full.
            ("full_at = ts", "-3"),
            // The list of another kind goes.
            ("list = '{1}'", "-5"),
        ] {
            for call in ["consume('ten', 'k', 3)", "consume_all(array[tollgate.request('ten', 'k', 3)])"] {
                let what = format!("{limit:?}: {change}, {call}");
                let table = format!("tollgate.{}", limit.storage);
                run(&mut holder, &format!("truncate {table}; select tollgate.consume('ten', 'k', 2)")).await;
                let change = format!("update {table} set {change}");
                let call = format!("select granted::text from tollgate.{call}");
                assert_eq!(answer_after(&world, &mut holder, &change, &mut caller, &call).await, "true", "{what}");
                let row = format!(
                    "select concat_ws(' ', round(value * 0.000001), case when ts >= '2100-01-01' then 2100 end, list)
                       from {table}"
                );
                assert_eq!(one::<String>(&mut holder, &row).await, left, "{what}");
            }
        }
    }
}

/// A call that has lost a race decides again, and puts back the rows that it had written.
#[tokio::test]
async fn where_a_later_row_was_lost_an_earlier_one_stays_as_it_was() {
    let world = World::new().await;
    let (mut holder, mut caller) = (owner(&world).await, owner(&world).await);
    define(&mut holder, &Limit::token_bucket("first", 10, EVER)).await;
    define(&mut holder, &Limit::token_bucket("second", 10, EVER)).await;
    run(
        &mut holder,
        "select tollgate.consume_all(array[tollgate.request('first', 'k'), tollgate.request('second', 'k'),
                                           tollgate.request('second', 'idle')])",
    )
    .await;
    let both = "select (granted, refused_by)::text
                  from tollgate.consume_all(array[tollgate.request('first', 'k', 2), tollgate.request('second', 'k', 2),
                                                  tollgate.request('first', 'new', 2),
                                                  tollgate.request('second', 'idle', 0)])";
    for (spent, answer, left) in
        [(3, "(t,)", "7.000000 4.000000 8.000000"), (3, "(f,second)", "7.000000 1.000000 10.000000")]
    {
        let change = format!("select tollgate.consume('second', 'k', {spent})");
        let told = answer_after(&world, &mut holder, &change, &mut caller, both).await;
        assert_eq!(told, answer);
        let sql = "select concat_ws(' ', tollgate.balance('first', 'k'), tollgate.balance('second', 'k'),
            tollgate.balance('first', 'new'))";
        assert_eq!(one::<String>(&mut holder, sql).await, left);
        if answer == "(t,)" {
            run(&mut holder, "select tollgate.reset('first', 'new'); delete from tollgate.durable where key = 'new'")
                .await;
        } else {
            let rows = "select count(*) from tollgate.durable where key = 'new'";
            assert_eq!(one::<i64>(&mut holder, rows).await, 0);
        }
    }
}

/// The smallest cost is written, and put back, as any other: on a row before the lost one, on the lost one, and on a
/// missing one behind it.
#[tokio::test]
async fn beside_a_lost_row_a_micro_token_counts() {
    let world = World::new().await;
    let (mut holder, mut caller) = (owner(&world).await, owner(&world).await);
    for name in ["first", "second"] {
        define(&mut holder, &Limit::token_bucket(name, 10, EVER)).await;
        run(&mut holder, &format!("select tollgate.consume('{name}', 'k')")).await;
    }
    let all = "select granted::text
                 from tollgate.consume_all(array[tollgate.request('first', 'k', 0.000001),
                                                 tollgate.request('second', 'k', 0.000001),
                                                 tollgate.request('second', 'new', 0.000001)])";
    for (spent, answer, left) in
        [("3", "true", "8.999999 5.999999 9.999999"), ("5.999999", "false", "8.999999 0.000000 9.999999")]
    {
        let change = format!("select tollgate.granted(tollgate.consume('second', 'k', {spent}))");
        let told = answer_after(&world, &mut holder, &change, &mut caller, all).await;
        assert_eq!(told, answer);
        let sql = "select concat_ws(' ', tollgate.balance('first', 'k'), tollgate.balance('second', 'k'),
            tollgate.balance('second', 'new'))";
        assert_eq!(one::<String>(&mut holder, sql).await, left);
    }
}

/// The answer to a call that has seen its rows, and waits for one that a transaction changes meanwhile.
async fn answer_after(
    world: &World,
    holder: &mut PgConnection,
    change: &str,
    caller: &mut PgConnection,
    call: &str,
) -> String {
    run(holder, &format!("begin; {change}")).await;
    let pid = crate::world::pid(caller).await;
    let asking = async { one(caller, call).await };
    let committing = async {
        world.until_blocked(pid).await;
        run(holder, "commit").await;
    };
    let (answer, ()) = soon(Box::pin(async { tokio::join!(asking, committing) })).await;
    answer
}
