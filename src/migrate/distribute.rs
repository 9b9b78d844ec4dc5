//! The tables distributed over the nodes of Citus, by `part`.

use sqlx::{AssertSqlSafe, Connection, FromRow, PgConnection, Row};

use super::{MigrateError, ask, failed, validate};
use crate::key::Key;
use crate::parts::Parts;

/// The number of parts unless told otherwise.
pub const DEFAULT_PARTS: u16 = 8;

/// Which rows lie on one node with which.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Buckets {
    /// The ephemeral and the durable rows of a part lie on one node: a call that asks both commits on one node.
    ///
    /// Citus then moves durable rows to another node only while nothing is written (`block_writes`): it moves both
    /// tables together, and cannot move an unlogged table otherwise.
    #[default]
    Colocated,
    /// Ephemeral rows lie where they fall, so durable ones can be moved while they are written.
    Apart,
}

/// Distributes the tables over the nodes of [Citus] by their column `part`, and returns whether there was anything to
/// do.
///
/// Carries over the rows that are there: each gets its part, one of `parts`. Then tell the number to each limiter and
/// gate ([`Limiter::parts`](crate::Limiter::parts)). A process that was told nothing, or another number, fails with
/// [`Error::WrongParts`](crate::Error::WrongParts) at its first insert.
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
/// Unless `parts` is a power of two, at most 16 384.
///
/// # Errors
///
/// [`MigrateError::NoCitus`] where the extension is not in the database; [`MigrateError::DistributedOtherwise`] where a
/// table is distributed by another column or over another number of parts; those of [`validate`].
pub async fn distribute(conn: &mut PgConnection, parts: u16, buckets: Buckets) -> Result<bool, MigrateError> {
    let hash = Parts::new(parts);
    validate(conn).await?;
    if !ask(conn, "select pg_catalog.to_regclass('pg_catalog.pg_dist_partition') is not null", "look for Citus").await?
    {
        return Err(MigrateError::NoCitus);
    }
    let mut did = false;
    for (table, colocated) in [("durable", "none"), ("ephemeral", "tollgate.durable")] {
        let colocated = if buckets == Buckets::Apart { "none" } else { colocated };
        match column_and_parts(conn, table).await? {
            (None, _) => {
                distribute_table(conn, table, colocated, hash, parts).await?;
                did = true;
            }
            (Some(column), old) if column == "part" && old == parts => {}
            _ => return Err(MigrateError::DistributedOtherwise { table }),
        }
    }
    Ok(did)
}

/// Over how many parts the tables are distributed; 0 on plain PostgreSQL.
///
/// # Errors
///
/// [`MigrateError::Database`] where the catalogue cannot be read.
pub async fn parts(conn: &mut PgConnection) -> Result<u16, MigrateError> {
    parts_of(conn, "durable").await
}

/// Gives each row its part, and the table to Citus, in one transaction.
async fn distribute_table(
    conn: &mut PgConnection,
    table: &'static str,
    colocated: &str,
    hash: Parts,
    parts: u16,
) -> Result<(), MigrateError> {
    let mut tx = Connection::begin(conn).await.map_err(failed("begin a transaction"))?;
    run(&mut tx, format!("lock table tollgate.{table} in access exclusive mode")).await?;
    run(&mut tx, format!("alter table tollgate.{table} drop constraint {table}_part")).await?;
    loop {
        let keys = format!("select distinct key from tollgate.{table} where part = 0 limit {PAGE}");
        let keys = sqlx::raw_sql(AssertSqlSafe(keys)).fetch_all(&mut *tx).await.map_err(failed("read keys"))?;
        if keys.is_empty() {
            break;
        }
        for row in keys {
            let key: String = row.try_get(0).map_err(failed("read keys"))?;
            let part = Key::try_from(key.clone()).map_or(parts, |key| hash.of(&key));
            let set = format!("update tollgate.{table} set part = $1 where part = 0 and key = $2");
            let set = sqlx::query(AssertSqlSafe(set)).bind(i32::from(part)).bind(key).persistent(false);
            set.execute(&mut *tx).await.map_err(failed("set the parts"))?;
        }
    }
    run(
        &mut tx,
        format!(
            "alter table tollgate.{table} add constraint {table}_part check (part between {parts} and {})",
            2 * u32::from(parts) - 1
        ),
    )
    .await?;
    let distribute = format!(
        "select pg_catalog.create_distributed_table('tollgate.{table}', 'part', colocate_with => '{colocated}'{})",
        if colocated == "none" { format!(", shard_count => {parts}") } else { String::new() }
    );
    run(&mut tx, distribute).await?;
    tx.commit().await.map_err(failed("commit"))
}

async fn run(conn: &mut PgConnection, statement: String) -> Result<(), MigrateError> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(conn).await.map(drop).map_err(failed("distribute a table"))
}

/// The column that Citus distributes a table by, if it does, and over how many parts.
async fn column_and_parts(conn: &mut PgConnection, table: &str) -> Result<(Option<String>, u16), MigrateError> {
    let column = format!(
        "select pg_catalog.column_to_column_name(p.logicalrelid, p.partkey) from pg_catalog.pg_dist_partition p
          where p.logicalrelid::oid = 'tollgate.{table}'::regclass::oid"
    );
    let column = sqlx::raw_sql(AssertSqlSafe(column)).fetch_optional(&mut *conn).await;
    let column = column.and_then(|row| row.as_ref().map(<(Option<String>,)>::from_row).transpose());
    let column = column.map_err(failed("read Citus's catalogue"))?.map(|(column,)| column.unwrap_or_default());
    Ok((column, parts_of(conn, table).await?))
}

/// The number of parts that a table's CHECK allows. Looked up by names: `to_regclass` demands a right on the schema.
async fn parts_of(conn: &mut PgConnection, table: &str) -> Result<u16, MigrateError> {
    let check = format!(
        "select coalesce(pg_catalog.max(pg_catalog.substring(pg_catalog.pg_get_constraintdef(c.oid), '>= ([0-9]+)')::int4), 0)
           from pg_catalog.pg_constraint c
           join pg_catalog.pg_class r on r.oid = c.conrelid
           join pg_catalog.pg_namespace n on n.oid = r.relnamespace
          where n.nspname = 'tollgate' and r.relname = '{table}' and c.conname = '{table}_part'"
    );
    let parts = sqlx::raw_sql(AssertSqlSafe(check)).fetch_one(conn).await.and_then(|row| row.try_get::<i32, _>(0));
    let parts = parts.map_err(failed("read the catalogue"))?;
    Ok(u16::try_from(parts).expect("`distribute` allows at most 16384 parts"))
}

/// How many keys are read at a time.
const PAGE: u32 = 1_000;
