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
    let mut by_object: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (schema, table, right) in missing {
        let object = table.map_or_else(|| format!("schema {schema}"), |table| format!("{schema}.{table}"));
        by_object.entry(object).or_default().push(right);
    }
    Ok(vec![finding(&role, &by_object)])
}

fn finding(role: &str, missing: &BTreeMap<String, Vec<String>>) -> Finding {
    let each = |say: &dyn Fn(&str, &str) -> String, separator| {
        let said: Vec<_> = missing.iter().map(|(object, rights)| say(&rights.join(", "), object)).collect();
        said.join(separator)
    };
    let what = each(&|rights, object| format!("{rights} on {object}"), "; ");
    Finding::error("rights", format!("role {role} lacks {what}"))
        .means("Decisions of a service that connects as this role fail.")
        .remedy(each(&|rights, object| format!("grant {rights} on {object} to {role};"), " "))
}
