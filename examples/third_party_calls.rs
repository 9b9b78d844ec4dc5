//! Processes call a third party's service, which is in trouble for a while and then takes fewer calls. One process
//! makes two thirds of the calls. Several fleets try it at the same time, each with a service of its own, which also
//! refuses some calls by chance. The first fleet has a fixed limit. Each process of the second slows down by itself,
//! and those of the third slow down together. The service of the fourth says how long to wait.
//!
//! `cargo run --example third_party_calls` takes 40 seconds. `… -- seconds=300 rate=40` and so on names another scene;
//! `Scene` has all names.

use std::io::Error as IoError;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, thread};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tollgate::{Error, Gate, Limit, MINUTE, Overrides, SECOND, SlowDown, migrate};
use tollgate_embedded::Server;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const WAYS: [&str; 4] =
    ["fixed limit", "each process by itself", "together", "together, and the service says how long"];
const FIXED: usize = 0;
const ITSELF: usize = 1;
const TOLD: usize = 3;
/// How long each caller works on an answer.
const WORK: Duration = Duration::from_millis(300);

/// What the service does, and who calls it. Spans are in seconds.
#[derive(Clone, Debug)]
struct Scene {
    /// The calls a second that the service takes in good times, which is also the limit.
    rate: f64,
    /// How many it takes in trouble, and from when until when.
    trouble: f64,
    from: f64,
    until: f64,
    seconds: f64,
    /// What the service takes at once.
    burst: f64,
    /// The percentage of calls that it refuses by chance.
    stray: f64,
    /// How long it asks the last fleet to wait.
    wait: f64,
    processes: f64,
    /// How fast a rate grows back, and how long after a cut reports change nothing.
    recovers: f64,
    cool_down: f64,
}

impl Scene {
    fn of(changes: &[String]) -> Result<Self, Failure> {
        let mut scene = Self {
            rate: 100.0,
            trouble: 30.0,
            from: 12.0,
            until: 28.0,
            seconds: 40.0,
            burst: 0.2,
            stray: 1.0,
            wait: 1.0,
            processes: 4.0,
            recovers: 15.0,
            cool_down: 1.0,
        };
        for change in changes {
            let (name, value) = change.split_once('=').ok_or("say name=number")?;
            *scene.field(name).ok_or_else(|| format!("no scene has {name}"))? = value.parse()?;
        }
        Ok(scene)
    }

    fn field(&mut self, name: &str) -> Option<&mut f64> {
        Some(match name {
            "rate" => &mut self.rate,
            "trouble" => &mut self.trouble,
            "from" => &mut self.from,
            "until" => &mut self.until,
            "seconds" => &mut self.seconds,
            "burst" => &mut self.burst,
            "stray" => &mut self.stray,
            "wait" => &mut self.wait,
            "processes" => &mut self.processes,
            "recovers" => &mut self.recovers,
            "cool_down" => &mut self.cool_down,
            _ => return None,
        })
    }

    /// How many calls a second the service takes.
    fn takes(&self, second: f64) -> f64 {
        if (self.from..self.until).contains(&second) { self.trouble } else { self.rate }
    }

    /// The callers of a process. Together they would call at 1.2 times the rate.
    fn callers(&self, process: f64) -> usize {
        let all = 1.2 * self.rate * WORK.as_secs_f64();
        let share = if process == 0.0 { 0.65 } else { 0.35 / (self.processes - 1.0) };
        whole((all * share).ceil())
    }

    fn limit(&self, way: usize) -> Limit {
        let [rate, capacity] = [self.rate, self.rate / 5.0].map(|tokens| u64::try_from(whole(tokens)).unwrap_or(1));
        Limit::token_bucket(["fixed", "itself", "together", "told"][way], rate, SECOND).capacity(capacity)
    }

    fn slow_down(&self) -> SlowDown {
        let [recovers, cool_down] = [self.recovers, self.cool_down].map(Duration::from_secs_f64);
        SlowDown::new().recovers(recovers).cool_down(cool_down)
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if let [process, way, database, service, scene @ ..] = &arguments[..]
        && !process.contains('=')
    {
        let scene = Scene::of(scene)?;
        return Runtime::new()?.block_on(call(
            &scene,
            scene.callers(process.parse()?),
            way.parse()?,
            database,
            service,
        ));
    }
    let scene = Scene::of(&arguments)?;
    let (server, runtime) = (Server::start()?, Runtime::new()?);
    let services = runtime.block_on(async {
        let pool = sqlx::PgPool::connect(server.url()).await?;
        migrate::run(&mut *pool.acquire().await?).await?;
        let mut services = Vec::new();
        for way in 0..WAYS.len() {
            services.push(Service::start(&scene, way).await?);
        }
        Ok::<_, Failure>(services)
    })?;
    let mut fleet = Fleet(Vec::new());
    for process in 0..whole(scene.processes) {
        for (way, service) in services.iter().enumerate() {
            let names = [&*process.to_string(), &*way.to_string(), server.url(), &service.address].map(str::to_owned);
            fleet.0.push(Command::new(env::current_exe()?).args(names).args(&arguments).spawn()?);
        }
    }
    while services.iter().any(|service| lock(&service.counts).seconds() < scene.seconds) {
        thread::sleep(SECOND / 10);
    }
    drop(fleet);
    report(&scene, &services);
    Ok(())
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
async fn call(scene: &Scene, callers: usize, way: usize, database: &str, service: &str) -> Result<(), Failure> {
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(4).connect(database).await?;
    let overrides = Overrides::watch(pool.clone()).await?;
    let gate = Gate::builder(pool).overrides(&overrides).build();
    let (limit, slow_down) = (scene.limit(way), scene.slow_down());
    let own = Arc::new(Mutex::new(Own::new(scene.clone())));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (gate, overrides, own, limit) = (gate.clone(), overrides.clone(), own.clone(), limit.clone());
        let mut connection = Connection::open(service).await?;
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(WORK).await;
                if way == ITSELF {
                    while !lock(&own).take() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                } else {
                    match gate.wait(limit.global(), 5 * MINUTE).await {
                        Err(Error::Locked { .. }) => continue,
                        turn => drop(turn?.granted()?),
                    }
                }
                let Some(wait) = connection.call().await? else { continue };
                match way {
                    FIXED => {}
                    ITSELF => lock(&own).slow_down(),
                    _ => {
                        if !wait.is_zero() {
                            overrides.pause_for(limit.global(), wait).await?;
                        }
                        overrides.slow_down(limit.global(), &slow_down).await?;
                    }
                }
            }
        });
    }
    let ended: Result<(), Failure> = tasks.join_next().await.ok_or("no callers")??;
    ended
}

/// A process without tollgate. It has its part of the rate, and slows down by the refusals that it sees.
struct Own {
    scene: Scene,
    share: f64,
    cut: Instant,
    tokens: f64,
    at: Instant,
}

impl Own {
    fn new(scene: Scene) -> Self {
        Self { scene, share: 1.0, cut: Instant::now(), tokens: 0.0, at: Instant::now() }
    }

    fn share(&self) -> f64 {
        (self.share + self.cut.elapsed().as_secs_f64() / self.scene.recovers).min(1.0)
    }

    fn take(&mut self) -> bool {
        let rate = self.scene.rate / self.scene.processes;
        let refilled = rate * self.share() * self.at.elapsed().as_secs_f64();
        self.tokens = (self.tokens + refilled).min((rate / 5.0).max(1.0));
        self.at = Instant::now();
        let is_there = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(is_there));
        is_there
    }

    fn slow_down(&mut self) {
        if self.cut.elapsed().as_secs_f64() > self.scene.cool_down {
            (self.share, self.cut) = ((self.share() * 0.7).max(0.05), Instant::now());
        }
    }
}

/// The third party. It answers each line by `served`, or by how many seconds to wait.
struct Service {
    address: String,
    counts: Arc<Mutex<Counts>>,
}

struct Counts {
    scene: Scene,
    /// When the first call came.
    began: Option<Instant>,
    tokens: f64,
    at: Instant,
    dice: u64,
    /// The calls that were served and refused in each second.
    seconds: Vec<[f64; 2]>,
}

impl Service {
    async fn start(scene: &Scene, way: usize) -> Result<Self, IoError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let wait = if way == TOLD { scene.wait } else { 0.0 };
        let counts = Arc::new(Mutex::new(Counts::new(scene.clone())));
        let shared = counts.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, wait, shared.clone()));
            }
        });
        Ok(Self { address, counts })
    }
}

async fn serve(mut stream: TcpStream, wait: f64, counts: Arc<Mutex<Counts>>) -> Result<(), IoError> {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read).lines();
    while lines.next_line().await?.is_some() {
        let answer = match lock(&counts).serve() {
            Answer::Served => "served\n".to_owned(),
            Answer::Refused => format!("{wait}\n"),
            Answer::RefusedByChance => "0\n".to_owned(),
        };
        write.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

enum Answer {
    Served,
    Refused,
    RefusedByChance,
}

impl Counts {
    fn new(scene: Scene) -> Self {
        let seconds = vec![[0.0; 2]; whole(scene.seconds)];
        Self { scene, began: None, tokens: 0.0, at: Instant::now(), dice: 1, seconds }
    }

    fn seconds(&self) -> f64 {
        self.began.map_or(0.0, |began| began.elapsed().as_secs_f64())
    }

    fn serve(&mut self) -> Answer {
        self.began.get_or_insert_with(Instant::now);
        let second = self.seconds();
        let rate = self.scene.takes(second);
        let refilled = rate * self.at.elapsed().as_secs_f64();
        self.tokens = (self.tokens + refilled).min((rate * self.scene.burst).max(1.0));
        self.at = Instant::now();
        let answer = match (self.tokens >= 1.0, self.is_stray()) {
            (false, _) => Answer::Refused,
            (true, true) => Answer::RefusedByChance,
            (true, false) => Answer::Served,
        };
        let is_served = matches!(answer, Answer::Served);
        self.tokens -= f64::from(u8::from(is_served));
        if let Some(counts) = self.seconds.get_mut(whole(second)) {
            counts[usize::from(!is_served)] += 1.0;
        }
        answer
    }

    /// Whether a call is refused by chance: the same ones in each run.
    fn is_stray(&mut self) -> bool {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        f64::from((self.dice >> 33) as u32) < self.scene.stray / 100.0 * f64::from(1_u32 << 31)
    }
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn open(service: &str) -> Result<Self, IoError> {
        Ok(Self(BufReader::new(TcpStream::connect(service).await?)))
    }

    /// Calls. How long to wait if the call is refused; zero if the service does not say.
    async fn call(&mut self) -> Result<Option<Duration>, Failure> {
        self.0.get_mut().write_all(b"call\n").await?;
        let mut answer = String::new();
        self.0.read_line(&mut answer).await?;
        let refused = Some(answer.trim()).filter(|answer| *answer != "served");
        Ok(refused.map(str::parse).transpose()?.map(Duration::from_secs_f64))
    }
}

/// Prints what each way comes to.
fn report(scene: &Scene, services: &[Service]) {
    let all = [2, whole(scene.seconds)];
    let spans = [all, [all[0], whole(scene.from)], [whole(scene.from), whole(scene.until)]];
    println!("{:<42}{:>8}{:>12}{:>12}{:>10}", "", "used", "in health", "in trouble", "refused");
    let mut refusals = Vec::new();
    for (way, service) in WAYS.iter().zip(services) {
        let seconds = lock(&service.counts).seconds.clone();
        let sums = spans.map(|[from, until]| {
            let sum = |of: usize| seconds[from..until].iter().map(|counts| counts[of]).sum::<f64>();
            let taken =
                (from..until).map(|second| scene.takes(u32::try_from(second).map_or(0.0, f64::from))).sum::<f64>();
            [sum(0) / taken * 100.0, sum(1) / (sum(0) + sum(1)).max(1.0) * 100.0]
        });
        let [[used, refused], [healthy, _], [troubled, _]] = sums;
        println!("{way:<42}{used:>6.1} %{healthy:>10.1} %{troubled:>10.1} %{refused:>8.1} %");
        refusals.push(refused);
    }
    assert!(refusals[2] < refusals[FIXED] / 2.0, "fewer calls are refused than by a fixed limit");
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
fn whole(number: f64) -> usize {
    number as usize
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
