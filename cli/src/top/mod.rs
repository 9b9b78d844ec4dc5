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

/// Follow the tables on a full screen: the hottest keys, the most exhausted keys, and debts.
///
/// Each look reads about 8 MB of each table, in a transaction that writes nothing. If a table is larger, the screen
/// shows a part of it, and says so. On Citus, each look reads the tables whole, part by part.
///
/// With definitions, the screen shows the tokens that remain now, and how many were taken since the look before, less
/// those given back. Without them, it shows the tokens that were used at the last write, and the least that were taken.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    limits: LimitsArgs,

    /// How long to pause between two looks at the tables.
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = at_least(Duration::from_millis(100)))]
    interval: Duration,

    /// Look at this many rows of each kind in each table. The kinds are: written last, longest until full, most used.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rows: u32,

    /// The order of the rows at the start.
    #[arg(long, value_name = "ORDER", default_value = "taken")]
    sort: Sort,

    /// Show only limits and keys that contain this text, among the rows that `--rows` chooses.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Print one frame and end. The frame shows what changed within one interval. With --json, the command does the
    /// same.
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: TopArgs) -> Result<(), CommandError> {
    let mut conn = args.database.connect().await?;
    let limits = args.limits.known(&mut conn).await?;
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
