use std::io::{Write, stdout};

use serde_json::json;
use tollgate::migrate::{self, Buckets};

use crate::connect::DatabaseArgs;
use crate::error::CommandError;
use crate::output::{self, OutputArgs};

/// Spread the tables over the nodes of Citus by key.
///
/// First have every limiter and gate say `distributed()`, which works on tables that are not distributed, too; then run it on
/// the coordinator. Each table is locked against writes while its rows are carried over.
#[derive(Debug, clap::Args)]
pub(crate) struct DistributeArgs {
    /// Print the statements instead, for psql. Needs no database.
    #[arg(long)]
    sql: bool,

    /// Let ephemeral rows lie on other nodes than the durable ones of the same key, so that Citus can move those while they are
    /// written.
    #[arg(long)]
    buckets_apart: bool,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: DistributeArgs) -> Result<(), CommandError> {
    let DistributeArgs { sql, buckets_apart, database, output } = args;
    let buckets = if buckets_apart { Buckets::Apart } else { Buckets::Colocated };
    if sql {
        let sql = migrate::distribute_sql(buckets);
        return if output.json {
            output::json(&json!({ "sql": sql }))
        } else {
            Ok(stdout().write_all(sql.as_bytes())?)
        };
    }
    let run = migrate::distribute(&mut database.connect().await?, buckets).await?;
    if output.json {
        return output::json(&json!({ "run": run }));
    }
    let mut out = output::out();
    if run.is_empty() {
        writeln!(out, "nothing to do: all tables are distributed")?;
    }
    for statement in run {
        writeln!(out, "{statement}")?;
    }
    Ok(())
}
