//! The rows in the parts: where they lie, and that nobody inserts one where no other looks.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use sqlx::Connection;
use tollgate::{BegunByHand, Call, Error, HOUR, Limit, Limiter, MINUTE, SECOND, SetupFault, Tokens, migrate};

use super::{LIMITER, apart, sharded};
use crate::gate::stage::{EVER, patient};
use crate::teller::{both, run};
use crate::world::{NUMBERS, OWNER, PARTS, World, is_on_citus, part_of, shard_of, soon};

/// Rows of any limits for one key lie in one part; stored rows lie where the hash said when they were written.
#[tokio::test]
async fn each_row_lies_in_the_part_of_its_key() {
    let world = World::of_parts(PARTS).await;
    let gate = patient(&world.pool).parts(PARTS).build();
    let mut seen = BTreeSet::new();
    for key in 0..40 {
        let limits = [both(&Limit::token_bucket("one", 10, EVER)), both(&sharded())].concat();
        let mut tx = world.pool.begin().await.unwrap();
        for limit in &limits[1..] {
            LIMITER.debit(&mut tx, limit.key(key)).await.unwrap();
        }
        tx.commit().await.unwrap();
        gate.consume(limits[0].key(key)).await.unwrap().granted().unwrap();
        let sql = "select part from tollgate.ephemeral where key = $1
                   union select part from tollgate.durable where key = $1";
        let key = key.to_string();
        let found: Vec<i16> = sqlx::query_scalar(sql).bind(&key).fetch_all(&world.pool).await.unwrap();
        assert_eq!(found, [part_of(&key)], "{key}");
        seen.extend(found);
    }
    assert_eq!(seen, BTreeSet::from(NUMBERS));
    // Numbers by the hash of 2026.
    assert_eq!(["", "ada", "42"].map(|key| shard_of(key, 2048)), [294, 233, 1260]);
}

/// The fast path reads the clock before it waits. After five milliseconds that is too early.
#[tokio::test]
async fn a_lock_that_was_waited_for_is_dated_after_the_wait() {
    let world = World::of_parts(PARTS).await;
    let limit = Limit::token_bucket("one", 10, EVER);
    let mut tx = world.pool.begin().await.unwrap();
    LIMITER.consume(&mut tx, limit.key("k")).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    let (mut holder, mut waiter) = (world.pool.begin().await.unwrap(), world.pool.begin().await.unwrap());
    LIMITER.consume(&mut holder, limit.key("k")).await.unwrap().granted().unwrap();
    let pid = crate::world::pid(&mut waiter).await;
    let waiting = async { LIMITER.consume(&mut waiter, limit.key("k")).await.unwrap().granted().unwrap() };
    let holding = async {
        world.until_blocked(pid).await;
        let longer = "select clock_timestamp() from pg_sleep(0.006)";
        let held = sqlx::query_scalar::<_, DateTime<Utc>>(longer).fetch_one(&mut *holder).await.unwrap();
        // After a commit the server would read the clock again, together with the row.
        holder.rollback().await.unwrap();
        held
    };
    let (grant, held) = soon(Box::pin(async { tokio::join!(waiting, holding) })).await;
    assert!(grant.decided_at > held, "{} after {held}", grant.decided_at);
}

/// Citus hashes the number of a part once more, and cuts the range of these hashes into as many shards as there are
/// parts: no two are to meet in one. This goes by the server's own hash.
#[tokio::test]
async fn parts_fall_into_different_shards_whatever_their_number() {
    let world = World::new().await;
    world.sql("alter table tollgate.durable drop constraint durable_part").await;
    let limit = Limit::token_bucket("ten", 10, EVER);
    let keys: Vec<_> = (0..40).map(|key: u16| key.to_string()).collect();
    for parts in (0..=11).map(|power| 1_u16 << power) {
        let mut tx = world.pool.begin().await.unwrap();
        let asks = keys.iter().map(|key| limit.key(key));
        Limiter::new().parts(parts).consume(&mut tx, asks.collect::<Call>()).await.unwrap().granted().unwrap();
        // Each key lies in the first part that falls into its shard, and each shard has one.
        let sql = "with numbers as (
                       select min(n)::int2 as part, ((hashint2(n::int2)::int8 + 2147483648) * $1 >> 32)::int4 as shard
                         from generate_series(8 * $1, 16 * $1 - 1) n group by 2
                   )
                   select (select count(*) from numbers),
                          (select count(*) from unnest($2::text[], $3::int4[]) asked (key, shard)
                             join numbers using (shard) join tollgate.durable using (part, key))";
        let shards: Vec<_> = keys.iter().map(|key| i32::from(shard_of(key, parts))).collect();
        let found: (i64, i64) =
            sqlx::query_as(sql).bind(i32::from(parts)).bind(&keys).bind(shards).fetch_one(&mut *tx).await.unwrap();
        assert_eq!(found, (parts.into(), 40), "{parts}");
    }
}

/// No transaction's number tells it: each node counts its own.
#[tokio::test]
async fn outside_a_transaction_nothing_is_taken_whoever_began_it() {
    let world = World::of_parts(PARTS).await;
    let mut conn = world.connect().await;
    for limit in both(&Limit::token_bucket("ten", 10, MINUTE)).into_iter().chain(both(&sharded())) {
        for limiter in [LIMITER, LIMITER.lock_timeout(SECOND)] {
            let refused = limiter.consume(&mut BegunByHand(&mut conn), limit.key("k")).await;
            assert!(matches!(refused, Err(Error::NotInTransaction)), "{refused:?}");
            let refused = limiter.debit(&mut BegunByHand(&mut conn), limit.key("k")).await;
            assert!(matches!(refused, Err(Error::NotInTransaction)), "{refused:?}");
            let refused = limiter
                .consume(&mut BegunByHand(&mut conn), apart().iter().map(|key| limit.key(key)).collect::<Call>())
                .await;
            assert!(matches!(refused, Err(Error::NotInTransaction)), "{refused:?}");
            assert!(limiter.balance(&mut conn, limit.key("k")).await.unwrap().is_full());
        }
        sqlx::raw_sql("begin").execute(&mut conn).await.unwrap();
        LIMITER.consume(&mut BegunByHand(&mut conn), limit.key("k")).await.unwrap().granted().unwrap();
        sqlx::raw_sql("rollback").execute(&mut conn).await.unwrap();
    }
    assert_eq!(world.rows().await, 0);
}

/// N parts have numbers from 8N to 16N - 1, so no part of one number is one of another. A caller with another number
/// finds no row, and may insert none. Else each number would grant the limit once more.
#[tokio::test]
async fn wrong_parts_are_an_error_with_a_name_and_mint_no_second_row() {
    for tables in [0, 8] {
        let world = World::of_parts(tables).await;
        let mut conn = world.connect().await;
        assert_eq!(migrate::parts(&mut conn).await.unwrap(), tables);
        let limits = [both(&Limit::token_bucket("ten", 10, EVER)), both(&sharded())].concat();
        let keys = apart();
        let right = Limiter::new().parts(tables);
        let mut tx = conn.begin().await.unwrap();
        for limit in &limits {
            for key in &keys {
                right.consume(&mut tx, limit.key(key).cost(10)).await.unwrap().granted().unwrap();
            }
        }
        tx.commit().await.unwrap();
        let rows = world.rows().await;
        for said in [0, 4, 8, 16] {
            let limiter = Limiter::new().parts(said);
            let gate = patient(&world.pool).parts(said).build();
            for limit in &limits {
                for verb in 0..15 {
                    // A limiter without parts notices those of the tables at its first insert.
                    if said == 0 && matches!(verb, 9 | 11 | 13) {
                        continue;
                    }
                    let key = &keys[verb % keys.len()];
                    let (ask, all) = (|| limit.key(key), || keys.iter().map(|key| limit.key(key)));
                    let mut tx = conn.begin().await.unwrap();
                    let granted = match verb {
                        0 => limiter.consume(&mut tx, ask()).await.map(|decision| decision.is_granted()),
                        1 => {
                            let patient = limiter.clone().lock_timeout(SECOND);
                            patient.consume(&mut tx, ask().cost(7)).await.map(|decision| decision.is_granted())
                        }
                        2 => limiter
                            .consume(&mut tx, all().collect::<Call>())
                            .await
                            .map(|decision| decision.is_granted()),
                        3 => limiter.reserve(&mut tx, ask()).await.map(|decision| decision.is_granted()),
                        // With the right parts these verbs would change the rows, so they are left out.
                        4 | 8..11 if said == tables => Ok(false),
                        4 => limiter.debit(&mut tx, ask()).await.map(|_| true),
                        5 => gate.consume(ask()).await.map(|decision| decision.is_granted()),
                        6 => gate.consume(all().collect::<Call>()).await.map(|decision| decision.is_granted()),
                        7 => gate.reserve(ask()).await.map(|decision| decision.is_granted()),
                        8 => gate.debit(ask()).await.map(|_| true),
                        9 => limiter.credit(&mut tx, ask()).await.map(|_| true),
                        10 => gate.reset(ask()).await.map(|_| true),
                        // These write nothing, and would find a full bucket.
                        11 => limiter.check(&mut tx, ask()).await.map(|decision| decision.is_granted()),
                        12 => gate.check(ask()).await.map(|decision| decision.is_granted()),
                        13 => limiter.balance(&mut tx, ask()).await.map(|balance| balance.is_full()),
                        _ => gate.balance(ask()).await.map(|balance| balance.is_full()),
                    };
                    drop(tx.commit().await);
                    match granted {
                        Ok(is_granted) => assert!(said == tables && !is_granted, "{said} said to {tables}: {verb}"),
                        Err(Error::Setup { fault: SetupFault::WrongParts, .. }) => assert_ne!(said, tables, "{verb}"),
                        Err(error) => panic!("{said} said to {tables}: {verb}: {error:?}"),
                    }
                    assert_eq!(world.rows().await, rows, "{said} said to {tables}: {verb}");
                }
            }
        }
        for limit in &limits {
            for key in &keys {
                let left = right.balance(&mut conn, limit.key(key)).await.unwrap().remaining;
                assert_eq!(left, Tokens::ZERO);
            }
        }
    }
}

/// Citus makes each table anew, and drops what depends on the old one without a word.
#[tokio::test]
async fn what_citus_gives_back_is_whole() {
    if !is_on_citus() {
        return;
    }
    let world = World::of_parts(PARTS).await;
    let mut owner = world.connect_as(OWNER).await;
    // Citus writes the view anew by the names that the path finds.
    run(&mut owner, "set search_path = pg_catalog").await;
    run(&mut owner, "select tollgate.define('ten', 'token_bucket', 10, '1 hour')").await;
    let limit = Limit::token_bucket("ten", 10, HOUR);
    let mut tx = world.pool.begin().await.unwrap();
    LIMITER.consume(&mut tx, limit.key("k").cost(4)).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    let say = "select tollgate.set_override('ten', 'k', effect => 'unlimited', reason => 'x')";
    run(&mut owner, say).await;

    assert!(migrate::undistribute(&mut owner).await.unwrap());
    migrate::validate(&mut owner).await.unwrap();
    let mut tx = world.pool.begin().await.unwrap();
    let left = Limiter::new().balance(&mut tx, limit.key("k")).await.unwrap().remaining;
    assert!(left >= Tokens::new(6) && left < Tokens::new(10), "{left}");
    tx.rollback().await.unwrap();
    for sql in [
        say,
        "select tollgate.set_override('ten', 'k', effect => 'deny', reason => 'x', label => 'ban')",
        "select tollgate.slow_down('ten', 'l')",
        "select tollgate.granted(tollgate.consume('ten', 'l'))",
        "select tollgate.reset('ten', 'k')",
    ] {
        run(&mut owner, sql).await;
    }
}
