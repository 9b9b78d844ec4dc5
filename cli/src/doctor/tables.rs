use sqlx::{FromRow, PgConnection};

use super::finding::Finding;

pub(super) async fn check(conn: &mut PgConnection) -> Result<Vec<Finding>, sqlx::Error> {
    let tables: Vec<Table> = sqlx::query_as(include_str!("sql/tables.sql")).persistent(false).fetch_all(conn).await?;
    Ok(tables.iter().flat_map(Table::findings).collect())
}

/// Whether the write-ahead log is larger than it need be.
pub(super) async fn log(conn: &mut PgConnection) -> Result<Option<Finding>, sqlx::Error> {
    let share = sqlx::query_scalar(include_str!("sql/log.sql")).persistent(false);
    let share: Option<f64> = share.fetch_optional(conn).await?;
    Ok(share.map(|share| {
        let what = format!("about {:.0} % of the write-ahead log are whole pages", share * 100.0);
        let meaning = "The first write to a page after each checkpoint logs all of it: the disk and the replicas do \
                       several times the work.";
        let remedy = "Set wal_compression = lz4 (or on), and raise checkpoint_timeout to 15min and max_wal_size until \
                      checkpoints come by time.";
        Finding::warning("log", what, meaning, remedy)
    }))
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
    fn findings(&self) -> impl Iterator<Item = Finding> {
        let Self { name, live, dead, updates, hot_updates, .. } = self;
        let found = [
            (*dead > MANY && *dead > live * 5).then(|| {
                let what = format!("tollgate.{name} has {dead} dead rows to {live} live ones");
                let meaning = "Reads walk over dead rows, and the table grows: vacuum cannot keep up.";
                let remedy = format!("Look for old transactions (above), then: vacuum tollgate.{name};");
                Finding::warning("dead_rows", what, meaning, remedy)
            }),
            (*updates > MANY && hot_updates * 10 < updates * 9).then(|| {
                let share = hot_updates * 100 / updates;
                let what = format!("only {share} % of the updates of tollgate.{name} stayed on their page (HOT)");
                let meaning = "The others write all indexes too: slower decisions, and more for vacuum to do.";
                let remedy = "Drop indexes on columns that change, end old transactions, and keep fillfactor = 90.";
                Finding::warning("hot_updates", what, meaning, remedy)
            }),
            (!self.other_indexes.is_empty()).then(|| {
                let indexes = self.other_indexes.join(", ");
                let what = format!("tollgate.{name} has indexes that are not ours: {indexes}");
                let meaning = "An index on a column that changes is written with every decision, and takes away cheap \
                               updates (HOT).";
                Finding::warning("indexes", what, meaning, format!("drop index {indexes};"))
            }),
            self.is_never_vacuumed.then(|| {
                let what = format!("autovacuum is switched off for tollgate.{name}");
                let remedy = format!("alter table tollgate.{name} reset (autovacuum_enabled);");
                Finding::warning("autovacuum", what, "Dead rows are never removed: the table only grows.", remedy)
            }),
            (self.bytes < EMPTY_BYTES).then(|| {
                let what = format!("tollgate.{name} lacks the empty megabyte that it begins with");
                let meaning = "After a crash, a truncate or a restore: sessions may keep plans that read all of it.";
                let remedy =
                    format!("Once there are thousands of rows, unless autovacuum did so: analyze tollgate.{name};");
                Finding::note("small_table", what, meaning, remedy)
            }),
        ];
        found.into_iter().flatten()
    }
}

/// The size at which the migrations leave a table.
const EMPTY_BYTES: i64 = 1 << 20;

/// Fewer rows or updates than these say nothing yet.
const MANY: i64 = 10_000;
