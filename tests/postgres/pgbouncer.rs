//! A real PgBouncer in transaction mode, between a test and the server of its database.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write as _, stderr};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// A pooler, gone with its owner, however the owner goes: it runs below a shell that watches a pipe of ours.
pub(crate) struct PgBouncer {
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    directory: PathBuf,
}

impl PgBouncer {
    /// In front of the server at `url`, to which it makes so many connections for each database. Does not follow named
    /// statements, though it could.
    pub(crate) fn start(url: &str, servers: u32) -> Self {
        Self::with(url, servers, 0)
    }

    /// The same, following named statements.
    pub(crate) fn following(url: &str, servers: u32) -> Self {
        Self::with(url, servers, 200)
    }

    fn with(url: &str, servers: u32, statements: u32) -> Self {
        Self::set_up(url, servers, statements, "", |_| {})
    }

    /// The same with more settings, each in a line of its own, and with users that log in by these lines.
    pub(crate) fn configured(url: &str, servers: u32, settings: &str, users: Option<&str>) -> Self {
        let by_password = users.map_or(String::new(), |_| "auth_type = md5\nauth_file = users\n".to_owned());
        Self::set_up(url, servers, 0, &format!("{by_password}{settings}\n"), |directory| {
            fs::write(directory.join("users"), users.unwrap_or_default()).unwrap();
        })
    }

    fn set_up(url: &str, servers: u32, statements: u32, settings: &str, prepare: impl FnOnce(&Path)) -> Self {
        let directory = new_directory();
        prepare(&directory);
        let server = url.parse::<PgConnectOptions>().unwrap();
        let socket = server
            .get_socket()
            .cloned()
            .or_else(|| server.get_host().starts_with('/').then(|| server.get_host().into()));
        let mut ini = ini(&server, socket.as_deref(), password(url), &directory, servers);
        if follows_named_statements() {
            writeln!(ini, "max_prepared_statements = {statements}").unwrap();
        }
        // The last one counts.
        ini.push_str(settings);
        fs::write(directory.join("pgbouncer.ini"), ini).unwrap();

        let mut command = Command::new("/bin/sh");
        command.args(["-c", WATCHDOG]).arg(program()).arg(&directory).current_dir(&directory).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some((user, group)) = user(&directory, socket.as_deref()) {
            chown(&directory, Some(user), Some(group)).unwrap();
            command.uid(user).gid(group);
        }
        let mut shell = command.spawn().unwrap();
        let (orders, answers) = (shell.stdin.take(), BufReader::new(shell.stdout.take().unwrap()));
        let mut pooler = Self { shell, orders, answers, directory };
        pooler.restart();
        pooler
    }

    /// Where to connect.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@localhost:{PORT}/{database}?host={}", self.directory.display())
    }

    /// The same as another user.
    pub(crate) fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        format!("postgres://{user}:{password}@localhost:{PORT}/{database}?host={}", self.directory.display())
    }

    /// Ends it by `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        self.order("kill");
    }

    /// Starts it after it was killed, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.order("start");
        let socket = self.directory.join(format!(".s.PGSQL.{PORT}"));
        for _ in 0..60_000 {
            if UnixStream::connect(&socket).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("PgBouncer does not start: {}", fs::read_to_string(self.directory.join("log")).unwrap_or_default());
    }

    /// A command of its console, such as `kill` or `reconnect`.
    pub(crate) async fn command(&self, command: &str) {
        let mut console = PgConnection::connect(&self.url("pgbouncer")).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(command.to_owned())).execute(&mut console).await.unwrap();
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n");
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.shell.wait();
    }
}

/// Runs `$0` on the settings in the directory `$1` by the orders that it reads, and clears up when the other end of the
/// pipe is gone.
const WATCHDOG: &str = r#"
    while read -r order; do
        case $order in
            start) rm -f "$1"/.s.*; "$0" pgbouncer.ini >/dev/null 2>>log </dev/null & server=$! ;;
            kill) kill -KILL $server; wait $server 2>/dev/null ;;
        esac
        echo done
    done
    kill -KILL $server
    wait $server
    rm -rf "$1"
"#;

fn ini(
    server: &PgConnectOptions,
    socket: Option<&Path>,
    password: Option<&str>,
    directory: &Path,
    servers: u32,
) -> String {
    let host = socket.map_or(server.get_host().to_owned(), |socket| socket.display().to_string());
    let (port, user, directory) = (server.get_port(), server.get_username(), directory.display());
    let password = password.map(|password| format!(" password={password}")).unwrap_or_default();
    format!(
        "[databases]\n\
         * = host={host} port={port} user={user}{password}\n\
         [pgbouncer]\n\
         listen_port = {PORT}\n\
         unix_socket_dir = {directory}\n\
         auth_type = any\n\
         admin_users = postgres\n\
         pool_mode = transaction\n\
         default_pool_size = {servers}\n\
         max_client_conn = 1000\n\
         server_reset_query_always = 0\n\
         server_login_retry = 0.1\n\
         query_wait_timeout = 0\n\
         server_connect_timeout = 300\n\
         client_login_timeout = 300\n\
         ignore_startup_parameters = extra_float_digits\n"
    )
}

/// PgBouncer refuses to run as root; whoever may reach the server's socket may reach the server.
fn user(directory: &Path, socket: Option<&Path>) -> Option<(u32, u32)> {
    if fs::metadata(directory).unwrap().uid() != 0 {
        return None;
    }
    let owner = socket.map(|socket| fs::metadata(socket).unwrap()).filter(|owner| owner.uid() != 0);
    Some(owner.map_or(NOBODY, |owner| (owner.uid(), owner.gid())))
}

/// Whether the program that is installed can follow named statements: from 1.21 on.
pub(crate) fn follows_named_statements() -> bool {
    version() >= 21
}

/// The version of the program that is installed, behind the first dot.
pub(crate) fn version() -> u32 {
    let told = Command::new(program()).arg("--version").output().unwrap().stdout;
    let told = String::from_utf8(told).unwrap();
    let version =
        told.lines().next().and_then(|line| line.strip_prefix("PgBouncer 1.")).unwrap_or_else(|| panic!("{told}"));
    version.split('.').next().unwrap().parse().unwrap()
}

/// Whether a test of poolers passes by, because the program is not in `PATH`. It says so once for all of them, past
/// libtest, which shows nothing of a test that passes.
pub(crate) fn is_missing() -> bool {
    static MISSING: LazyLock<bool> = LazyLock::new(|| {
        let missing = find().is_none();
        if missing {
            assert!(std::env::var_os("CI").is_none(), "PgBouncer is not in PATH, and CI passes no test by");
            let _ =
                writeln!(stderr(), "PgBouncer is not in PATH: the tests of poolers pass by (apt install pgbouncer)");
        }
        missing
    });
    *MISSING
}

fn program() -> PathBuf {
    find().expect("a test of poolers asks first whether PgBouncer is missing")
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|bin| bin.join("pgbouncer")).find(|file| file.is_file())
}

fn password(url: &str) -> Option<&str> {
    let (user, _) = url.split_once("://")?.1.split_once('@')?;
    user.split_once(':').map(|(_, password)| password)
}

/// In `/tmp`, because a socket's path must be short; and open to others, because the pooler may be another user than we
/// are.
fn new_directory() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("tollgate-pooler-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let directory = Path::new("/tmp").join(name);
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    directory
}

const PORT: u16 = 6432;

/// As most systems number the user and the group that may do least.
const NOBODY: (u32, u32) = (65_534, 65_534);
