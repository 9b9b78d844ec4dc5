//! The tables spread over the nodes of Citus, by `key`.

use sqlx::{AssertSqlSafe, FromRow, PgConnection};

use super::{MigrateError, ask, failed, validate};

/// Which rows lie on one node with which.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Buckets {
    /// The rows of one key lie on one node, ephemeral and durable ones: a call that asks both commits on one node.
    ///
    /// Citus then moves durable rows to another node only while nothing is written (`block_writes`), for it moves what lies together
    /// together, and unlogged tables not otherwise.
    #[default]
    Colocated,
    /// Ephemeral rows lie where they fall, so that durable ones can be moved while they are written.
    Apart,
}

/// Spreads the tables over the nodes of [Citus] by `key`, and returns the statements it ran: none where all are spread already.
///
/// Rows that are there are carried over. Before that, say so to each limiter and gate
/// ([`Limiter::distributed`](crate::Limiter::distributed)): they go on working, and what they said until then Citus would refuse.
///
/// [Citus]: https://docs.citusdata.com
///
/// # Locks
///
/// Each table is locked against writes while its rows are carried over, one after another. If one fails, those before it
/// stay distributed, and the next run goes on with the rest.
///
/// # Errors
///
/// [`MigrateError::NoCitus`] where the extension is not in the database, [`MigrateError::DistributedOtherwise`] where a table is
/// spread by another column; else as [`validate`].
pub async fn distribute(conn: &mut PgConnection, buckets: Buckets) -> Result<Vec<String>, MigrateError> {
    validate(conn).await?;
    if !ask(conn, CITUS_PRESENT.to_owned(), "look for Citus").await? {
        return Err(MigrateError::NoCitus);
    }
    let spread = sqlx::raw_sql(SPREAD).fetch_all(&mut *conn).await;
    let spread = spread.and_then(|rows| rows.iter().map(<(String, Option<String>)>::from_row).collect());
    let spread: Vec<_> = spread.map_err(failed("read Citus's catalogue"))?;
    let mut run = Vec::new();
    for (table, statement) in statements(buckets) {
        match spread.iter().find(|(name, _)| name == table) {
            Some((_, column)) if column.as_deref() == Some("key") => {}
            Some(_) => return Err(MigrateError::DistributedOtherwise { table }),
            // One command in each round trip, as Citus wants it.
            None => {
                let distributed = sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut *conn).await;
                distributed.map_err(failed("distribute a table"))?;
                run.push(statement);
            }
        }
    }
    Ok(run)
}

/// The statements that [`distribute`] runs, for psql: one at a time, for Citus takes no two of them together.
#[must_use]
pub fn distribute_sql(buckets: Buckets) -> String {
    statements(buckets).into_iter().map(|(_, statement)| statement + ";\n").collect()
}

/// Each table, and what distributes it. The first begins a group of its own: its key is collated by bytes, and that of others
/// in the usual group is not.
fn statements(buckets: Buckets) -> [(&'static str, String); 3] {
    let beside = match buckets {
        Buckets::Colocated => "tollgate.rate_limits",
        Buckets::Apart => "none",
    };
    [("rate_limits", "none"), ("reservations", "tollgate.rate_limits"), ("buckets", beside)].map(|(table, beside)| {
        (table, format!("select create_distributed_table('tollgate.{table}', 'key', colocate_with => '{beside}')"))
    })
}

const CITUS_PRESENT: &str = "select to_regclass('pg_dist_partition') is not null";

/// Tables of ours that Citus knows, and the column that each is spread by, if it is.
const SPREAD: &str = "
    select c.relname::text, column_to_column_name(p.logicalrel, p.partkey)
      from pg_dist_partition p
      join pg_class c on c.oid = p.logicalrel
     where c.relnamespace = to_regnamespace('tollgate')";
