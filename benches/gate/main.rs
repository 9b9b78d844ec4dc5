//! How fast is the gate beside transactions, bare updates and Redis?
//!
//! `./dev bench [--quick] [--write]`, or `cargo bench -p tollgate-benches --bench gate -- --quick`
//!
//! All contenders run in turns, on one machine and in one run. They use a private PostgreSQL, which writes as a
//! production server does. They use Redis where `REDIS_URL` names a server or `redis-server` is on the path. The ratios
//! are the result; absolute figures are those of this machine. `document.txt` describes the measurements, and names
//! those that it lacks.

mod beside;
mod contender;
mod elsewhere;
mod plot;
mod redis;
mod report;
mod scene;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod target;
mod turn;

use std::io::{IsTerminal, stderr};
use std::time::Duration;
use std::{env, fs};

use clap::Parser;
use sqlx::{Connection, PgConnection};
use tollgate::Storage;
use tollgate_embedded::Server;

use contender::{Contender, Servers};
use redis::Redis;
use report::{Machine, Report, Row};
use scene::{Scene, Workload};
use support::Fault;
use turn::Figures;

/// Measure the gate beside transactions, bare updates and Redis, on private servers that are gone afterwards.
#[derive(Debug, Parser)]
#[command(bin_name = "./dev bench")]
struct Args {
    /// What the callers ask; repeatable. All unless given.
    #[arg(long = "workload", value_name = "NAME", value_enum)]
    workloads: Vec<Workload>,

    /// Which table holds the limits, `ephemeral` or `durable`; repeatable. Both unless given.
    #[arg(long = "storage", value_name = "NAME", value_parser = storage)]
    storages: Vec<Storage>,

    /// Numbers of concurrent callers. Unless given 16,64,256,1024; of zipf 64, of open 20,50, of hot
    /// 20,50,64,256, of three, refused, near, far and shared 64,256.
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    callers: Vec<u16>,

    /// Seconds that each turn is timed, of an open load twice as long. 0.4 unless given.
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,

    /// How often all take their turns; medians count. 3 unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,

    /// One round of 0.3 seconds with 64 callers, unless given: to see that it works, not to quote.
    #[arg(long)]
    quick: bool,

    /// Write docs/benchmarks.txt, docs/benchmarks.md and its picture instead of printing the figures.
    #[arg(long)]
    write: bool,

    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let args = Args::parse();
    // However the run ends, the servers are dropped, and stop.
    tokio::select! {
        outcome = run(&args) => outcome,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    }
}

async fn run(args: &Args) -> Result<(), Fault> {
    let servers = start().await?;
    let mut conn = PgConnection::connect(servers.postgres.url()).await?;
    let report = Report {
        machine: Machine::read(&mut conn, &servers).await?,
        turns: format!("{} of {}", args.rounds(), humantime::format_duration(args.turn())),
        rows: measure(args, &servers, &mut conn).await?,
    };
    if args.write {
        let given: Vec<_> = env::args().skip(1).filter(|arg| arg != "--bench" && arg != "--write").collect();
        // Cargo runs a bench where its package is.
        fs::write("../docs/benchmarks.txt", report.to_string())?;
        fs::write("../docs/benchmarks.md", report.document(&given))?;
        report.plot().map_or(Ok(()), |plot| fs::write("../docs/benchmarks.svg", plot))?;
    } else {
        print!("{report}");
    }
    Ok(())
}

/// Starts the servers, and makes all rows that the scenes ask.
async fn start() -> Result<Servers, Fault> {
    let postgres = Server::builder().durable().setting("max_connections", "100").setting("shared_buffers", "256MB");
    let postgres = tokio::task::spawn_blocking(|| postgres.start()).await??;
    let pool = support::migrated(postgres.url(), 1).await?;
    support::fill(&pool, scene::all_requests()).await?;
    beside::prepare(&pool).await?;
    let postmaster = support::cpu::postmaster(&mut *pool.acquire().await?).await?;
    pool.close().await;
    let servers =
        Servers { postgres, postmaster, redis: Redis::find().await?, redis_synced: Redis::find_synced().await? };
    if servers.redis.is_none() {
        eprintln!("nothing is measured beside Redis: REDIS_URL names no server, and redis-server is not on the path");
    }
    Ok(servers)
}

/// A round is one turn of every contender in every scene, so that other load on the machine falls on all of them alike.
async fn measure(args: &Args, servers: &Servers, conn: &mut PgConnection) -> Result<Vec<Row>, Fault> {
    let mut turns: Vec<(Scene, Contender, Vec<Figures>)> = Vec::new();
    for scene in args.scenes() {
        let entering = Contender::ALL.into_iter().filter(|contender| contender.enters(&scene, servers));
        turns.extend(entering.map(|contender| (scene, contender, Vec::new())));
    }
    let all = turns.len() * usize::from(args.rounds());
    for round in 0..usize::from(args.rounds()) {
        for place in 0..turns.len() {
            let (scene, contender, _) = turns[place];
            progress(&format!("{}/{all} {scene}: {}", round * turns.len() + place + 1, contender.name()));
            let due = due(scene, contender, &turns)?;
            let turn = turn::take(conn, servers, scene, contender, args.turn(), due).await;
            turns[place].2.push(turn.map_err(|fault| format!("{} failed at {scene}: {fault}", contender.name()))?);
        }
    }
    progress("");
    let row = |(scene, contender, turns): (_, _, Vec<_>)| Row { scene, contender, figures: Figures::median(&turns) };
    Ok(turns.into_iter().map(row).collect())
}

/// How many calls per second are due in an open load: a thousand, or a share of the contender's best. Its best is of
/// the turns until now, while its callers waited for their answers.
fn due(scene: Scene, contender: Contender, turns: &[(Scene, Contender, Vec<Figures>)]) -> Result<Option<f64>, Fault> {
    let Some(share) = scene.workload.share() else {
        return Ok((scene.workload == Workload::Open).then_some(1_000.0));
    };
    let is_like = |(of, by, _): &&(Scene, Contender, _)| {
        (of.workload, of.storage, *by) == (Workload::Uniform, scene.storage, contender)
    };
    let rates = turns.iter().filter(is_like).flat_map(|(.., figures)| figures).map(|figures| figures.per_second);
    let best = rates.reduce(f64::max).ok_or("say `--workload uniform`, too: its best is what the share is of")?;
    Ok(Some(share * best))
}

/// Writes a line over the one before, if standard error is a terminal.
fn progress(line: &str) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    }
}

impl Args {
    fn scenes(&self) -> Vec<Scene> {
        let workloads = given(&self.workloads, <Workload as clap::ValueEnum>::value_variants());
        let storages = given(&self.storages, &[Storage::Ephemeral, Storage::Durable]);
        let mut scenes = Vec::new();
        for &workload in workloads {
            for &storage in storages {
                let callers = self.callers(workload).iter();
                scenes.extend(callers.map(|&callers| Scene { workload, storage, callers: callers.into() }));
            }
        }
        scenes
    }

    fn callers(&self, workload: Workload) -> &[u16] {
        match workload {
            Workload::One => &[1],
            Workload::Zipf => given(&self.callers, &[64]),
            _ if self.quick => given(&self.callers, &[64]),
            Workload::Hot => given(&self.callers, &[20, 50, 64, 256]),
            Workload::Open => given(&self.callers, &[20, 50]),
            // Enough that calls seldom wait for one that is free.
            Workload::Quarter | Workload::Half | Workload::ThreeQuarters => &[1000],
            Workload::Three | Workload::Refused | Workload::Near | Workload::Far | Workload::Shared => {
                given(&self.callers, &[64, 256])
            }
            _ => given(&self.callers, &[16, 64, 256, 1024]),
        }
    }

    fn turn(&self) -> Duration {
        self.seconds.unwrap_or(Duration::from_millis(if self.quick { 300 } else { 400 }))
    }

    fn rounds(&self) -> u16 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }
}

fn given<'a, T>(values: &'a [T], usual: &'a [T]) -> &'a [T] {
    if values.is_empty() { usual } else { values }
}

fn storage(name: &str) -> Result<Storage, &'static str> {
    let known = [Storage::Ephemeral, Storage::Durable].into_iter().find(|storage| storage.to_string() == name);
    known.ok_or("it is neither `ephemeral` nor `durable`")
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "it is not a number of seconds")?;
    let span = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if span.is_zero() { Err("it is no time at all".into()) } else { Ok(span) }
}
