use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::finding::Finding;
use crate::error::CommandError;

/// The rights of a role, or of this one.
pub(super) async fn check(conn: &mut PgConnection, role: Option<&str>) -> Result<Vec<Finding>, CommandError> {
    let missing: Vec<(String, Option<String>, String)> =
        sqlx::query_as(include_str!("sql/rights.sql")).bind(role).persistent(false).fetch_all(&mut *conn).await?;
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let role: String = sqlx::query_scalar("select quote_ident(coalesce($1, current_user))")
        .bind(role)
        .persistent(false)
        .fetch_one(conn)
        .await?;
    Ok(vec![finding(&role, &grouped(missing))])
}

/// Objects that lack the same rights, together: as one grant names them.
fn grouped(missing: Vec<(String, Option<String>, String)>) -> Vec<(String, String)> {
    let mut by_object: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (schema, table, right) in missing {
        let object = table.map_or_else(|| format!("schema {schema}"), |table| format!("{schema}.{table}"));
        by_object.entry(object).or_default().push(right);
    }
    let mut by_rights: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (object, rights) in by_object {
        by_rights.entry(rights.join(", ")).or_default().push(object);
    }
    by_rights.into_iter().map(|(rights, objects)| (rights, objects.join(", "))).collect()
}

fn finding(role: &str, missing: &[(String, String)]) -> Finding {
    let lacks: Vec<_> = missing.iter().map(|(rights, objects)| format!("{rights} on {objects}")).collect();
    let grants: Vec<_> =
        missing.iter().map(|(rights, objects)| format!("grant {rights} on {objects} to {role};")).collect();
    Finding::error("rights", format!("role {role} lacks {}", lacks.join("; ")))
        .means("Decisions of a service that connects as this role fail.")
        .remedy(grants.join(" "))
}
