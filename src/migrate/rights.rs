//! Reads the rights of roles on the schema, and revokes those that nobody should have.

use sqlx::PgConnection;

use super::strangers::{names, trusting};
use super::{Callers, Leftover, MigrateError, Migrator, block, failed, rows};

/// The rights of roles on the tables and functions. Roles are given by their names as SQL writes them; `PUBLIC` is
/// everybody.
///
/// The lists include owners and members of roles. They do not include administrators, who may do everything.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Rights {
    /// Roles that may ask limits by SQL functions, and so may use up the tokens of any key.
    pub may_ask: Vec<String>,
    /// Roles that may give tokens, define limits or override them, by SQL functions or in the tables of definitions and
    /// overrides. Also roles that may make objects in the schema, triggers on its tables or foreign keys to them, and
    /// owners of the functions of such triggers. Each can grant itself anything.
    pub may_give: Vec<String>,
    /// Roles that may slow limits down and pause them.
    pub may_report: Vec<String>,
    /// Roles that may write the rows of limits and calls, as a service does, and so set any balance.
    pub may_write: Vec<String>,
    /// Roles that may read the keys and ids in the tables.
    pub may_read: Vec<String>,
}

/// Reads the rights of all roles. [`run`](super::run) revokes every right of PUBLIC; each other right was granted by
/// somebody.
///
/// # Errors
///
/// [`MigrateError::Database`] if the catalogue cannot be read.
pub async fn rights(conn: &mut PgConnection) -> Result<Rights, MigrateError> {
    let [asking, reporting] = [Callers::Applications, Callers::Reporters].map(|callers| callers.functions().join(", "));
    let sql = include_str!("rights.sql").replace("{asking}", &asking).replace("{reporting}", &reporting);
    let sql = sql.replace("{names}", &names());
    let rows: Vec<(String, String)> = rows(conn, sql, "read the rights").await?;
    let who = |right: &str| rows.iter().filter(|(may, _)| may == right).map(|(_, role)| role.clone()).collect();
    let [may_ask, may_give, may_report, may_write, may_read] = ["ask", "give", "report", "write", "read"].map(who);
    Ok(Rights { may_ask, may_give, may_report, may_write, may_read })
}

/// Fails for the first right that nobody should have.
pub(super) async fn refuse_wrong(conn: &mut PgConnection, of: &Migrator) -> Result<(), MigrateError> {
    let wrong = format!("select w.message from ({}) w limit 1", wrong(of, nothing_is_new));
    let wrong: Vec<(String,)> = rows(conn, wrong, "read the rights").await?;
    wrong.into_iter().next().map_or(Ok(()), |(what,)| Err(MigrateError::Rights { what }))
}

/// Revokes those of these rights that this role can revoke.
pub(super) async fn take_back(conn: &mut PgConnection, of: &Migrator) -> Result<(), MigrateError> {
    block(conn, &taking_back(of)).await.map_err(failed("take rights back"))
}

/// Revokes these rights, and those that default privileges have given on what this run has made; fails if this role
/// cannot.
pub(super) async fn mend(conn: &mut PgConnection, of: &Migrator) -> Result<(), MigrateError> {
    block(conn, &mending(of)).await.map_err(|error| match error.as_database_error() {
        Some(told) if told.code().as_deref() == Some("42501") => {
            MigrateError::Rights { what: told.message().to_owned() }
        }
        _ => failed("put the rights right")(error),
    })
}

/// Rights of roles that default privileges have given, or would give once more.
pub(super) async fn left(conn: &mut PgConnection, of: &Migrator) -> Result<Vec<Leftover>, MigrateError> {
    let sql = trusting(include_str!("default_rights.sql"), of);
    let rows: Vec<(String, String)> = rows(conn, sql, "read the default privileges").await?;
    Ok(rows.into_iter().map(|(what, remedy)| Leftover { what, remedy, is_right: true }).collect())
}

/// A block of PL/pgSQL that revokes what it can.
pub(super) fn taking_back(of: &Migrator) -> String {
    revoking(&wrong(of, nothing_is_new), "")
}

/// A block that fails where a right stays, after it has tried all.
pub(super) fn mending(of: &Migrator) -> String {
    let raise = "if fault is not null then\n        \
                 raise exception using errcode = 'insufficient_privilege', message = fault;\n    end if;\n";
    revoking(&wrong(of, is_new), raise)
}

/// Revokes each right as the role that granted it, because no other role can.
fn revoking(wrong: &str, end: &str) -> String {
    format!(
        "declare\n    wrong pg_catalog.record;\n    fault pg_catalog.text;\n    \
         before pg_catalog.text := pg_catalog.current_setting('role');\n\
         begin\n    for wrong in\n{wrong}\n    loop\n        \
         begin\n            \
         if wrong.remedy is null then\n                \
         raise exception using errcode = 'insufficient_privilege';\n            end if;\n            \
         if wrong.grantor <> wrong.owner or not pg_catalog.pg_has_role(wrong.owner, 'usage') then\n                \
         perform pg_catalog.set_config('role', wrong.grantor, true);\n            end if;\n            \
         execute wrong.remedy;\n            \
         perform pg_catalog.set_config('role', before, true);\n        \
         exception when insufficient_privilege then\n            \
         fault := coalesce(fault, wrong.message);\n        \
         end;\n    end loop;\n    {end}\
         end;\n"
    )
}

/// The query for wrong rights. All rights of others are wrong on an object that is new.
fn wrong(by: &Migrator, is_new: impl Fn(&str) -> String) -> String {
    let wrong = trusting(include_str!("wrong_rights.sql"), by);
    wrong.replace("{p_is_new}", &is_new("p.oid")).replace("{c_is_new}", &is_new("c.oid"))
}

fn nothing_is_new(_: &str) -> String {
    "false".to_owned()
}

/// Notes which objects are there before the migrations, in PL/pgSQL.
pub(super) const NOTE_KNOWN: &str = "\
    perform pg_catalog.set_config('tollgate.known', pg_catalog.concat(',', (
        select pg_catalog.string_agg(o.id::text, ',')
          from (select p.oid as id from pg_catalog.pg_proc p
                 where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid
                 union all
                select c.oid from pg_catalog.pg_class c
                 where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid) o), ','), true);";

/// Whether an object is not among the noted ones.
fn is_new(id: &str) -> String {
    format!("pg_catalog.strpos(pg_catalog.current_setting('tollgate.known'), pg_catalog.concat(',', {id}, ',')) = 0")
}
