//! `tollgate run`: a program that is limited.
//!
//! The command becomes the program (`exec`), so exit status, signals and job control are the program's own. Under a
//! concurrency limit it stays, to renew the lease: it passes signals on, and exits as the program did. Where the
//! program cannot start, the tokens are settled at 0.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::task::Poll;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tollgate::{Decision, Gate, Lease, Overrides, Receipt, Tokens, migrate};

use crate::database::{DatabaseArgs, begin_from};
use crate::error::{CommandError, Exit, in_one_line};
use crate::output::tell;
use crate::period::PeriodArgs;
use crate::target::TargetArgs;
use crate::verbs::refusal;

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// The number of tokens that one run costs.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    cost: Tokens,

    #[command(flatten)]
    period: PeriodArgs,

    /// Wait at most this long for the tokens. Without this option, a refusal is final.
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
    let request = args.period.of(args.target.request(&args.database).await?.cost(args.cost))?;
    let is_held = request.limit().lease().is_some();
    let pool = args.database.pool(1).await?;
    let parts = migrate::parts(&mut *begin_from(&pool).await?).await?;
    let said = Overrides::watch(pool.clone()).await?;
    let gate = Gate::builder(pool).unnamed_statements().parts(parts).overrides(&said).build();
    // clap demands one word at least.
    let mut program = Command::new(&args.command[0]);
    program.args(&args.command[1..]);
    match gate.acquire_within(request, args.wait.unwrap_or_default()).await? {
        Decision::Denied(denied) => {
            tell(refusal(args.cost, &denied, &said));
            Ok(Exit::Refused)
        }
        Decision::Granted(lease) if is_held => hold(&gate, lease, program.into()).await,
        Decision::Granted(lease) => {
            // Its exit status and its signals are its own.
            let error = program.exec();
            Err(not_started(&gate, lease.into_receipt(), &args.command[0], &error).await)
        }
    }
}

/// Starts the program, and holds the lease while it runs. If the lease is lost, it asks the program to end.
async fn hold(gate: &Gate, lease: Lease, mut program: tokio::process::Command) -> Result<Exit, CommandError> {
    // They start before the program, so that they miss nothing of it.
    let (mut signals, mut watchdog) = (Signals::listen()?, Watchdog::start()?);
    let mut child = match program.spawn() {
        Ok(child) => child,
        Err(error) => return Err(not_started(gate, lease.into_receipt(), program.as_std().get_program(), &error).await),
    };
    child.id().inspect(|id| watchdog.tell(id));
    let mut is_lost = false;
    let status = loop {
        tokio::select! {
            signal = signals.next() => pass_on(&child, signal),
            status = child.wait() => break status?,
            () = lease.lapsed(), if !is_lost => {
                is_lost = true;
                tell("the lease could not be renewed: the program is asked to end");
                pass_on(&child, Signal::TERM);
            }
        }
    };
    watchdog.tell("ended");
    // No signal ends the wait: the one that has ended the program may come late.
    tokio::select! {
        released = lease.release() => if let Err(error) = released {
            tell(format_args!("the lease was not released, and lapses: {}", in_one_line(&error)));
        },
        () = sleep(RELEASE_TIMEOUT) => tell("the lease could not be released in time, and lapses"),
    }
    // As shells have it, for a program that a signal has ended.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    std::process::exit(code)
}

/// A shell that kills the program if this process is killed and can pass no signal on: the shell's input then ends
/// before it hears that the program has ended. Linux could do so itself (`PR_SET_PDEATHSIG`), but no other system
/// could, and it takes `unsafe` code between fork and exec.
struct Watchdog(std::process::Child);

impl Watchdog {
    fn start() -> io::Result<Self> {
        let script =
            "trap '' HUP INT QUIT TERM USR1 USR2; read -r program && ! read -r ended && kill -KILL \"$program\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().map(Self)
    }

    fn tell(&mut self, line: impl Display) {
        // A watchdog that has gone watches nothing, and the program still runs.
        let _ = self.0.stdin.as_mut().map(|input| writeln!(input, "{line}"));
    }
}

/// The signals that are for the program.
struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Signals {
    fn listen() -> io::Result<Self> {
        let signals = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2];
        let listen = |of: Signal| Ok((of, signal(SignalKind::from_raw(of.as_raw()))?));
        signals.into_iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            let mut streams = self.0.iter_mut();
            let received = streams.find_map(|(signal, stream)| stream.poll_recv(cx).is_ready().then_some(*signal));
            received.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

fn pass_on(child: &Child, signal: Signal) {
    if matches!(signal, Signal::INT | Signal::QUIT) && is_in_foreground() {
        // The terminal has sent it to the program as well.
        return;
    }
    let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    // One that has just ended needs no signal.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Whether the keys of a terminal send signals to this process, and to the program.
fn is_in_foreground() -> bool {
    let terminal = File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|foreground| foreground == getpgrp()))
}

/// Gives back the tokens of a program that did not start.
async fn not_started(gate: &Gate, receipt: Receipt, program: &OsStr, error: &io::Error) -> CommandError {
    let what = format!("could not start {}: {error}", program.display());
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::NotExecutable };
    let failed = match gate.settle(receipt, 0).await {
        Ok(_) => CommandError::new(what, "check its name and rights; its tokens were given back"),
        Err(error) => {
            let reason = in_one_line(&error);
            CommandError::new(format!("{what}; and its tokens were not given back: {reason}"), "credit them")
        }
    };
    CommandError { exit, ..failed }
}

/// How long a program that has ended waits for its lease to be released.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
