//! `tollgate run`: a program that is limited.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::{Decision, Gate, Lease, Receipt, Tokens, migrate};

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

/// Runs the program, if it is granted.
pub(crate) async fn run(args: RunArgs) -> Result<Exit, CommandError> {
    let request = args.target.request()?.cost(args.cost);
    let is_held = request.limit().lease().is_some();
    let pool = args.database.pool(1).await?;
    let parts = migrate::parts(&mut *pool.acquire().await?).await?;
    let gate = Gate::builder(pool).unnamed_statements().parts(parts).build();
    // clap demands one word at least.
    let mut program = Command::new(&args.command[0]);
    program.args(&args.command[1..]);
    match gate.acquire_within(request, args.wait.unwrap_or_default()).await? {
        Decision::Denied(denied) => {
            tell(refusal(args.cost, &denied));
            Ok(Exit::Refused)
        }
        Decision::Granted(lease) if is_held => match tokio::process::Command::from(program).spawn() {
            Ok(child) => hold(lease, child).await,
            Err(error) => Err(not_started(&gate, lease.into_receipt(), &args.command[0], &error).await),
        },
        Decision::Granted(lease) => {
            // Its exit status and its signals are its own.
            let error = program.exec();
            Err(not_started(&gate, lease.into_receipt(), &args.command[0], &error).await)
        }
    }
}

/// Holds a lease while the program runs. If it is lost, the program is asked to end.
async fn hold(lease: Lease, mut child: Child) -> Result<Exit, CommandError> {
    // The terminal sends these to the program as well.
    let (_interrupt, _quit) = (signal(SignalKind::interrupt())?, signal(SignalKind::quit())?);
    let (mut terminate, mut hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let mut is_lost = false;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            _ = terminate.recv() => pass_on(&child, Signal::TERM),
            _ = hang_up.recv() => pass_on(&child, Signal::HUP),
            () = lease.lapsed(), if !is_lost => {
                is_lost = true;
                tell("the lease could not be renewed: the program is asked to end");
                pass_on(&child, Signal::TERM);
            }
        }
    };
    if let Err(error) = lease.release().await {
        tell(format_args!("the lease was not released, and lapses: {error}"));
    }
    // As shells have it, for a program that a signal has ended.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    std::process::exit(code)
}

fn pass_on(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    // One that has just ended needs no signal.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Gives the tokens back that the program did not use.
async fn not_started(gate: &Gate, receipt: Receipt, program: &OsString, error: &io::Error) -> CommandError {
    let what = format!("could not start {}: {error}", program.display());
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::NotExecutable };
    let failed = match gate.settle(receipt, 0).await {
        Ok(_) => CommandError::new(what, "check its name and rights; its tokens were given back"),
        Err(error) => CommandError::new(format!("{what}; and its tokens were not given back: {error}"), "credit them"),
    };
    CommandError { exit, ..failed }
}
