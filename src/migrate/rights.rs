//! Reads the rights of roles on the schema, and revokes those that nobody should have.

use sqlx::{AssertSqlSafe, PgConnection};

use super::{Callers, MigrateError, failed, rows};

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
    let rows: Vec<(String, String)> = rows(conn, sql, "read the rights").await?;
    let who = |right: &str| rows.iter().filter(|(may, _)| may == right).map(|(_, role)| role.clone()).collect();
    let [may_ask, may_give, may_report, may_write, may_read] = ["ask", "give", "report", "write", "read"].map(who);
    Ok(Rights { may_ask, may_give, may_report, may_write, may_read })
}

/// Fails for the first right that nobody should have.
pub(super) async fn refuse_wrong(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let wrong = format!("select w.message from ({WRONG}) w limit 1");
    let wrong: Vec<(String,)> = rows(conn, wrong, "read the rights").await?;
    wrong.into_iter().next().map_or(Ok(()), |(what,)| Err(MigrateError::Rights { what }))
}

/// Revokes these rights; fails if this role cannot.
pub(super) async fn mend(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let block = format!("do $tollgate$ {} $tollgate$", mending());
    let mended = sqlx::raw_sql(AssertSqlSafe(block)).execute(conn).await;
    mended.map(drop).map_err(|error| match error.as_database_error() {
        Some(told) if told.code().as_deref() == Some("42501") => {
            MigrateError::Rights { what: told.message().to_owned() }
        }
        _ => failed("put the rights right")(error),
    })
}

/// A block of PL/pgSQL that revokes these rights. It revokes each right as the role that granted it, because no other
/// role can.
pub(super) fn mending() -> String {
    format!(
        "declare\n    wrong record;\n    before text := pg_catalog.current_setting('role');\n\
         begin\n    for wrong in\n{WRONG}\n    loop\n        \
         begin\n            \
         if wrong.remedy is null then\n                \
         raise exception using errcode = 'insufficient_privilege', message = wrong.message;\n            end if;\n            \
         if wrong.grantor <> wrong.owner or not pg_catalog.pg_has_role(wrong.owner, 'usage') then\n                \
         perform pg_catalog.set_config('role', wrong.grantor, true);\n            end if;\n            \
         execute wrong.remedy;\n            \
         perform pg_catalog.set_config('role', before, true);\n        \
         exception when insufficient_privilege then\n            \
         raise exception using errcode = 'insufficient_privilege', message = wrong.message;\n        \
         end;\n    end loop;\nend;\n"
    )
}

const WRONG: &str = include_str!("wrong_rights.sql");
