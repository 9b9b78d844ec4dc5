//! The `tollgate` command: the tables that the library needs, what is in them, and who is limited; limits tried on traffic,
//! a demonstration, and how fast it is.

mod args;
mod bench;
mod connect;
mod demo;
mod distribute;
mod doctor;
mod error;
mod exit;
mod inspect;
mod limits;
mod limits_file;
mod manual;
mod migrate;
mod output;
mod simulate;
mod sweep;
mod top;
mod transaction;
mod verbs;

use std::io::{Write, stderr};
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use error::CommandError;
use exit::Exit;

#[tokio::main]
async fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(usage) => return explain(&usage),
    };
    match run(args.command).await {
        Ok(exit) => exit.into(),
        // Whoever reads only the first lines of the output has all they want.
        Err(CommandError::OutputClosed) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody reads the message, the exit status still tells.
            let _ = writeln!(stderr(), "error: {error}");
            error.exit_code()
        }
    }
}

async fn run(command: Command) -> Result<Exit, CommandError> {
    match command {
        Command::Bench(args) => bench::run(args).await.map(Exit::from),
        Command::Check(args) => verbs::check(args).await,
        Command::Completions(args) => manual::completions(&args).map(Exit::from),
        Command::Consume(args) => verbs::consume(args).await,
        Command::Credit(args) => verbs::credit(args).await,
        Command::Debit(args) => verbs::debit(args).await,
        Command::Demo(args) => demo::run(args).await.map(Exit::from),
        Command::Distribute(args) => distribute::run(args).await.map(Exit::from),
        Command::Doctor(args) => doctor::run(args).await,
        Command::Inspect(args) => inspect::run(args).await,
        Command::Limits { command } => limits::run(command),
        Command::Man(args) => manual::man(&args).map(Exit::from),
        Command::Migrate(args) => migrate::run(args).await.map(Exit::from),
        Command::Reset(args) => verbs::reset(args).await,
        Command::Run(args) => verbs::run(args).await,
        Command::Simulate(args) => simulate::run(&args).map(Exit::from),
        Command::Sweep(args) => sweep::run(args).await.map(Exit::from),
        Command::Top(args) => top::run(args).await.map(Exit::from),
    }
}

/// Help and version are asked for; all else is wrong usage.
fn explain(usage: &clap::Error) -> ExitCode {
    let _ = usage.print();
    if usage.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS }
}
