//! A screen that follows the tables: who spends most, who has least left, who owes, and how the tables bear it.

mod controls;
mod frame;
mod sample;
mod screen;
mod view;

use std::io::{Write, stdout};
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tollgate::Limits;

use crate::connect::DatabaseArgs;
use crate::error::CommandError;
use crate::limits_file::LimitsArgs;
use controls::{Controls, Sort};
use frame::Frame;
pub(crate) use sample::LookError;
use sample::Sample;

/// Follow the tables on a full screen: the hottest and the most exhausted keys, debts, and how the tables bear it.
///
/// Each look reads eight megabytes of each table at most, in a transaction that writes nothing; of larger tables it shows
/// a part, and says so. With a limits file balances are as of now and what was taken is exact; without one they are as of
/// the last write.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    limits: LimitsArgs,

    /// How long from one look at the tables to the next.
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = interval)]
    interval: Duration,

    /// How many rows of each kind to look at: those that were written last, that take longest to be full, that owe most.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rows: u32,

    /// In which order to begin.
    #[arg(long, value_name = "ORDER", default_value = "taken")]
    sort: Sort,

    /// Show only limits and keys that contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Print one frame as plain text, of what changed within one interval, and end.
    #[arg(long)]
    once: bool,

    /// Print it as one JSON document instead.
    #[arg(long, requires = "once")]
    json: bool,
}

pub(crate) async fn run(args: TopArgs) -> Result<(), CommandError> {
    let limits = args.limits.load()?;
    let controls = Controls { sort: args.sort, filter: args.filter.clone(), ..Controls::default() };
    let mut conn = args.database.connect().await?;
    let first = Sample::take(&mut conn, args.rows).await?;
    if args.once {
        once(&args, conn, &first, limits, &controls).await
    } else {
        screen::run(args, conn, first, limits, controls).await
    }
}

/// Waits for an interval, so that there are rates, and prints.
async fn once(
    args: &TopArgs,
    mut conn: PgConnection,
    first: &Sample,
    limits: Option<Limits>,
    controls: &Controls,
) -> Result<(), CommandError> {
    tokio::time::sleep(args.interval).await;
    let second = Sample::take(&mut conn, args.rows).await?;
    conn.close().await?;
    let mut frame = Frame::new(Some(first), &second, limits.as_ref());
    let mut out = stdout().lock();
    if args.json {
        frame.keys = controls.choose(&frame).into_iter().cloned().collect();
        serde_json::to_writer_pretty(&mut out, &frame).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        out.write_all(view::text(&frame, controls, usize::try_from(args.rows).unwrap_or(usize::MAX)).as_bytes())?;
    }
    Ok(())
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < SHORTEST { Err("a tenth of a second is the least".to_owned()) } else { Ok(interval) }
}

/// More often, looking would be what is seen.
const SHORTEST: Duration = Duration::from_millis(100);
