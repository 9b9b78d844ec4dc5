use refinery_core::traits::r#async::AsyncMigrate;

use super::driver::OverSqlx;
use super::error::LOCKED;
use super::{ADVISORY_LOCK, HISTORY, rights, runner};

/// All migrations as one SQL text, for psql or another migration tool.
///
/// It keeps the same history as [`run`](super::run), applies only what is missing, takes back the same rights, and is
/// safe to run twice.
#[must_use]
pub fn sql() -> String {
    let history = OverSqlx::assert_migrations_table_query(HISTORY);
    let steps = runner().get_migrations().iter().map(guarded).collect::<String>();
    format!(
        "-- tollgate {}: applies what is missing, all or nothing, and is safe to run again.\n\n\
         do $tollgate$ begin\n\n\
         -- As `tollgate migrate up` does: of several runners one applies, and the others wait.\n\
         {}\n\
         if pg_catalog.to_regnamespace('tollgate') is null then\n    create schema tollgate;\nend if;\n\n\
         {history}\n{steps}\n\
         -- Rights that nobody should have are taken back, however the schema came.\n\
         {}\n\
         end $tollgate$;\n",
        env!("CARGO_PKG_VERSION"),
        take_lock(),
        rights::mending()
    )
}

/// Waits for other runners, in PL/pgSQL, and restores the earlier `lock_timeout`, so that the migrations do not fail by
/// ours.
pub(super) fn take_lock() -> String {
    format!(
        "declare\n    before text := pg_catalog.current_setting('lock_timeout');\n\
         begin\n    \
         if before = '0' then\n        perform pg_catalog.set_config('lock_timeout', '1min', true);\n    end if;\n    \
         perform pg_catalog.pg_advisory_xact_lock({ADVISORY_LOCK});\n    \
         perform pg_catalog.set_config('lock_timeout', before, true);\n\
         exception when lock_not_available then\n    \
         raise exception using errcode = 'lock_not_available', message = $why${LOCKED}$why$;\n\
         end;\n"
    )
}

/// One migration's SQL, with a condition that skips it on a schema that already has it.
fn guarded(migration: &refinery_core::Migration) -> String {
    let (version, name, checksum) = (migration.version(), migration.name(), migration.checksum());
    let body = migration.sql().unwrap_or_default().trim_end();
    let now = "pg_catalog.to_char(pg_catalog.now() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    format!(
        "\n-- V{version}__{name}\n\
         if not exists (select from {HISTORY} where version = {version}) then\n\n\
         {body}\n\n\
         insert into {HISTORY} (version, name, applied_on, checksum)\n\
         values ({version}, '{name}', {now}, '{checksum}');\n\n\
         end if;\n"
    )
}
