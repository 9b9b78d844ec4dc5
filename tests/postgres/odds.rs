//! Calls at odds: futures that are dropped, ids that collide, rows that are held, and tokens that cannot be given back.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgPool};
use tokio::task::JoinSet;
use tollgate::{Error, FitError, HOUR, Limit, Limiter, Receipt, SECOND, Source, Step, Sweeper, Tokens};

use crate::calls::{consume_in, left, rows_and_calls, settle, stored};
use crate::cancellation::{Cut, Cuts};
use crate::gate::stage::{EVER, one_connection, patient, pool, soon};
use crate::proxy::Proxy;
use crate::world::{PARTS, World, part_of};

const BUCKET: Limit = Limit::token_bucket("bucket", 1_000, EVER);

/// The tokens that remain in the row, and for each stored call whether it is used.
async fn look(pool: &PgPool) -> (Option<i64>, Vec<bool>) {
    let value = "select value + 1000000000 from tollgate.durable where name = 'bucket' and key = 'k' and value < 0";
    let value = sqlx::query_scalar(value).fetch_optional(pool).await.unwrap();
    (value, sqlx::query_scalar("select used from tollgate.calls").fetch_all(pool).await.unwrap())
}

/// A refund and the use of its receipt, or a charge and its id: both or neither, wherever a future is dropped.
#[tokio::test]
async fn a_call_dropped_anywhere_and_committed_counts_with_its_id_or_not_at_all() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let wire = one_connection(proxy.options()).await;
    let mut bad = Vec::new();
    for what in ["settle", "settle_once", "consume_once", "credit_once"] {
        let mut cuts = Cuts::default();
        loop {
            world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
            let mut tx = world.pool.begin().await.unwrap();
            let limiter = Limiter::new();
            let ask = BUCKET.key("k").cost(100);
            let grant = match what {
                "settle" => Some(limiter.consume(&mut tx, ask.lapses_after(HOUR)).await.unwrap().granted().unwrap()),
                "settle_once" => {
                    Some(limiter.consume(&mut tx, ask.once("a").lapses_after(HOUR)).await.unwrap().granted().unwrap())
                }
                _ => {
                    limiter.debit(&mut tx, ask).await.unwrap();
                    None
                }
            };
            tx.commit().await.unwrap();
            let before = look(&world.pool).await;
            let mut tx = wire.begin().await.unwrap();
            let call = async {
                match what {
                    "consume_once" => drop(limiter.consume(&mut tx, BUCKET.key("k").cost(50).once("b")).await.unwrap()),
                    "credit_once" => drop(limiter.credit(&mut tx, BUCKET.key("k").cost(50).once("b")).await.unwrap()),
                    _ => drop(limiter.settle(&mut tx, Receipt::from(grant.unwrap()), 10).await.unwrap()),
                }
            };
            let done = Cut::after(cuts.waits, call).await;
            tx.commit().await.unwrap();
            let after = look(&world.pool).await;
            let rows_moved = before.0 != after.0;
            let calls_moved = before.1 != after.1;
            if rows_moved != calls_moved {
                bad.push(format!("{what} cut at {}: {before:?} -> {after:?}", cuts.waits));
            }
            if !cuts.go_on(done.is_some()) {
                break;
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// A settlement inserts a wallet's row, since an empty one may be missing. The row of the bucket beside it was swept,
/// and all that it is locked in order with is inserted, too.
#[tokio::test]
async fn a_settlement_dropped_anywhere_and_committed_leaves_a_swept_bucket_full() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let wire = one_connection(proxy.options()).await;
    let wallet = Limit::wallet("wallet").overdraft(1_000);
    let others = [
        BUCKET,
        Limit::stepped_bucket("steps", 1_000, EVER),
        Limit::fixed_window("fixed", 1_000, EVER),
        Limit::sliding_window("sliding", 1_000, EVER),
    ];
    let mut cuts = Cuts::default();
    loop {
        world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
        let mut tx = world.pool.begin().await.unwrap();
        let asked = others.iter().chain([&wallet]).map(|limit| limit.key("k").cost(100));
        let grant = Limiter::new().consume(&mut tx, asked).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
        world.sql("delete from tollgate.durable").await;
        let mut tx = wire.begin().await.unwrap();
        let done = Cut::after(cuts.waits, Limiter::new().settle(&mut tx, grant, 10)).await;
        tx.commit().await.unwrap();
        let mut tx = world.pool.begin().await.unwrap();
        for limit in &others {
            let balance = Limiter::new().balance(&mut tx, limit.key("k")).await.unwrap();
            assert!(balance.is_full(), "cut at {}: {balance:?}", cuts.waits);
            Limiter::new().consume(&mut tx, limit.key("k").cost(1_000)).await.unwrap().granted().unwrap();
            Limiter::new().consume(&mut tx, limit.key("k")).await.unwrap().denied().unwrap();
        }
        let money = Limiter::new().balance(&mut tx, wallet.key("k")).await.unwrap().remaining;
        let settled = money == Tokens::new(90);
        assert!(settled || done.is_none() && money == Tokens::ZERO, "cut at {}: {money}", cuts.waits);
        if !cuts.go_on(done.is_some()) {
            break;
        }
    }
}

/// The settlement of the first part kills its session.
#[tokio::test]
async fn a_part_that_cannot_be_asked_holds_up_no_other_lapse() {
    let world = World::of_parts(PARTS).await;
    let mut tx = world.pool.begin().await.unwrap();
    let mut keys = BTreeMap::new();
    for key in 0..40 {
        keys.entry(part_of(&key.to_string())).or_insert(key);
    }
    for key in keys.values() {
        let call = BUCKET.key(*key).lapses_after(Duration::from_micros(1));
        Limiter::new().parts(PARTS).consume(&mut tx, call).await.unwrap().granted().unwrap();
    }
    tx.commit().await.unwrap();
    let kill = "create function kill() returns trigger language plpgsql security definer as
                $$ begin perform pg_terminate_backend(pg_backend_pid()); return old; end $$;
                create trigger kill before delete on tollgate.calls for each row when (old.part = {part})
                execute function kill()";
    world.sql(&kill.replace("{part}", &keys.keys().next().unwrap().to_string())).await;
    let pool = one_connection(world.url().parse().unwrap()).await;
    soon(Sweeper::new().parts(PARTS).reap(&pool)).await.unwrap_err();
    let left: i64 = sqlx::query_scalar("select count(*) from tollgate.calls").fetch_one(&world.pool).await.unwrap();
    assert_eq!((left, keys.len()), (1, usize::from(PARTS)));
}

/// A reaper gives a silent server up, and the connection with it.
#[tokio::test]
async fn a_server_that_falls_silent_holds_up_lapses_for_a_moment() {
    let world = World::new().await;
    let mut tx = world.begin().await;
    let call = BUCKET.key("k").lapses_after(Duration::from_micros(1));
    Limiter::new().consume(&mut tx, call).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    let proxy = Proxy::new(&world.url());
    let wire = one_connection(proxy.options()).await;
    drop(wire.acquire().await.unwrap());
    proxy.hold_after(1);
    let reaping = tokio::spawn({
        let wire = wire.clone();
        async move { Sweeper::new().reap(&wire).await }
    });
    soon(proxy.until_held()).await;
    proxy.strand();
    proxy.release();
    let error = soon(reaping).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Database { step: Step::Sweep(_), .. }), "{error:?}");
    assert_eq!(soon(Sweeper::new().reap(&wire)).await.unwrap(), 1);
}

/// A full bucket takes no credit, so the two collide in the id alone.
#[tokio::test]
async fn who_loses_the_race_for_an_id_that_changes_no_row_is_told_so() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 3).await).build();
    let ask = || BUCKET.key("k").cost(5).once("payment");
    let mut tx = world.begin().await;
    Limiter::new().credit(&mut tx, ask()).await.unwrap();
    let second = tokio::spawn({
        let mut tx = world.begin().await;
        async move {
            let answer = Limiter::new().credit(&mut tx, ask()).await;
            drop(tx);
            answer
        }
    });
    let by_gate = tokio::spawn({
        let gate = gate.clone();
        async move { gate.credit(ask()).await }
    });
    world.until_anyone_is_blocked().await;
    tx.commit().await.unwrap();
    let by_gate = soon(by_gate).await.unwrap();
    let second = soon(second).await.unwrap();
    assert!(
        by_gate.is_ok() && second.as_ref().is_ok_and(|b| b.source == Source::Repeated)
            || second.as_ref().is_err_and(Error::is_retryable)
    );
}

/// Each of the two takes from a row of its own, so they collide in the id alone.
#[tokio::test]
async fn an_id_in_an_open_transaction_holds_up_nobody_else() {
    let world = World::new().await;
    let sharded = Limit::token_bucket("sharded", 800, EVER).shards(8);
    let gate = patient(&pool(&world.url(), 1).await).build();
    let rows = "insert into tollgate.durable (part, name, key, shard, value, ts, full_at)
                select 0, 'sharded', 'k', n, 0, now(), now() from generate_series(0, 7) n";
    world.sql(rows).await;
    for key in 0..4 {
        gate.consume(BUCKET.key(key)).await.unwrap().granted().unwrap();
    }
    for round in 0..3 {
        let mut tx = world.begin().await;
        Limiter::new().consume(&mut tx, sharded.key("k").once(round)).await.unwrap().granted().unwrap();
        let mut strangers = JoinSet::new();
        let mut repeated = None;
        for key in [0, 1, 4, 2, 3] {
            let gate = gate.clone();
            if key < 4 {
                strangers.spawn(async move { gate.consume(BUCKET.key(key)).await.unwrap().is_granted() });
            } else {
                let asked = sharded.key("k").once(round);
                repeated = Some(tokio::spawn(async move { gate.consume(asked).await.unwrap().granted().unwrap() }));
            }
        }
        // The statement timeout of this gate is a minute.
        assert_eq!(soon(strangers.join_all()).await, [true; 4]);
        tx.commit().await.unwrap();
        assert_eq!(soon(repeated.unwrap()).await.unwrap().source, Source::Repeated);
    }
}

/// As one that a later release has written.
#[tokio::test]
async fn a_call_that_cannot_be_read_leaves_the_others_alone() {
    let world = World::new().await;
    let mut tx = world.begin().await;
    for key in 0..3 {
        Limiter::new()
            .consume(&mut tx, BUCKET.key(key).lapses_after(Duration::from_micros(1)))
            .await
            .unwrap()
            .granted()
            .unwrap();
    }
    tx.commit().await.unwrap();
    world.sql("update tollgate.calls set charges = '[{\"kind\": \"later\"}]' where key = '1'").await;
    let reaped = Sweeper::new().reap(&world.pool).await;
    assert_eq!(reaped.map_err(|error| error.to_string()), Ok(2));
}

/// More than a look finds, all of one instant.
#[tokio::test]
async fn many_calls_that_cannot_be_given_back_leave_the_others_alone() {
    let world = World::new().await;
    let wallet = Limit::wallet("full");
    let mut tx = world.begin().await;
    Limiter::new().credit(&mut tx, wallet.global().cost(500)).await.unwrap();
    for _ in 0..70 {
        Limiter::new()
            .consume(&mut tx, wallet.global().cost(5).lapses_after(Duration::from_micros(1)))
            .await
            .unwrap()
            .granted()
            .unwrap();
    }
    tx.commit().await.unwrap();
    world
        .sql(&format!("update tollgate.durable set value = {}, full_at = '9999-01-01' where name = 'full'", i64::MAX))
        .await;
    world.sql("update tollgate.calls set lapses_at = '2020-01-01'").await;
    world.sql("vacuum full tollgate.calls").await;
    let mut tx = world.begin().await;
    Limiter::new()
        .consume(&mut tx, BUCKET.key("k").lapses_after(Duration::from_micros(1)))
        .await
        .unwrap()
        .granted()
        .unwrap();
    tx.commit().await.unwrap();
    world.sql("update tollgate.calls set lapses_at = '2020-01-01' where name = 'bucket'").await;
    assert_eq!(Sweeper::new().reap(&world.pool).await.unwrap(), 1);
}

/// The row of the organisation comes before that of the user, which somebody has locked.
#[tokio::test]
async fn a_locked_row_holds_up_no_other_lapse() {
    let world = World::new().await;
    let [org, user] = [Limit::token_bucket("aorg", 1_000, EVER), Limit::token_bucket("zuser", 1_000, EVER)];
    let mut tx = world.begin().await;
    for key in 0..3 {
        for _ in 0..2 {
            Limiter::new()
                .consume(&mut tx, [org.global(), user.key(key).lapses_after(Duration::from_micros(1))])
                .await
                .unwrap()
                .granted()
                .unwrap();
        }
    }
    tx.commit().await.unwrap();
    let mut held = world.begin().await;
    Limiter::new().consume(&mut held, user.key(1)).await.unwrap().granted().unwrap();
    assert_eq!(soon(Sweeper::new().reap(&world.pool)).await.unwrap(), 4, "those of the others");
    held.commit().await.unwrap();
    assert_eq!(Sweeper::new().reap(&world.pool).await.unwrap(), 2);
}

/// A call that waits for a row of a limit holds no id meanwhile, so the holder of the row never waits for that call in
/// turn.
#[tokio::test]
async fn an_id_is_locked_after_the_rows_of_its_limits() {
    let world = World::new().await;
    let pool = pool(&world.url(), 2).await;
    let gate = patient(&pool).build();
    let [org, user] = [Limit::token_bucket("aorg", 1_000, EVER), Limit::token_bucket("zuser", 1_000, EVER)];
    for who in ["reaper", "limiter", "gate"] {
        world.sql("truncate tollgate.durable, tollgate.calls").await;
        let span = if who == "reaper" { MOMENT } else { HOUR };
        let ask = || [org.global(), user.global().once("job").lapses_after(span)];
        let receipt = Receipt::from(consume_in(&world.pool, ask()).await);
        let mut held = world.connect().await;
        let mut tx = held.begin().await.unwrap();
        sqlx::query("select from tollgate.durable where name = 'zuser' for update").execute(&mut *tx).await.unwrap();
        // A retry waits for nobody.
        let again = soon(gate.consume(ask())).await.unwrap().granted().unwrap();
        assert_eq!((again.source, consume_in(&world.pool, ask()).await.source), (Source::Repeated, Source::Repeated));
        let settling = tokio::spawn({
            let (gate, pool) = (gate.clone(), pool.clone());
            async move {
                match who {
                    // It gives up soon, and looks again.
                    "reaper" => while Sweeper::new().reap(&pool).await.unwrap() == 0 {},
                    "gate" => drop(gate.settle(receipt, 0).await.unwrap()),
                    _ => {
                        let mut tx = pool.begin().await.unwrap();
                        Limiter::new().settle(&mut tx, receipt, 0).await.unwrap();
                        tx.commit().await.unwrap();
                    }
                }
            }
        });
        soon(lock_the_ids_while_somebody_waits(&world)).await;
        assert!(!settling.is_finished());
        tx.rollback().await.unwrap();
        soon(settling).await.unwrap();
        assert_eq!(left(&world.pool, user.global()).await, 1_000, "{who}");
    }
}

/// The gate's first try waits for no row, but its statement may be slow for another call's sake: here a trigger of that
/// call's row waits.
#[tokio::test]
async fn a_call_of_a_batch_whose_row_is_locked_leaves_its_id_alone() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    let [org, slow, user] = ["aorg", "slow", "zuser"].map(|name| Limit::token_bucket(name, 1_000, EVER));
    let trigger = "create function wait() returns trigger language plpgsql security definer as
                   $$ begin perform pg_catalog.pg_advisory_xact_lock(1::int8); return new; end $$;
                   create trigger wait before update on tollgate.durable for each row when (old.name = 'slow')
                   execute function wait()";
    world.sql(trigger).await;
    consume_in(&world.pool, [slow.global()]).await;
    let job = [org.global(), user.global().once("job").lapses_after(HOUR)];
    let receipt = Receipt::from(consume_in(&world.pool, job).await);
    let [mut held, mut admin] = [world.admin().await, world.admin().await];
    let mut tx = held.begin().await.unwrap();
    sqlx::query("select from tollgate.durable where name = 'zuser' for update").execute(&mut *tx).await.unwrap();
    sqlx::query("select pg_catalog.pg_advisory_xact_lock(1::int8)").execute(&mut *tx).await.unwrap();
    proxy.hold_after(0);
    let [settling, consuming] = [gate.clone(), gate.clone()];
    let settling = tokio::spawn(async move { settling.settle(receipt, 0).await.unwrap() });
    let consuming = tokio::spawn(async move { consuming.consume(slow.global()).await.unwrap() });
    soon(proxy.until_held()).await;
    proxy.release();
    soon(world.until_anyone_is_blocked()).await;
    let ids: Vec<String> =
        sqlx::query_scalar("select id from tollgate.calls for update nowait").fetch_all(&mut admin).await.unwrap();
    assert_eq!(ids, ["job"]);
    tx.rollback().await.unwrap();
    soon(consuming).await.unwrap().granted().unwrap();
    soon(settling).await.unwrap();
    assert_eq!(left(&world.pool, user.global()).await, 1_000);
}

/// Returns once all ids could be locked in the middle of a statement that waits for a lock.
async fn lock_the_ids_while_somebody_waits(world: &World) {
    let mut admin = world.admin().await;
    let waits = "select pid || ' since ' || query_start from pg_stat_activity
                  where datname = current_database() and wait_event_type = 'Lock'";
    let (mut before, mut after) = (Vec::<String>::new(), Vec::new());
    while !before.iter().any(|waits| after.contains(waits)) {
        before = sqlx::query_scalar(waits).fetch_all(&mut admin).await.unwrap();
        let ids = "select id from tollgate.calls for update nowait";
        let ids: Vec<String> = sqlx::query_scalar(ids).fetch_all(&mut admin).await.unwrap();
        assert_eq!(ids.len(), 1);
        after = sqlx::query_scalar(waits).fetch_all(&mut admin).await.unwrap();
    }
}

/// The wire of a reaper breaks after each of its statements in turn, as if it were killed there.
#[tokio::test]
async fn what_a_killed_reaper_has_begun_comes_back_once() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let ephemeral = Limit::token_bucket("ephemeral", 1_000, EVER).ephemeral();
    let limits = [BUCKET, Limit::fixed_window("window", 1_000, EVER), ephemeral];
    let ask = || limits.each_ref().map(|limit| limit.key("k").cost(100));
    for statement in 1.. {
        world.sql("truncate tollgate.ephemeral, tollgate.durable, tollgate.calls").await;
        // It stays: a full row would not show what comes back twice.
        consume_in(&world.pool, ask().map(|request| request.cost(500))).await;
        for _ in 0..3 {
            let [bucket, window, ephemeral] = ask();
            consume_in(&world.pool, [bucket, window, ephemeral.lapses_after(MOMENT)]).await;
        }
        let wire = one_connection(proxy.options()).await;
        let lost = proxy.lost_answers();
        proxy.cut_after(statement);
        let killed = soon(Sweeper::new().reap(&wire)).await.unwrap_or(0);
        proxy.hear();
        let rest = Sweeper::new().reap(&world.pool).await.unwrap();
        assert!(killed + rest <= 3, "{statement}: {killed} and {rest}");
        for request in ask() {
            assert_eq!(left(&world.pool, request).await, 500, "{statement}");
        }
        assert_eq!(stored(&mut world.connect().await).await, 0, "{statement}");
        if proxy.lost_answers() == lost {
            assert!(statement > 5, "it has locked rows of both tables, and calls");
            break;
        }
    }
}

/// A reaper passes over calls that it cannot see yet, and does not begin anew each time; but it looks back a little.
#[tokio::test]
async fn a_lapsed_call_that_commits_late_comes_back_with_the_next_look() {
    let world = World::new().await;
    let lapsed = async |key: &'static str, at: DateTime<Utc>| {
        let mut tx = world.begin().await;
        let asked = BUCKET.key(key).lapses_after(MOMENT);
        Limiter::new().at(at).consume(&mut tx, asked).await.unwrap().granted().unwrap();
        tx
    };
    let mut conn = world.connect().await;
    let now: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(&mut conn).await.unwrap();
    let late = lapsed("late", now - 59 * SECOND).await;
    lapsed("first", now - 2 * SECOND).await.commit().await.unwrap();
    let sweeping = Sweeper::new().spawn(world.pool.clone(), EVER);
    soon(async { while stored(&mut conn).await > 0 {} }).await;
    late.commit().await.unwrap();
    lapsed("second", now - SECOND).await.commit().await.unwrap();
    // The calls that lapsed first come back first.
    let second = "select count(*) from tollgate.calls where key = 'second'";
    soon(async { while sqlx::query_scalar::<_, i64>(second).fetch_one(&mut conn).await.unwrap() > 0 {} }).await;
    assert_eq!(stored(&mut conn).await, 0);
    assert_eq!(left(&world.pool, BUCKET.key("late")).await, 1_000);
    sweeping.stop().await;
}

/// An amount that a wallet cannot take comes back nowhere, and stays owed.
#[tokio::test]
async fn a_settlement_that_overfills_a_wallet_changes_nothing() {
    let world = World::new().await;
    let gate = patient(&pool(&world.url(), 2).await).build();
    let wallet = Limit::wallet("full");
    for by_gate in [true, false] {
        world.sql("truncate tollgate.durable, tollgate.calls").await;
        gate.credit(wallet.global().cost(5)).await.unwrap();
        let asked = [BUCKET.key("k").cost(5), wallet.global().cost(5).lapses_after(HOUR)];
        let receipt = Receipt::from(gate.consume(asked).await.unwrap().granted().unwrap());
        let settle = async || settle(&world, by_gate.then_some(&gate), receipt.clone(), 0).await;
        world
            .sql(&format!(
                "update tollgate.durable set value = {}, full_at = '9999-01-01' where name = 'full'",
                i64::MAX
            ))
            .await;
        let before = rows_and_calls(&world).await;
        let error = settle().await.unwrap_err();
        assert!(
            matches!(&error, Error::DoesNotFit { limit, source: FitError::BalanceTooLarge } if limit == "full"),
            "{error:?}"
        );
        assert_eq!((rows_and_calls(&world).await, before.len()), (before.clone(), 3));
        world.sql("update tollgate.durable set value = 0, full_at = ts where name = 'full'").await;
        settle().await.unwrap();
        assert_eq!([left(&world.pool, BUCKET.key("k")).await, left(&world.pool, wallet.global()).await], [1_000, 5]);
        assert_eq!(stored(&mut world.connect().await).await, 0);
    }
}

/// After so long a call has lapsed once anybody looks.
const MOMENT: Duration = Duration::from_micros(1);
