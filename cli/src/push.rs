//! `tollgate limits push`: the definitions of a file, in the table that SQL functions and `Limits::from_table` read.

use std::path::PathBuf;

use serde_json::json;
use sqlx::PgConnection;
use tollgate::{Limit, Limits, Tokens};

use crate::database::{DatabaseArgs, begin};
use crate::error::{CommandError, Exit};
use crate::limits_file::describe;
use crate::output::{CAUTION, GOOD, OutputArgs, counted, printable, styled};
use crate::storage;

#[derive(Debug, clap::Args)]
pub(crate) struct PushArgs {
    /// The limits file: JSON if its name ends in `.json`, else TOML. The command refuses YAML.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write nothing, and fail if there is something to write. This is for CI.
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: PushArgs) -> Result<Exit, CommandError> {
    let PushArgs { file, check, database, output } = args;
    let wanted = Limits::from_file(&file)?;
    let mut conn = database.connect().await?;
    let mut tx = begin(&mut conn).await?;
    if !check {
        // If two callers push at once, the second sees the definitions that the first has written.
        sqlx::raw_sql("lock table tollgate.limits in share row exclusive mode").execute(&mut *tx).await?;
    }
    let stored = Limits::from_table(&mut tx).await?;
    let before = |limit: &Limit| stored.get(limit.name()).ok();
    let changed: Vec<_> = wanted.iter().filter(|limit| before(limit) != Some(*limit)).collect();
    let left: Vec<_> = stored.iter().filter(|limit| wanted.get(limit.name()).is_err()).collect();
    if !check {
        for limit in &changed {
            write(&mut tx, limit).await?;
        }
    }
    tx.commit().await?;
    let (added, altered): (Vec<_>, Vec<_>) = changed.iter().partition(|limit| before(limit).is_none());
    let names = |limits: &[&Limit]| limits.iter().map(|limit| limit.name().to_owned()).collect::<Vec<_>>();
    let document = json!({
        "added": names(&added), "changed": names(&altered), "not_in_the_file": names(&left), "written": !check,
    });
    output.print(&document, || {
        let mut lines: Vec<_> = added.iter().map(|limit| format!("added    {}", describe(limit))).collect();
        for limit in altered {
            lines.push(format!("changed  {}", describe(limit)));
            lines.extend(before(limit).map(|before| format!("     was {}", describe(before))));
        }
        lines
            .extend(left.iter().map(|limit| format!("kept     {}, which is not in the file", printable(limit.name()))));
        let (count, rest) = (counted(changed.len(), "limit"), counted(wanted.len() - changed.len(), "limit"));
        lines.push(match (changed.is_empty(), check) {
            (true, _) => format!("{}: nothing to do", styled(GOOD, counted(wanted.len(), "limit"))),
            (false, true) => format!("{} to write, {rest} as they are", styled(CAUTION, count)),
            (false, false) => format!("{} written, {rest} as they were", styled(GOOD, count)),
        });
        lines.join("\n")
    })?;
    Ok(if check && !changed.is_empty() { Exit::Failed } else { Exit::Done })
}

async fn write(conn: &mut PgConnection, limit: &Limit) -> Result<(), CommandError> {
    let micros = |span: std::time::Duration| i64::try_from(span.as_micros());
    let kind = serde_json::to_value(limit.kind)?;
    sqlx::query(include_str!("push.sql"))
        .persistent(false)
        .bind(limit.name())
        .bind(kind.as_str())
        .bind(limit.rate.micros())
        .bind(micros(limit.period)?)
        .bind(limit.capacity.map_or(0, Tokens::micros))
        .bind(limit.max_reserved.micros())
        .bind(limit.start.map(micros).transpose()?)
        .bind(limit.resolution.map(u16::cast_signed))
        .bind(limit.shards.cast_signed())
        .bind(storage::name(limit.storage))
        .execute(conn)
        .await?;
    Ok(())
}
