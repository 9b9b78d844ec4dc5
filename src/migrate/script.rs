use super::driver::create_history;
use super::error::LOCKED;
use super::quoted::{ENTER, LEAVE, of_transaction};
use super::{ADVISORY_LOCK, HISTORY, Migrator, rights, runner, strangers};

impl Migrator {
    /// All migrations as one SQL text, for psql or another migration tool.
    ///
    /// It keeps the same history as [`run`](Self::run), applies only what is missing, takes back the same rights,
    /// refuses the same strangers, and is safe to run twice. It has two statements, so that rights are taken back even
    /// where the second one fails.
    #[must_use]
    pub fn sql(&self) -> String {
        let [enter, leave] = [ENTER, LEAVE].map(of_transaction);
        let (lock, steps) = (take_lock(), runner().get_migrations().iter().map(guarded).collect::<String>());
        let (taking_back, mending) = (rights::taking_back(self), rights::mending(self));
        let (refusing, known, create_history) = (strangers::refusing(self), rights::NOTE_KNOWN, create_history());
        format!(
            "-- tollgate {}: applies what is missing, all or nothing, and is safe to run again.\n\n\
             -- Rights that nobody should have are taken back first, even if the rest fails.\n\
             do $tollgate$ begin\n\n{enter}\n{lock}\n{taking_back}\n{leave}\n\nend $tollgate$;\n\n\
             do $tollgate$ begin\n\n{enter}\n\
             if pg_catalog.current_setting('transaction_isolation') <> 'read committed' then\n    \
             raise exception using errcode = 'inappropriate_isolation_level_for_branch_transaction',\n        \
             message = 'migrations need a transaction at READ COMMITTED';\nend if;\n\n\
             -- As `tollgate migrate up` does: of several runners one applies, and the others wait.\n\
             {lock}\n\
             -- An object of a stranger could run with the rights of the role that runs this.\n\
             {refusing}\n\
             if pg_catalog.to_regnamespace('tollgate') is null then\n    create schema tollgate;\nend if;\n\
             {known}\n\
             if pg_catalog.to_regclass('{HISTORY}') is null then\n    {create_history}\nelse\n    \
             lock table {HISTORY} in share row exclusive mode;\nend if;\n\
             {refusing}\n{steps}\n\
             {mending}\n{leave}\n\
             end $tollgate$;\n",
            env!("CARGO_PKG_VERSION"),
        )
    }
}

/// Waits for other runners, in PL/pgSQL, and restores the earlier `lock_timeout`, so that the migrations do not fail by
/// ours.
pub(super) fn take_lock() -> String {
    format!(
        "declare\n    before pg_catalog.text := pg_catalog.current_setting('lock_timeout');\n\
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
