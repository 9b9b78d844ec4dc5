//! Figures: of which machine, of which contender, beside which baseline, and whether the targets are reached.

mod scaling;

use std::io::{Write, stderr, stdout};

use indicatif::{ProgressBar, ProgressStyle};
use tollgate::bench::{Bench, Report, Settings, server};

use crate::args::{BenchArgs, BenchCommand};
use crate::error::CommandError;
pub(crate) use scaling::{FileFault, ScalingArgs};

pub(crate) async fn run(args: BenchArgs) -> Result<(), CommandError> {
    if cfg!(debug_assertions) {
        writeln!(stderr(), "not optimised: these figures are worthless (use `cargo run --release`)")?;
    }
    if let Some(BenchCommand::Scaling(args)) = &args.command {
        return scaling::run(args).await;
    }
    if let Some(url) = &args.database_url {
        return print(&args, &measure(url, args.settings()).await?);
    }
    // Dropped last, the server is gone with the run; a Ctrl-C ends it as well.
    let server = server().await?;
    tokio::select! {
        report = measure(server.url(), args.settings()) => print(&args, &report?),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn measure(url: &str, settings: Settings) -> Result<Report, CommandError> {
    let bench = Bench::new(url, settings);
    let bar = bar(bench.turns());
    let report = bench.run(|contender, scene| {
        bar.inc(1);
        bar.set_message(format!("{scene}: {contender}"));
    });
    let report = report.await;
    bar.finish_and_clear();
    Ok(report?)
}

/// On standard error, and only where that is a terminal.
fn bar(turns: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos}/{len} {wide_bar} {eta} left, {msg}");
    // A template that is wrong is no reason to measure nothing.
    ProgressBar::new(turns as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn print(args: &BenchArgs, report: &Report) -> Result<(), CommandError> {
    let mut out = stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else if args.markdown {
        write!(out, "{}", include_str!("document.md").replace("{report}\n", &report.to_string()))?;
    } else {
        write!(out, "{report}")?;
    }
    Ok(())
}
