//! How far one server goes: measured, modelled, and reckoned on to a million decisions a second.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;
use tollgate::bench::scaling::{Measurements, Scaling, ScalingReport};
use tollgate::bench::server;

use super::bar;
use crate::error::CommandError;

/// Measure how one server scales, fit a model to some of the points, and say what it makes of the others and of more.
///
/// Eight minutes on a private PostgreSQL that is gone afterwards. Keep the machine quiet meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct ScalingArgs {
    /// Put the figures between the markers of this Markdown file, and the measured points beside it, with the ending json.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// Measure nothing: take the points of this JSON file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rounds", "seconds", "quick"])]
    from: Option<PathBuf>,

    /// How often all points have their turn. 5 unless given.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// Seconds that each turn is timed. 1 unless given.
    #[arg(long, value_name = "N", value_parser = crate::args::seconds)]
    seconds: Option<Duration>,

    /// One round of short turns over small tables, unless given: to see that it works, not to quote.
    #[arg(long)]
    quick: bool,
}

pub(crate) async fn run(args: &ScalingArgs) -> Result<(), CommandError> {
    let measurements = match &args.from {
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|error| fault(path, &error))?;
            serde_json::from_str(&text).map_err(|error| fault(path, &error))?
        }
        None => match measure(args).await? {
            Some(measurements) => measurements,
            None => return Ok(()),
        },
    };
    let report = ScalingReport::new(measurements);
    match &args.write {
        None => write!(stdout().lock(), "{report}")?,
        Some(path) => {
            let document = fs::read_to_string(path).map_err(|error| fault(path, &error))?;
            let document = with_figures(&document, &report)
                .ok_or_else(|| fault(path, &format!("it lacks the markers {BEGIN} and {END}")))?;
            let points = serde_json::to_string_pretty(report.measurements()).map_err(std::io::Error::from)?;
            fs::write(path.with_extension("json"), points + "\n")?;
            fs::write(path, document)?;
        }
    }
    Ok(())
}

/// None if Ctrl-C ends it.
async fn measure(args: &ScalingArgs) -> Result<Option<Measurements>, CommandError> {
    let usual = if args.quick { Scaling::quick() } else { Scaling::default() };
    let scaling =
        Scaling { rounds: args.rounds.unwrap_or(usual.rounds), turn: args.seconds.unwrap_or(usual.turn), ..usual };
    // Dropped last, the server is gone with the run; a Ctrl-C ends it as well.
    let server = server().await?;
    let bar = bar(scaling.turns());
    let measured = scaling.run(&server, |subject| advance(&bar, subject.to_string()));
    tokio::select! {
        measurements = measured => {
            bar.finish_and_clear();
            Ok(Some(measurements?))
        }
        _ = tokio::signal::ctrl_c() => Ok(None),
    }
}

fn advance(bar: &ProgressBar, message: String) {
    bar.inc(1);
    bar.set_message(message);
}

/// A file that cannot be read, or be made sense of.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {fault}")]
pub(crate) struct FileFault {
    path: String,
    fault: String,
}

fn fault(path: &Path, fault: &impl ToString) -> FileFault {
    FileFault { path: path.display().to_string(), fault: fault.to_string() }
}

/// The document with these figures in place of those between its markers.
fn with_figures(document: &str, report: &ScalingReport) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{report}{END}{after}"))
}

const BEGIN: &str = "<!-- figures -->";
const END: &str = "<!-- end of figures -->";
