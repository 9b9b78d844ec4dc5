//! Rows that are full again go, once or again and again.

mod args;
mod report;
mod stop;

use std::io::{Write, stderr, stdout};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sqlx::PgPool;
use tokio::time::Instant;
use tollgate::Sweeper;

use crate::error::CommandError;
pub(crate) use args::SweepArgs;
use report::Report;
use stop::Stop;

pub(crate) async fn run(args: SweepArgs) -> Result<(), CommandError> {
    let sweeper = args.sweeper()?;
    let pool = args.database.pool(1).await?;
    let mut stop = Stop::listen()?;
    loop {
        match sweep(&sweeper, &pool, &stop, args.dry_run).await {
            (report, Ok(())) => print(&report, args.output.json)?,
            (report, Err(error)) => {
                if report.swept.pages > 0 {
                    print(&report, args.output.json)?;
                }
                // What runs all day outlasts a server that is restarted.
                if args.every.is_none() || !error.is_retryable() {
                    return Err(error.into());
                }
                writeln!(stderr(), "error: {error}")?;
            }
        }
        let Some(every) = args.every.filter(|_| !stop.is_asked()) else { return Ok(()) };
        tokio::select! {
            () = tokio::time::sleep(jittered(every)) => {}
            () = stop.asked() => return Ok(()),
        }
    }
}

/// Makes one pass, until its end, an error, or until it is to stop; what it did until then.
async fn sweep(sweeper: &Sweeper, pool: &PgPool, stop: &Stop, dry_run: bool) -> (Report, Result<(), tollgate::Error>) {
    let (bar, began) = (bar(), Instant::now());
    let mut pass = sweeper.pass(pool);
    let mut more = Ok(true);
    while matches!(more, Ok(true)) && !stop.is_asked() {
        more = pass.step().await;
        let (done, pages) = pass.progress();
        bar.set_length(pages);
        bar.set_position(done);
        bar.set_message(format!("{} rows", pass.swept().rows()));
    }
    bar.finish_and_clear();
    let complete = matches!(more, Ok(false)) && !pass.swept().yielded;
    let report = Report { swept: pass.swept(), complete, dry_run, seconds: began.elapsed().as_secs_f64() };
    (report, more.map(|_| ()))
}

/// On standard error, and only where that is a terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{percent}% of {len} pages {wide_bar} {eta} left, {msg}");
    // A template that is wrong is no reason to sweep nothing.
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn print(report: &Report, json: bool) -> Result<(), CommandError> {
    let mut out = stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{report}")?;
    }
    Ok(())
}

/// Up to a tenth earlier or later, so that many of these that were started together do not sweep together.
fn jittered(every: Duration) -> Duration {
    (every / 10 * 9).saturating_add((every / 5).mul_f64(fastrand::f64()))
}
