//! A process of callers, which calls until it is killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tollgate::SECOND;

use super::place::signal;
use crate::gate::kind::{KIND, next_kind};
use crate::proxy::Proxy;

pub(crate) struct Client {
    process: Child,
    reading: Option<JoinHandle<()>>,
}

impl Client {
    /// Starts an ignored test that calls; `note` gets what it prints behind each `@`.
    pub(crate) fn start(
        test: &str,
        url: &str,
        proxy: &Proxy,
        seed: u64,
        mut note: impl FnMut(&str) + Send + 'static,
    ) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--ignored", "--nocapture"]).env(SEED, seed.to_string());
        command.env(DATABASE, url).env(SOCKET, proxy.options().get_socket().unwrap()).env(KIND, next_kind());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let reading = thread::spawn(move || {
            said.for_each(|line| {
                if let Some((_, line)) = line.split_once('@') {
                    note(line);
                }
            });
        });
        Self { process, reading: Some(reading) }
    }

    /// The pool through which such a test calls, and the seed by which it draws.
    pub(crate) fn connections(most: u32) -> Option<(PgPool, u64)> {
        let [url, socket, seed] = [DATABASE, SOCKET, SEED].map(|name| std::env::var(name).ok());
        // The proxy reads what clients send.
        let options = url?.parse::<PgConnectOptions>().unwrap().ssl_mode(PgSslMode::Disable).socket(socket?);
        let pool = PgPoolOptions::new().max_connections(most).acquire_timeout(10 * SECOND);
        Some((pool.connect_lazy_with(options), seed?.parse().unwrap()))
    }

    pub(super) fn signal(&self, name: &str) {
        signal(name, &[self.process.id().try_into().unwrap()]);
    }

    /// Fails where it has failed.
    pub(super) fn look(&mut self) {
        assert!(self.process.try_wait().unwrap().is_none(), "a client has failed");
    }

    /// With SIGKILL, in the middle of its work.
    pub(crate) fn kill(&mut self) {
        self.look();
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.reading.take().unwrap().join().unwrap();
    }
}

const DATABASE: &str = "TOLLGATE_TEST_STORM_DATABASE";
const SOCKET: &str = "TOLLGATE_TEST_STORM_SOCKET";
const SEED: &str = "TOLLGATE_TEST_STORM_SEED";
