use serde_json::json;
use tollgate::migrate::{self, Buckets};

use crate::database::DatabaseArgs;
use crate::error::CommandError;
use crate::output::OutputArgs;

/// Distribute the tables over the nodes of Citus by their column `part`.
///
/// Run it on the coordinator. Then give every limiter and gate the number of parts with `parts(N)`. A process with
/// another number fails at its first call. A process without a number fails at its first insert. The command locks each
/// table while it carries over the rows.
#[derive(Debug, clap::Args)]
pub(crate) struct DistributeArgs {
    /// The number of parts: a power of two, at most 2048. Each part lies on one node.
    #[arg(long, value_name = "N", default_value_t = migrate::DEFAULT_PARTS, value_parser = power_of_two)]
    parts: u16,

    /// Let the ephemeral rows of a key lie on another node than its durable rows. Citus can then move durable rows
    /// while callers write them.
    #[arg(long)]
    buckets_apart: bool,

    /// Bring the tables back to the coordinator, with all rows. Do this to leave Citus, or before you change `--parts`
    /// or `--buckets-apart`.
    #[arg(long, conflicts_with_all = ["parts", "buckets_apart"])]
    undo: bool,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: DistributeArgs) -> Result<(), CommandError> {
    let DistributeArgs { parts, buckets_apart, undo, database, output } = args;
    let mut conn = database.connect().await?;
    if undo {
        let undone = migrate::undistribute(&mut conn).await?;
        let undone = undone.then_some("the tables are the coordinator's again; say no `parts` to any limiter or gate");
        return output.print(&json!({ "parts": 0, "undone": undone.is_some() }), || {
            undone.unwrap_or("nothing to do: the tables are not distributed").to_owned()
        });
    }
    let buckets = if buckets_apart { Buckets::Apart } else { Buckets::Colocated };
    let distributed = migrate::distribute(&mut conn, parts, buckets).await?;
    output.print(&json!({ "parts": parts, "distributed": distributed }), || {
        if distributed {
            format!("distributed the tables over {parts} parts; say `parts({parts})` to every limiter and gate")
        } else {
            format!("nothing to do: the tables are distributed over {parts} parts")
        }
    })
}

fn power_of_two(text: &str) -> Result<u16, String> {
    let parts: u16 = text.parse().map_err(|_| "write a whole number".to_owned())?;
    let fits = parts.is_power_of_two() && parts <= 2048;
    if fits { Ok(parts) } else { Err("write a power of two, at most 2048".to_owned()) }
}
