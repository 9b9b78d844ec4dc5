//! The tables that must be there, and who may use them.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use tollgate::migrate::{self, Callers, Leftover, MigrateError, Migrator, Rights};

use super::finding::Finding;
use crate::migrate::OwnerArgs;

pub(super) async fn check(conn: &mut PgConnection, owner: &OwnerArgs) -> Result<Vec<Finding>, sqlx::Error> {
    let migrator = owner.to_look(conn).await?;
    match examined(conn, &migrator).await {
        Ok(findings) => Ok(findings),
        Err(MigrateError::Database { source, .. }) => Err(source),
        Err(fault @ MigrateError::Rights { .. }) => {
            let remedy = "Run `tollgate migrate up` as the owner.";
            Ok(vec![Finding::error("rights", fault.to_string(), MAY_GIVE, remedy)])
        }
        Err(fault @ MigrateError::Strangers { .. }) => {
            let meaning = "Their owners can run code with the rights of whoever migrates, decides or gives.";
            let remedy = "Drop what is not yours. If you know the role, name it with --owner.";
            Ok(vec![Finding::error("schema", fault.to_string(), meaning, remedy)])
        }
        Err(fault) => {
            let meaning = "Statements of this release fail on what is not there, or not as it should be.";
            let remedy = "Run `tollgate migrate up`; undo what was changed by hand, as `tollgate migrate sql` has it.";
            Ok(vec![Finding::error("schema", fault.to_string(), meaning, remedy)])
        }
    }
}

async fn examined(conn: &mut PgConnection, migrator: &Migrator) -> Result<Vec<Finding>, MigrateError> {
    let newer = migrator.status(conn).await?.newer;
    migrator.validate(conn).await?;
    let left = migrator.left(conn).await?;
    let newer = newer.last().map(|newest| newer_schema(&newest.to_string()));
    Ok(left.into_iter().map(leftover).chain(newer).collect())
}

fn leftover(left: Leftover) -> Finding {
    if left.is_right {
        return Finding::error("rights", left.what, MAY_GIVE, left.remedy);
    }
    let meaning = "Nothing of tollgate reaches it. Somebody who could make objects in the schema has left it there.";
    Finding::warning("schema", left.what, meaning, left.remedy)
}

const MAY_GIVE: &str = "Whoever has it can take tokens, give itself tokens, or read keys.";

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
    let names = sqlx::query_as("select quote_ident(r), r from coalesce($1, current_user::text) r").bind(role);
    let (role, name): (String, String) = names.persistent(false).fetch_one(conn).await?;
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
        option => vec![format!("tollgate migrate up {option} {}", for_shell(&name))],
    });
    let remedies: Vec<_> = remedies.collect();
    let meaning = "Decisions fail for whoever connects as this role.";
    Ok(vec![Finding::error("rights", format!("role {role} lacks {}", lacks.join("; ")), meaning, remedies.join(" "))])
}

/// A name as a shell reads it: people copy the remedy.
fn for_shell(name: &str) -> String {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_plain { name.to_owned() } else { format!("'{}'", name.replace('\'', r"'\''")) }
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
