//! Calls of several limits: when they are ready, and the shorter way by which they look at rows of token buckets.

use chrono::{DateTime, Utc};
use tollgate::{Limit, MINUTE};

use super::asked::one;
use super::{define, fails, owner};
use crate::gate::stage::EVER;
use crate::teller::run;
use crate::world::World;

/// All of several are there when the last one is, and they are dated when they are decided.
#[tokio::test]
async fn several_are_ready_with_the_last_one() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for (name, period) in [("fast", MINUTE), ("slow", EVER)] {
        define(&mut conn, &Limit::token_bucket(name, 10, period).max_reserved(5)).await;
    }
    run(&mut conn, "begin").await;
    for _ in 0..2 {
        // First without rows, and then with them.
        let before: DateTime<Utc> = one(&mut conn, "select clock_timestamp()").await;
        let booked = format!(
            "select ready_at > now() + interval '1 hour' and decided_at > '{before}'
               from tollgate.reserve_all(array[tollgate.request('slow', 'k', 12), tollgate.request('fast', 'k', 12)])"
        );
        assert!(one::<bool>(&mut conn, &booked).await);
        let before: DateTime<Utc> = one(&mut conn, "select clock_timestamp()").await;
        let taken = format!("select decided_at > '{before}' from tollgate.consume('fast', 'other')");
        assert!(one::<bool>(&mut conn, &taken).await);
        run(&mut conn, "select tollgate.reset('slow', 'k'), tollgate.reset('fast', 'k')").await;
    }
}

/// A call of several looks at rows of token buckets by a shorter way.
#[tokio::test]
async fn several_buckets_count_what_has_come_back() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for limit in [Limit::token_bucket("ten", 10, MINUTE), Limit::token_bucket("also_ten", 10, MINUTE)] {
        define(&mut conn, &limit).await;
    }
    // Half a minute ago all of them were used. The second ones were used under a faster definition.
    run(
        &mut conn,
        "insert into tollgate.durable
         select 0, name, 'k', 0, -10000000, timestamptz 'epoch' - interval '30 s', timestamptz 'epoch' + span
           from (values ('ten', interval '30 s'), ('also_ten', '10 s')) rows (name, span)",
    )
    .await;
    let both = "select granted and remaining = 4
                  from tollgate._ask_all(array[tollgate.request('ten', 'k'), tollgate.request('also_ten', 'k')],
                                         false, false, 'epoch')";
    assert!(one::<bool>(&mut conn, both).await);
    // One token more delays that definition's instant by six seconds.
    let full = "select string_agg(extract(epoch from full_at)::int::text, ' ' order by name desc)
                  from tollgate.durable";
    assert_eq!(one::<String>(&mut conn, full).await, "36 16");
}

/// Requests for one key are one. A look is bounded, too, as in the library.
#[tokio::test]
async fn a_call_of_too_many_keys_fails_before_it_locks_one() {
    let world = World::new().await;
    let (mut conn, mut other) = (owner(&world).await, owner(&world).await);
    run(&mut conn, "select tollgate.define('ten', 'token_bucket', 10, '1 day')").await;
    run(&mut conn, "create table public.events (tenant text)").await;
    let of = |keys: &str| {
        format!("(select array_agg(tollgate.request('ten', {keys}, 0.001)) from generate_series(1, 20000) n)")
    };
    for verb in ["consume_all", "reserve_all", "check_all"] {
        run(&mut conn, "begin").await;
        assert_eq!(fails(&mut conn, &format!("select tollgate.{verb}({})", of("n::text"))).await, "TG009", "{verb}");
        run(&mut conn, "rollback").await;
        let most = of("(n % 2000)::text");
        assert!(one::<bool>(&mut conn, &format!("select granted from tollgate.{verb}({most})")).await, "{verb}");
        let beyond = of("(n % 2001)::text");
        assert_eq!(fails(&mut conn, &format!("select tollgate.{verb}({beyond})")).await, "TG009", "{verb}");
    }
    run(
        &mut conn,
        "create trigger limited after insert on public.events referencing new table as inserted
           for each statement execute function tollgate.limit_inserts('ten', 'tenant')",
    )
    .await;
    let insert = |keys: u32| format!("insert into public.events select n::text from generate_series(1, {keys}) n");
    assert_eq!(fails(&mut conn, &insert(2_001)).await, "TG009");
    run(&mut conn, &insert(2_000)).await;
    // The owner sets the bound.
    let bound = "create or replace function tollgate._max_keys() returns int4 language sql immutable as";
    run(&mut conn, &format!("{bound} 'select 3'")).await;
    run(&mut conn, &insert(3)).await;
    assert_eq!(fails(&mut other, &insert(4)).await, "TG009");
    run(&mut conn, &format!("{bound} 'select 2001'")).await;
    run(&mut other, &insert(2_001)).await;
    tollgate::migrate::validate(&mut conn).await.unwrap();
}
