//! The tables and columns that the statements of this release rely on.

/// The first column that is missing, or whose table is not logged as it should be, among those that [`PRESENT`] found.
pub(crate) fn missing(present: &[(String, String, String)]) -> Option<(&'static str, &'static str)> {
    TABLES.iter().find_map(|(table, persistence, columns)| {
        let found = |column: &str| present.iter().any(|(t, c, p)| t == table && c == column && p == persistence);
        columns.split(' ').find(|column| !found(column)).map(|column| (*table, column))
    })
}

/// The tables, whether each is logged (`p`) or not (`u`), and their columns.
const TABLES: [(&str, &str, &str); 5] = [
    ("ephemeral", "u", OF_ROWS),
    ("durable", "p", OF_ROWS),
    ("calls", "p", "part name key id asked charges answer charged_at reported lapses_at kept_until used"),
    ("limits", "p", "name kind rate period capacity max_reserved start resolution shards storage flow"),
    ("overrides", "p", OF_OVERRIDES),
];
const OF_OVERRIDES: &str = "name key label effect kind rate period capacity max_reserved starts_at ends_at reason \
                            set_by set_at forgotten_at";
const OF_ROWS: &str = "part name key shard value ts full_at list";

/// Asks which columns there are. It takes no right on the tables.
pub(crate) const PRESENT: &str = "
    select c.relname::text, a.attname::text, c.relpersistence::text
      from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
     where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid and a.attnum > 0 and not a.attisdropped";
