//! The tables that must be there, and who may use them.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use tollgate::migrate::{self, Callers, MigrateError, Rights};

use super::finding::Finding;

pub(super) async fn check(conn: &mut PgConnection) -> Result<Vec<Finding>, sqlx::Error> {
    let examined = match migrate::status(conn).await {
        Ok(status) => migrate::validate(conn).await.map(|()| status.newer),
        Err(error) => Err(error),
    };
    match examined {
        Ok(newer) => Ok(newer.last().map(|newest| newer_schema(&newest.to_string())).into_iter().collect()),
        Err(MigrateError::Database { source, .. }) => Err(source),
        Err(fault @ MigrateError::Rights { .. }) => {
            let meaning = "Whoever has it can take tokens, give itself tokens, or read keys.";
            Ok(vec![Finding::error("rights", fault.to_string(), meaning, "Run `tollgate migrate up` as the owner.")])
        }
        Err(fault) => {
            let meaning = "Statements of this release fail on what is not there, or not as it should be.";
            let remedy = "Run `tollgate migrate up`; undo what was changed by hand, as `tollgate migrate sql` has it.";
            Ok(vec![Finding::error("schema", fault.to_string(), meaning, remedy)])
        }
    }
}

fn newer_schema(newest: &str) -> Finding {
    let what = format!("the schema is from a newer release than this command ({newest})");
    Finding::note("schema", what, "Migrations only add, so this release works with it.", "Update this command.")
}

/// The names of the roles that have each right.
pub(super) async fn who_may(conn: &mut PgConnection) -> Result<Rights, sqlx::Error> {
    migrate::rights(conn).await.map_err(|error| match error {
        MigrateError::Database { source, .. } => source,
        error => sqlx::Error::Configuration(error.into()),
    })
}

/// Checks the rights of a role, or of this one: those of a service, which has some on the tables, or of a caller of the
/// functions. The finding names objects that lack the same rights together, as one grant does.
pub(super) async fn rights(conn: &mut PgConnection, role: Option<&str>) -> Result<Vec<Finding>, sqlx::Error> {
    let missing = sqlx::query_as(include_str!("sql/rights.sql")).bind(role);
    let [asking, giving, reporting] =
        [Callers::Applications, Callers::Operators, Callers::Reporters].map(Callers::functions);
    let missing: Vec<(String, String, String)> =
        missing.bind(asking).bind(giving).bind(reporting).persistent(false).fetch_all(&mut *conn).await?;
    let role = sqlx::query_scalar("select quote_ident(coalesce($1, current_user))").bind(role).persistent(false);
    let role: String = role.fetch_one(conn).await?;
    let mut by_remedy: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (object, rights, remedy) in missing {
        by_remedy.entry(remedy).or_default().entry(rights).or_default().push(object);
    }
    if by_remedy.is_empty() {
        return Ok(Vec::new());
    }
    let together = |(rights, objects): (&String, &Vec<String>)| format!("{rights} on {}", objects.join(", "));
    let lacks: Vec<_> = by_remedy.values().flatten().map(together).collect();
    let remedies = by_remedy.iter().flat_map(|(remedy, by_rights)| match remedy.as_str() {
        "" => by_rights.iter().map(|missing| format!("grant {} to {role};", together(missing))).collect(),
        option => vec![format!("tollgate migrate up {option} {role}")],
    });
    let remedies: Vec<_> = remedies.collect();
    let meaning = "Decisions fail for whoever connects as this role.";
    Ok(vec![Finding::error("rights", format!("role {role} lacks {}", lacks.join("; ")), meaning, remedies.join(" "))])
}

/// Where row security hides rows from a role, or from this one; or from the functions, which have the owner's rights.
pub(super) async fn row_security(conn: &mut PgConnection, role: Option<&str>) -> Result<Vec<Finding>, sqlx::Error> {
    let tables = sqlx::query_as(include_str!("sql/row_security.sql")).bind(role).persistent(false);
    let tables: Vec<(String, String, bool)> = tables.fetch_all(conn).await?;
    let finding = |(table, role, is_hidden): &(String, String, bool)| {
        let (what, end) = if *is_hidden {
            let end = format!("disable row level security; or: alter role {role} bypassrls;");
            (format!("row security hides rows of {table} from role {role}"), end)
        } else {
            (format!("row security is forced on the owner of {table}"), "no force row level security;".to_owned())
        };
        let meaning = "Decisions fail, so that a row that is hidden does not count as one that is missing.";
        Finding::error("row_security", what, meaning, format!("alter table {table} {end}"))
    };
    Ok(tables.iter().map(finding).collect())
}
