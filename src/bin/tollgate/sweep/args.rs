use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tollgate::{Limits, Storage, Sweeper};

use crate::connect::DatabaseArgs;
use crate::error::CommandError;
use crate::limits_file::{LimitsArgs, LimitsFileError};
use crate::output::OutputArgs;

/// Delete rows that are full again, in small batches beside those who decide.
///
/// A row goes when it is full by its own word and by the limits files; one of a limit that is in none goes a margin
/// later. SIGINT (Ctrl-C) and SIGTERM end it after the batch at hand: what is done is said, and that is no failure. With
/// --json there is one document for each pass, on a line of its own.
///
/// Exit status: 0 done or ended by a signal, 1 failed, 130 ended on the spot by a second signal.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(super) database: DatabaseArgs,

    #[command(flatten)]
    limits: LimitsArgs,

    /// The limits file of a release that is still live beside the one of --limits: a row goes when it is full under both.
    #[arg(long, value_name = "FILE")]
    old_limits: Option<PathBuf>,

    /// Sweep again and again, about so often ("1m", "1h"), until SIGINT or SIGTERM.
    #[arg(long, value_name = "SPAN", value_parser = period)]
    pub(super) every: Option<Duration>,

    /// How many rows one statement deletes at most.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,

    /// Which share of the time to be at work, in percent; it rests in between.
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u8).range(1..=100))]
    share: u8,

    /// How long a row stays after it said to be full, if its limit is in no limits file.
    #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = humantime::parse_duration)]
    margin: Duration,

    /// Sweep one table only.
    #[arg(long, value_name = "NAME", value_parser = storage())]
    storage: Option<Storage>,

    /// Give statements no names, for poolers in transaction mode that do not follow them.
    #[arg(long)]
    unnamed_statements: bool,

    /// Delete nothing, and say what would be deleted.
    #[arg(long)]
    pub(super) dry_run: bool,

    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl SweepArgs {
    pub(super) fn sweeper(&self) -> Result<Sweeper, CommandError> {
        let mut sweeper = Sweeper::new().batch(self.batch).share(self.share).margin(self.margin);
        let old = self.old_limits.as_ref().map(Limits::from_file).transpose().map_err(LimitsFileError::from)?;
        for limits in self.limits.load()?.iter().chain(&old) {
            sweeper = sweeper.knows(limits.iter().cloned());
        }
        if let Some(storage) = self.storage {
            sweeper = sweeper.only(storage);
        }
        if self.unnamed_statements {
            sweeper = sweeper.unnamed_statements();
        }
        Ok(if self.dry_run { sweeper.dry_run() } else { sweeper })
    }
}

fn period(text: &str) -> Result<Duration, String> {
    let period = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if period < SHORTEST { Err("a second is the least".to_owned()) } else { Ok(period) }
}

fn storage() -> impl TypedValueParser<Value = Storage> {
    PossibleValuesParser::new(["ephemeral", "durable"])
        .map(|name| if name == "ephemeral" { Storage::Ephemeral } else { Storage::Durable })
}

/// More often nothing new is full.
const SHORTEST: Duration = Duration::from_secs(1);
