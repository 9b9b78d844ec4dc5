//! Tokens that come back while it rages: what is spent is never over the bound, dated at the charge of its slice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use sqlx::PgConnection;
use tollgate::{Decision, Gate, Limit, NewOverride, SECOND, Source};

use super::CLIENTS;

const RATE: i64 = 100;
const CAPACITY: i64 = 480;
const LIMIT: Limit = Limit::token_bucket("stormed", RATE.unsigned_abs(), SECOND).capacity(CAPACITY.unsigned_abs());
/// Another live definition, and what an operator sets.
const SMALLER: Limit = Limit::token_bucket("stormed", 50, SECOND).capacity(240);
pub(super) const MAX_AGE: Duration = Duration::from_millis(300);
/// Names of keys begin with one of these, which says how callers treat them.
const KINDS: [&str; 4] = ["durable", "ephemeral", "settled", "changed"];
const KEYS_OF_A_KIND: usize = 3;

/// Spends a key until it is refused, and goes on to another.
pub(super) async fn spend(gate: Gate, mut dice: Rng) {
    loop {
        let (kind, key) = any_key(&mut dice);
        let limit = match kind {
            "ephemeral" => LIMIT.ephemeral(),
            "changed" if dice.bool() => SMALLER,
            _ => LIMIT,
        };
        // A call that memory cannot pay whole gives back the tokens in memory, just before it is charged.
        while spend_once(&gate, limit.key(&*key).cost(if dice.u8(..10) == 0 { 40 } else { 2 }), kind, &key).await {
            tokio::task::yield_now().await;
        }
    }
}

fn any_key(dice: &mut Rng) -> (&'static str, String) {
    let kind = KINDS[dice.usize(..KINDS.len())];
    (kind, format!("{kind}{}", dice.usize(..KEYS_OF_A_KIND)))
}

/// Whether it was granted.
async fn spend_once(gate: &Gate, request: tollgate::Request, kind: &str, key: &str) -> bool {
    match gate.consume(request).await {
        // Nothing was charged, and nothing is promised.
        Ok(Decision::Granted(grant)) if grant.source == Source::Degraded => pause().await,
        Ok(Decision::Granted(grant)) => {
            let (at, is_hit) = (grant.decided_at.timestamp_micros(), grant.source == Source::Prefetched);
            let cost = grant.amount.micros() / 1_000_000;
            // With or without the settlement, at least this much is spent.
            let spent = if kind == "settled" { cost / 2 } else { cost };
            if spent < cost {
                let _ = gate.settle(grant, spent.unsigned_abs()).await;
            }
            println!("@spent {key} {at} {spent} {}", if is_hit { "m." } else { "d." });
        }
        Ok(Decision::Denied(_)) => {
            println!("@refused.");
            return false;
        }
        // It was granted or not, and is not counted.
        Err(_) => pause().await,
    }
    true
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
    /// At which instant of the row how much of a key was spent, in microseconds and tokens.
    by_key: BTreeMap<String, Vec<(i64, i64)>>,
    from_memory: u64,
    from_database: u64,
    refused: u64,
}

impl Spent {
    /// Whether the line is one of these, such as `spent durable0 1754913600123457 1 m.`, or `refused.`.
    pub(super) fn note(&self, line: &str) -> bool {
        let mut entries = self.0.lock().unwrap();
        if line == "refused." {
            entries.refused += 1;
            return true;
        }
        let Some(line) = line.strip_prefix("spent ") else { return false };
        // The last line of a client that is killed may be cut.
        let [key, at, tokens, source @ ("m." | "d.")] = line.split(' ').collect::<Vec<_>>()[..] else { return true };
        *if source == "m." { &mut entries.from_memory } else { &mut entries.from_database } += 1;
        let spent = (at.parse().unwrap(), tokens.parse().unwrap());
        match entries.by_key.get_mut(key) {
            Some(of_key) => of_key.push(spent),
            None => drop(entries.by_key.insert(key.to_owned(), vec![spent])),
        }
        true
    }

    /// How many calls were granted from memory, granted by the database, and refused.
    pub(super) fn counts(&self) -> [u64; 3] {
        let entries = self.0.lock().unwrap();
        [entries.from_memory, entries.from_database, entries.refused]
    }

    /// The share of its bound that was used of the worst key of each kind, in thousandths. A crash at one of these
    /// instants took the ephemeral rows with it, so their buckets were full.
    pub(super) fn judge(&self, crashes: &[i64]) -> BTreeMap<&'static str, i128> {
        let mut shares = BTreeMap::new();
        for (key, spent) in &mut self.0.lock().unwrap().by_key {
            let kind = KINDS.into_iter().find(|kind| key.starts_with(kind)).unwrap();
            spent.sort_unstable();
            let is_of_one_life = |a: &(i64, i64), b: &(i64, i64)| {
                kind != "ephemeral" || !crashes.iter().any(|crash| (a.0..b.0).contains(crash))
            };
            let most = spent.chunk_by(is_of_one_life).map(most_at_once).max().unwrap();
            // A settlement or another definition that memory does not see lets each process keep a slice, once.
            let is_exact = matches!(kind, "durable" | "ephemeral");
            let kept = if is_exact { 0 } else { i128::from(CAPACITY) / 16 * CLIENTS as i128 };
            let bound = (i128::from(CAPACITY) + kept) * 1_000_000;
            assert!(most <= bound, "{key}: {most} micro-tokens at once, the bound is {bound}");
            let share = shares.entry(kind).or_insert(0);
            *share = (most * 1_000 / bound).max(*share);
        }
        shares
    }
}

/// The micro-tokens that the worst span took beyond those that came back in it.
fn most_at_once(spent: &[(i64, i64)]) -> i128 {
    let (mut worst, mut most, mut last) = (0, 0_i128, spent[0].0);
    for (at, tokens) in spent {
        // The worst of all spans that end here: a span that begins earlier has more time.
        most = (most - i128::from(at - last) * i128::from(RATE)).max(0) + i128::from(tokens * 1_000_000);
        (worst, last) = (worst.max(most), *at);
    }
    worst
}
