//! Gates that ask the tables of shards at the nodes that have them.

use std::pin::pin;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tollgate::Gate;
use tollgate::migrate::{self, Buckets};

use super::{LIMIT, workers};
use crate::gate::stage::{patient, soon};
use crate::traced::traced;
use crate::world::{MOVE, NUMBERS, OWNER, PARTS, SERVICE, World, is_on_citus, part_of, pid};

#[tokio::test]
async fn at_its_node_the_table_of_a_shard_is_written() {
    if !is_on_citus() {
        return;
    }
    let world = World::of_parts(PARTS).await;
    let gate = asked_by_shards(&world).await;
    // The gate does not know of it, and must ask by names from here on.
    world.sql(&format!("revoke execute on function tollgate.hold_shard from {SERVICE}")).await;
    for key in 0..40 {
        gate.consume(LIMIT.key(key)).await.unwrap().granted().unwrap();
    }
}

#[test]
fn who_may_not_hold_a_shard_asks_by_the_names_of_citus_and_one_event_says_so() {
    if !is_on_citus() {
        return;
    }
    let log = traced(async {
        let world = World::of_parts(PARTS).await;
        world.sql(&format!("revoke execute on function tollgate.hold_shard from {SERVICE}")).await;
        drop(asked_by(&world, "tollgate.durable r").await);
    });
    let told = log.lines().filter(|line| line.contains("does not hold its shards")).count();
    assert_eq!(told, 2, "one for each node: {log}");
}

#[tokio::test]
async fn nobody_holds_a_shard_of_another_table() {
    if !is_on_citus() {
        return;
    }
    let world = World::of_parts(PARTS).await;
    world.sql("create table public.other (n int); select create_distributed_table('public.other', 'n')").await;
    let sql = "select p.shardid, p.groupid from pg_dist_placement p join pg_dist_shard s using (shardid)
                where s.logicalrelid = 'public.other'::regclass";
    let mut admin = world.admin().await;
    let (shard, node): (i64, i32) = sqlx::query_as(sql).fetch_one(&mut admin).await.unwrap();
    let mut tx = world.begin().await;
    let holds = sqlx::query_scalar::<_, bool>("select tollgate.hold_shard($1, $2)").bind(shard).bind(node);
    assert!(!holds.fetch_one(&mut *tx).await.unwrap());
    let locks = sqlx::query_scalar("select count(*) from pg_locks where pid = $1 and locktype = 'advisory'");
    let locks: i64 = locks.bind(pid(&mut tx).await).fetch_one(&mut admin).await.unwrap();
    assert_eq!(locks, 0);
}

/// The controls have the same statements. They look for the shard without the lock, or before they have it.
#[tokio::test]
async fn no_write_reaches_a_shard_that_has_left_and_without_the_lock_and_a_look_after_it_one_does() {
    if !is_on_citus() {
        return;
    }
    let world = World::of_parts(PARTS).await;
    let real = hold_shard();
    assert!(real.contains(LOCK), "{real}");
    let no_lock = real.replace(LOCK, "");
    let look_first = no_lock.replace("    return coalesce", &format!("{LOCK}    return coalesce"));
    for (apart, change) in [(false, MOVE), (false, SPLIT), (true, &MOVE.replace("block_writes", "force_logical"))] {
        if apart {
            // Citus moves no unlogged table while it is written.
            let mut owner = world.connect_as(OWNER).await;
            sqlx::raw_sql("set search_path = public").execute(&mut owner).await.unwrap();
            migrate::undistribute(&mut owner).await.unwrap();
            migrate::distribute(&mut owner, PARTS, Buckets::Apart).await.unwrap();
        }
        for (hold, lost) in [(&real, 0), (&no_lock, 1), (&look_first, 1)] {
            assert_eq!(lost_during(&world, hold, change, End::Commit).await, lost, "{change}: {hold}");
        }
    }
}

/// Both move shards one by one, in transactions of Citus's own.
#[tokio::test]
async fn nor_while_a_node_is_drained_or_shards_are_rebalanced() {
    if !is_on_citus() {
        return;
    }
    let world = World::of_parts(PARTS).await;
    let rebalance = format!(
        "select $${REBALANCE}$$ from get_rebalance_table_shards_plan('tollgate.durable')
          where shardid = get_shard_id_for_distribution_column('tollgate.durable', $1::int2)"
    );
    for (hold, lost) in [(hold_shard(), 0), (hold_shard().replace(LOCK, ""), 1)] {
        assert_eq!(lost_during(&world, &hold, DRAIN, End::Commit).await, lost, "{hold}");
        // Else a node has no shard that the gate could be seen to write.
        world.change_part(NUMBERS[0], MOVE).await;
        assert_eq!(lost_during(&world, &hold, &rebalance, End::Commit).await, lost, "{hold}");
    }
}

/// A move that is broken off leaves the shard where it was.
#[tokio::test]
async fn a_write_that_waits_for_a_move_that_fails_is_written() {
    if !is_on_citus() {
        return;
    }
    let world = World::of_parts(PARTS).await;
    assert_eq!(lost_during(&world, &hold_shard(), MOVE, End::Rollback).await, 0);
}

/// The statement that makes the function as it is.
fn hold_shard() -> String {
    let (text, _) = include_str!("../../../../migrations/V13__shards.sql").split_once("\n\n-- Only the owner").unwrap();
    text.replace("create function", "create or replace function")
}

const LOCK: &str = "    perform pg_catalog.lock_shard_metadata(5, array[shard]);\n";

#[derive(Clone, Copy, Eq, PartialEq)]
enum End {
    Commit,
    Rollback,
}

/// Takes tokens of a key until they are written to the table of its shard, and one more while a statement moves or
/// splits the shard. The statement ends once that write waits, or is done. For that write a function stands for the
/// real one, which the gate has looked at before. Returns how many tokens were taken and not written.
async fn lost_during(world: &World, hold: &str, change: &str, fate: End) -> i64 {
    let (mut admin, mut workers) = (world.admin().await, workers(world).await);
    // Sessions of an earlier gate would be taken for those of this one.
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and usename = $1 and application_name not like 'citus%'";
    for worker in &mut workers {
        sqlx::query(end).bind(SERVICE).execute(worker).await.unwrap();
    }
    let gate = asked_by_shards(world).await;
    let (key, change) = key_of(change, &mut admin).await;
    let shard = "select get_shard_id_for_distribution_column('tollgate.durable', $1::int2)";
    let shard: i64 = sqlx::query_scalar(shard).bind(part_of(&key)).fetch_one(&mut admin).await.unwrap();
    let consume = async || gate.consume(LIMIT.key(&key)).await.unwrap().granted().unwrap();
    consume().await;
    // The first call has inserted the row. The next ones write it, by shards as soon as the gate has read of them.
    let mut taken = 2;
    soon(async {
        loop {
            consume().await;
            taken += 1;
            if is_written(&mut workers, &format!("tollgate.durable\\_{shard}")).await.contains(&true) {
                break;
            }
        }
    })
    .await;
    world.sql(hold).await;
    // The statement writes this row when all else is done, also where it moves in transactions of Citus's own.
    let mut holder = admin.begin().await.unwrap();
    let row = sqlx::query("select from pg_dist_placement where shardid = $1 for update").bind(shard);
    row.execute(&mut *holder).await.unwrap();
    let mut changer = world.admin().await;
    let mut done = pin!(sqlx::raw_sql(AssertSqlSafe(change)).execute(&mut changer));
    let backend = tokio::select! {
        early = &mut done => panic!("{early:?}"),
        backend = soon(who_waits_for(&mut holder)) => backend,
    };
    let mut written = pin!(consume());
    let is_done = tokio::select! {
        _ = &mut written => true,
        () = soon(async { while !one_waits(&mut workers).await {} }) => false,
    };
    if fate == End::Rollback {
        sqlx::query("select pg_cancel_backend($1)").bind(backend).execute(&mut *holder).await.unwrap();
        soon(&mut done).await.unwrap_err();
    }
    holder.rollback().await.unwrap();
    if fate == End::Commit {
        soon(done).await.unwrap();
    }
    if !is_done {
        soon(written).await;
    }
    world.sql(&hold_shard()).await;
    let left = world.left(&LIMIT, &key).await.unwrap();
    left.micros() / 1_000_000 - (1_000 - taken)
}

/// A key that a change concerns, and its statement for the key's part.
async fn key_of(change: &str, admin: &mut PgConnection) -> (String, String) {
    soon(async {
        loop {
            let key = fastrand::u64(..).to_string();
            let made = sqlx::query_scalar(AssertSqlSafe(change)).bind(part_of(&key));
            if let Some(made) = made.fetch_optional(&mut *admin).await.unwrap() {
                return (key, made);
            }
        }
    })
    .await
}

/// The server process that waits for this session.
async fn who_waits_for(holder: &mut PgConnection) -> i32 {
    loop {
        let waits = "select pid from pg_locks where not granted and pg_backend_pid() = any(pg_blocking_pids(pid))";
        if let Some(pid) = sqlx::query_scalar(waits).fetch_optional(&mut *holder).await.unwrap() {
            return pid;
        }
    }
}

/// Whether a session of the service waits for a lock of Citus's.
async fn one_waits(workers: &mut [PgConnection]) -> bool {
    let sql = "select exists (select from pg_locks l join pg_stat_activity a using (pid)
                               where not l.granted and l.locktype = 'advisory' and a.usename = $1
                                 and a.datname = current_database())";
    let mut waits = false;
    for worker in workers {
        waits |= sqlx::query_scalar::<_, bool>(sql).bind(SERVICE).fetch_one(worker).await.unwrap();
    }
    waits
}

async fn asked_by_shards(world: &World) -> Gate {
    asked_by(world, "tollgate.durable\\__").await
}

/// A gate that was seen to write a table of such a name at each node.
async fn asked_by(world: &World, table: &str) -> Gate {
    let gate = patient(&world.pool).build();
    let mut workers = workers(world).await;
    let mut seen = vec![false; workers.len()];
    soon(async {
        while seen.contains(&false) {
            gate.consume(LIMIT.key(fastrand::u32(..40))).await.unwrap().granted().unwrap();
            let written = is_written(&mut workers, table).await;
            seen.iter_mut().zip(written).for_each(|(seen, written)| *seen |= written);
        }
    })
    .await;
    gate
}

/// Whether each node was last told by some session of the gate to write a table of such a name.
async fn is_written(workers: &mut [PgConnection], table: &str) -> Vec<bool> {
    let sql = format!(
        "select exists (select from pg_stat_activity
                         where datname = current_database() and usename = $1 and query like '%update {table}%'
                           and application_name not like 'citus%')"
    );
    let mut written = Vec::new();
    for worker in workers {
        let is_written = sqlx::query_scalar(AssertSqlSafe(&*sql)).bind(SERVICE).fetch_one(worker).await;
        written.push(is_written.unwrap());
    }
    written
}

/// The statement that splits the shards of a part in two, on two nodes.
pub(super) const SPLIT: &str = "
    select format('select citus_split_shard_by_split_points(%s, array[%L], array[%s, %s], %L)', s.shardid,
                  ((s.shardminvalue::int8 + s.shardmaxvalue::int8) / 2)::text, n.nodeid, o.nodeid, 'block_writes')
      from pg_dist_shard s join pg_dist_placement p using (shardid) join pg_dist_node n using (groupid)
      join pg_dist_node o on o.groupid > 0 and o.groupid <> n.groupid
     where s.shardid = get_shard_id_for_distribution_column('tollgate.durable', $1::int2)
     limit 1";

/// The statement that takes all shards off the node of a part, which may have some again afterwards.
pub(super) const DRAIN: &str = "
    select format('select citus_drain_node(%1$L, %2$s, %3$L); select citus_set_node_property(%1$L, %2$s, %4$L, true)',
                  n.nodename, n.nodeport, 'block_writes', 'shouldhaveshards')
      from pg_dist_placement p join pg_dist_node n using (groupid)
     where p.shardid = get_shard_id_for_distribution_column('tollgate.durable', $1::int2)";

/// Evens out the shards of the nodes.
pub(super) const REBALANCE: &str =
    "select rebalance_table_shards('tollgate.durable', shard_transfer_mode => 'block_writes')";
