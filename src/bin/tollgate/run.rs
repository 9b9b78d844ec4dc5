//! `tollgate run`: a program that is limited.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use tollgate::{Decision, Gate, Grant, Tokens, migrate};

use crate::database::DatabaseArgs;
use crate::error::{CommandError, Exit};
use crate::output::tell;
use crate::target::TargetArgs;
use crate::verbs::refusal;

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

/// Becomes the program, if it is granted: its exit status and its signals are its own.
pub(crate) async fn run(args: RunArgs) -> Result<Exit, CommandError> {
    let request = args.target.request()?.cost(args.cost);
    let pool = args.database.pool(1).await?;
    let parts = migrate::parts(&mut *pool.acquire().await?).await?;
    let gate = Gate::builder(pool).unnamed_statements().parts(parts).build();
    match gate.wait(request, args.wait.unwrap_or_default()).await? {
        Decision::Denied(denied) => {
            tell(refusal(args.cost, &denied));
            Ok(Exit::Refused)
        }
        Decision::Granted(grant) => {
            // clap demands one word at least.
            let (program, arguments) = (&args.command[0], &args.command[1..]);
            let error = Command::new(program).args(arguments).exec();
            Err(not_started(&gate, grant, program, &error).await)
        }
    }
}

/// Gives the tokens back that the program did not use.
async fn not_started(gate: &Gate, grant: Grant, program: &OsString, error: &io::Error) -> CommandError {
    let what = format!("could not start {}: {error}", program.display());
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::NotExecutable };
    let failed = match gate.settle(grant, 0).await {
        Ok(_) => CommandError::new(what, "check its name and rights; its tokens were given back"),
        Err(error) => CommandError::new(format!("{what}; and its tokens were not given back: {error}"), "credit them"),
    };
    CommandError { exit, ..failed }
}
