//! Tokens that come back while it rages: what is spent is never over the bound, dated at the charge of its slice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::{PgConnection, PgPool};
use tollgate::{Decision, Gate, Limit, NewOverride, SECOND, Source};

use super::CLIENTS;
use crate::judge::{Spent as Granted, most_at_once};

/// Functions know it, too.
pub(super) const LIMIT: Limit = Limit::token_bucket("stormed", 100, SECOND).capacity(480);
/// Another live definition, and what an operator sets.
const SMALLER: Limit = Limit::token_bucket("stormed", 50, SECOND).capacity(240);
/// Most of its calls are granted from memory: so many that each is not worth a statement.
const HOT: Limit = Limit::token_bucket("hot", 1_600, SECOND).capacity(8_000);
pub(super) const MAX_AGE: Duration = Duration::from_millis(300);
/// Names of keys are one of these and a digit. They say how callers treat them.
const KINDS: [&str; 6] = ["durable", "ephemeral", "settled", "changed", "hot-durable", "hot-ephemeral"];
const KEYS_OF_A_KIND: usize = 3;
/// After so many calls a caller goes on to another key, where the machine is too slow to spend all.
const MANY: u32 = 20_000;

/// Spends a key until it is refused, and goes on to another.
pub(super) async fn spend(gate: Gate, pool: PgPool, mut dice: Rng) {
    loop {
        let kind = KINDS[dice.usize(..KINDS.len())];
        let limit = match kind {
            "hot-ephemeral" => HOT.ephemeral(),
            "hot-durable" => HOT,
            "ephemeral" => LIMIT.ephemeral(),
            "changed" if dice.bool() => SMALLER,
            _ => LIMIT,
        };
        let mut purse = Purse::of(kind, format!("{kind}{}", dice.usize(..KEYS_OF_A_KIND)));
        for _ in 0..MANY {
            if !purse.spend_once(&gate, &pool, &limit, &mut dice).await {
                break;
            }
            tokio::task::yield_now().await;
        }
        purse.tell();
    }
}

/// The tokens of a key that a caller has spent at one instant of its row: of one slice, or by one statement.
struct Purse {
    kind: &'static str,
    key: String,
    at: i64,
    tokens: u64,
    from_memory: u32,
    from_database: u32,
    refused: u32,
}

impl Purse {
    fn of(kind: &'static str, key: String) -> Self {
        Self { kind, key, at: 0, tokens: 0, from_memory: 0, from_database: 0, refused: 0 }
    }

    /// Whether it was granted.
    async fn spend_once(&mut self, gate: &Gate, pool: &PgPool, limit: &Limit, dice: &mut Rng) -> bool {
        // A call that memory cannot pay whole gives back the tokens in memory, just before it is charged.
        let cost = match self.kind {
            "hot-durable" | "hot-ephemeral" if dice.u16(..10_000) == 0 => 800,
            "hot-durable" | "hot-ephemeral" => 1,
            _ if dice.u8(..10) == 0 => 40,
            _ => 2,
        };
        if self.kind == "durable" && dice.u8(..8) == 0 {
            return self.call_function(pool, cost).await;
        }
        match gate.consume(limit.clone().key(&*self.key).cost(cost)).await {
            // Nothing was charged, and nothing is promised.
            Ok(Decision::Granted(grant)) if grant.source == Source::Degraded => pause().await,
            Ok(Decision::Granted(grant)) => {
                // With or without the settlement, at least this much is spent.
                let spent = if self.kind == "settled" { cost / 2 } else { cost };
                self.note(grant.decided_at, spent, grant.source == Source::Prefetched);
                if spent < cost {
                    let _ = gate.settle(grant, spent).await;
                }
            }
            Ok(Decision::Denied(_)) => return self.refused().await,
            // It was granted or not, and is not counted.
            Err(_) => pause().await,
        }
        true
    }

    /// The same by the function.
    async fn call_function(&mut self, pool: &PgPool, cost: u64) -> bool {
        let sql = "select granted, decided_at from tollgate.consume('stormed', $1, $2::int8)";
        let asked = sqlx::query_as::<_, (bool, DateTime<Utc>)>(sql).bind(&self.key).bind(cost.cast_signed());
        match asked.fetch_one(pool).await {
            Ok((true, at)) => self.note(at, cost, false),
            Ok(_) => return self.refused().await,
            Err(_) => pause().await,
        }
        true
    }

    async fn refused(&mut self) -> bool {
        self.refused += 1;
        // Others are granted meanwhile.
        pause().await;
        false
    }

    fn note(&mut self, at: DateTime<Utc>, spent: u64, is_from_memory: bool) {
        let at = at.timestamp_micros();
        if at != self.at {
            self.tell();
            self.at = at;
        }
        self.tokens += spent;
        *if is_from_memory { &mut self.from_memory } else { &mut self.from_database } += 1;
    }

    /// Prints it, for [`Spent::note`]. A client that is killed before has spent more than it told, which is no less
    /// within the bound.
    fn tell(&mut self) {
        let Self { key, at, tokens, from_memory, from_database, refused, .. } = self;
        println!("@spent {key} {at} {tokens} {from_memory} {from_database} {refused}.");
        (*tokens, *from_memory, *from_database, *refused) = (0, 0, 0, 0);
    }
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(3)).await;
}

/// An operator lowers the numbers of a key for a while.
pub(super) async fn lower(conn: &mut PgConnection, dice: &mut Rng) {
    let key = format!("changed{}", dice.usize(..KEYS_OF_A_KIND));
    NewOverride::numbers(&SMALLER).key(key).lasting(2 * SECOND).reason("a storm").set(conn).await.unwrap();
}

/// The amounts that clients say they spent.
#[derive(Clone, Default)]
pub(super) struct Spent(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    /// How many tokens of a key were spent at an instant of its row, in microseconds.
    by_key: BTreeMap<String, BTreeMap<i64, i64>>,
    counts: [u64; 3],
}

impl Spent {
    /// Whether the line is one of these, such as `spent durable0 1754913600123457 7 3 1 0.`.
    pub(super) fn note(&self, line: &str) -> bool {
        let Some(line) = line.strip_prefix("spent ") else { return false };
        // The last line of a client that is killed may be cut.
        let Some(line) = line.strip_suffix('.') else { return true };
        let (key, numbers) = line.split_once(' ').unwrap();
        let numbers: Vec<i64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let [at, tokens, ref calls @ ..] = numbers[..] else { panic!("{line}") };
        let mut entries = self.0.lock().unwrap();
        entries.counts.iter_mut().zip(calls).for_each(|(count, calls)| *count += calls.unsigned_abs());
        if tokens > 0 {
            *entries.by_key.entry(key.to_owned()).or_default().entry(at).or_default() += tokens;
        }
        true
    }

    /// How many calls were granted from memory, granted by the database, and refused.
    pub(super) fn counts(&self) -> [u64; 3] {
        self.0.lock().unwrap().counts
    }

    /// The share of its bound that was used of the worst key of each kind, in thousandths. A crash at one of these
    /// instants took the ephemeral rows with it, so their buckets were full.
    pub(super) fn judge(&self, crashes: &[i64]) -> BTreeMap<&'static str, i128> {
        let mut shares = BTreeMap::new();
        for (key, spent) in &self.0.lock().unwrap().by_key {
            let kind = KINDS.into_iter().find(|kind| key.trim_end_matches(|c: char| c.is_ascii_digit()) == *kind);
            let kind = kind.unwrap();
            let spec = if kind.starts_with("hot") { HOT.spec() } else { LIMIT.spec() };
            let spent: Vec<Granted> = spent.iter().map(|(at, tokens)| (*at, tokens * 1_000_000)).collect();
            let is_of_one_life = |a: &Granted, b: &Granted| {
                !kind.ends_with("ephemeral") || !crashes.iter().any(|crash| (a.0..b.0).contains(crash))
            };
            // A rate in micro-tokens per microsecond.
            let came_back = |instant: i64| spec.rate.micros() / 1_000_000 * instant;
            let lives = spent.chunk_by(is_of_one_life);
            let most = lives.map(|life| most_at_once(life, came_back)).max().unwrap();
            // A settlement or another definition that memory does not see lets each process keep a slice, once.
            let kept = if matches!(kind, "settled" | "changed") { CLIENTS as i128 } else { 0 };
            let capacity = i128::from(spec.capacity.unwrap().micros());
            let bound = capacity + capacity / 16 * kept;
            assert!(most <= bound, "{key}: {most} micro-tokens at once, the bound is {bound}");
            let share = shares.entry(kind).or_insert(0);
            *share = (most * 1_000 / bound).max(*share);
        }
        shares
    }
}
