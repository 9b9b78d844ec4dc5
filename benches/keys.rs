//! What do a million and ten million durable keys cost, while checkpoints, autovacuum and a sweeper come as they do?
//!
//! `cargo bench -p tollgate-benches --bench keys [-- --minutes N] [--keys N,N…] [--setting NAME=VALUE]…`
//!
//! 256 callers ask one gate: first over 10 000 keys for a minute, which is the baseline, and then over each number of
//! keys. They ask each key as often as any other, and in another turn the n-th in proportion to n^-1.1. These turns
//! share the minutes, which are 30 unless given. All rows exist. The private server has its default settings but for
//! those that are given, and for `shared_buffers`, which is 4 GB.
//!
//! A line has the figures of a turn:
//!
//! - the latency of the calls
//! - for each decision, the bytes of write-ahead log, and the number of whole pages in them
//! - the size of the table and of its index
//! - how many checkpoints and autovacuums ended, and the highest number of dead rows that the server counted
//! - how long the longest pass took of a sweeper that begins one every ten seconds
//! - decisions per second, also beside the baseline

#![expect(clippy::disallowed_methods, reason = "a benchmark measures spans on this machine's monotonic clock")]

mod support;

use std::fmt;
use std::time::{Duration, Instant};

use clap::Parser;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep_until, timeout_at};
use tollgate::{Gate, HOUR, Limit, MINUTE, Request, SECOND, Sweeper};
use tollgate_embedded::Server;

use support::{Fault, call, gather, migrated, pool, zipf};

/// It has more tokens than the callers can take, and no key is ever full.
const BUSY: Limit = Limit::token_bucket("busy", 1_000_000_000, HOUR);
const BASELINE: u32 = 10_000;

#[derive(Debug, Parser)]
struct Args {
    /// The minutes that all turns but the baseline share.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,

    /// The numbers of keys: powers of ten.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000, 10_000_000])]
    keys: Vec<u32>,

    /// A setting of the server.
    #[arg(long, value_name = "NAME=VALUE")]
    setting: Vec<String>,

    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let args = Args::parse();
    let mut server = Server::builder().durable().setting("max_connections", "100").setting("shared_buffers", "4GB");
    for setting in &args.setting {
        let (name, value) = setting.split_once('=').ok_or("a setting is NAME=VALUE")?;
        server = server.setting(name, value);
    }
    let server = tokio::task::spawn_blocking(|| server.start()).await??;
    let own = migrated(server.url(), 2).await?;
    println!("{HEADINGS}");
    let turns = 2 * u32::try_from(args.keys.len())?;
    let turn = Duration::try_from_secs_f64(args.minutes * 60.0)? / turns;
    fill(&own, BASELINE).await?;
    let baseline = measure(&server, &own, Asked::Alike, BASELINE, turn.min(MINUTE)).await?;
    println!("{baseline} {:>6.2}", 1.0);
    for keys in args.keys {
        fill(&own, keys).await?;
        for asked in [Asked::Alike, Asked::ByRank] {
            let figures = measure(&server, &own, asked, keys, turn).await?;
            println!("{figures} {:>6.2}", figures.per_second / baseline.per_second);
        }
    }
    Ok(())
}

/// How the callers choose a key.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Alike,
    ByRank,
}

impl Asked {
    fn draw(self, random: &mut fastrand::Rng, keys: u32) -> Request {
        BUSY.key(match self {
            Self::Alike => random.u32(..keys),
            Self::ByRank => scattered(zipf(random, keys), keys),
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Alike => "alike",
            Self::ByRank => "n^-1.1",
        }
    }
}

/// The key of a rank: so the busiest keys do not lie together in the table.
fn scattered(rank: u32, keys: u32) -> u32 {
    // It has no factor in common with a power of ten.
    let place = u64::from(rank) * 7_654_321 % u64::from(keys);
    u32::try_from(place).expect("less than the number of keys")
}

/// Makes a row for each key, and no other.
async fn fill(own: &PgPool, keys: u32) -> Result<(), Fault> {
    sqlx::raw_sql("truncate tollgate.durable").execute(own).await?;
    let rows = "insert into tollgate.durable (part, name, key, shard, value, ts, full_at)
                select 0, 'busy', n::text, 0, -1000000, now(), now() + interval '1 hour'
                  from generate_series(0, $1 - 1) n";
    sqlx::query(rows).bind(i64::from(keys)).execute(own).await?;
    sqlx::raw_sql("vacuum (freeze, analyze) tollgate.durable").execute(own).await?;
    Ok(())
}

async fn measure(server: &Server, own: &PgPool, asked: Asked, keys: u32, turn: Duration) -> Result<Figures, Fault> {
    let gate = Gate::new(pool(server.url(), 16).await?);
    sqlx::raw_sql("checkpoint").execute(own).await?;
    let from = Instant::now() + SECOND;
    let until = from + turn;
    let mut callers = JoinSet::new();
    for seed in 0..CALLERS {
        let (gates, random) = ([gate.clone()].into(), fastrand::Rng::with_seed(seed));
        callers.spawn(call(gates, move |random| asked.draw(random, keys), random, from, until));
    }
    let sweeping = tokio::spawn(sweep(own.clone(), until));
    sleep_until(from.into()).await;
    let before = Counters::read(own).await?;
    let seen = watch(own, until).await?;
    let after = Counters::read(own).await?;
    let latencies = gather(callers).await?;
    gate.close().await;
    let sweep = sweeping.await??;
    let [p50_ms, p99_ms] = [0.5, 0.99].map(|share| latencies.quantile(share) / 1e3);
    Ok(Figures {
        keys,
        asked,
        per_second: latencies.count() / turn.as_secs_f64(),
        p50_ms,
        p99_ms,
        wal_bytes: (after.wal_bytes - before.wal_bytes) / latencies.count(),
        pages: (after.pages - before.pages) / latencies.count(),
        table_mb: after.table_mb,
        index_mb: after.index_mb,
        checkpoints: seen.checkpoints,
        vacuums: after.vacuums - before.vacuums,
        dead: seen.dead,
        sweep,
    })
}

/// Sweeps every ten seconds, and returns how long the longest pass took that ended in time. The rows are in use, so it
/// finds none to delete.
async fn sweep(pool: PgPool, until: Instant) -> Result<Duration, Fault> {
    let (mut every, mut longest) = (interval(10 * SECOND), Duration::ZERO);
    loop {
        let began = every.tick().await.into_std();
        match timeout_at(until.into(), Sweeper::new().sweep(&pool)).await {
            Ok(swept) => swept?,
            Err(_) => return Ok(longest),
        };
        longest = longest.max(began.elapsed());
    }
}

/// The counts that only a look on the way can get.
#[derive(Debug, Default)]
struct Seen {
    checkpoints: u32,
    /// The highest number of dead rows.
    dead: i64,
}

/// Looks at the server once a second.
async fn watch(own: &PgPool, until: Instant) -> Result<Seen, Fault> {
    let (mut every, mut seen, mut last) = (interval(SECOND), Seen::default(), None);
    while Instant::now() + SECOND < until {
        every.tick().await;
        let (redo, dead): (String, i64) = sqlx::query_as(STATE).fetch_one(own).await?;
        seen.checkpoints += u32::from(last.as_ref().is_some_and(|last| *last != redo));
        seen.dead = seen.dead.max(dead);
        last = Some(redo);
    }
    sleep_until(until.into()).await;
    Ok(seen)
}

/// The instant from which a crash would be repaired, which each checkpoint moves on; and the dead rows, as counted.
const STATE: &str = "
    select c.redo_lsn::text, s.n_dead_tup
      from pg_control_checkpoint() c, pg_stat_user_tables s
     where s.relid = 'tollgate.durable'::regclass";

#[derive(Debug, sqlx::FromRow)]
struct Counters {
    wal_bytes: f64,
    /// Pages that were logged whole.
    pages: f64,
    vacuums: i64,
    table_mb: f64,
    index_mb: f64,
}

impl Counters {
    async fn read(own: &PgPool) -> Result<Self, Fault> {
        Ok(sqlx::query_as(COUNTERS).fetch_one(own).await?)
    }
}

const COUNTERS: &str = "
    select (pg_current_wal_insert_lsn() - '0/0')::float8 as wal_bytes,
           w.wal_fpi::float8 as pages,
           s.autovacuum_count as vacuums,
           pg_table_size(s.relid) / 1e6::float8 as table_mb,
           pg_indexes_size(s.relid) / 1e6::float8 as index_mb
      from pg_stat_wal w, pg_stat_user_tables s
     where s.relid = 'tollgate.durable'::regclass";

/// The figures of a turn.
#[derive(Debug)]
struct Figures {
    keys: u32,
    asked: Asked,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// For each decision.
    wal_bytes: f64,
    /// For each decision, too.
    pages: f64,
    table_mb: f64,
    index_mb: f64,
    checkpoints: u32,
    vacuums: i64,
    dead: i64,
    sweep: Duration,
}

const HEADINGS: &str = "    keys asked   p50 ms  p99 ms WAL bytes  pages table MB index MB checkpoints vacuums dead rows \
                        sweep s decisions/s      ×";

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, p50_ms, p99_ms, wal_bytes, pages, table_mb, index_mb, .. } = self;
        let Self { checkpoints, vacuums, dead, per_second, .. } = self;
        write!(f, "{keys:>8} {:<6} {p50_ms:>7.2} {p99_ms:>7.2} {wal_bytes:>9.0} {pages:>6.3} ", self.asked.name())?;
        write!(f, "{table_mb:>8.0} {index_mb:>8.0} {checkpoints:>11} {vacuums:>7} {dead:>9} ")?;
        write!(f, "{:>7.1} {per_second:>11.0}", self.sweep.as_secs_f64())
    }
}

const CALLERS: u64 = 256;
