//! The `tollgate` command: it creates the tables that the library needs, shows their rows, limits callers, and tries
//! limits on traffic.

mod confirm;
mod database;
mod distribute;
mod doctor;
mod error;
mod forget;
mod inspect;
mod limits;
mod limits_file;
mod manual;
mod migrate;
mod output;
mod overrides;
mod parts;
mod period;
mod push;
mod reset;
mod row;
mod run;
mod simulate;
mod storage;
mod suggest;
mod svg;
mod sweep;
mod target;
mod top;
mod trace;
mod usage;
mod verbs;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

use error::{CommandError, Exit};

/// An exact rate limiter on PostgreSQL.
///
/// Exit status: 0 done or granted, 1 failed (one sentence on standard error says why), 2 refused by the limit, 64 wrong
/// usage.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say whether `consume` would be granted now, and take nothing.
    ///
    /// Exit status: 0 would be granted, 2 would be refused, 1 failed.
    #[command(override_usage = "tollgate check [OPTIONS] <NAME> <KEY|--global>")]
    Check(verbs::AskArgs),
    /// Print a script that completes this command in a shell.
    Completions(manual::CompletionsArgs),
    /// Take tokens if enough remain, and otherwise none.
    ///
    /// Exit status: 0 granted, 2 refused, 1 failed.
    #[command(override_usage = "tollgate consume [OPTIONS] <NAME> <KEY|--global>")]
    Consume(verbs::ConsumeArgs),
    /// Give tokens. A balance stops at the capacity; a wallet takes all of them.
    #[command(override_usage = "tollgate credit [OPTIONS] <NAME> <KEY|--global>")]
    Credit(verbs::AskArgs),
    /// Take tokens even if too few remain. The missing ones become a debt.
    #[command(override_usage = "tollgate debit [OPTIONS] <NAME> <KEY|--global>")]
    Debit(verbs::AskArgs),
    Distribute(distribute::DistributeArgs),
    Doctor(doctor::DoctorArgs),
    Forget(forget::ForgetArgs),
    Inspect(inspect::InspectArgs),
    /// Check a limits file, or push it to the database.
    Limits {
        #[command(subcommand)]
        command: limits::LimitsCommand,
    },
    /// Print the manual page, or write the pages of all subcommands into a directory.
    Man(manual::ManArgs),
    /// Create the tables, or bring them up to date.
    Migrate(migrate::MigrateArgs),
    /// Override a limit, for one key or for every key: with other numbers, deny, or unlimited.
    Override {
        #[command(subcommand)]
        command: overrides::OverrideCommand,
    },
    /// Fill a key up and forgive its debts, or empty its wallet. `--all` does so for all keys of a limit.
    #[command(override_usage = "tollgate reset [OPTIONS] <NAME> <KEY|--global|--all>")]
    Reset(reset::ResetArgs),
    /// Run a program if the limit grants it.
    ///
    /// A concurrency limit bounds how many programs run at once. Under such a limit, this command renews the lease
    /// until the program ends. If it cannot renew the lease, it sends SIGTERM to the program. If SIGKILL ends this
    /// command, the program is killed, too. The processes that the program has started live on.
    ///
    /// Exit status: that of the program, 2 if the limit refuses, 1 if this command fails, 126 if the program cannot be
    /// run, 127 if there is no such program.
    #[command(override_usage = "tollgate run [OPTIONS] <NAME> <KEY|--global> -- <COMMAND>...")]
    Run(run::RunArgs),
    /// Try limits on made-up or recorded traffic. Needs no database.
    Simulate(simulate::SimulateArgs),
    /// Read recorded calls, and find the smallest limit that would have refused few enough of them. Needs no database.
    Suggest(suggest::SuggestArgs),
    Sweep(sweep::SweepArgs),
    Top(top::TopArgs),
    Usage(usage::UsageArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let exit = match Args::try_parse() {
        Ok(args) => carry_out(args.command).await.unwrap_or_else(|error| {
            output::tell(format_args!("error: {error}"));
            error.exit
        }),
        // `--help` and `--version` arrive here, too; all else is wrong usage.
        Err(usage) => {
            let _ = usage.print();
            if usage.use_stderr() { Exit::Usage } else { Exit::Done }
        }
    };
    exit.into()
}

async fn carry_out(command: Command) -> Result<Exit, CommandError> {
    match command {
        Command::Check(args) => return verbs::check(args).await,
        Command::Completions(args) => manual::completions(&args, Args::command())?,
        Command::Consume(args) => return verbs::consume(args).await,
        Command::Credit(args) => return verbs::credit(args).await,
        Command::Debit(args) => return verbs::debit(args).await,
        Command::Distribute(args) => distribute::run(args).await?,
        Command::Doctor(args) => return doctor::run(args).await,
        Command::Forget(args) => forget::run(args).await?,
        Command::Inspect(args) => inspect::run(args).await?,
        Command::Limits { command } => return limits::run(command).await,
        Command::Man(args) => manual::man(&args, Args::command())?,
        Command::Migrate(args) => migrate::run(args).await?,
        Command::Override { command } => overrides::run(command).await?,
        Command::Reset(args) => return reset::run(args).await,
        Command::Run(args) => return run::run(args).await,
        Command::Simulate(args) => simulate::run(args)?,
        Command::Suggest(args) => suggest::run(args)?,
        Command::Sweep(args) => sweep::run(args).await?,
        Command::Top(args) => top::run(args).await?,
        Command::Usage(args) => usage::run(args).await?,
    }
    Ok(Exit::Done)
}

/// Reads a span of time that must not be too short: one look or sweep would otherwise follow another without a pause.
fn at_least(least: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
        let too_short = || format!("{} is the least", humantime::format_duration(least));
        if span < least { Err(too_short()) } else { Ok(span) }
    }
}
