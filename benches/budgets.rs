//! What do calls cost that can lapse, with thousands of them in flight? An organisation, its teams and its users are
//! charged together, and settled, by 64 callers of one gate.
//!
//! `cargo bench -p tollgate-benches --bench budgets [-- --quick | --vacuum]`
//!
//! Two kinds of pairs take turns on one private server that keeps what it commits. One is a plain `consume` of three
//! levels and its settlement. The other is the same with `lapses_after`, which writes a row of its own for each pair
//! and deletes it. Meanwhile 5 000 and then 50 000 calls of the same limits are in flight. The median of the turns
//! counts, and the results are ratios. Then calls ask one row alone: that of the organisation, which all these calls
//! have charged, and in turn that of a limit that no stored call asks. Absolute figures are those of this machine:
//! callers, gate and server share its processors. The bytes on disk beside 50 000 calls contain those that the turns
//! before have left. It does not measure a network, hours of vacuum, or calls that do lapse. `--quick`: shorter and
//! fewer turns. `--vacuum` instead makes calls with `lapses_after` for ten minutes, and prints after each minute how
//! much disk their table takes. Only the server's own vacuum tidies that table.

mod support;

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{Call, Gate, HOUR, Limit, Receipt};
use tollgate_embedded::Server;

use support::{Fault, Latencies, SortedLatencies, fill, median, migrated};

/// Never exhausted.
const ORG: Limit = Limit::fixed_window("org", 1_000_000_000_000, Duration::from_hours(30 * 24));
const TEAM: Limit = Limit::fixed_window("team", 1_000_000_000_000, Duration::from_hours(30 * 24));
const USER: Limit = Limit::fixed_window("user", 1_000_000_000_000, Duration::from_hours(30 * 24));

/// Like `ORG`, but no stored call asks it.
const QUIET: Limit = Limit::fixed_window("quiet", 1_000_000_000_000, Duration::from_hours(30 * 24));

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let is_quick = env::args().any(|arg| arg == "--quick");
    let (turn, turns) = if is_quick { (Duration::from_secs(2), 3) } else { (Duration::from_secs(10), 5) };
    let server =
        Server::builder().durable().setting("max_connections", "100").setting("shared_buffers", "256MB").start()?;
    let pool = migrated(server.url(), 16).await?;
    let rows = (0..TEAMS).map(|team| TEAM.key(team)).chain((0..USERS).map(|user| USER.key(user)));
    fill(&pool, rows.chain([ORG.key("acme"), QUIET.key("acme")])).await?;
    let gate = Gate::new(pool.clone());

    if env::args().any(|arg| arg == "--vacuum") {
        return watch_vacuum(&pool, &gate).await;
    }
    let (empty, mut in_flight) = (bytes(&pool).await?, Vec::new());
    for most in [5_000, 50_000] {
        in_flight.extend(charge(&gate, most - in_flight.len()).await?);
        sqlx::raw_sql("vacuum analyze tollgate.calls").execute(&pool).await?;
        println!(
            "\n{most} calls in flight, {} bytes each on disk",
            (bytes(&pool).await? - empty) / i64::try_from(most)?
        );

        let (mut together, mut consumed, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..turns {
            let [plain, stored] = [run(&gate, Asked::Plain, turn).await?, run(&gate, Asked::Stored, turn).await?];
            println!("{:<32} {plain}", "three levels, plain");
            println!("{:<32} {stored}", "three levels, lapses_after");
            together.push(plain.per_second() / stored.per_second());
            consumed.push(stored.consumes.quantile(0.5) / plain.consumes.quantile(0.5));
            settled.push(stored.settles.quantile(0.5) / plain.settles.quantile(0.5));
        }
        println!(
            "lapses_after costs {:.2} of plain (target: 1.6 at most); consume {:.2}, settle {:.2} by p50",
            median(together),
            median(consumed),
            median(settled)
        );
        let mut alone = Vec::new();
        for _ in 0..turns {
            let [quiet, org] = [run(&gate, Asked::Quiet, turn).await?, run(&gate, Asked::Org, turn).await?];
            alone.push(quiet.per_second() / org.per_second());
        }
        println!("the organisation's row alone costs {:.2} of one without calls", median(alone));
    }
    Ok(())
}

/// Calls that lapse, at full load, and the table of calls after each minute.
async fn watch_vacuum(pool: &PgPool, gate: &Gate) -> Result<(), Fault> {
    let _in_flight = charge(gate, 5_000).await?;
    println!("5000 calls in flight");
    for minute in 1..=10 {
        let pairs = run(gate, Asked::Stored, Duration::from_mins(1)).await?;
        let (heap, indexes, dead, vacuums): (i64, i64, i64, i64) = sqlx::query_as(
            "select pg_relation_size(relid), pg_indexes_size(relid), n_dead_tup, autovacuum_count
               from pg_stat_user_tables where relid = 'tollgate.calls'::regclass",
        )
        .fetch_one(pool)
        .await?;
        let [heap, indexes] = [heap, indexes].map(|bytes| bytes / 1_000_000);
        println!(
            "minute {minute:>2}: {:>7.0} decisions/s, rows {heap} MB, \
             indexes {indexes} MB, {dead} dead, {vacuums} vacuums",
            pairs.per_second()
        );
    }
    Ok(())
}

/// The bytes on disk of the table of calls and its indexes.
async fn bytes(pool: &PgPool) -> Result<i64, Fault> {
    Ok(sqlx::query_scalar("select pg_total_relation_size('tollgate.calls')").fetch_one(pool).await?)
}

/// Calls that stay in flight.
async fn charge(gate: &Gate, calls: usize) -> Result<Vec<Receipt>, Fault> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (gate, mut random) = (gate.clone(), fastrand::Rng::with_seed(caller));
        let share = calls / usize::try_from(CALLERS)?
            + usize::from(usize::try_from(caller)? < calls % usize::try_from(CALLERS)?);
        callers.spawn(async move {
            let mut receipts = Vec::new();
            for _ in 0..share {
                let grant = gate.consume(Asked::Stored.call(&mut random)).await?.granted()?;
                receipts.push(grant.into());
            }
            Ok::<_, Fault>(receipts)
        });
    }
    let mut receipts = Vec::new();
    while let Some(caller) = callers.join_next().await {
        receipts.extend(caller??);
    }
    Ok(receipts)
}

#[derive(Clone, Copy)]
enum Asked {
    /// Three levels, by a call without a name.
    Plain,
    /// Three levels, by a call that lapses.
    Stored,
    /// One row that stored calls have charged.
    Org,
    /// One row that no stored call has charged.
    Quiet,
}

impl Asked {
    fn call(self, random: &mut fastrand::Rng) -> Call {
        let levels = [ORG.key("acme"), TEAM.key(random.u32(..TEAMS)), USER.key(random.u32(..USERS))];
        match self {
            Self::Plain => levels.map(|request| request.cost(ESTIMATE)).into(),
            Self::Stored => Call::from(levels.map(|request| request.cost(ESTIMATE))).lapses_after(HOUR),
            Self::Org => ORG.key("acme").cost(ESTIMATE).into(),
            Self::Quiet => QUIET.key("acme").cost(ESTIMATE).into(),
        }
    }
}

/// Calls and settlements from all callers for a turn; each makes its next one when its last is answered.
async fn run(gate: &Gate, asked: Asked, turn: Duration) -> Result<Pairs, Fault> {
    let (mut callers, began, stop) = (JoinSet::new(), Instant::now(), Arc::new(AtomicBool::new(false)));
    for caller in 0..CALLERS {
        let (gate, stop) = (gate.clone(), stop.clone());
        callers.spawn(async move {
            let (mut consumes, mut settles) = (Latencies::default(), Latencies::default());
            let mut random = fastrand::Rng::with_seed(caller);
            while !stop.load(Ordering::Relaxed) {
                let asked_at = Instant::now();
                let grant = gate.consume(asked.call(&mut random)).await?.granted()?;
                let granted_at = Instant::now();
                gate.settle(grant, random.u32(..=ESTIMATE)).await?;
                consumes.record(granted_at - asked_at);
                settles.record(granted_at.elapsed());
            }
            Ok::<_, Fault>((consumes, settles))
        });
    }
    tokio::time::sleep(turn).await;
    stop.store(true, Ordering::Relaxed);
    let (mut consumes, mut settles) = (Latencies::default(), Latencies::default());
    while let Some(caller) = callers.join_next().await {
        let (of_consumes, of_settles) = caller??;
        consumes.append(of_consumes);
        settles.append(of_settles);
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Pairs { consumes: consumes.sorted(), settles: settles.sorted(), seconds })
}

/// The pairs that the callers made in a turn.
struct Pairs {
    consumes: SortedLatencies,
    settles: SortedLatencies,
    seconds: f64,
}

impl Pairs {
    /// Calls and settlements.
    fn per_second(&self) -> f64 {
        2.0 * self.consumes.count() / self.seconds
    }
}

impl std::fmt::Display for Pairs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let millis = |latencies: &SortedLatencies, share| latencies.quantile(share) / 1e3;
        write!(
            f,
            "{:>7.0} decisions/s   consume p50 {:>6.2} p99 {:>6.2} ms   settle p50 {:>6.2} p99 {:>6.2} ms",
            self.per_second(),
            millis(&self.consumes, 0.5),
            millis(&self.consumes, 0.99),
            millis(&self.settles, 0.5),
            millis(&self.settles, 0.99)
        )
    }
}

const CALLERS: u64 = 64;
const TEAMS: u32 = 20;
const USERS: u32 = 1_000;
const ESTIMATE: u32 = 2_000;
