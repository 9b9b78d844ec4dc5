use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf, absolute};

use super::home::Home;
use super::user::User;
use super::watchdog::{Task, Watchdog};
use super::{Builder, StartError, find_programs};

/// A private Postgres server; dropping it stops it and deletes the data, unless
/// [`Builder::data_dir`] keeps them.
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
    /// Starts a server on a Unix socket, tuned for speed, and waits until it takes connections.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub fn start() -> Result<Self, StartError> {
        Self::builder().start()
    }

    /// Starts a server that differs from the usual one.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Stops the server as a power cut would: no checkpoint, and the next start recovers.
    ///
    /// The data stay. Does nothing if the server is stopped.
    ///
    /// # Errors
    ///
    /// If the server does not stop within a minute, or its watchdog is gone.
    pub fn crash(&mut self) -> Result<(), StartError> {
        self.end(Task::Crash).map(drop)
    }

    /// Stops the server cleanly: sessions are ended, and everything is written down.
    ///
    /// The data stay. Does nothing if the server is stopped.
    ///
    /// # Errors
    ///
    /// If the server does not stop within a minute or not cleanly, or its watchdog is gone.
    pub fn stop(&mut self) -> Result<(), StartError> {
        match self.end(Task::Stop)? {
            None | Some(0) => Ok(()),
            Some(_) => Err(StartError::Shutdown { log: self.watchdog.log_tail(0) }),
        }
    }

    /// Starts the server again over the same data and at the same address, after a clean stop if it
    /// runs.
    ///
    /// # Errors
    ///
    /// As [`stop`](Self::stop) and [`Builder::start`].
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.stop()?;
        self.listen(self.port)
    }

    /// Where to connect, as the superuser `postgres` and to the database of that name.
    ///
    /// The port is always in it, for clients else take a missing one from `PGPORT`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// As [`url`](Self::url), for another database.
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

    /// The directory of the programs in use; most installations have `psql` and `pgbench` there.
    #[must_use]
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// All that the server has logged so far, over all its starts.
    #[must_use]
    pub fn log(&self) -> String {
        self.watchdog.log()
    }

    /// Everything but a running server: its private directory, its watchdog, and its cluster.
    pub(super) fn prepare(plan: &Plan) -> Result<Self, StartError> {
        let programs = find_programs()?;
        let data = match &plan.data_dir {
            Some(path) => Some(absolute(path).map_err(StartError::io(opening(path)))?),
            None => None,
        };
        // Nothing slow before the watchdog runs: until then, a home whose maker is killed stays.
        let home = Home::create()?;
        let user = User::for_home(home.path())?;
        let data = data.unwrap_or_else(|| home.path().join("data"));
        let watchdog = Watchdog::spawn(home, user.as_ref(), &programs, &data, plan.sync, &plan.arguments)?;
        if let Some(user) = &user {
            user.check_access(&programs)?;
        }
        if plan.data_dir.is_some() {
            open_data_dir(&data, user.as_ref())?;
        }
        let mut server = Self {
            watchdog,
            programs,
            data,
            keeps_data: plan.data_dir.is_some(),
            tcp: plan.tcp,
            port: 0,
            url: String::new(),
        };
        if !server.data.join("PG_VERSION").exists() {
            server.create_cluster()?;
        }
        Ok(server)
    }

    /// Runs the server until it is ready, or is known not to become so.
    pub(super) fn listen(&mut self, port: u16) -> Result<(), StartError> {
        self.port = port;
        self.url = self.database_url("postgres");
        let log_start = self.watchdog.log().len();
        self.watchdog.begin(Task::Start(port))?;

        let data = &self.data;
        let end = self.watchdog.wait_for(|watchdog| {
            // In this order: a server that is seen to be ready may have exited since, not before.
            let ready = is_ready(data, watchdog.server()?).then_some(Started::Ready);
            watchdog.status().map(|_| Started::Exited).or(ready)
        })?;
        match end {
            Some(Started::Ready) => Ok(()),
            Some(Started::Exited) => Err(StartError::Startup { log: self.watchdog.log_tail(log_start) }),
            None => {
                let log = self.watchdog.log_tail(log_start);
                self.crash()?;
                Err(StartError::TimedOut { log })
            }
        }
    }

    fn create_cluster(&mut self) -> Result<(), StartError> {
        self.watchdog.begin(Task::Initdb)?;
        match self.watchdog.wait_for(Watchdog::status)? {
            Some(0) => Ok(()),
            Some(_) => Err(StartError::Initdb { output: self.watchdog.initdb_output() }),
            None => Err(StartError::TimedOut { log: self.watchdog.initdb_output() }),
        }
    }

    /// The server's exit status, or none if it was not running.
    fn end(&mut self, task: Task) -> Result<Option<i32>, StartError> {
        if self.port == 0 || self.watchdog.status().is_some() {
            return Ok(None);
        }
        self.watchdog.begin(task)?;
        match self.watchdog.wait_for(Watchdog::status)? {
            Some(status) => Ok(Some(status)),
            None => Err(StartError::TimedOut { log: self.watchdog.log_tail(0) }),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Data that are kept deserve a clean end. If there is none the watchdog makes an end of it.
        if self.keeps_data {
            let _ = self.stop();
        }
    }
}

/// What a [`Builder`] was told, checked.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) arguments: Vec<String>,
    pub(super) tcp: bool,
    pub(super) sync: bool,
    pub(super) data_dir: Option<PathBuf>,
}

enum Started {
    Ready,
    Exited,
}

/// Makes sure that the directory exists and that an empty one belongs to the server's user.
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

/// Reads the server's lock file as `pg_ctl` does: the process on line 1, its state on line 8.
///
/// A lock file of another process is another server's, or was left by one.
fn is_ready(data: &Path, server: u32) -> bool {
    let Ok(lock) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let mut lines = lock.lines();
    lines.next().is_some_and(|line| line.trim() == server.to_string())
        && lines.nth(6).is_some_and(|line| line.trim() == "ready")
}

/// Percent-encodes all that has, or may have, a meaning in a URL.
fn escape(database: &str) -> String {
    let mut escaped = String::new();
    for byte in database.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.extend(['%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
        }
    }
    escaped
}

fn hex_digit(digit: u8) -> char {
    char::from(b"0123456789ABCDEF"[usize::from(digit)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_of_any_name_has_a_url() {
        assert_eq!(escape("tenant_1-a.b~c"), "tenant_1-a.b~c");
        assert_eq!(escape("a/b?c=d é%"), "a%2Fb%3Fc%3Dd%20%C3%A9%25");
    }

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
