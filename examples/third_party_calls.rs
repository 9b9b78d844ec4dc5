//! Four processes call a third party's service, which allows a hundred calls a second, and thirty while it is in
//! trouble. One process makes two thirds of the calls. Three fleets try it, each with a service of its own.
//! The first has a fixed limit, each process of the second slows down by itself, and those of the third slow down
//! together.
//!
//! `cargo run --example third_party_calls`

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, thread};

use tokio::time::Instant;
use tollgate::{Gate, Limit, MINUTE, Overrides, SECOND, SlowDown, migrate};
use tollgate_embedded::Server;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const RATE: f64 = 100.0;
/// The rate in trouble, which lasts from one second to another.
const IN_TROUBLE: f64 = 30.0;
const TROUBLE: [u64; 2] = [8, 28];
const SECONDS: u64 = 40;
const WAYS: [&str; 3] = ["fixed", "each by itself", "together"];
/// How many callers each process of a fleet has, and how long each of them works on an answer: the fleet would call 120
/// times a second.
const CALLERS: [usize; 4] = [24, 4, 4, 4];
const WORK: Duration = Duration::from_millis(300);
const THEIRS: SlowDown = SlowDown::new().recovers(SECOND.saturating_mul(15)).cool_down(SECOND);

fn main() -> Result<(), Failure> {
    let arguments: Vec<_> = env::args().collect();
    if let [_, way, callers, database, service] = &arguments[..] {
        return runtime()?.block_on(call(way, callers.parse()?, database, service));
    }
    let server = Server::start()?;
    runtime()?.block_on(async {
        let pool = sqlx::PgPool::connect(server.url()).await?;
        migrate::run(&mut *pool.acquire().await?).await?;
        Ok::<_, Failure>(())
    })?;
    let services = WAYS.map(|_| Service::start());
    let mut fleet = Fleet(Vec::new());
    for (way, service) in WAYS.iter().zip(&services) {
        for callers in CALLERS {
            let process = Command::new(env::current_exe()?)
                .args([
                    way,
                    &*callers.to_string(),
                    server.url(),
                    &service.as_ref().map_err(ToString::to_string)?.address,
                ])
                .spawn()?;
            fleet.0.push(process);
        }
    }
    thread::sleep(Duration::from_secs(SECONDS));
    drop(fleet);
    report(&services.into_iter().collect::<Result<Vec<_>, _>>()?);
    Ok(())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// Processes, which end with the example.
struct Fleet(Vec<Child>);

impl Drop for Fleet {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// One process of a fleet: callers that wait for their turn, call, and hear whether the service is in trouble.
async fn call(way: &str, callers: usize, database: &str, service: &str) -> Result<(), Failure> {
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(4).connect(database).await?;
    let overrides = Overrides::watch(pool.clone()).await?;
    let gate = Gate::builder(pool).overrides(&overrides).build();
    let way = WAYS.iter().position(|name| *name == way).ok_or("an unknown way")?;
    let limit = Limit::token_bucket(WAYS[way], 100, SECOND).capacity(20);
    let own = Arc::new(Mutex::new(Own { share: 1.0, cut: Instant::now(), tokens: 0.0, at: Instant::now() }));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (gate, overrides, own, limit) = (gate.clone(), overrides.clone(), own.clone(), limit.clone());
        let mut connection = Connection::open(service)?;
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(WORK).await;
                if way == 1 {
                    while !lock(&own).take() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                } else {
                    gate.wait(limit.global(), 5 * MINUTE).await?.granted()?;
                }
                let is_served = tokio::task::block_in_place(|| connection.call())?;
                match way {
                    1 if !is_served => lock(&own).slow_down(),
                    2 if !is_served => drop(overrides.slow_down(limit.global(), &THEIRS).await?),
                    _ => {}
                }
            }
        });
    }
    let ended: Result<(), Failure> = tasks.join_next().await.ok_or("no callers")??;
    ended
}

/// A process without tollgate. It has a fourth of the rate, and slows down by the refusals that it sees.
struct Own {
    share: f64,
    cut: Instant,
    tokens: f64,
    at: Instant,
}

impl Own {
    fn share(&self) -> f64 {
        (self.share + self.cut.elapsed().as_secs_f64() / 15.0).min(1.0)
    }

    fn take(&mut self) -> bool {
        let rate = RATE / 4.0 * self.share();
        self.tokens = (self.tokens + rate * self.at.elapsed().as_secs_f64()).min(5.0);
        self.at = Instant::now();
        let is_there = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(is_there));
        is_there
    }

    fn slow_down(&mut self) {
        if self.cut.elapsed() > SECOND {
            (self.share, self.cut) = ((self.share() * 0.7).max(0.05), Instant::now());
        }
    }
}

/// The third party: it answers each line by `served` or by `refused`.
struct Service {
    address: String,
    counts: Arc<Mutex<Counts>>,
}

struct Counts {
    began: Instant,
    tokens: f64,
    at: Instant,
    /// The calls that were served and refused in each second.
    seconds: Vec<[u32; 2]>,
}

impl Service {
    fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let now = Instant::now();
        let counts = Arc::new(Mutex::new(Counts { began: now, tokens: 0.0, at: now, seconds: Vec::new() }));
        let shared = counts.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counts = shared.clone();
                thread::spawn(move || serve(stream, &counts));
            }
        });
        Ok(Self { address, counts })
    }
}

fn serve(mut stream: TcpStream, counts: &Mutex<Counts>) -> std::io::Result<()> {
    for line in BufReader::new(stream.try_clone()?).lines() {
        line?;
        let answer = if lock(counts).serve() { "served\n" } else { "refused\n" };
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

impl Counts {
    fn serve(&mut self) -> bool {
        let second = self.began.elapsed().as_secs();
        let rate = takes(second);
        self.tokens = (self.tokens + rate * self.at.elapsed().as_secs_f64()).min(rate / 5.0);
        self.at = Instant::now();
        let is_served = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(is_served));
        let second = usize::try_from(second).unwrap_or(usize::MAX);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, [0; 2]);
        }
        self.seconds[second][usize::from(!is_served)] += 1;
        is_served
    }
}

/// How many calls a second the service takes.
fn takes(second: u64) -> f64 {
    if (TROUBLE[0]..TROUBLE[1]).contains(&second) { IN_TROUBLE } else { RATE }
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(service: &str) -> std::io::Result<Self> {
        Ok(Self(BufReader::new(TcpStream::connect(service)?)))
    }

    /// Whether the call was served.
    fn call(&mut self) -> std::io::Result<bool> {
        self.0.get_mut().write_all(b"call\n")?;
        let mut answer = String::new();
        self.0.read_line(&mut answer)?;
        Ok(answer == "served\n")
    }
}

/// Prints both curves of each way, served and refused, and what they come to.
fn report(services: &[Service]) {
    let seconds = services.iter().map(|service| lock(&service.counts).seconds.clone()).collect::<Vec<_>>();
    println!("calls a second, served and refused\n\nsecond  takes  {}", WAYS.map(|way| format!("{way:>16}")).join(""));
    for second in (0..SECONDS).step_by(2) {
        let at = usize::try_from(second).unwrap_or(usize::MAX);
        let counts = seconds.iter().map(|counts| counts.get(at).copied().unwrap_or_default());
        let cells = counts.map(|[served, refused]| format!("{:>16}", format!("{served} {refused:>4}")));
        println!("{second:>6}  {:>5}  {}", takes(second), cells.collect::<String>());
    }
    let taken: f64 = (1..SECONDS).map(takes).sum();
    let sums =
        seconds.iter().map(|counts| counts.iter().skip(1).fold([0, 0], |sum, two| [sum[0] + two[0], sum[1] + two[1]]));
    let shares: Vec<_> = sums
        .map(|[served, refused]| {
            let [served, refused] = [served, refused].map(f64::from);
            [served / taken, refused / (served + refused).max(1.0)]
        })
        .collect();
    println!();
    for (way, [used, refused]) in WAYS.iter().zip(&shares) {
        println!(
            "{way}: {:.0} % of what the service takes, {:.1} % of the calls failed",
            used * 100.0,
            refused * 100.0
        );
    }
    let [fixed, _, together] = &shares[..] else { return };
    assert!(together[1] < fixed[1] / 2.0, "fewer calls fail than by a fixed limit");
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
