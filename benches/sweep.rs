//! Do callers of a gate notice a sweep? A million full rows are deleted while 64 callers ask a gate.
//!
//! `cargo bench -p tollgate-benches --bench sweep [-- --rows N] [-- --share PERCENT]`
//!
//! All in one run on one private server: the callers by themselves, the callers beside the sweep until its end, and the
//! callers by themselves again. The result is the ratio of the 99th percentiles. Absolute figures are those of this
//! machine: callers, gate, sweeper and server share its processors. It does not measure a network, hours of sweeping,
//! or full rows that are spread among those in use: here they lie together, as they were made.

mod support;

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{Gate, HOUR, Limit, Sweeper};
use tollgate_embedded::Server;

use support::{Fault, Latencies, SortedLatencies, fill, gather, migrated, pool};

/// The limit of the callers; never exhausted.
const BUSY: Limit = Limit::token_bucket("busy", 1_000_000_000, HOUR);

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let (rows, share) = (option("--rows")?.unwrap_or(1_000_000), option("--share")?.unwrap_or(25));
    let server =
        Server::builder().durable().setting("max_connections", "100").setting("shared_buffers", "256MB").start()?;
    let callers = migrated(server.url(), 16).await?;
    fill_resting(&callers, rows).await?;
    fill(&callers, (0..KEYS).map(|key| BUSY.key(key))).await?;
    let gate = Gate::new(callers);

    let before = call_for(&gate, TURN).await?;
    println!("{:<32} {before}", "by themselves");
    let (stop, began) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let calls = tokio::spawn(call(gate.clone(), stop.clone()));
    // As `tollgate sweep` does: a connection of its own.
    let own = pool(server.url(), 1).await?;
    let swept = Sweeper::new().share(u8::try_from(share)?).sweep(&own).await?;
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let beside = calls.await??;
    println!("{:<32} {beside}", "beside the sweep");
    let after = call_for(&gate, TURN).await?;
    println!("{:<32} {after}", "by themselves again");

    let undisturbed = f64::midpoint(before.millis(0.99), after.millis(0.99));
    println!("\n{} rows deleted in {:.1} s by {} statements", swept.durable, took.as_secs_f64(), swept.batches);
    println!(
        "p99 beside the sweep: {:.2} of what it is otherwise (target: 1.5 at most)",
        beside.millis(0.99) / undisturbed
    );
    if swept.durable != u64::try_from(rows)? {
        return Err(format!("{rows} rows were to be deleted: {swept:?}").into());
    }
    Ok(())
}

/// The number behind a flag.
fn option(flag: &str) -> Result<Option<i64>, Fault> {
    let value = env::args().skip_while(|arg| arg != flag).nth(1);
    Ok(value.map(|value| value.parse()).transpose()?)
}

/// Rows that have been full for half an hour.
async fn fill_resting(pool: &PgPool, rows: i64) -> Result<(), Fault> {
    let sql = "insert into tollgate.durable (part, name, key, shard, value, ts, full_at)
               select 0, 'resting', 'user' || n, 0, -1000000,
                      now() - interval '31 minutes', now() - interval '30 minutes'
                 from generate_series(1, $1) n";
    sqlx::query(sql).bind(rows).execute(pool).await?;
    sqlx::raw_sql("vacuum analyze tollgate.durable").execute(pool).await?;
    sqlx::raw_sql("checkpoint").execute(pool).await?;
    Ok(())
}

async fn call_for(gate: &Gate, turn: Duration) -> Result<Calls, Fault> {
    let stop = Arc::new(AtomicBool::new(false));
    let calls = tokio::spawn(call(gate.clone(), stop.clone()));
    tokio::time::sleep(turn).await;
    stop.store(true, Ordering::Relaxed);
    calls.await?
}

/// Calls from all callers until it is to stop; each makes its next call when its last is answered.
async fn call(gate: Gate, stop: Arc<AtomicBool>) -> Result<Calls, Fault> {
    let (mut callers, began) = (JoinSet::new(), Instant::now());
    for caller in 0..CALLERS {
        let (gate, stop) = (gate.clone(), stop.clone());
        callers.spawn(async move {
            let (mut latencies, mut random) = (Latencies::default(), fastrand::Rng::with_seed(caller));
            while !stop.load(Ordering::Relaxed) {
                let asked = Instant::now();
                gate.consume(BUSY.key(random.u32(..KEYS))).await?.granted()?;
                latencies.record(asked.elapsed());
            }
            Ok::<_, Fault>(latencies)
        });
    }
    Ok(Calls { latencies: gather(callers).await?, seconds: began.elapsed().as_secs_f64() })
}

/// The calls that the callers made.
struct Calls {
    latencies: SortedLatencies,
    seconds: f64,
}

impl Calls {
    fn millis(&self, share: f64) -> f64 {
        self.latencies.quantile(share) / 1e3
    }
}

impl std::fmt::Display for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = self.latencies.count() / self.seconds;
        let [half, most, longest] = [0.5, 0.99, 0.999].map(|quantile| self.millis(quantile));
        write!(f, "{rate:>8.0} decisions/s   p50 {half:>6.2} ms   p99 {most:>6.2} ms   p99.9 {longest:>6.2} ms")
    }
}

const CALLERS: u64 = 64;
const KEYS: u32 = 10_000;
const TURN: Duration = Duration::from_secs(10);
