use sqlx::PgConnection;

use super::{MigrateError, rows};

/// Refuses tables that lack a column, or are not logged as they should be.
pub(super) async fn refuse_damaged(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let present: Vec<(String, String, String)> = rows(conn, COLUMNS_PRESENT.to_owned(), "read the catalogue").await?;
    for (table, persistence, columns) in TABLES {
        let found = |column: &&str| present.iter().any(|(t, c, p)| t == table && c == column && p == persistence);
        if let Some(column) = columns.iter().find(|&column| !found(column)) {
            return Err(MigrateError::Damaged { table, column });
        }
    }
    Ok(())
}

/// The tables that the statements of this release rely on, whether each is logged (`p`) or not (`u`), and their
/// columns.
const TABLES: [(&str, &str, &[&str]); 5] = [
    ("ephemeral", "u", &OF_ROWS),
    ("durable", "p", &OF_ROWS),
    ("calls", "p", &OF_CALLS),
    ("limits", "p", &OF_LIMITS),
    ("overrides", "p", &OF_OVERRIDES),
];
const OF_ROWS: [&str; 8] = ["part", "name", "key", "shard", "value", "ts", "full_at", "list"];
const OF_CALLS: [&str; 12] = [
    "part",
    "name",
    "key",
    "id",
    "asked",
    "charges",
    "answer",
    "charged_at",
    "reported",
    "lapses_at",
    "kept_until",
    "used",
];

const OF_LIMITS: [&str; 11] =
    ["name", "kind", "rate", "period", "capacity", "max_reserved", "start", "resolution", "shards", "storage", "flow"];

const OF_OVERRIDES: [&str; 14] = [
    "name",
    "key",
    "label",
    "effect",
    "kind",
    "rate",
    "period",
    "capacity",
    "max_reserved",
    "starts_at",
    "ends_at",
    "reason",
    "set_by",
    "set_at",
];

const COLUMNS_PRESENT: &str = "
    select c.relname::text, a.attname::text, c.relpersistence::text
      from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
     where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid and a.attnum > 0 and not a.attisdropped";
