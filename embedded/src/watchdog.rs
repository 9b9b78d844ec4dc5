use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::StartError;
use super::home::Home;
use super::user::User;

/// The shell above the server. Dropping it ends both and removes the home.
#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
    /// The pipe whose end tells the shell that this process is gone. The standard library opens it close-on-exec, so
    /// no other child of this process holds it open.
    orders: Option<ChildStdin>,
    home: Home,
}

impl Watchdog {
    pub(super) fn spawn(
        home: Home,
        user: Option<&User>,
        programs: &Path,
        data: &Path,
        sync: bool,
        arguments: &[String],
    ) -> Result<Self, StartError> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", include_str!("watchdog.sh"), "watchdog"]);
        command.args([home.path(), programs, data]);
        command.arg(if sync { "" } else { "--no-sync" }).args(arguments);
        // Not this process's directory: the server's user may have no right to be there.
        command.current_dir(home.path());
        // Ctrl-C is for the owner. The server ends after the owner, not before.
        command.process_group(0);
        // A program that waits for the end of the owner's output must not wait for the server's.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        isolate(&mut command);
        if let Some(user) = user {
            user.becomes(&mut command);
        }
        let mut shell = command.spawn().map_err(StartError::io("run /bin/sh"))?;
        let orders = shell.stdin.take();
        Ok(Self { shell, orders, home })
    }

    /// Gives an order. An order that runs a program forgets the result of the one before.
    pub(super) fn begin(&mut self, task: Task) -> Result<(), StartError> {
        let order = match task {
            Task::Initdb => "initdb\n".to_owned(),
            Task::Start(port) => format!("start {port}\n"),
            Task::Stop => "stop\n".to_owned(),
            Task::Crash => "crash\n".to_owned(),
        };
        let mut give = || {
            if matches!(task, Task::Start(_)) {
                remove_if_there(&self.home.path().join("pid"))?;
                remove_if_there(&self.home.path().join("exit"))?;
            }
            match &mut self.orders {
                Some(orders) => orders.write_all(order.as_bytes()),
                None => Err(io::ErrorKind::BrokenPipe.into()),
            }
        };
        give().map_err(StartError::io("reach the server's watchdog"))
    }

    /// Asks `fact` every few milliseconds; `None` if it is unknown after five minutes.
    ///
    /// Fails if the shell is gone, because only the shell can establish a fact.
    #[expect(clippy::disallowed_methods, reason = "bounds the wait for another process")]
    pub(super) fn wait_for<T>(&mut self, fact: impl Fn(&Self) -> Option<T>) -> Result<Option<T>, StartError> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(known) = fact(self) {
                return Ok(Some(known));
            }
            if let Some(status) = self.shell.try_wait().map_err(StartError::io("wait for /bin/sh"))? {
                let source = io::Error::other(format!("it ended with {status}"));
                return Err(StartError::Io { step: "keep the server's watchdog".into(), source });
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(None)
    }

    pub(super) fn home(&self) -> &Path {
        self.home.path()
    }

    /// The process number of the server, once it runs.
    pub(super) fn server(&self) -> Option<u32> {
        self.number("pid")
    }

    /// The exit status of the last program that an order ran, once it has ended.
    pub(super) fn status(&self) -> Option<i32> {
        self.number("exit")
    }

    pub(super) fn log(&self) -> String {
        self.read("log")
    }

    /// The last lines of the log after its first `start` bytes.
    pub(super) fn log_tail(&self, start: usize) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.get(start..).unwrap_or(&log).lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// A file of the home: the log, the output of `initdb`, or a result.
    pub(super) fn read(&self, file: &str) -> String {
        let bytes = fs::read(self.home.path().join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The shell creates a file before it writes it, so only a whole line counts.
    fn number<T: std::str::FromStr>(&self, file: &str) -> Option<T> {
        self.read(file).strip_suffix('\n')?.parse().ok()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.orders = None;
        // Fails only if the shell has already been waited for.
        let _ = self.shell.wait();
    }
}

/// The orders that the shell understands.
#[derive(Clone, Copy)]
pub(super) enum Task {
    Initdb,
    Start(u16),
    Stop,
    Crash,
}

/// Makes all servers alike: removes the user's PG* variables, which are about another server, and sets the language of
/// messages.
fn isolate(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C");
}

fn remove_if_there(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Longer than `pg_ctl` waits: a starved machine takes minutes for what another does in half a second.
const PATIENCE: Duration = Duration::from_mins(5);
/// Short beside a start of half a second. Each poll reads two small files.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Enough for the reason of a failed start with its context.
const TAIL_LINES: usize = 20;
