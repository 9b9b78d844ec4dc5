//! Distributes the tables over the nodes of Citus, by `part`.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, Row, Transaction};

use super::quoted::ENTER;
use super::{MigrateError, ask, failed, rows, validate};
use crate::key::Key;
use crate::parts::Parts;

/// The default number of parts.
pub const DEFAULT_PARTS: u16 = 8;

/// Which rows lie together on one node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Buckets {
    /// All rows of a part lie on one node: a call that asks ephemeral and durable limits commits on one node.
    ///
    /// Citus then moves durable rows to another node only while nothing is written (`block_writes`): it moves all
    /// tables together, and cannot move an unlogged table otherwise.
    #[default]
    Colocated,
    /// Ephemeral rows lie on any node, so durable rows and calls can be moved while they are written.
    Apart,
}

/// Distributes the tables over the nodes of [Citus] by their column `part`, and returns whether there was anything to
/// do.
///
/// Existing rows are carried over: each gets its part, one of `parts`. After that, give the number to each limiter and
/// gate ([`Limiter::parts`](crate::Limiter::parts)). A process with another number fails with
/// [`SetupFault::WrongParts`](crate::SetupFault::WrongParts) at its first call, and a process without a number at its
/// first insert. The functions of the schema decide nothing from then on, because they ask only part 0. Each node gets
/// a copy of definitions and overrides, as reference tables.
///
/// [Citus]: https://docs.citusdata.com
///
/// # Locks
///
/// Locks each table against everything while its rows are carried over, one table after the other. If one fails, the
/// table before it stays distributed, and the next run goes on with the rest.
///
/// # Panics
///
/// Unless `parts` is a power of two, at most 2048.
///
/// # Errors
///
/// [`MigrateError::NoCitus`] if the extension is not in the database. [`MigrateError::DistributedOtherwise`] if a table
/// is distributed by another column or over another number of parts: [`undistribute`] it first. Those of [`validate`].
pub async fn distribute(conn: &mut PgConnection, parts: u16, buckets: Buckets) -> Result<bool, MigrateError> {
    let wanted = Parts::new(parts);
    expect_citus(conn).await?;
    tell_functions(conn, parts).await?;
    let mut did = false;
    let of_ephemeral = if buckets == Buckets::Apart { "none" } else { DURABLE };
    for (table, colocated) in [("durable", "none"), ("calls", DURABLE), ("ephemeral", of_ephemeral)] {
        match (column(conn, table).await?.as_deref(), parts_of(conn, table).await?) {
            (None, _) => {
                let shards = if colocated == "none" { format!(", shard_count => {parts}") } else { String::new() };
                let mut tx = renumbered(conn, table, None, wanted).await?;
                let distribute = format!(
                    "select pg_catalog.create_distributed_table('tollgate.{table}', 'part',
                                                                colocate_with => '{colocated}'{shards})"
                );
                run(&mut tx, distribute).await?;
                tx.commit().await.map_err(failed("commit"))?;
                did = true;
            }
            (Some("part"), old) if old == parts => {}
            _ => return Err(MigrateError::DistributedOtherwise { table }),
        }
    }
    for table in REFERENCES {
        if column(conn, table).await?.is_none() {
            run(conn, format!("select pg_catalog.create_reference_table('tollgate.{table}')")).await?;
            did = true;
        }
    }
    // Nodes lack it if the schema is older than the extension. Citus gives PUBLIC the right to call what it makes.
    run(
        conn,
        "select pg_catalog.create_distributed_function('tollgate.hold_shard(pg_catalog.int8, pg_catalog.int4)')"
            .to_owned(),
    )
    .await?;
    run(conn, "revoke execute on function tollgate.hold_shard from public".to_owned()).await?;
    Ok(did)
}

/// Moves the tables from the nodes of Citus back to its coordinator, with all rows, and returns whether there was
/// anything to do. After that, give no number of parts to any limiter or gate, or [`distribute`] the tables over
/// another number.
///
/// # Locks
///
/// Locks the tables as [`distribute`] does.
///
/// # Errors
///
/// [`MigrateError::NoCitus`] if the extension is not in the database; those of [`validate`].
pub async fn undistribute(conn: &mut PgConnection) -> Result<bool, MigrateError> {
    expect_citus(conn).await?;
    let mut did = false;
    for table in REFERENCES {
        if column(conn, table).await?.is_some() {
            run(conn, format!("select pg_catalog.undistribute_table('tollgate.{table}')")).await?;
            did = true;
        }
    }
    for table in ["ephemeral", "calls", "durable"] {
        let column = column(conn, table).await?;
        if column.is_some() || parts_of(conn, table).await? > 0 {
            let undistribute = format!("select pg_catalog.undistribute_table('tollgate.{table}')");
            let tx = renumbered(conn, table, column.map(|_| undistribute), Parts::new(0)).await?;
            tx.commit().await.map_err(failed("commit"))?;
            did = true;
        }
    }
    tell_functions(conn, 0).await?;
    Ok(did)
}

/// The number of parts over which the tables are distributed; 0 on plain PostgreSQL.
///
/// # Errors
///
/// [`MigrateError::Database`] if the catalogue cannot be read.
pub async fn parts(conn: &mut PgConnection) -> Result<u16, MigrateError> {
    parts_of(conn, "durable").await
}

/// The numbers of so many parts in the column `part`; for 0 parts, the one number that all rows have on plain
/// PostgreSQL. Use them for statements of your own: Citus sends a statement that names a part to one node, so a node
/// that is away affects only its own parts.
///
/// # Panics
///
/// Unless `parts` is 0 or a power of two, at most 2048.
pub fn part_numbers(parts: u16) -> impl Iterator<Item = i16> {
    Parts::new(parts).all().map(u16::cast_signed)
}

async fn expect_citus(conn: &mut PgConnection) -> Result<(), MigrateError> {
    validate(conn).await?;
    let is_there = "select pg_catalog.to_regclass('pg_catalog.pg_dist_partition') is not null";
    if ask(conn, is_there, "look for Citus").await? { Ok(()) } else { Err(MigrateError::NoCitus) }
}

/// Tells the functions of the schema over how many parts the tables are distributed. If there are any, the functions
/// refuse to work.
async fn tell_functions(conn: &mut PgConnection, parts: u16) -> Result<(), MigrateError> {
    let told = "create or replace function tollgate._parts() returns pg_catalog.int4 language sql immutable as";
    run(conn, format!("{told} 'select {parts}'")).await
}

/// Begins a transaction that locks a table, runs a first statement, and then gives each row its part among so many.
async fn renumbered<'c>(
    conn: &'c mut PgConnection,
    table: &str,
    first: Option<String>,
    parts: Parts,
) -> Result<Transaction<'c, Postgres>, MigrateError> {
    let mut tx = Connection::begin(conn).await.map_err(failed("begin a transaction"))?;
    run(&mut tx, format!("do $$ begin {ENTER} end $$")).await?;
    run(&mut tx, format!("lock table tollgate.{table} in access exclusive mode")).await?;
    if let Some(first) = first {
        run(&mut tx, first).await?;
    }
    run(&mut tx, format!("alter table tollgate.{table} drop constraint {table}_part")).await?;
    let right = format!("part between {} and {}", parts.numbers().start(), parts.numbers().end());
    loop {
        let keys = format!("select distinct key from tollgate.{table} where not ({right}) limit {PAGE}");
        let keys = sqlx::raw_sql(AssertSqlSafe(keys)).fetch_all(&mut *tx).await.map_err(failed("read keys"))?;
        if keys.is_empty() {
            break;
        }
        let numbered = keys.iter().map(|row| {
            let key = Key::try_from(row.try_get::<String, _>(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
            Ok((key.as_str().to_owned(), parts.of(&key).cast_signed()))
        });
        let numbered: Result<(Vec<_>, Vec<_>), _> = numbered.collect();
        let (keys, numbers) = numbered.map_err(failed("read keys"))?;
        let set = format!(
            "update tollgate.{table} r set part = w.part
               from rows from (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::int2[])) w (key, part)
              where r.key = w.key and not (r.{right})"
        );
        let set = sqlx::query(AssertSqlSafe(set)).bind(keys).bind(numbers).persistent(false);
        set.execute(&mut *tx).await.map_err(failed("set the parts"))?;
    }
    run(&mut tx, format!("alter table tollgate.{table} add constraint {table}_part check ({right})")).await?;
    Ok(tx)
}

async fn run(conn: &mut PgConnection, statement: String) -> Result<(), MigrateError> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(conn).await.map(drop).map_err(failed("distribute a table"))
}

/// The column that Citus distributes a table by, if it does.
async fn column(conn: &mut PgConnection, table: &str) -> Result<Option<String>, MigrateError> {
    let column = format!(
        "select pg_catalog.column_to_column_name(p.logicalrelid, p.partkey) from pg_catalog.pg_dist_partition p
          where p.logicalrelid::oid = 'tollgate.{table}'::regclass::oid"
    );
    let columns: Vec<(Option<String>,)> = rows(conn, column, "read Citus's catalogue").await?;
    Ok(columns.into_iter().next().map(|(column,)| column.unwrap_or_default()))
}

/// The number of parts that a table's CHECK allows.
async fn parts_of(conn: &mut PgConnection, table: &str) -> Result<u16, MigrateError> {
    let parts = include_str!("../store/sql/parts.sql").replace("durable", table);
    let parts = sqlx::raw_sql(AssertSqlSafe(parts)).fetch_one(conn).await.and_then(|row| row.try_get::<i32, _>(0));
    let parts = parts.map_err(failed("read the catalogue"))?;
    Ok(u16::try_from(parts).expect("a part is a number of 16 bits"))
}

const DURABLE: &str = "tollgate.durable";

/// The reference tables, of which each node has a copy.
const REFERENCES: [&str; 2] = ["limits", "overrides"];

/// How many keys are read at a time.
const PAGE: u32 = 1_000;
