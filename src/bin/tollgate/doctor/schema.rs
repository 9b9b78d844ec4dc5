use sqlx::PgConnection;
use tollgate::migrate::{self, MigrateError};

use super::finding::Finding;
use crate::error::CommandError;

pub(super) async fn check(conn: &mut PgConnection) -> Result<Vec<Finding>, CommandError> {
    let newer = migrate::status(conn).await?.newer;
    match migrate::validate(conn).await {
        Ok(()) => Ok(newer.last().map(|last| ahead(&last.to_string())).into_iter().collect()),
        Err(error @ MigrateError::Database { .. }) => Err(error.into()),
        Err(fault) => Ok(vec![wrong(&fault)]),
    }
}

fn ahead(newest: &str) -> Finding {
    Finding::note("schema", format!("the schema is from a newer release than this command ({newest})"))
        .means("Migrations only add, so this release works with it.")
        .remedy("Nothing, while a new release is rolled out; else update this command.")
}

fn wrong(fault: &MigrateError) -> Finding {
    Finding::error("schema", fault.to_string())
        .means("Statements of this release fail on what is not there, or not as it should be.")
        .remedy("Run `tollgate migrate up`; where a table was changed by hand, put it back as `tollgate migrate sql` has it.")
}
