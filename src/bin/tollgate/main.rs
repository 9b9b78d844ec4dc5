//! The `tollgate` command: the tables that the library needs, a demonstration of what it does with them, and how fast it is.

mod args;
mod bench;
mod connect;
mod demo;
mod error;
mod exit;
mod limits_file;
mod migrate;

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
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<Exit, CommandError> {
    match command {
        Command::Bench(args) => bench::run(args).await.map(Exit::from),
        Command::Demo(args) => demo::run(args).await.map(Exit::from),
        Command::Migrate(args) => migrate::run(args).await.map(Exit::from),
    }
}

/// Help and version are asked for; all else is wrong usage.
fn explain(usage: &clap::Error) -> ExitCode {
    let _ = usage.print();
    if usage.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS }
}
