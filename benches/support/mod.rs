//! Code that several benches share.

#![allow(dead_code, reason = "each bench uses a part of it")]

pub(crate) mod cpu;
pub(crate) mod pgbench;
pub(crate) mod wire;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tokio::task::{JoinSet, coop};
use tollgate::{Gate, Limiter, Request, migrate};
use wire::Wire;

/// Why a bench stops. One wrong answer, and all figures are worthless.
pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// A pool whose connections are all open. It does not test a connection before it lends it: that is a round trip which
/// a careful service spares itself.
pub(crate) async fn pool(url: &str, connections: u32) -> Result<PgPool, Fault> {
    pool_to(url.parse()?, connections).await
}

/// The same to a server whose address is no URL.
pub(crate) async fn pool_to(server: PgConnectOptions, connections: u32) -> Result<PgPool, Fault> {
    let pool = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
    let pool = pool.connect_with(server).await?;
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(pool.acquire().await?);
    }
    drop(open);
    Ok(pool)
}

/// Such a pool over a database that has the tables.
pub(crate) async fn migrated(url: &str, connections: u32) -> Result<PgPool, Fault> {
    let pool = pool(url, connections).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    Ok(pool)
}

/// Makes the rows of all requests, so that no measured call inserts one, and tells the planner of them.
pub(crate) async fn fill(pool: &PgPool, requests: impl IntoIterator<Item = Request>) -> Result<(), Fault> {
    fill_by(&Limiter::new(), pool, requests).await
}

/// The same by a limiter that knows the parts of the tables.
pub(crate) async fn fill_by(
    limiter: &Limiter,
    pool: &PgPool,
    requests: impl IntoIterator<Item = Request>,
) -> Result<(), Fault> {
    let requests: Vec<_> = requests.into_iter().collect();
    for some in requests.chunks(500) {
        let mut tx = pool.begin().await?;
        limiter.consume(&mut tx, some).await?.granted()?;
        tx.commit().await?;
    }
    sqlx::raw_sql("vacuum analyze tollgate.ephemeral, tollgate.durable").execute(pool).await?;
    Ok(())
}

/// A server on this machine over a wire whose round trip takes so long.
pub(crate) fn far(url: &str, round_trip: Duration) -> Result<(PgConnectOptions, Wire), Fault> {
    let server = url.parse::<PgConnectOptions>()?.ssl_mode(PgSslMode::Disable);
    let name = format!(".s.PGSQL.{}", server.get_port());
    let wire = Wire::to(&server.get_socket().ok_or("the server listens on no socket")?.join(name), round_trip)?;
    Ok((server.socket(wire.home()), wire))
}

/// Draws the request of the next call.
pub(crate) type Draw = fn(&mut fastrand::Rng) -> Request;

/// A rank from 0 on, the n-th in proportion to n^-1.1, as near as the inverse of its integral comes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to below the number of ranks")]
pub(crate) fn zipf(random: &mut fastrand::Rng, ranks: u32) -> u32 {
    let last = f64::from(ranks + 1).powf(-0.1);
    ((1.0 - random.f64() * (1.0 - last)).powf(-10.0) as u32 - 1).min(ranks - 1)
}

/// Calls one gate after another, and returns how long the calls took that began in the turn.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures spans on this machine's monotonic clock")]
pub(crate) async fn call(
    gates: Arc<[Gate]>,
    draw: impl Fn(&mut fastrand::Rng) -> Request,
    mut random: fastrand::Rng,
    from: Instant,
    until: Instant,
) -> Result<Latencies, Fault> {
    let mut latencies = Latencies::default();
    loop {
        let (request, gate) = (draw(&mut random), &gates[random.usize(..gates.len())]);
        let begun = Instant::now();
        if begun >= until {
            return Ok(latencies);
        }
        gate.consume(request).await?.granted()?;
        if begun >= from {
            latencies.record(begun.elapsed());
        }
        // A call that is answered from memory gives the others their turn, too.
        coop::consume_budget().await;
    }
}

/// How long all calls of some callers took.
pub(crate) async fn gather(mut callers: JoinSet<Result<Latencies, Fault>>) -> Result<SortedLatencies, Fault> {
    let mut latencies = Latencies::default();
    while let Some(caller) = callers.join_next().await {
        latencies.append(caller??);
    }
    Ok(latencies.sorted())
}

/// The middle one of some values; of an even number the higher of the middle two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How long calls took, in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<f32>);

impl Latencies {
    pub(crate) fn record(&mut self, took: Duration) {
        self.0.push(took.as_secs_f32() * 1e6);
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Sorts them, so that quantiles can be read.
    pub(crate) fn sorted(mut self) -> SortedLatencies {
        self.0.sort_unstable_by(f32::total_cmp);
        SortedLatencies(self.0)
    }
}

/// The same, the shortest first.
#[derive(Debug)]
pub(crate) struct SortedLatencies(Vec<f32>);

impl SortedLatencies {
    #[expect(clippy::cast_precision_loss, reason = "a run has far fewer calls than 2^53")]
    pub(crate) fn count(&self) -> f64 {
        self.0.len() as f64
    }

    /// The microseconds within which this share of the calls was answered; zero if there were no calls.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index is less than the count")]
        let index = (self.count() * share) as usize;
        self.0.get(index).or(self.0.last()).copied().map_or(0.0, f64::from)
    }
}
