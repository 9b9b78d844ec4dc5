use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf, absolute};

use super::home::Home;
use super::user::User;
use super::watchdog::{Task, Watchdog};
use super::{Builder, StartError, find_programs};

/// A private PostgreSQL server. Dropping it stops the server and deletes the data, unless [`Builder::data_dir`] keeps
/// them.
#[derive(Debug)]
pub struct Server {
    watchdog: Watchdog,
    programs: PathBuf,
    data: PathBuf,
    keeps_data: bool,
    tcp: bool,
    /// Zero until the first start.
    port: u16,
    url: String,
}

impl Server {
    /// Starts a server on a Unix socket, tuned for speed, and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// [`StartError`]: any variant but `Setting` and `Shutdown`.
    pub fn start() -> Result<Self, StartError> {
        Self::builder().start()
    }

    /// A server with other options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Stops the server as a crash would: without a checkpoint, so that the next start recovers. The data stay.
    ///
    /// # Errors
    ///
    /// [`StartError::TimedOut`]; [`StartError::Io`] if the watchdog is gone.
    pub fn crash(&mut self) -> Result<(), StartError> {
        self.end(Task::Crash).map(drop)
    }

    /// Stops the server cleanly: sessions end, and a checkpoint writes all data, which stay.
    ///
    /// # Errors
    ///
    /// [`StartError::TimedOut`], [`StartError::Shutdown`]; [`StartError::Io`] if the watchdog is gone.
    pub fn stop(&mut self) -> Result<(), StartError> {
        match self.end(Task::Stop)? {
            None | Some(0) => Ok(()),
            Some(_) => Err(StartError::Shutdown(self.watchdog.log_tail(0))),
        }
    }

    /// Starts the server again over the same data and at the same address. A running server is stopped cleanly first.
    ///
    /// # Errors
    ///
    /// [`StartError::TimedOut`], [`StartError::Shutdown`], [`StartError::Startup`]; [`StartError::Io`] if the watchdog
    /// is gone.
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.stop()?;
        self.listen(self.port)
    }

    /// The URL of the database `postgres`, for the superuser `postgres`.
    ///
    /// It always has a port, because clients would take a missing one from `PGPORT`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of another database.
    #[must_use]
    pub fn database_url(&self, database: &str) -> String {
        let (port, database) = (self.port, escape(database));
        if self.tcp {
            format!("postgres://postgres@127.0.0.1:{port}/{database}")
        } else {
            let socket = self.watchdog.home().display();
            format!("postgres://postgres@localhost:{port}/{database}?host={socket}")
        }
    }

    /// The directory of the server programs. Most installations have `psql` and `pgbench` there too.
    #[must_use]
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// The server's log, from its first start on.
    #[must_use]
    pub fn log(&self) -> String {
        self.watchdog.log()
    }

    /// Makes the private directory, the watchdog and the cluster, but runs no server yet.
    pub(super) fn prepare(options: &ServerOptions) -> Result<Self, StartError> {
        let programs = find_programs()?;
        let data = match &options.data_dir {
            Some(path) => Some(absolute(path).map_err(StartError::io(opening(path)))?),
            None => None,
        };
        // Nothing slow may happen before the watchdog runs: if this process is killed before that, the home stays.
        let home = Home::create()?;
        let user = User::for_home(home.path())?;
        let data = data.unwrap_or_else(|| home.path().join("data"));
        let watchdog = Watchdog::spawn(home, user.as_ref(), &programs, &data, options.sync, &options.arguments)?;
        if let Some(user) = &user {
            user.check_access(&programs)?;
        }
        if options.data_dir.is_some() {
            open_data_dir(&data, user.as_ref())?;
        }
        let mut server = Self {
            watchdog,
            programs,
            data,
            keeps_data: options.data_dir.is_some(),
            tcp: options.tcp,
            port: 0,
            url: String::new(),
        };
        if !server.data.join("PG_VERSION").exists() {
            server.create_cluster()?;
        }
        Ok(server)
    }

    /// Runs the server and waits until it is ready or has failed.
    pub(super) fn listen(&mut self, port: u16) -> Result<(), StartError> {
        self.port = port;
        self.url = self.database_url("postgres");
        let log_start = self.watchdog.log().len();
        self.watchdog.begin(Task::Start(port))?;

        let data = &self.data;
        let is_up = self.watchdog.wait_for(|watchdog| {
            // In this order: a ready server can exit later, but an exited one never becomes ready.
            let ready = is_ready(data, watchdog.server()?).then_some(true);
            watchdog.status().map(|_| false).or(ready)
        })?;
        match is_up {
            Some(true) => Ok(()),
            Some(false) => Err(StartError::Startup(self.watchdog.log_tail(log_start))),
            None => {
                let log = self.watchdog.log_tail(log_start);
                self.crash()?;
                Err(StartError::TimedOut(log))
            }
        }
    }

    fn create_cluster(&mut self) -> Result<(), StartError> {
        self.watchdog.begin(Task::Initdb)?;
        match self.watchdog.wait_for(Watchdog::status)? {
            Some(0) => Ok(()),
            Some(_) => Err(StartError::Initdb(self.watchdog.read("initdb"))),
            None => Err(StartError::TimedOut(self.watchdog.read("initdb"))),
        }
    }

    /// The server's exit status, or none if it was not running.
    fn end(&mut self, task: Task) -> Result<Option<i32>, StartError> {
        if self.port == 0 || self.watchdog.status().is_some() {
            return Ok(None);
        }
        self.watchdog.begin(task)?;
        let status = self.watchdog.wait_for(Watchdog::status)?;
        status.map(Some).ok_or_else(|| StartError::TimedOut(self.watchdog.log_tail(0)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Kept data deserve a clean stop. If it fails, the watchdog ends the server.
        if self.keeps_data {
            let _ = self.stop();
        }
    }
}

/// The checked options of a [`Builder`].
#[derive(Debug)]
pub(super) struct ServerOptions {
    pub(super) arguments: Vec<String>,
    pub(super) tcp: bool,
    pub(super) sync: bool,
    pub(super) data_dir: Option<PathBuf>,
}

/// Creates the directory if it is missing, and gives an empty one to the server's user.
fn open_data_dir(path: &Path, user: Option<&User>) -> Result<(), StartError> {
    let open = || {
        fs::create_dir_all(path)?;
        match (user, fs::read_dir(path)?.next()) {
            (Some(user), None) => chown(path, Some(user.uid), Some(user.gid)),
            _ => Ok(()),
        }
    };
    open().map_err(StartError::io(opening(path)))
}

fn opening(path: &Path) -> String {
    format!("open the data directory {}", path.display())
}

/// Reads the server's lock file as `pg_ctl` does: the process number is on line 1, the state on line 8.
///
/// A lock file with another process number belongs to another server, or was left by one.
fn is_ready(data: &Path, server: u32) -> bool {
    let Ok(lock) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let mut lines = lock.lines();
    lines.next().is_some_and(|line| line.trim() == server.to_string())
        && lines.nth(6).is_some_and(|line| line.trim() == "ready")
}

/// Percent-encodes all characters that can have a meaning in a URL.
fn escape(database: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    database.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_ready_server_is_ready() {
        let home = Home::create().unwrap();
        let lock = |text: &str| fs::write(home.path().join("postmaster.pid"), text).unwrap();
        assert!(!is_ready(home.path(), 7), "no lock file");
        lock("7\n/data\n1\n5432\n/tmp\n\n0 0\nstarting\n");
        assert!(!is_ready(home.path(), 7), "starting");
        lock("7\n/data\n1\n5432\n/tmp\n\n0 0\nready   \n");
        assert!(is_ready(home.path(), 7));
        assert!(!is_ready(home.path(), 8), "another server");
    }
}
