//! What does a decision cost all servers of a Citus cluster, through the coordinator and node by node?
//!
//! `CITUS_URL=postgres://postgres@localhost:5432/postgres cargo bench -p tollgate-benches --bench nodes [-- --quick]`
//!
//! The URL names a database on the coordinator that has the extension and the nodes, as a superuser. All nodes must run
//! on this machine, under Linux, because their processor time is read. The bench makes a database of its own on each
//! node, distributes the tables over 8 and then over 64 parts, and asks an ephemeral limit for 10 000 keys. A gate that
//! sends all calls to the coordinator and one that goes by node take turns. Over 8 parts transactions with a call each
//! enter by the coordinator, by any worker, and by the worker on which the row of the call lies. At the end callers
//! ask a private plain server, which is the baseline. `--quick`: shorter turns.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures spans on this machine's monotonic clock")]

mod support;

use std::collections::{HashMap, HashSet};
use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgPool};
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tollgate::migrate::{self, Buckets};
use tollgate::{Gate, Limit, Limiter, SECOND};
use tollgate_embedded::Server;

use support::{Fault, Latencies, call, cpu, fill, fill_by, gather, migrated};

/// Never exhausted.
const PLENTY: Limit = Limit::token_bucket("plenty", 1_000_000_000, SECOND).ephemeral();
const KEYS: u32 = 10_000;
const DATABASE: &str = "tollgate_bench_nodes";

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let Ok(url) = env::var("CITUS_URL") else {
        println!("CITUS_URL names no cluster (CITUS_URL=postgres://postgres@localhost:5432/postgres)");
        return Ok(());
    };
    let turn = if env::args().any(|arg| arg == "--quick") { SECOND / 2 } else { 5 * SECOND };
    println!("gate                parts callers  decisions/s    p50 ms    p99 ms   µs of all servers, and of each");
    for parts in [8, 64] {
        let cluster = Cluster::make(&url).await?;
        migrate::run(&mut cluster.entry.connect().await?).await?;
        migrate::distribute(&mut cluster.entry.connect().await?, parts, Buckets::Colocated).await?;
        let filled = pool(&cluster.entry).await?;
        fill_by(&Limiter::new().parts(parts), &filled, (0..KEYS).map(|key| PLENTY.key(key))).await?;
        filled.close().await;
        for callers in [16, 64, 256] {
            for (name, by_node) in [("through the entry", false), ("by node, by names", true), ("by node", true)] {
                let gate = Gate::builder(pool(&cluster.entry).await?).parts(parts);
                let gate = if by_node { gate.by_node() } else { gate };
                if name == "by node, by names" {
                    cluster.rename("hold_shard", "hidden").await?;
                }
                measure_gate(name, parts, callers, gate.build(), &cluster.servers, turn).await?;
                if name == "by node, by names" {
                    cluster.rename("hidden", "hold_shard").await?;
                }
            }
        }
        if parts == 8 {
            for (name, doors) in cluster.doors().await? {
                measure_transactions(name, Limiter::new().parts(parts), doors, &cluster.servers, turn).await?;
            }
        }
        cluster.drop().await?;
    }
    let server = tokio::task::spawn_blocking(|| Server::builder().setting("max_connections", "100").start()).await??;
    let one = migrated(server.url(), 1).await?;
    fill(&one, (0..KEYS).map(|key| PLENTY.key(key))).await?;
    let postmaster = [cpu::postmaster(&mut *one.acquire().await?).await?];
    for callers in [16, 64, 256] {
        let gate = Gate::new(pool(&server.url().parse()?).await?);
        measure_gate("a plain server", 0, callers, gate, &postmaster, turn).await?;
    }
    let door = Door { pool: pool(&server.url().parse()?).await?, keys: (0..KEYS).collect() };
    measure_transactions("joined, plain", Limiter::new(), vec![door], &postmaster, turn).await
}

/// A node by which transactions enter, and the keys that they ask there.
struct Door {
    pool: PgPool,
    keys: Arc<[u32]>,
}

/// A database on each node of a cluster.
struct Cluster {
    entry: PgConnectOptions,
    nodes: Vec<PgConnectOptions>,
    /// The process of each node's server, the coordinator's first.
    servers: Vec<i32>,
}

impl Cluster {
    async fn make(url: &str) -> Result<Self, Fault> {
        let options: PgConnectOptions = url.parse()?;
        let known = "select nodename, nodeport from pg_dist_node order by groupid";
        let known: Vec<(String, i32)> = sqlx::query_as(known).fetch_all(&mut options.connect().await?).await?;
        let mut nodes = Vec::new();
        for (host, port) in &known {
            nodes.push(options.clone().host(host).port(u16::try_from(*port)?));
        }
        let entry = nodes.first().ok_or("the cluster has no nodes (citus_set_coordinator_host)")?.clone();
        let cluster = Self { entry: entry.database(DATABASE), nodes, servers: Vec::new() };
        cluster.each("drop database if exists tollgate_bench_nodes with (force)").await?;
        cluster.each("create database tollgate_bench_nodes").await?;
        let mut servers = Vec::new();
        for ((host, port), node) in known.iter().zip(&cluster.nodes) {
            let mut node = node.clone().database(DATABASE).connect().await?;
            sqlx::raw_sql("create extension citus").execute(&mut node).await?;
            servers.push(cpu::postmaster(&mut node).await?);
            let join = if servers.len() == 1 { "citus_set_coordinator_host" } else { "citus_add_node" };
            let join = format!("select {join}('{host}', {port})");
            sqlx::raw_sql(AssertSqlSafe(join)).execute(&mut cluster.entry.connect().await?).await?;
        }
        Ok(Self { servers, ..cluster })
    }

    /// Three ways into the cluster.
    async fn doors(&self) -> Result<[(&'static str, Vec<Door>); 3], Fault> {
        let mut entry = self.entry.connect().await?;
        let rows = "select key::int4, part from tollgate.ephemeral";
        let rows: Vec<(i32, i16)> = sqlx::query_as(rows).fetch_all(&mut entry).await?;
        let parts: HashSet<_> = rows.iter().map(|(_, part)| *part).collect();
        let parts: Vec<_> = parts.into_iter().collect();
        let places: HashMap<i16, i32> =
            sqlx::query_as(PORTS).bind(parts).fetch_all(&mut entry).await?.into_iter().collect();
        let (mut any, mut own) = (Vec::new(), Vec::new());
        for worker in &self.nodes[1..] {
            let worker = worker.clone().database(DATABASE);
            let lies_here = |(_, part): &&(i32, i16)| places.get(part) == Some(&i32::from(worker.get_port()));
            let keys = rows.iter().filter(lies_here).map(|(key, _)| key.cast_unsigned()).collect();
            any.push(Door { pool: pool(&worker).await?, keys: (0..KEYS).collect() });
            own.push(Door { pool: pool(&worker).await?, keys });
        }
        let coordinator = Door { pool: pool(&self.entry).await?, keys: (0..KEYS).collect() };
        Ok([("joined, coordinator", vec![coordinator]), ("joined, any worker", any), ("joined, the row's worker", own)])
    }

    /// Renames a function of the schema on each node.
    async fn rename(&self, from: &str, to: &str) -> Result<(), Fault> {
        let rename = AssertSqlSafe(format!("alter function tollgate.{from} rename to {to}"));
        sqlx::raw_sql(rename).execute(&mut self.entry.connect().await?).await?;
        Ok(())
    }

    async fn drop(&self) -> Result<(), Fault> {
        self.each("drop database tollgate_bench_nodes with (force)").await
    }

    async fn each(&self, sql: &'static str) -> Result<(), Fault> {
        for node in &self.nodes {
            let mut node = node.connect().await?;
            let here = "set citus.enable_create_database_propagation = off";
            sqlx::raw_sql(here).execute(&mut node).await?;
            sqlx::raw_sql(sql).execute(&mut node).await?;
        }
        Ok(())
    }
}

async fn pool(options: &PgConnectOptions) -> Result<PgPool, Fault> {
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(16).test_before_acquire(false);
    Ok(pool.connect_with(options.clone()).await?)
}

/// Lets so many callers ask a gate, and prints a line.
async fn measure_gate(
    name: &str,
    parts: u16,
    callers: usize,
    gate: Gate,
    servers: &[i32],
    turn: Duration,
) -> Result<(), Fault> {
    let ask = |seed, from| {
        let (gates, random) = ([gate.clone()].into(), fastrand::Rng::with_seed(seed));
        call(gates, |random| PLENTY.key(random.u32(..KEYS)), random, from, from + turn)
    };
    measure(&format!("{name:<20} {parts:>4}"), callers, ask, servers, turn).await?;
    gate.close().await;
    Ok(())
}

/// Lets 16 callers make a transaction for each call, and prints a line.
async fn measure_transactions(
    name: &str,
    limiter: Limiter,
    doors: Vec<Door>,
    servers: &[i32],
    turn: Duration,
) -> Result<(), Fault> {
    let ask = |seed: u64, from| {
        let Door { pool, keys } = &doors[usize::try_from(seed).unwrap_or_default() % doors.len()];
        transact(pool.clone(), limiter.clone(), keys.clone(), fastrand::Rng::with_seed(seed), from, from + turn)
    };
    measure(&format!("{name:<25}"), 16, ask, servers, turn).await?;
    for door in doors {
        door.pool.close().await;
    }
    Ok(())
}

/// Makes one transaction after another, with a call in each.
async fn transact(
    pool: PgPool,
    limiter: Limiter,
    keys: Arc<[u32]>,
    mut random: fastrand::Rng,
    from: Instant,
    until: Instant,
) -> Result<Latencies, Fault> {
    let mut latencies = Latencies::default();
    loop {
        let begun = Instant::now();
        if begun >= until {
            return Ok(latencies);
        }
        let mut tx = pool.begin().await?;
        limiter.consume(&mut tx, PLENTY.key(keys[random.usize(..keys.len())])).await?.granted()?;
        tx.commit().await?;
        if begun >= from {
            latencies.record(begun.elapsed());
        }
    }
}

async fn measure<A: Future<Output = Result<Latencies, Fault>> + Send + 'static>(
    name: &str,
    callers: usize,
    ask: impl Fn(u64, Instant) -> A,
    servers: &[i32],
    turn: Duration,
) -> Result<(), Fault> {
    // Lanes open, and connections are made.
    let from = Instant::now() + turn.max(2 * SECOND);
    let asking: JoinSet<_> = (0..callers as u64).map(|seed| ask(seed, from)).collect();
    sleep_until(from.into()).await;
    let spent = || servers.iter().map(|server| Ok(cpu::read(*server)?.server)).collect::<Result<Vec<_>, Fault>>();
    let before = spent()?;
    sleep_until((from + turn).into()).await;
    let spent: Vec<_> = spent()?.iter().zip(before).map(|(after, before)| after - before).collect();
    let latencies = gather(asking).await?;
    let [p50, p99] = [0.5, 0.99].map(|share| latencies.quantile(share) / 1e3);
    let per_second = latencies.count() / turn.as_secs_f64();
    let micros = |seconds: f64| seconds * 1e6 / latencies.count();
    let each: Vec<_> = spent.iter().map(|seconds| format!("{:.1}", micros(*seconds))).collect();
    let (all, each) = (micros(spent.iter().sum()), each.join(" + "));
    println!("{name} {callers:>7} {per_second:>12.0} {p50:>9.2} {p99:>9.2}   {all:.1} = {each}");
    Ok(())
}

/// Where each part lies, of which some row is.
const PORTS: &str = "
    select p.part, n.nodeport
      from unnest($1::int2[]) p (part)
      join pg_dist_placement l on l.shardid = get_shard_id_for_distribution_column('tollgate.ephemeral', p.part)
      join pg_dist_node n on n.groupid = l.groupid and n.noderole = 'primary'";
