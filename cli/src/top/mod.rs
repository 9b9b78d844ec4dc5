//! `tollgate top`: a screen that follows the tables, and shows which keys spend most, have the fewest tokens remaining,
//! or owe.

mod frame;
mod screen;
mod view;

use std::time::Duration;

use sqlx::Connection;

use crate::at_least;
use crate::database::DatabaseArgs;
use crate::error::CommandError;
use crate::limits_file::LimitsArgs;
use crate::output::OutputArgs;
use frame::{Frame, Sample, Sort};
use view::View;

/// Follow the tables on a full screen: the hottest and the most exhausted keys, and debts.
///
/// Each look reads eight megabytes of each table at most, in a transaction that writes nothing; of larger tables it
/// shows a part, and says so. On Citus it reads them whole, part by part. With a limits file it shows the tokens that
/// remain now, and counts exactly those that were taken; without one it shows those that were used at the last write.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    limits: LimitsArgs,

    /// How long from one look at the tables to the next.
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = at_least(Duration::from_millis(100)))]
    interval: Duration,

    /// How many rows of each kind to look at: those that were written last, that take longest to be full, that owe
    /// most.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rows: u32,

    /// In which order to begin.
    #[arg(long, value_name = "ORDER", default_value = "taken")]
    sort: Sort,

    /// Show only limits and keys that contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Print one frame, of what changed within one interval, and end. So does --json.
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: TopArgs) -> Result<(), CommandError> {
    let limits = args.limits.load()?;
    let mut conn = args.database.connect().await?;
    let first = Sample::take(&mut conn, &args).await?;
    if !args.once && !args.output.json {
        return screen::run(args, conn, first, limits).await;
    }
    // There are no rates before the second look.
    tokio::time::sleep(args.interval).await;
    let second = Sample::take(&mut conn, &args).await?;
    conn.close().await?;
    let mut frame = Frame::new(Some(&first), &second, limits.as_ref());
    frame.keys = frame.sorted(args.sort).into_iter().cloned().collect();
    args.output.print(&frame, || View::new(frame.clone(), args.sort).text())?;
    frame.away.map_or(Ok(()), |away| Err(CommandError::bare(away)))
}
