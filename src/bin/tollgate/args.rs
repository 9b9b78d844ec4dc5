use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use tollgate::Storage;
use tollgate::bench::{Settings, Workload};

use crate::connect::DatabaseArgs;
use crate::distribute::DistributeArgs;
use crate::doctor::DoctorArgs;
use crate::inspect::InspectArgs;
use crate::limits::LimitsCommand;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::output::OutputArgs;
use crate::sweep::SweepArgs;
use crate::top::TopArgs;
use crate::verbs::{AskArgs, ConsumeArgs, ResetArgs, RunArgs};

/// An exact rate limiter on PostgreSQL.
///
/// Exit status: 0 done or granted, 1 failed (one sentence on standard error says why), 2 refused by the limit, 64 wrong usage.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure the gate beside what it replaces, on a private PostgreSQL that is gone afterwards.
    Bench(BenchArgs),
    /// Say what `consume` would answer now, and take nothing.
    ///
    /// Exit status: 0 would be granted, 2 would be refused, 1 failed.
    #[command(override_usage = "tollgate check [OPTIONS] <NAME> <KEY|--global>")]
    Check(AskArgs),
    /// Print a script that completes this command in a shell.
    Completions(CompletionsArgs),
    /// Take tokens, if all of them are there.
    ///
    /// Exit status: 0 granted, 2 refused, 1 failed.
    #[command(override_usage = "tollgate consume [OPTIONS] <NAME> <KEY|--global>")]
    Consume(ConsumeArgs),
    /// Give tokens, up to the capacity.
    #[command(override_usage = "tollgate credit [OPTIONS] <NAME> <KEY|--global>")]
    Credit(AskArgs),
    /// Take tokens whatever is there: what is missing becomes a debt.
    #[command(override_usage = "tollgate debit [OPTIONS] <NAME> <KEY|--global>")]
    Debit(AskArgs),
    /// Show what the limiter does, on a private PostgreSQL that is gone afterwards.
    Demo(DemoArgs),
    Distribute(DistributeArgs),
    Doctor(DoctorArgs),
    Inspect(InspectArgs),
    /// Check a limits file.
    Limits {
        #[command(subcommand)]
        command: LimitsCommand,
    },
    /// Print the manual page, or write those of all subcommands.
    Man(ManArgs),
    /// Create the tables, or bring them up to date.
    Migrate(MigrateArgs),
    /// Fill a key up and forgive its debts, or all keys of a limit.
    #[command(override_usage = "tollgate reset [OPTIONS] <NAME> <KEY|--global|--all>")]
    Reset(ResetArgs),
    /// Run a program if the limit grants it.
    ///
    /// Exit status: the program's own; 2 refused, 1 failed; 126 and 127 for a program that cannot be run or is not there.
    #[command(override_usage = "tollgate run [OPTIONS] <NAME> <KEY|--global> -- <COMMAND>...")]
    Run(RunArgs),
    /// Try limits on traffic, made up or recorded, without a database.
    Simulate(crate::simulate::SimulateArgs),
    Sweep(SweepArgs),
    Top(TopArgs),
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,

    /// Run in this database instead of a private one: migrates it, and removes the rows that it made.
    ///
    /// Never taken from the environment, so that a `DATABASE_URL` lying about is left alone. The role must be allowed to vacuum
    /// the tables; statements are counted where the extension `pg_stat_statements` is installed.
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,

    /// What the callers ask; repeatable. All unless given.
    #[arg(long = "workload", value_name = "NAME", value_parser = workloads())]
    workloads: Vec<Workload>,

    /// Where the balances are kept; repeatable. Both unless given.
    #[arg(long = "storage", value_name = "NAME", value_parser = storages())]
    storages: Vec<Storage>,

    /// Numbers of concurrent callers. 1,16,64,256 unless given.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    callers: Vec<usize>,

    /// Seconds that each turn is timed. 2 unless given.
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,

    /// How often all take their turns; medians count. 5 unless given.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// How many lanes the gate has. As many as by default unless given.
    #[arg(long, value_name = "N")]
    lanes: Option<usize>,

    /// One round of 0.3 seconds with 1 and 64 callers, unless given: to see that it works, not to quote.
    #[arg(long)]
    quick: bool,

    /// Print one JSON document instead of tables.
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,

    /// Print what `docs/benchmarks.md` is made of: the tables, and what they mean.
    #[arg(long)]
    pub(crate) markdown: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Scaling(crate::bench::ScalingArgs),
}

impl BenchArgs {
    /// The usual settings, or the quick ones, but for what is given.
    pub(crate) fn settings(&self) -> Settings {
        let usual = if self.quick { Settings::quick() } else { Settings::default() };
        Settings {
            workloads: given(&self.workloads, usual.workloads),
            storages: given(&self.storages, usual.storages),
            callers: given(&self.callers, usual.callers),
            turn: self.seconds.unwrap_or(usual.turn),
            rounds: self.rounds.unwrap_or(usual.rounds),
            lanes: self.lanes,
        }
    }
}

fn given<T: Clone>(values: &[T], usual: Vec<T>) -> Vec<T> {
    if values.is_empty() { usual } else { values.to_vec() }
}

fn workloads() -> impl TypedValueParser<Value = Workload> {
    PossibleValuesParser::new(Workload::ALL.map(Workload::name)).try_map(|name| name.parse::<Workload>())
}

fn storages() -> impl TypedValueParser<Value = Storage> {
    PossibleValuesParser::new(["ephemeral", "durable"])
        .map(|name| if name == "ephemeral" { Storage::Ephemeral } else { Storage::Durable })
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "it is no number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Run in this database instead of a private one: migrates it, and removes what the demo itself wrote.
    ///
    /// Never taken from the environment, so that a `DATABASE_URL` lying about is left alone.
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    pub(crate) command: MigrateCommand,

    #[command(flatten)]
    pub(crate) database: DatabaseArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Apply what is missing, in one transaction; of several runners one applies and the others wait.
    Up {
        /// Apply it, say what was applied, and roll it back.
        #[arg(long)]
        dry_run: bool,
    },
    /// Say what is applied and what is missing.
    Status,
    /// Print all migrations as SQL that is safe to run twice, for psql or another migration tool. Needs no database.
    Sql,
    /// Check that nothing is missing, edited or damaged; fails with the first fault.
    Validate,
}
