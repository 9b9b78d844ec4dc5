use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use super::server::Plan;
use super::{Server, StartError};

/// What a private server is to be like; made by [`Server::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs until `start` is called"]
pub struct Builder {
    tcp: bool,
    durable: bool,
    settings: Vec<(String, String)>,
    data_dir: Option<PathBuf>,
}

impl Builder {
    /// Also listens on a free port of 127.0.0.1, which is then the address in [`Server::url`].
    ///
    /// Every user of this machine can connect, without a password.
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Writes as a production server does: `fsync`, `full_page_writes` and `synchronous_commit` on.
    ///
    /// Without it they are off, for speed: a power cut may then ruin the data.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Sets anything that `postgresql.conf` may set; the last word on a name counts.
    ///
    /// It is given on the server's command line, and therefore wins over `ALTER SYSTEM`. The
    /// server's address is not for setting: see [`tcp`](Self::tcp).
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Keeps the data in this directory, and there they stay: a later server carries on with them.
    ///
    /// The directory is created if it is missing. When root starts the server, a new or empty one
    /// is given to the user that the server runs as.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Starts the server and waits until it takes connections.
    ///
    /// # Errors
    ///
    /// Says which step failed, and ends with the log's tail where the server itself gave the reason.
    pub fn start(self) -> Result<Server, StartError> {
        if self.tcp { self.start_on(free_port) } else { self.start_on(|| Ok(SOCKET_PORT)) }
    }

    /// A free port is free only until someone takes it: `next_port` is asked again if one was.
    fn start_on(self, mut next_port: impl FnMut() -> io::Result<u16>) -> Result<Server, StartError> {
        let mut server = Server::prepare(&self.plan()?)?;
        for _ in 1..PORTS_TRIED {
            match server.listen(next_port().map_err(StartError::io("find a free port"))?) {
                Err(StartError::Startup { log }) if log.contains(PORT_TAKEN) => {}
                other => return other.map(|()| server),
            }
        }
        server.listen(next_port().map_err(StartError::io("find a free port"))?)?;
        Ok(server)
    }

    fn plan(self) -> Result<Plan, StartError> {
        let safety = if self.durable { "on" } else { "off" };
        let mut arguments = Vec::new();
        let mut set = |name: &str, value: &str| {
            arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        };
        for name in ["fsync", "full_page_writes", "synchronous_commit"] {
            set(name, safety);
        }
        // The log is read by programs: by the tests, and above for `PORT_TAKEN`.
        set("lc_messages", "C");
        for (name, value) in &self.settings {
            check_setting(name, value)?;
            set(name, value);
        }
        set("listen_addresses", if self.tcp { "127.0.0.1" } else { "" });
        Ok(Plan {
            arguments,
            tcp: self.tcp,
            // Nobody misses a directory that a power cut takes, if it was to be deleted anyway.
            sync: self.durable && self.data_dir.is_some(),
            data_dir: self.data_dir,
        })
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The server would take `a=b` as a name, and read `b=value` for `a`.
fn check_setting(name: &str, value: &str) -> Result<(), StartError> {
    let refuse = |problem| Err(StartError::Setting { name: name.to_owned(), problem });
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    if name.is_empty() || !name.bytes().all(plain) {
        return refuse("is not a name; use one of postgresql.conf, such as max_connections");
    }
    if value.contains('\0') {
        return refuse("has a NUL in its value; remove it");
    }
    if ADDRESS_SETTINGS.iter().any(|address| name.eq_ignore_ascii_case(address)) {
        return refuse("is the launcher's to choose; use `tcp`, `data_dir` and `url` instead");
    }
    Ok(())
}

/// Names the socket; the directory is private, so that it is always free.
const SOCKET_PORT: u16 = 5432;

/// Losing the race for a port once is rare; losing it this often has another cause.
const PORTS_TRIED: usize = 8;

/// In the log of a server that lost it.
const PORT_TAKEN: &str = "Address already in use";

/// `Server::url` would not be true if these were changed.
const ADDRESS_SETTINGS: [&str; 4] = ["data_directory", "listen_addresses", "port", "unix_socket_directories"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_one_argument_whatever_its_value() {
        let plan = Builder::default().setting("search_path", "a b', \"c\" = $d").plan().unwrap();
        assert!(plan.arguments.contains(&"search_path=a b', \"c\" = $d".to_owned()));
    }

    #[test]
    fn the_users_setting_comes_after_ours() {
        let plan = Builder::default().setting("fsync", "on").plan().unwrap();
        let last = plan.arguments.iter().rfind(|argument| argument.starts_with("fsync="));
        assert_eq!(last.unwrap(), "fsync=on");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for (name, value) in [("", "1"), ("a=b", "1"), ("a b", "1"), ("-c", "1"), ("work_mem", "1\0"), ("Port", "1")] {
            let error = Builder::default().setting(name, value).plan().unwrap_err();
            assert!(matches!(error, StartError::Setting { .. }), "{name}: {error}");
        }
    }

    #[test]
    fn a_port_that_was_taken_meanwhile_is_given_up_for_the_next() {
        let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = holder.local_addr().unwrap().port();
        let free = free_port().unwrap();
        let mut ports = [taken, free].into_iter();
        let server = Server::builder().tcp().start_on(|| Ok(ports.next().unwrap())).unwrap();
        assert_eq!(server.url(), format!("postgres://postgres@127.0.0.1:{free}/postgres"));
    }

    #[test]
    fn a_port_that_stays_taken_is_an_error_with_the_log() {
        let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = holder.local_addr().unwrap().port();
        let error = Server::builder().tcp().start_on(|| Ok(taken)).unwrap_err();
        assert!(error.to_string().contains(PORT_TAKEN), "{error}");
    }
}
