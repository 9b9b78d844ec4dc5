use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use super::server::ServerOptions;
use super::{Server, StartError};

/// The options of a private server; made by [`Server::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs until `start` is called"]
pub struct Builder {
    tcp: bool,
    durable: bool,
    settings: Vec<(String, String)>,
    data_dir: Option<PathBuf>,
}

impl Builder {
    /// Also listens on a free port of 127.0.0.1. [`Server::url`] then has this address.
    ///
    /// Every user of this machine can then connect, without a password.
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Turns on `fsync`, `full_page_writes` and `synchronous_commit`, as a production server does.
    ///
    /// The default is off, for speed: a power cut may then destroy the data.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Sets a parameter of `postgresql.conf`. The last value of a name counts.
    ///
    /// The server gets it on its command line, which overrides `ALTER SYSTEM`. The address cannot be set; see
    /// [`tcp`](Self::tcp).
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Keeps the data in this directory. They stay there, and a later server can continue with them.
    ///
    /// A missing directory is created. If root starts the server, a new or empty directory goes to the user that the
    /// server runs as.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Starts the server and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// [`StartError`]: any variant but `Shutdown`.
    pub fn start(self) -> Result<Server, StartError> {
        if self.tcp { self.start_on(free_port) } else { self.start_on(|| Ok(SOCKET_PORT)) }
    }

    /// Another process may take a free port before the server does. Then the next port is tried.
    fn start_on(self, mut next_port: impl FnMut() -> io::Result<u16>) -> Result<Server, StartError> {
        let mut server = Server::prepare(&self.options()?)?;
        for _ in 1..PORTS_TRIED {
            match server.listen(next_port().map_err(StartError::io("find a free port"))?) {
                Err(StartError::Startup(log)) if log.contains(PORT_TAKEN) => {}
                other => return other.map(|()| server),
            }
        }
        server.listen(next_port().map_err(StartError::io("find a free port"))?)?;
        Ok(server)
    }

    fn options(self) -> Result<ServerOptions, StartError> {
        let safety = if self.durable { "on" } else { "off" };
        let mut arguments = Vec::new();
        let mut set = |name: &str, value: &str| {
            arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        };
        for name in ["fsync", "full_page_writes", "synchronous_commit"] {
            set(name, safety);
        }
        // Programs read the log: the tests, and `start_on` for `PORT_TAKEN`.
        set("lc_messages", "C");
        for (name, value) in &self.settings {
            check_setting(name, value)?;
            set(name, value);
        }
        set("listen_addresses", if self.tcp { "127.0.0.1" } else { "" });
        Ok(ServerOptions {
            arguments,
            tcp: self.tcp,
            // A directory that is deleted at the end need not survive a power cut.
            sync: self.durable && self.data_dir.is_some(),
            data_dir: self.data_dir,
        })
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Refuses names with `=`: the server would split `a=b=value` at the first one.
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
        return refuse("is chosen by the launcher; use `tcp`, `data_dir` and `url` instead");
    }
    Ok(())
}

/// Names the socket. It is always free, because the directory is private.
const SOCKET_PORT: u16 = 5432;
/// Losing a port to another process is rare. So many losses have another cause.
const PORTS_TRIED: usize = 8;
/// In the log of a server whose port was taken.
const PORT_TAKEN: &str = "Address already in use";
/// Changing these would make `Server::url` wrong.
const ADDRESS_SETTINGS: [&str; 4] = ["data_directory", "listen_addresses", "port", "unix_socket_directories"];

#[cfg(test)]
mod tests {
    use super::*;

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
