use sqlx::{FromRow, PgConnection};

use super::finding::Finding;
use crate::error::CommandError;

pub(super) async fn check(conn: &mut PgConnection) -> Result<Vec<Finding>, CommandError> {
    let tables: Vec<Table> = sqlx::query_as(include_str!("sql/tables.sql")).persistent(false).fetch_all(conn).await?;
    Ok(tables
        .iter()
        .flat_map(|table| [table.dead_rows(), table.updates(), table.indexes(), table.vacuum()])
        .flatten()
        .collect())
}

#[derive(FromRow)]
struct Table {
    name: String,
    live: i64,
    dead: i64,
    updates: i64,
    hot_updates: i64,
    bytes: i64,
    is_never_vacuumed: bool,
    other_indexes: Vec<String>,
}

impl Table {
    fn dead_rows(&self) -> Option<Finding> {
        let Self { name, live, dead, bytes, .. } = self;
        (*dead > MANY && *dead > live * 5).then(|| {
            let size = bytes / (1024 * 1024);
            Finding::warning(
                "dead_rows",
                format!("tollgate.{name} has {dead} dead rows to {live} live ones, in {size} MB"),
            )
            .means("Reads walk over dead rows, and the table grows: vacuum cannot keep up, or is kept from it.")
            .remedy(format!("Look for old transactions (above), then: vacuum tollgate.{name};"))
        })
    }

    fn updates(&self) -> Option<Finding> {
        let Self { name, updates, hot_updates, .. } = self;
        (*updates > MANY && hot_updates * 10 < updates * 9).then(|| {
            let share = hot_updates * 100 / updates;
            Finding::warning(
                "hot_updates",
                format!("only {share} % of the updates of tollgate.{name} stayed on their page (HOT)"),
            )
            .means("The others write all indexes too: slower decisions, and more for vacuum to do.")
            .remedy("Drop indexes on columns that change, look for old transactions, and keep fillfactor = 90.")
        })
    }

    fn indexes(&self) -> Option<Finding> {
        let Self { name, other_indexes, .. } = self;
        (!other_indexes.is_empty()).then(|| {
            let indexes = other_indexes.join(", ");
            Finding::warning("indexes", format!("tollgate.{name} has indexes that are not ours: {indexes}"))
                .means("An index on a column that changes is written with every decision, and takes away cheap updates (HOT).")
                .remedy(format!("drop index {indexes};"))
        })
    }

    fn vacuum(&self) -> Option<Finding> {
        let Self { name, .. } = self;
        self.is_never_vacuumed.then(|| {
            Finding::warning("autovacuum", format!("autovacuum is switched off for tollgate.{name}"))
                .means("Dead rows are never removed, and the table grows without end.")
                .remedy(format!("alter table tollgate.{name} reset (autovacuum_enabled);"))
        })
    }
}

/// Fewer rows or updates than these say nothing yet.
const MANY: i64 = 10_000;
