//! When do tokens that are taken ahead pay, and who pays for them?
//!
//! `cargo bench -p tollgate-benches --bench ahead [-- --quick]`
//!
//! Gates without slices, and with slices of 100 ms, a second and three seconds, take turns on one private server. The
//! 64 callers first ask 100 000 keys, the n-th in proportion to n^-1.1. Then they ask 10 000 keys through two and
//! through four gates, each with connections of its own, as processes have. Then they ask one key over a wire that
//! takes 150 ms there and back.
//!
//! Then calls arrive by themselves, so many a second for each key, and the bench prints the share that a gate with
//! slices of a second grants from memory. At the end two gates ask one limit that is short, one of them a hundred times
//! as often, and the bench prints the share of its calls that is granted to each. Everything runs in one process, which
//! shares its processors with the server: the ratios count. `--quick`: shorter turns.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures spans on this machine's monotonic clock")]

mod support;

use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep_until};
use tollgate::{Gate, Limit, SECOND, Source};
use tollgate_embedded::Server;

use support::{Draw, Fault, call, far, fill, gather, migrated, pool, pool_to, zipf};

/// Never exhausted.
const PLENTY: Limit = Limit::token_bucket("plenty", 1_000_000_000, SECOND).ephemeral();
const SHORT: Limit = Limit::token_bucket("short", 2_000, SECOND).ephemeral();
const KEYS: u32 = 100_000;
const CALLERS: usize = 64;
/// The ages of slices; none at all first.
const AGES: [Duration; 4] = [Duration::ZERO, Duration::from_millis(100), SECOND, Duration::from_secs(3)];
/// To another region and back.
const ROUND_TRIP: Duration = Duration::from_millis(150);

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let turn = if env::args().any(|arg| arg == "--quick") { SECOND / 2 } else { 5 * SECOND };
    let server = tokio::task::spawn_blocking(|| Server::builder().setting("max_connections", "100").start()).await??;
    let one = migrated(server.url(), 1).await?;
    fill(&one, (0..KEYS).map(|key| PLENTY.key(key))).await?;

    println!("scene                          slices   decisions/s       ×   p50 µs    p99 µs");
    let zipf: Draw = |random| PLENTY.key(zipf(random, KEYS));
    let uniform: Draw = |random| PLENTY.key(random.u32(..10_000));
    let hot: Draw = |_| PLENTY.key(0);
    for (name, gates, draw) in [("zipf, 100 000 keys", 1, zipf), ("two gates", 2, uniform), ("four gates", 4, uniform)]
    {
        let connect = async || pool(server.url(), 16).await;
        compare(name, gates, connect, draw, turn).await?;
    }
    let (far, _wire) = far(server.url(), ROUND_TRIP)?;
    compare("one key, 150 ms away", 1, async || pool_to(far.clone(), 16).await, hot, turn).await?;

    println!("\ncalls a second for each key    granted from memory");
    for calls in [1, 2, 3, 5, 10, 15] {
        let gate = Gate::builder(pool(server.url(), 16).await?).prefetch(SECOND).build();
        println!("{calls:<30} {:>19.3}", from_memory(gate, calls, turn).await?);
    }

    println!("\na limit that is short          slices   granted of the busy one   of the quiet one");
    for age in AGES {
        let gate = async || Ok::<_, Fault>(Gate::builder(pool(server.url(), 8).await?).prefetch(age).build());
        let (busy, quiet) = (gate().await?, gate().await?);
        let (busy, quiet) = tokio::join!(ask(busy, 100, turn), ask(quiet, 1, turn));
        println!("{:<30} {:<8} {:>23.3} {:>18.3}", "demand 100 to 1", told(age), busy?, quiet?);
    }
    Ok(())
}

fn told(age: Duration) -> String {
    if age.is_zero() { "none".to_owned() } else { humantime::format_duration(age).to_string() }
}

/// Measures gates with slices of each age, and prints a line for each.
async fn compare(
    name: &str,
    gates: usize,
    connect: impl AsyncFn() -> Result<sqlx::PgPool, Fault>,
    draw: Draw,
    turn: Duration,
) -> Result<(), Fault> {
    let mut without = None;
    for age in AGES {
        let mut all = Vec::new();
        for _ in 0..gates {
            all.push(Gate::builder(connect().await?).prefetch(age).build());
        }
        let all: Arc<[Gate]> = all.into();
        // Slices grow from one to the next.
        let from = Instant::now() + SECOND / 2 + 2 * age;
        let mut callers = JoinSet::new();
        for seed in 0..CALLERS as u64 {
            callers.spawn(call(all.clone(), draw, fastrand::Rng::with_seed(seed), from, from + turn));
        }
        let latencies = gather(callers).await?;
        for gate in &*all {
            gate.close().await;
        }
        let per_second = latencies.count() / turn.as_secs_f64();
        let times = per_second / *without.get_or_insert(per_second);
        let [p50, p99] = [0.5, 0.99].map(|share| latencies.quantile(share));
        println!("{name:<30} {:<8} {per_second:>11.0} {times:>7.2} {p50:>8.2} {p99:>9.1}", told(age));
    }
    Ok(())
}

/// The share that a gate grants from memory of calls that arrive at random, so many a second for each of 300 keys.
async fn from_memory(gate: Gate, calls: u32, turn: Duration) -> Result<f64, Fault> {
    const FEW: u32 = 300;
    let mut random = fastrand::Rng::with_seed(u64::from(calls));
    let (mut due, mut asking) = (Instant::now(), JoinSet::new());
    let (from, until) = (due + 3 * SECOND, due + 3 * SECOND + turn);
    while due < until {
        due += SECOND.mul_f64(-(1.0 - random.f64()).ln() / f64::from(calls * FEW));
        sleep_until(due.into()).await;
        let (gate, request, counts) = (gate.clone(), PLENTY.key(random.u32(..FEW)), due >= from);
        asking.spawn(async move {
            let grant = gate.consume(request).await?.granted()?;
            Ok::<_, Fault>((u32::from(counts), u32::from(counts && grant.source == Source::Prefetched)))
        });
    }
    let (mut all, mut prefetched) = (0, 0);
    while let Some(call) = asking.join_next().await {
        let (counted, from_memory) = call??;
        (all, prefetched) = (all + counted, prefetched + from_memory);
    }
    gate.close().await;
    Ok(f64::from(prefetched) / f64::from(all))
}

/// The granted share of the calls of a gate whose callers each ask a hundred times a second.
async fn ask(gate: Gate, callers: usize, turn: Duration) -> Result<f64, Fault> {
    let mut asking = JoinSet::new();
    let (from, until) = (Instant::now() + 3 * SECOND, Instant::now() + 3 * SECOND + turn);
    for _ in 0..callers {
        let gate = gate.clone();
        asking.spawn(async move {
            let (mut pace, mut granted, mut asked) = (interval(SECOND / 100), 0_u32, 0_u32);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while Instant::now() < until {
                pace.tick().await;
                let is_granted = gate.consume(SHORT.global()).await?.is_granted();
                if Instant::now() >= from {
                    (granted, asked) = (granted + u32::from(is_granted), asked + 1);
                }
            }
            Ok::<_, Fault>((granted, asked))
        });
    }
    let (mut granted, mut asked) = (0, 0);
    while let Some(caller) = asking.join_next().await {
        let (of_granted, of_asked) = caller??;
        (granted, asked) = (granted + of_granted, asked + of_asked);
    }
    gate.close().await;
    Ok(f64::from(granted) / f64::from(asked.max(1)))
}
