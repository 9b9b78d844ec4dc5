//! The definitions of the limits file, beside those of the table. Those of a service are in its log when it starts.

use sqlx::PgConnection;
use tollgate::{Limit, Limits};

use super::finding::Finding;
use crate::limits_file::describe;

pub(super) async fn compare(conn: &mut PgConnection, file: &Limits) -> Vec<Finding> {
    let table = match Limits::from_table(conn).await {
        Ok(table) => table,
        Err(error) => {
            let meaning = "SQL functions fail, and the command goes by a limits file alone.";
            return vec![Finding::warning("definitions", error.to_string(), meaning, "Run `tollgate migrate up`.")];
        }
    };
    let differing =
        |limit: &Limit| Some(difference(limit, table.get(limit.name()).ok().filter(|&other| other != limit)?));
    file.iter().filter_map(differing).collect()
}

fn difference(of_file: &Limit, of_table: &Limit) -> Finding {
    Finding::warning(
        "definitions",
        format!("the limits file has {}, and tollgate.limits has {}", describe(of_file), describe(of_table)),
        "The SQL functions go by the table, and the command by the file. A service goes by its own.",
        "Push the one that is right: `tollgate limits push FILE`.",
    )
}
