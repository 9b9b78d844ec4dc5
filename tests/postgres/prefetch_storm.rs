//! Tokens taken ahead in a storm: four processes share a few keys, are killed and stopped for longer than `max_age`,
//! connections break, and the server crashes. What was spent, dated at the charge of its slice, is never over.
//!
//! `TOLLGATE_STORM_SECONDS` makes it last longer than the seconds of a daily run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{Connection, PgConnection};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, interval};
use tollgate::{Gate, Limit, SECOND, Source, migrate};
use tollgate_embedded::Server;

use crate::proxy::Proxy;

const RATE: i64 = 4_000;
const CAPACITY: i64 = 2_000;
const LIMIT: Limit = Limit::token_bucket("stormed", RATE.unsigned_abs(), SECOND).capacity(CAPACITY.unsigned_abs());
const MAX_AGE: Duration = Duration::from_millis(300);
const PROCESSES: usize = 4;
const CALLERS: usize = 6;
/// So many calls are granted from memory before it ends.
const ENOUGH: u64 = 500;

/// Of each key, what was granted at which instant of the row, in microseconds, and how often from memory.
#[derive(Clone, Default)]
struct Books {
    granted: Arc<Mutex<BTreeMap<String, Vec<i64>>>>,
    hits: Arc<Mutex<u64>>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_four_processes_have_taken_ahead_is_never_over() {
    let seconds = std::env::var("TOLLGATE_STORM_SECONDS").map_or(8, |seconds| seconds.parse().unwrap());
    let mut server = Server::builder().durable().setting("max_connections", "200").start().unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    migrate::run(&mut conn).await.unwrap();
    let (proxy, books) = (Proxy::new(server.url()), Books::default());
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| Process::start(server.url(), &proxy, &books)).collect();
    let (mut faults, mut pace) = ([0_u32; 4], interval(Duration::from_millis(80)));
    let end = Instant::now() + Duration::from_secs(seconds);
    for round in 1.. {
        pace.tick().await;
        if Instant::now() >= end && *books.hits.lock().unwrap() >= ENOUGH {
            break;
        }
        let process = &mut processes[fastrand::usize(..PROCESSES)];
        let [cuts, kills, stops, crashes] = &mut faults;
        match round % 60 {
            0 => {
                block_in_place(|| server.crash().and_then(|()| server.restart())).unwrap();
                *crashes += 1;
            }
            10 | 40 => {
                process.kill();
                *process = Process::start(server.url(), &proxy, &books);
                *kills += 1;
            }
            n if n % 7 == 0 => {
                process.signal("STOP");
                tokio::time::sleep(MAX_AGE * 3 / 2).await;
                process.signal("CONT");
                *stops += 1;
            }
            n if n % 5 == 0 => {
                proxy.cut_after(fastrand::u64(1..40));
                *cuts += 1;
            }
            _ => {}
        }
    }
    processes.iter_mut().for_each(Process::kill);
    let granted = std::mem::take(&mut *books.granted.lock().unwrap());
    let mut all = 0;
    for (key, mut instants) in granted {
        instants.sort_unstable();
        all += instants.len();
        // By how much all spans that end here are over at most: a span that begins earlier has more time.
        let mut worst = i128::MIN;
        let (mut most, mut last) = (0_i128, instants[0]);
        for at in instants {
            most = (most - i128::from(at - last) * i128::from(RATE)).max(0) + 1_000_000;
            (worst, last) = (worst.max(most), at);
        }
        let over = worst - i128::from(CAPACITY) * 1_000_000;
        assert!(over <= 0, "{key}: {over} microtokens over");
    }
    let (hits, [cuts, kills, stops, crashes]) = (*books.hits.lock().unwrap(), faults);
    println!("{all} granted, {hits} from memory; {cuts} cuts, {kills} kills, {stops} stops, {crashes} crashes");
}

struct Process {
    child: Child,
    reading: Option<JoinHandle<()>>,
}

impl Process {
    fn start(url: &str, proxy: &Proxy, books: &Books) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["prefetch_storm::call_in_another_process", "--exact", "--ignored", "--nocapture"]);
        command.env(DATABASE, url).env(SOCKET, proxy.options().get_socket().unwrap());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (said, books) = (BufReader::new(child.stdout.take().unwrap()), books.clone());
        // The last line of one that is killed may be cut.
        let reading = thread::spawn(move || said.lines().map_while(Result::ok).for_each(|line| books.note(&line)));
        Self { child, reading: Some(reading) }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
    }

    fn kill(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "a process has failed");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reading.take().unwrap().join().unwrap();
    }
}

impl Books {
    /// A line such as `@stormed.3 1754913600123457 m.`, which is written once the tokens are spent.
    fn note(&self, line: &str) {
        let Some((_, line)) = line.split_once('@') else { return };
        let [key, at, "m." | "d."] = line.split(' ').collect::<Vec<_>>()[..] else { return };
        *self.hits.lock().unwrap() += u64::from(line.ends_with("m."));
        self.granted.lock().unwrap().entry(key.to_owned()).or_default().push(at.parse().unwrap());
    }
}

/// A process of the test above: it calls until it is killed.
#[ignore = "a part of another test"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_in_another_process() {
    let (Ok(url), Ok(socket)) = (std::env::var(DATABASE), std::env::var(SOCKET)) else { return };
    // The proxy reads what clients send.
    let options = url.parse::<PgConnectOptions>().unwrap().ssl_mode(PgSslMode::Disable).socket(socket);
    let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(10 * SECOND).connect_lazy_with(options);
    let gate = Gate::builder(pool).prefetch(MAX_AGE).build();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let gate = gate.clone();
        callers.spawn(async move {
            loop {
                let key = fastrand::u32(..3);
                // A call whose outcome nobody heard is not counted: it was granted or not.
                if let Ok(decision) = gate.consume(LIMIT.key(key)).await
                    && let Ok(grant) = decision.granted()
                {
                    let from = if grant.source == Source::Prefetched { "m." } else { "d." };
                    println!("@{key} {} {from}", grant.decided_at.timestamp_micros());
                }
                let pause = if caller == 0 { 2_000 } else { 300 };
                tokio::time::sleep(Duration::from_micros(pause)).await;
            }
        });
    }
    // Only a panic ends one.
    callers.join_next().await.unwrap().unwrap();
}

const DATABASE: &str = "TOLLGATE_TEST_PREFETCH_STORM_DATABASE";
const SOCKET: &str = "TOLLGATE_TEST_PREFETCH_STORM_SOCKET";
