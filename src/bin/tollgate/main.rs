//! The `tollgate` command: the tables that the library needs, a demonstration of what it does with them, and how fast it is.

mod args;
mod bench;
mod demo;
mod error;
mod migrate;
mod simulate;

use std::io::{Write, stderr};
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use error::CommandError;

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Bench(args) => bench::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::Simulate(args) => simulate::run(&args),
    };
    match done {
        // Whoever reads only the first lines of the output has all they want.
        Ok(()) | Err(CommandError::OutputClosed) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody reads the message, the exit status still tells.
            let _ = writeln!(stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
