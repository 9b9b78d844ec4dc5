//! Tokens taken ahead in a storm: four processes share a few keys, are killed and stopped for longer than `max_age`,
//! connections break, and the server crashes, which empties ephemeral rows. Callers drain a key, and let it rest until
//! it is full. The tokens spent, dated at the charge of their slice, are never over the bound. And such accidents cost
//! few tokens.
//!
//! `TOLLGATE_STORM_SECONDS` makes it last longer than the seconds of a daily run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, interval};
use tollgate::{Decision, Gate, Limit, Limiter, MINUTE, SECOND, Source, migrate};
use tollgate_embedded::Server;

use crate::gate::kind::{KIND, any_kind, next_kind};
use crate::proxy::Proxy;
use crate::world::soon;

const RATE: i64 = 200;
const CAPACITY: i64 = 480;
const LIMIT: Limit = Limit::token_bucket("stormed", RATE.unsigned_abs(), SECOND).capacity(CAPACITY.unsigned_abs());
const MAX_AGE: Duration = Duration::from_millis(300);
const PROCESSES: usize = 4;
const CALLERS: usize = 6;
const KEYS: [&str; 3] = ["durable", "ephemeral", "settled"];
/// So many calls are granted from memory before it ends.
const ENOUGH: u64 = 500;

/// A budget that takes weeks to come back.
const SLOW: Limit = Limit::token_bucket("slow", 1, MINUTE).capacity(BUDGET.unsigned_abs());
const BUDGET: i64 = 100_000;
const SLOW_KEYS: [&str; 4] = ["a", "b", "c", "d"];
/// So many calls each process is answered between two accidents.
const SOME: u64 = 500;

/// At which instant of the row how much was spent, in microseconds and tokens.
type Spent = (i64, i64);

/// The tokens spent of each key, and how many calls were granted from memory.
#[derive(Clone, Default)]
struct Books {
    spent: Arc<Mutex<BTreeMap<String, Vec<Spent>>>>,
    hits: Arc<Mutex<u64>>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_four_processes_have_taken_ahead_is_never_over() {
    let seconds = std::env::var("TOLLGATE_STORM_SECONDS").map_or(8, |seconds| seconds.parse().unwrap());
    let mut server = Server::builder().durable().setting("max_connections", "200").start().unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    migrate::run(&mut conn).await.unwrap();
    let (proxy, books) = (Proxy::new(server.url()), Books::default());
    let url = server.url().to_owned();
    let start = || {
        let books = books.clone();
        Process::start(&url, &proxy, "stormed", move |line| books.note(line))
    };
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let (mut faults, mut pace) = ([0_u32; 3], interval(Duration::from_millis(80)));
    let mut crashes = Vec::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    for round in 1.. {
        pace.tick().await;
        if Instant::now() >= end && *books.hits.lock().unwrap() >= ENOUGH {
            break;
        }
        let process = &mut processes[fastrand::usize(..PROCESSES)];
        let [cuts, kills, stops] = &mut faults;
        match round % 60 {
            0 => {
                block_in_place(|| server.crash().and_then(|()| server.restart())).unwrap();
                let mut conn = PgConnection::connect(server.url()).await.unwrap();
                let began = sqlx::query_scalar("select pg_postmaster_start_time()").fetch_one(&mut conn).await;
                crashes.push(DateTime::<Utc>::timestamp_micros(&began.unwrap()));
            }
            10 | 40 => {
                process.kill();
                *process = start();
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
    let spent = std::mem::take(&mut *books.spent.lock().unwrap());
    for (key, mut spent) in spent {
        spent.sort_unstable();
        // A crash takes the ephemeral row with it, so the bucket is full.
        let is_of_one_life =
            |a: &Spent, b: &Spent| key != "ephemeral" || !crashes.iter().any(|crash| (a.0..b.0).contains(crash));
        let over = spent.chunk_by(is_of_one_life).map(over).max().unwrap();
        // A settlement that memory does not see lets each process keep a slice, once.
        let kept = if key == "settled" { i128::from(CAPACITY) / 16 * PROCESSES as i128 } else { 0 };
        assert!(over <= kept * 1_000_000, "{key}: {over} micro-tokens over");
        println!("{key}: {} calls, and {} micro-tokens below the bound", spent.len(), -over);
    }
    let (hits, [cuts, kills, stops], crashes) = (*books.hits.lock().unwrap(), faults, crashes.len());
    println!("{hits} from memory; {cuts} cuts, {kills} kills, {stops} stops, {crashes} crashes");
}

/// Seven kills and three lost answers: tokens are lost if they neither remain nor were asked for by a caller that was
/// not refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accidents_cost_a_slow_budget_less_than_a_thousandth() {
    let server = Server::builder().setting("max_connections", "200").start().unwrap();
    let mut conn = PgConnection::connect(server.url()).await.unwrap();
    migrate::run(&mut conn).await.unwrap();
    let (proxy, asked) = (Proxy::new(server.url()), Arc::new(Mutex::new(BTreeMap::<String, i64>::new())));
    let start = || {
        let (asked, answered) = (asked.clone(), watch::Sender::new(0));
        let counted = answered.clone();
        let process = Process::start(server.url(), &proxy, "slow", move |line| {
            let Some((_, line)) = line.split_once('@') else { return };
            match line.split_once(' ') {
                Some((key, "asked.")) => *asked.lock().unwrap().entry(key.to_owned()).or_default() += 1,
                Some((key, "denied.")) => *asked.lock().unwrap().get_mut(key).unwrap() -= 1,
                Some((_, "granted.")) => counted.send_modify(|count| *count += 1),
                _ => {}
            }
        });
        (process, answered)
    };
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    for accident in 0..7 {
        for (_, answered) in &processes {
            let enough = *answered.borrow() + SOME;
            soon(answered.subscribe().wait_for(|count| *count >= enough)).await.unwrap();
        }
        if accident % 2 == 0 {
            proxy.cut_after(1);
        } else {
            let (process, _) = &mut processes[accident % PROCESSES];
            process.kill();
            processes[accident % PROCESSES] = start();
        }
    }
    for (process, _) in &mut processes {
        process.kill();
    }
    let others = "select exists (select from pg_stat_activity where pid <> pg_backend_pid()
                                     and backend_type = 'client backend')";
    soon(async { while sqlx::query_scalar(others).fetch_one(&mut conn).await.unwrap() {} }).await;
    let mut tx = conn.begin().await.unwrap();
    for key in SLOW_KEYS {
        let left = Limiter::new().balance(&mut tx, SLOW.key(key)).await.unwrap().remaining.micros() / 1_000_000;
        let lost = BUDGET - left - asked.lock().unwrap()[key];
        assert!(lost <= BUDGET / 1_000, "{key}: {lost} are lost, {left} are left");
    }
}

/// By how many micro-tokens the worst span is over the bound.
fn over(spent: &[Spent]) -> i128 {
    let (mut worst, mut most, mut last) = (i128::MIN, 0_i128, spent[0].0);
    for (at, tokens) in spent {
        // The worst of all spans that end here: a span that begins earlier has more time.
        most = (most - i128::from(at - last) * i128::from(RATE)).max(0) + i128::from(tokens * 1_000_000);
        (worst, last) = (worst.max(most), *at);
    }
    worst - i128::from(CAPACITY) * 1_000_000
}

struct Process {
    child: Child,
    reading: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts a process that plays a scene; `note` gets each line that it prints.
    fn start(url: &str, proxy: &Proxy, scene: &str, note: impl FnMut(&str) + Send + 'static) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["gate::memory::prefetch_storm::call_in_another_process", "--exact", "--ignored", "--nocapture"]);
        command.env(DATABASE, url).env(SOCKET, proxy.options().get_socket().unwrap()).env(SCENE, scene);
        command.env(KIND, next_kind());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (said, mut note) = (BufReader::new(child.stdout.take().unwrap()), note);
        // The last line of one that is killed may be cut.
        let reading = thread::spawn(move || said.lines().map_while(Result::ok).for_each(|line| note(&line)));
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
    /// A line such as `@durable 1754913600123457 1 m.`, which is written once the tokens are spent.
    fn note(&self, line: &str) {
        let Some((_, line)) = line.split_once('@') else { return };
        let [key, at, tokens, "m." | "d."] = line.split(' ').collect::<Vec<_>>()[..] else { return };
        *self.hits.lock().unwrap() += u64::from(line.ends_with("m."));
        let spent = (at.parse().unwrap(), tokens.parse().unwrap());
        self.spent.lock().unwrap().entry(key.to_owned()).or_default().push(spent);
    }
}

/// A process of the tests above: it calls until it is killed.
#[ignore = "a part of another test"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_in_another_process() {
    let (Ok(url), Ok(socket)) = (std::env::var(DATABASE), std::env::var(SOCKET)) else { return };
    // The proxy reads what clients send.
    let options = url.parse::<PgConnectOptions>().unwrap().ssl_mode(PgSslMode::Disable).socket(socket);
    let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(10 * SECOND).connect_lazy_with(options);
    let mut callers = JoinSet::new();
    if std::env::var(SCENE).unwrap() == "slow" {
        let gate = Gate::builder(pool).prefetch(SECOND).build();
        for caller in 0..CALLERS {
            callers.spawn(spend_slowly(gate.clone(), SLOW_KEYS[caller % SLOW_KEYS.len()]));
        }
        callers.join_next().await.unwrap().unwrap();
        return;
    }
    // A gate of the next kind, with prefetch.
    let gate = any_kind(&pool, MAX_AGE).await.prefetch(MAX_AGE).build();
    for caller in 0..CALLERS {
        let (gate, key) = (gate.clone(), KEYS[caller % KEYS.len()]);
        let limit = if key == "ephemeral" { LIMIT.ephemeral() } else { LIMIT };
        callers.spawn(async move {
            loop {
                // A call that memory cannot pay whole gives back the tokens in memory, just before it is charged.
                let cost = if fastrand::u8(..10) == 0 { 40 } else { 2 };
                let pause = match gate.consume(limit.key(key).cost(cost)).await {
                    // Nothing was charged, and nothing is promised.
                    Ok(Decision::Granted(grant)) if grant.source == Source::Degraded => Duration::from_millis(3),
                    Ok(Decision::Granted(grant)) => {
                        let (at, is_hit) = (grant.decided_at.timestamp_micros(), grant.source == Source::Prefetched);
                        // With or without the settlement, at least this much is spent.
                        let spent = if key == "settled" { cost / 2 } else { cost };
                        if spent < cost {
                            let _ = gate.settle(grant, spent).await;
                        }
                        println!("@{key} {at} {spent} {}", if is_hit { "m." } else { "d." });
                        Duration::from_millis(3)
                    }
                    // Until it is full again, or nearly.
                    Ok(Decision::Denied(_)) => Duration::from_millis(fastrand::u64(1_500..2_600)),
                    // It was granted or not, and is not counted.
                    Err(_) => Duration::from_millis(3),
                };
                tokio::time::sleep(pause).await;
            }
        });
    }
    // Only a panic ends one.
    callers.join_next().await.unwrap().unwrap();
}

async fn spend_slowly(gate: Gate, key: &'static str) {
    loop {
        println!("@{key} asked.");
        match gate.consume(SLOW.key(key)).await {
            Ok(Decision::Granted(_)) => println!("@{key} granted."),
            Ok(Decision::Denied(_)) => println!("@{key} denied."),
            // It was granted or not: it counts as asked.
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

const DATABASE: &str = "TOLLGATE_TEST_PREFETCH_STORM_DATABASE";
const SOCKET: &str = "TOLLGATE_TEST_PREFETCH_STORM_SOCKET";
const SCENE: &str = "TOLLGATE_TEST_PREFETCH_STORM_SCENE";
