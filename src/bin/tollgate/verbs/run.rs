//! `tollgate run`: a program that is limited.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use tollgate::{Decision, Gate, Grant, Tokens};

use super::answer;
use super::target::TargetArgs;
use crate::connect::DatabaseArgs;
use crate::error::CommandError;
use crate::exit::Exit;

/// Arguments of `tollgate run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// How many tokens one run costs.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    cost: Tokens,

    /// Wait so long at most for the tokens; without it a refusal is final.
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,

    #[command(flatten)]
    database: DatabaseArgs,

    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes the program, if it is granted: so its exit status and its signals are its own.
pub(crate) async fn run(args: RunArgs) -> Result<Exit, CommandError> {
    let request = args.target.request()?.cost(args.cost);
    let gate = Gate::builder(args.database.pool(1).await?).unnamed_statements().distributed().build();
    match gate.wait(request, args.wait.unwrap_or_default()).await? {
        Decision::Denied(denied) => {
            // The exit status tells also those who do not read it.
            let _ = writeln!(anstream::stderr(), "{}", answer::refusal(args.cost, &denied));
            Ok(Exit::Refused)
        }
        Decision::Granted(grant) => Err(become_program(&gate, grant, &args.command).await.into()),
    }
}

/// Returns only if the program cannot be started; then it gives the tokens back.
async fn become_program(gate: &Gate, grant: Grant, command: &[OsString]) -> RunError {
    // clap demands one word at least.
    let (program, arguments) = (&command[0], &command[1..]);
    let source = Command::new(program).args(arguments).exec();
    let program = program.clone();
    match gate.settle(grant, 0).await {
        Ok(_) => RunError::NotStarted { program, source },
        Err(error) => RunError::NotGivenBack { program, source, error },
    }
}

/// Why a program that was granted did not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("could not start {program:?}: {source}; and its tokens were not given back: {error} (credit them)")]
    NotGivenBack { program: OsString, source: io::Error, error: tollgate::Error },
    #[error("could not start {program:?}: {source} (check its name and rights; its tokens were given back)")]
    NotStarted { program: OsString, source: io::Error },
}

impl RunError {
    /// As shells have it: 127 for a program that is not there, 126 for one that cannot be run.
    pub(crate) fn exit_code(&self) -> ExitCode {
        let (Self::NotGivenBack { source, .. } | Self::NotStarted { source, .. }) = self;
        ExitCode::from(if source.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
    }
}
