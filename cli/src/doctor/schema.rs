//! The tables that must be there, and who may use them.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use tollgate::migrate::{self, MigrateError};

use super::finding::Finding;

pub(super) async fn check(conn: &mut PgConnection) -> Result<Vec<Finding>, sqlx::Error> {
    let examined = match migrate::status(conn).await {
        Ok(status) => migrate::validate(conn).await.map(|()| status.newer),
        Err(error) => Err(error),
    };
    match examined {
        Ok(newer) => Ok(newer.last().map(|newest| newer_schema(&newest.to_string())).into_iter().collect()),
        Err(MigrateError::Database { source, .. }) => Err(source),
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

/// The rights of a role, or of this one. Objects that lack the same rights are told together, as one grant names them.
pub(super) async fn rights(conn: &mut PgConnection, role: Option<&str>) -> Result<Vec<Finding>, sqlx::Error> {
    let missing: Vec<(String, String)> =
        sqlx::query_as(include_str!("sql/rights.sql")).bind(role).persistent(false).fetch_all(&mut *conn).await?;
    let role = sqlx::query_scalar("select quote_ident(coalesce($1, current_user))").bind(role).persistent(false);
    let role: String = role.fetch_one(conn).await?;
    let mut by_rights: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (object, rights) in missing {
        by_rights.entry(rights).or_default().push(object);
    }
    let missing = by_rights.iter().map(|(rights, objects)| format!("{rights} on {}", objects.join(", ")));
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let what = format!("role {role} lacks {}", missing.join("; "));
    let grants: Vec<_> = missing.iter().map(|missing| format!("grant {missing} to {role};")).collect();
    let meaning = "Decisions of a service that connects as this role fail.";
    Ok(vec![Finding::error("rights", what, meaning, grants.join(" "))])
}
